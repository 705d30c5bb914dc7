//! A dense allocator for compressed objects: size classes, chained pages, handles, compaction.
//!
//! ```
//! let pool = zsmalloc::Pool::new(&zsmalloc::Config::default())?;
//! let mut handles = [zsmalloc::Handle::DANGLING; 2];
//! pool.malloc_bulk(&[5, 700], 0, &mut handles)?;
//! pool.write(handles[0], b"hello");
//! pool.compact();
//! assert_eq!(pool.read(handles[0]).bytes(), b"hello");
//! pool.free_bulk(&handles);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An object is named by a [`Handle`], four bytes that stay valid while the object moves. Its entry
//! in the handle table holds its place, its length and its pins. Objects live in zspages, chains of
//! pages in 64 KiB frames of address space: zspages of a class have equal slots, mixed zspages hold
//! any sizes back to back. `docs/internals/zsmalloc.md` draws the layout and gives the
//! measurements.
//!
//! Locks are taken in this order: compaction, shard (free handles, open mixed zspages, counts),
//! class list, supply of free frames. The pins in an object's entry are a lock too: readers,
//! writers and frees wait for them before they take any other lock, and a thread that holds a shard
//! only tries. Compaction copies objects with a shard locked, a batch at a time; other threads use
//! another shard then.
//!
//! The crate runs on the page fault path inside programs that are being paged: no thread-local
//! storage, no libc allocation for an object, no panic except for broken invariants of the caller.
//! All memory for objects and handles comes from [`sys::arena`].

mod alloc;
mod blocks;
mod class;
mod compact;
mod entry;
#[cfg(test)]
mod entry_tests;
mod faults;
mod frame;
mod handles;
mod live;
mod lock;
mod mixed;
mod pool;
mod read;
mod segment;
mod shard;
mod stats;
mod supply;
mod sync;
mod table;
mod tidy;
mod uniform;

pub use class::{Geometry, OBJECT_BYTES_MAX};
pub use compact::compacting_bytes;
pub use handles::Handle;
pub use pool::{AllocError, Config, Pool};
pub use read::ReadGuard;
pub use segment::{Segment, SEGMENT_BYTES_MAX};
pub use stats::{ClassStats, Stats};
pub use tidy::TIDYING_BYTES;
