//! A file that the processes of a tree share: one opens it and distributes descriptors of the file
//! and of its table.
//!
//! ```text
//!   table   word 0   1          2      3..   4096
//!          +-------+----------+------+-----+------------------+
//!          | magic | segments | rows | -   | Space            |
//!          +-------+----------+------+-----+------------------+
//! ```
//!
//! Every process that has the table can write to it, so no process trusts it: it holds neither
//! keys, which each process makes itself, nor settings.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use sys::files::Caching;

use crate::disk::Disk;
use crate::engine::Engine;
use crate::place::{SEGMENTS_MAX, SEGMENT_BYTES};
use crate::{segments_of, Config, OpenError, Seal, Space, SwapFile};

/// The table's name, as /proc shows it.
pub const TABLE_NAME: &CStr = c"uzswap-swap";

const MAGIC: u64 = u64::from_le_bytes(*b"uzshare\x02");
const HEADER_BYTES: usize = 4096;
const HEADER_WORDS: usize = 3;
const ROWS_MAX: usize = 1 << 15;
/// Free segments that keep their blocks when processes have ended.
const SEGMENTS_KEPT: u64 = 24;

/// A file for many processes.
pub struct Shared {
    disk: Arc<Disk>,
    space: Arc<Space>,
    seal: Seal,
    keep_free_percent: u8,
}

impl Shared {
    /// Opens an unnamed file, and creates the table for up to `rows` processes at a time. Also
    /// returns the table's file.
    pub fn create(config: &Config, rows: usize) -> Result<(Shared, OwnedFd), OpenError> {
        let segments = segments_of(config.size_bytes)?;
        let caching = if config.direct { Caching::Direct } else { Caching::Cached };
        let disk = Disk::open(&config.directory, caching)?;
        let len = table_bytes(segments, rows);
        let table = sys::shared::create(TABLE_NAME, len).map_err(OpenError::Table)?;
        let at = sys::shared::map(table.as_fd(), len).map_err(OpenError::Table)?;
        for (word, value) in words(at).iter().zip([MAGIC, segments as u64, rows as u64]) {
            word.store(value, Ordering::Relaxed);
        }
        Ok((Shared::of(disk, space(at, segments, rows), config), table))
    }

    /// Joins from another process by the two descriptors, with the encryption and free room of
    /// `config`. The table stays mapped for ever.
    ///
    /// # Errors
    /// EPROTO if the table has another version; ENOMEM if it cannot be mapped.
    pub fn join(file: File, table: BorrowedFd<'_>, config: &Config) -> io::Result<Shared> {
        let no_table = || io::Error::from_raw_os_error(71);
        let len = sys::shared::len_of(table)?;
        if len < HEADER_BYTES {
            return Err(no_table());
        }
        let at = sys::shared::map(table, len)?;
        let [magic, segments, rows] =
            std::array::from_fn(|word| words(at)[word].load(Ordering::Relaxed) as usize);
        let is_whole = magic as u64 == MAGIC
            && (1..=SEGMENTS_MAX).contains(&segments)
            && (1..=ROWS_MAX).contains(&rows)
            && table_bytes(segments, rows) == len;
        if !is_whole {
            return Err(no_table());
        }
        let is_direct = sys::files::is_direct(&file)?;
        Ok(Shared::of(Disk::of(file, is_direct), space(at, segments, rows), config))
    }

    fn of(disk: Disk, space: Space, config: &Config) -> Shared {
        Shared {
            disk: Arc::new(disk),
            space: Arc::new(space),
            seal: if config.plain { Seal::Plain } else { Seal::Encrypted },
            keep_free_percent: config.keep_free_percent,
        }
    }

    /// The open file.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// The file for a process that is `owner` in the table, with `engine` for transfers.
    ///
    /// # Errors
    /// [`OpenError::NoRow`].
    pub fn open(&self, engine: Arc<dyn Engine>, owner: u32) -> Result<Arc<SwapFile>, OpenError> {
        SwapFile::with(engine, self.seal, self.space.clone(), owner, self.keep_free_percent)
    }

    /// Frees the segments that only an ended process held, and gives blocks back to the disk.
    pub fn reap(&self, owner: u32) {
        if self.space.owners().any(|other| other == owner) && self.space.reap(owner) > 0 {
            let release = |number: usize| {
                let start = (number * SEGMENT_BYTES) as u64;
                sys::files::punch(&self.disk.file, start, SEGMENT_BYTES as u64).is_ok()
            };
            self.space.trim(SEGMENTS_KEPT, release);
        }
    }

    /// Bytes of all segments in use by any process.
    pub fn used_bytes(&self) -> u64 {
        self.space.in_use() * SEGMENT_BYTES as u64
    }

    /// Most bytes of the file.
    pub fn size_bytes(&self) -> u64 {
        (self.space.segments() * SEGMENT_BYTES) as u64
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.disk.file.as_fd()
    }
}

fn table_bytes(segments: usize, rows: usize) -> usize {
    HEADER_BYTES + Space::words(segments, rows) * size_of::<AtomicU64>()
}

fn words(at: NonNull<u8>) -> &'static [AtomicU64] {
    // SAFETY: the header of a table, which is mapped for ever and plain atomics.
    unsafe { std::slice::from_raw_parts(at.as_ptr().cast(), HEADER_WORDS) }
}

fn space(at: NonNull<u8>, segments: usize, rows: usize) -> Space {
    // SAFETY: behind the header, mapped for ever, of this length, and used only by tables like
    // this.
    unsafe { Space::shared(at.add(HEADER_BYTES).cast(), Space::words(segments, rows), segments, rows) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Age, MemoryEngine, Record};

    fn config() -> Config {
        Config { directory: std::env::temp_dir(), size_bytes: 64 << 20, ..Config::default() }
    }

    #[test]
    fn two_openings_share_segments() {
        let (shared, table) = match Shared::create(&config(), 4) {
            Ok(shared) => shared,
            Err(OpenError::InMemory { directory, .. }) => {
                return testkit::skip!("disk", "{} is in memory", directory.display());
            }
            Err(error) => panic!("{error}"),
        };
        let file = File::from(shared.as_fd().try_clone_to_owned().unwrap());
        let other = Shared::join(file, table.as_fd(), &config()).unwrap();
        assert_eq!(other.size_bytes(), 64 << 20);
        // Both use one memory, as processes use one disk.
        let engine: Arc<dyn Engine> =
            Arc::new(MemoryEngine::new(crate::Room { available: 1 << 30, total: 1 << 30 }));
        let (one, two) = (shared.open(engine.clone(), 1).unwrap(), other.open(engine, 2).unwrap());
        let mut places = Vec::new();
        for (file, byte) in [(&one, 1u8), (&two, 2)] {
            let mut writer = file.writer().unwrap();
            let mut pack = writer.pack(Age::New).unwrap();
            let record = Record { group: 0, key: 7, len: 3000, pages: 1, codec: 0, mark: 0 };
            let first = pack.add(&[record]).unwrap();
            pack.object_mut(first).fill(byte);
            writer.submit(Age::New, pack);
            let finished = writer.poll(true).unwrap();
            assert!(finished.result.is_ok());
            places.push(finished.objects().next().unwrap().1);
            writer.recycle(finished);
        }
        assert_ne!(places[0].segment(), places[1].segment());
        assert_eq!(shared.used_bytes(), 2 << 20);
        for (file, place, byte) in [(&one, places[0], 1u8), (&two, places[1], 2)] {
            assert!(file.read(&[place]).unwrap().get(0).iter().all(|other| *other == byte));
        }
        std::mem::forget(two);
        shared.reap(2);
        assert_eq!(shared.used_bytes(), 1 << 20, "the dead let go");
        one.free(places[0]);
    }

    #[test]
    fn other_files_are_no_tables() {
        let file = || File::open("/dev/null").unwrap();
        for len in [100, 4096, 8192] {
            let memory = sys::shared::create(c"other", len).unwrap();
            assert!(Shared::join(file(), memory.as_fd(), &config()).is_err(), "{len}");
        }
    }
}
