//! Compressed objects on disk: a log of segments in a file without a name.
//!
//! The holder of pages keeps, for each, a [`Place`] of eight bytes, and knows by it where its
//! object lies and how long it is. Objects are handed over in [`Pack`]s to the [`Writer`], as they
//! are, and written many at once; [`SwapFile::read`] brings up to 64 of them back together;
//! [`SwapFile::free`] says that one is not needed any more. When much of what is in use is dead,
//! [`Writer::clean`] moves what lives on.
//!
//! - What is read is what was written, or an error that says where: objects are encrypted and
//!   authenticated ([`Seal::Encrypted`]), or at least have a checksum.
//! - Written is what the disk said it wrote. A write that fails is tried elsewhere; then it is an
//!   error, and the objects are where they were.
//! - The file takes no more than it may, leaves the disk some room, and gives back what is free.
//! - Processes of a tree may share a file, each with a writer of its own ([`Space`]).
//!
//! Nothing is thread-local, nothing process-wide; threads are started by a function of the
//! caller's, memory is the global allocator's. The format is drawn in docs/formats/swap-file.md,
//! and in the modules that write it.

mod buffer;
mod clean;
mod config;
mod counters;
mod disk;
mod engine;
mod faults;
mod memory;
mod pack;
mod place;
mod read;
mod seal;
mod secret;
mod segments;
mod shared;
mod space;
mod swapfile;
mod sync;
mod threads;
mod writer;

pub use buffer::Buffer;
pub use clean::{CleanReport, Owner};
pub use config::{Config, OpenError, ReadError, ReadFault, WriteError};
pub use counters::{Counters, LATENCY_BUCKETS};
pub use disk::Disk;
pub use engine::{Done, Engine, Kind, Lane, Room, Transfer};
pub use faults::{Fault, Faults, FaultyEngine, Rates};
pub use memory::MemoryEngine;
pub use pack::{Pack, Record, PACK_BYTES_MAX, TOGETHER_MAX};
pub use place::{Place, BLOCK_BYTES, GRAIN_BYTES, OBJECT_BYTES_MAX, SEGMENTS_MAX, SEGMENT_BYTES};
pub use read::{Objects, READ_MAX};
pub use seal::Seal;
pub use shared::{Shared, TABLE_NAME};
pub use space::Space;
pub use swapfile::{engine_on, open_engine, segments_of, ForkedRow, SwapFile};
pub use sys::files::Caching;
pub use threads::{Spawn, Threads};
pub use writer::{Age, Finished, Ticket, Writer};
