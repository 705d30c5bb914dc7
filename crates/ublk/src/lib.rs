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
//! The protocol is spoken here and not by the crate `libublk`: that one needs libclang wherever it
//! is built, and brings an asynchronous runtime, tasks of which are allocated; a server that is
//! swapped on allocates nothing while it serves.
//!
//! # What happens to the content
//!
//! It is the server's memory, and ends with it. So no recovery is asked of the kernel
//! (`UBLK_F_USER_RECOVERY`): a second server would answer zeroes where the first had data, to file
//! systems and swap that still believe in it. When the server dies, what it was working on fails
//! (EIO), so does all that comes later, and the disk goes away.

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
