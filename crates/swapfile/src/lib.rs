//! Compressed objects on disk: a log of segments in an unnamed file.
//!
//! The holder of pages keeps a [`Location`] of eight bytes for each object: its position, and its
//! length.
//! It submits objects in [`Pack`]s to the [`Writer`], which writes many at once. [`SwapFile::read`]
//! reads up to 64 together, and [`SwapFile::free`] releases one. When enough of the file is dead,
//! [`Writer::clean`] moves the live objects.
//!
//! - A read returns the written bytes, or an error with the offset: objects are encrypted and
//!   authenticated ([`Seal::Encrypted`]), or at least have a checksum.
//! - A write succeeds when the disk reports success. A failed write is retried elsewhere; if that
//!   fails too, it is an error, and the objects stay in their old places.
//! - The file stays within its size limit, leaves the disk some room, and gives free blocks back.
//! - Processes of a tree may share a file, each with its own writer ([`Space`]).
//!
//! The crate keeps no thread-local or global state. A function of the caller's starts the threads;
//! memory comes from the global allocator. docs/formats/swap-file.md and the modules that write the
//! format draw it.

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
pub use engine::{Done, Engine, Kind, Lane, Room, Transfer, LANE_DEPTH};
pub use faults::{Fault, Faults, FaultyEngine, Rates};
pub use memory::MemoryEngine;
pub use pack::{Pack, Record, PACK_BYTES_MAX, TOGETHER_MAX};
pub use place::{Location, BLOCK_BYTES, GRAIN_BYTES, OBJECT_BYTES_MAX, SEGMENTS_MAX, SEGMENT_BYTES};
pub use read::{Objects, READ_MAX};
pub use seal::Seal;
pub use shared::{Shared, TABLE_NAME};
pub use space::Space;
pub use swapfile::{engine_on, open_engine, segments_of, ForkedRow, SwapFile};
pub use sys::files::Caching;
pub use threads::{Spawn, Threads};
pub use writer::{Age, Finished, Writer};
