//! A compressed block device served to the kernel by ublk: a disk `/dev/ublkbN` without nbdkit, a
//! socket or FUSE.
//!
//! ```no_run
//! use device::{Config, Device};
//! use ublk::{Server, Settings};
//!
//! let config = Config { size_bytes: 8 << 30, ram_bytes: Some(2 << 30), ..Config::default() };
//! let server = Server::start(Device::new(config)?, &Settings::default())?;
//! println!("{}", server.block_device().display());
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!  /dev/ublk-control   one ring of 128-byte entries: add, set, start, stop, delete    control.rs, abi.rs
//!  /dev/ublkcN         a thread and a ring a queue; descriptors in shared memory      queue.rs
//!    what a ring hands over at once   -> reads first, neighbours as one request       batch.rs, request.rs
//!    bytes of a request               -> copied by the kernel into the thread's room  transfer.rs
//!  /dev/ublkbN         the disk
//! ```
//!
//! This crate implements the protocol itself: the crate `libublk` needs libclang wherever it is
//! built, and brings an asynchronous runtime whose tasks are allocated. A server that is swapped on
//! allocates nothing while it serves.
//!
//! # Lifetime of the content
//!
//! The content is the server's memory, and ends with it. Recovery (`UBLK_F_USER_RECOVERY`) is
//! therefore not requested: a second server would return zeroes for the first one's data, to file
//! systems and swap that still rely on it. If the server dies, requests in flight and all later
//! ones fail (EIO), and the disk goes away.

mod abi;
mod batch;
mod control;
mod error;
mod kernel;
mod mapping;
mod queue;
mod request;
mod server;
mod transfer;

pub use batch::Batch;
pub use control::remove_dead;
pub use error::Error;
pub use kernel::{is_here, look};
pub use request::{Operation, Request};
pub use server::{Server, Settings};
pub use transfer::Transfer;
