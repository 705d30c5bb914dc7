//! Pages that relatives have in common after a fork: their objects are in segments, memory files
//! that all of them map.
//!
//! ```text
//!   +---------------------------+-----+--------------------------------+--------------------+
//!   | objects, back to back     | pad | key, start, length of each     | magic, their count |
//!   +---------------------------+-----+--------------------------------+--------------------+
//! ```
//!
//! One process packs a segment from objects of its own and seals it. Each, it included, maps it and
//! replaces its object of such a page by the segment's, if the bytes are the same. So a false
//! segment changes no page. Entries ascend by key; a lookup among others finds nothing.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use sys::shared;

use crate::config::Group;
use crate::group::{leaf_part, GroupCell};
use crate::leaf::Entry;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{lock, Mutex};
use crate::zswap::handle_of;
use crate::Zswap;

/// Keys that wait for a segment; further ones are forgotten.
const KEYS_MAX: usize = 4096;
/// Keys of a segment: with fewer, its file costs too much ...
const KEYS_MIN: usize = 256;
/// ... unless they have waited for this number of turns.
const TURNS_MAX: u8 = 4;
const KEYS_MIN_LATE: usize = 32;
/// Turns after which a segment without objects of this store is unmapped.
const IDLE_TURNS: u8 = 100;

/// Most segments: up to 4 GiB of objects. A hostile relative may show any number.
const HELD_MAX: usize = 4096;

/// The name of segments' files.
pub const SEGMENT_NAME: &CStr = c"uzswap-segment";

const ENTRY_BYTES: usize = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"uzsegm\x01\x00");

/// An object of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    key: u64,
    at: u32,
    len: u32,
}

impl Named {
    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.at.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8]) -> Self {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let key = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        Named { key, at: half(8), len: half(12) }
    }
}

/// The entries of a segment's bytes; none if they are not a segment's.
fn entries(bytes: &[u8]) -> &[u8] {
    let Some((rest, end)) = bytes.split_last_chunk::<ENTRY_BYTES>() else { return &[] };
    let (magic, count) = (&end[..8], u64::from_le_bytes(end[8..].try_into().expect("eight bytes")));
    let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY_BYTES));
    match len {
        Some(len) if magic == MAGIC.to_le_bytes() && len <= rest.len() => &rest[rest.len() - len..],
        _ => &[],
    }
}

/// A mapped segment, and the pool that its objects are of.
struct Held {
    segment: zsmalloc::Segment,
    pool: usize,
    /// Turns in a row without an object.
    idle: u8,
}

/// The pages in common.
#[derive(Default)]
pub(crate) struct Common {
    /// Keys of pages that left while relatives had them, too.
    waiting: Mutex<Waiting>,
    held: Mutex<Vec<Held>>,
    /// Their number, readable without the lock.
    count: AtomicUsize,
    /// Pages noted and not yet counted.
    noted: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    keys: Vec<u64>,
    turns: u8,
}

impl Zswap {
    /// Notes that a page that relatives have, too, is about to be stored.
    pub fn note_common(&self, key: u64) {
        self.common.noted.fetch_add(1, Ordering::Relaxed);
        let mut waiting = lock(&self.common.waiting);
        if waiting.keys.len() < KEYS_MAX {
            waiting.keys.push(key);
        }
    }

    /// Pages noted since the last call.
    pub fn take_common_count(&self) -> u64 {
        self.common.noted.swap(0, Ordering::Relaxed)
    }

    /// Packs a segment of the noted pages that are stored, if there are enough of them. Call it in
    /// turns.
    pub fn pack_common(&self, group: Group) -> Option<Vec<u8>> {
        let mut waiting = lock(&self.common.waiting);
        let count = waiting.keys.len();
        waiting.turns += 1;
        let is_late = waiting.turns >= TURNS_MAX;
        if count < KEYS_MIN && !(is_late && count >= KEYS_MIN_LATE) {
            if is_late {
                waiting.turns = 0;
            }
            return None;
        }
        let mut keys = std::mem::take(&mut waiting.keys);
        waiting.turns = 0;
        drop(waiting);
        keys.sort_unstable();
        keys.dedup();
        let cell = self.group(group)?;
        let pool = self.pools.current(1);
        let mut packing = Packing::default();
        keys.retain(|key| {
            let packed = self.with_single(cell, *key, |entry| {
                let (handle, objects) = (handle_of(entry), &self.pools.of_objects(entry.pool()).objects);
                let is_own = entry.pool() == pool.id && !entry.is_raw() && !objects.is_shared(handle);
                !is_own || packing.add(*key, objects.read(handle).bytes())
            });
            packed == Some(false)
        });
        lock(&self.common.waiting).keys.extend(keys);
        packing.finish()
    }

    /// Maps a sealed segment, and uses its objects in place of equal ones. Returns the keys of its
    /// other pages.
    ///
    /// # Errors
    /// Those of fstat(2) and mmap(2); InvalidInput if it is too long, or one too many.
    pub fn map_segment(&self, group: Group, file: BorrowedFd<'_>) -> io::Result<Vec<u64>> {
        let (len, rank) = (shared::len_of(file)?, shared::number_of(file)?);
        if self.common.count.load(Ordering::Relaxed) >= HELD_MAX
            || !(1..=zsmalloc::SEGMENT_BYTES_MAX).contains(&len)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut pool = self.pools.current(1);
        let segment = pool.pool().objects.map_segment(file, len, rank as u32)?;
        let held = Held { segment, pool: pool.id, idle: 0 };
        // The segment holds its pool.
        pool.hand_over(1);
        let mut others = Vec::new();
        if let Some(cell) = self.group(group) {
            let entries = entries(self.bytes_of(&held)).chunks_exact(ENTRY_BYTES).map(Named::of);
            others.extend(entries.filter(|named| !self.share(cell, &held, *named)).map(|named| named.key));
        }
        let mut all = lock(&self.common.held);
        all.push(held);
        self.common.count.store(all.len(), Ordering::Relaxed);
        Ok(others)
    }

    fn bytes_of<'a>(&'a self, held: &'a Held) -> &'a [u8] {
        self.pools.of_objects(held.pool).objects.segment(&held.segment)
    }

    /// Uses a segment's object in place of a page's own, if it is the same.
    fn share(&self, cell: &GroupCell, held: &Held, named: Named) -> bool {
        let shared = self.with_single(cell, named.key, |entry| {
            entry.pool() == held.pool
                && entry.len() == named.len as usize
                && self.pools.of_objects(held.pool).objects.share(
                    handle_of(entry),
                    &held.segment,
                    named.at as usize,
                )
        });
        shared == Some(true)
    }

    /// Uses objects of segments for pages that were just stored.
    #[inline]
    pub(crate) fn share_stored(&self, cell: &GroupCell, keys: impl Iterator<Item = u64>) {
        if self.common.count.load(Ordering::Relaxed) > 0 {
            self.share_all(cell, keys);
        }
    }

    #[cold]
    fn share_all(&self, cell: &GroupCell, keys: impl Iterator<Item = u64>) {
        let all = lock(&self.common.held);
        for key in keys {
            // Young segments are the likelier ones.
            for held in all.iter().rev() {
                let entries = entries(self.bytes_of(held));
                if find(entries, key).is_some_and(|named| self.share(cell, held, named)) {
                    break;
                }
            }
        }
    }

    /// Takes a turn: unmaps segments of which nothing was used for a while. Without relatives,
    /// moves some objects out of segments first.
    pub fn tidy_segments(&self, has_relatives: bool) {
        if self.common.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        if !has_relatives {
            self.pools.each().for_each(|refs| refs.pool().objects.leave_segments());
        }
        let mut all = lock(&self.common.held);
        let mut index = 0;
        while index < all.len() {
            let Held { segment, pool, idle } = &mut all[index];
            let objects = &self.pools.of_objects(*pool).objects;
            *idle = if objects.live_bytes(segment) == 0 { *idle + 1 } else { 0 };
            if *idle < IDLE_TURNS {
                index += 1;
                continue;
            }
            let Held { segment, pool, .. } = all.swap_remove(index);
            match self.pools.of_objects(pool).objects.unmap_segment(segment) {
                Ok(()) => self.pools.put(pool, 1),
                Err(segment) => all.push(Held { segment, pool, idle: 0 }),
            }
        }
        self.common.count.store(all.len(), Ordering::Relaxed);
    }

    /// Calls `each` with rank and bytes of every segment.
    pub fn for_each_segment(&self, mut each: impl FnMut(u32, u64)) {
        if self.common.count.load(Ordering::Relaxed) > 0 {
            for held in lock(&self.common.held).iter() {
                let (rank, bytes) = held.segment.rank_and_bytes();
                each(rank, bytes as u64);
            }
        }
    }

    /// Bytes of segments, which the processes that map them have once for all.
    pub fn segment_bytes(&self) -> u64 {
        self.pools.each().map(|refs| refs.pool().objects.segment_bytes() as u64).sum()
    }

    /// Pages whose objects are in segments.
    pub fn shared_pages(&self) -> u64 {
        self.pools.each().map(|refs| refs.pool().objects.shared_objects() as u64).sum()
    }

    /// Calls `on` with the entry of a page that is stored alone and in memory, while it stays.
    fn with_single<T>(&self, cell: &GroupCell, key: u64, on: impl FnOnce(Entry) -> T) -> Option<T> {
        let mut state = cell.lock();
        let (key_high, part) = leaf_part(key, 1);
        let name = state.tree.find(&self.slabs, key_high)?;
        let leaf = state.tree.leaf(&self.slabs, name);
        let is_idle = leaf.objects() & !leaf.busy & !leaf.writing() & part != 0;
        let entry = is_idle.then(|| leaf.entry(part.trailing_zeros() as usize))?;
        (entry.pages() == 1).then(|| on(entry))
    }
}

/// A segment in the making.
#[derive(Default)]
struct Packing {
    objects: Vec<u8>,
    named: Vec<u8>,
}

impl Packing {
    /// Adds an object, if there is room.
    fn add(&mut self, key: u64, object: &[u8]) -> bool {
        let len = self.objects.len() + self.named.len() + object.len();
        if len + 3 * ENTRY_BYTES > zsmalloc::SEGMENT_BYTES_MAX {
            return false;
        }
        self.named.extend(Named { key, at: self.objects.len() as u32, len: object.len() as u32 }.to_bytes());
        self.objects.extend_from_slice(object);
        true
    }

    /// The segment's bytes, if it is worth its file.
    fn finish(mut self) -> Option<Vec<u8>> {
        let count = self.named.len() / ENTRY_BYTES;
        self.objects.resize(self.objects.len().next_multiple_of(ENTRY_BYTES), 0);
        self.objects.append(&mut self.named);
        self.objects.extend(MAGIC.to_le_bytes());
        self.objects.extend((count as u64).to_le_bytes());
        (count >= KEYS_MIN_LATE).then_some(self.objects)
    }
}

/// The entry of a key among ascending ones.
fn find(entries: &[u8], key: u64) -> Option<Named> {
    let entry = |index: usize| Named::of(&entries[index * ENTRY_BYTES..][..ENTRY_BYTES]);
    let (mut low, mut high) = (0, entries.len() / ENTRY_BYTES);
    if high == 0 || key < entry(0).key || key > entry(high - 1).key {
        return None;
    }
    while low < high {
        let middle = low.midpoint(high);
        match entry(middle).key.cmp(&key) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Equal => return Some(entry(middle)),
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}
