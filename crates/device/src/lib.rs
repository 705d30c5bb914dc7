//! A compressed block device: bytes by offset in, the same bytes out, over one of uzswap's pools.
//!
//! ```
//! use device::{Config, Device};
//!
//! let device = Device::new(Config { size_bytes: 1 << 30, ram_bytes: Some(64 << 20), ..Config::default() })?;
//! device.write(5000, b"any offset, any length")?;
//! let mut back = [0; 22];
//! device.read(5000, &mut back)?;
//! assert_eq!(&back, b"any offset, any length");
//! device.discard(0, device.size_bytes())?;
//! device.read(5000, &mut back)?;
//! assert_eq!(back, [0; 22]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Blocks have 4 KiB. A request is cut where the pool's leaves end, every 16 blocks; each piece is
//! one call of the pool, which compresses in batches. Blocks that were never written, or were
//! discarded, read as zeroes and take no memory. Any threads may make requests concurrently. Each
//! piece is atomic, writes of parts of a block included; a request is not.
//!
//! # Guarantees on failure
//!
//! - If `ram_bytes` leaves no room and the swap file ([`Config::swap`]) is absent or full, a write
//!   returns [`IoError::NoSpace`], and the earlier content stays.
//! - If memory fails in the middle of a write, its blocks may be lost: reading them is an error
//!   until they are written or discarded. They are never zeroes.
//! - Blocks that the swap file cannot return are an error at every read, until they are written or
//!   discarded.
//!
//! Nothing outlives the process: a flush promises nothing.
//!
//! # Being swapped on
//!
//! A process that others swap on must not wait for memory itself. [`Config::is_locked`] allocates
//! and locks all memory at the start; [`sys::flusher`] prepares the process and its threads.

mod admission;
mod block_locks;
mod config;
mod counters;
mod device;
mod error;
mod memory;
mod pages;
mod signal;
mod split;
mod swap_disk;
mod swap_writer;

pub use config::{Config, SIZE_BYTES_MAX};
pub use counters::{Latencies, Statistics, SwapStatistics};
pub use device::{Device, Extent};
pub use error::{Error, IoError};
pub use split::BLOCK_BYTES;
pub use swap_disk::SwapDisk;
