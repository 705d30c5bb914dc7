//! Handles, and the table that maps them to objects.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use sys::PAGE_SIZE;

use crate::entry::Entry;
use crate::lock::Lock;
use crate::table::{Table, Zero};

/// Names an object in a pool; stays valid, and the same, while compaction moves the object.
///
/// Four bytes, never zero. Using a freed handle, or one of another pool, is a broken invariant of
/// the caller: it panics or reaches some other live object, but never memory outside objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(NonZeroU32);

impl Handle {
    /// Names no object: fills arrays before [`malloc_bulk`](crate::Pool::malloc_bulk).
    pub const DANGLING: Handle = Handle(NonZeroU32::MAX);

    /// The handle as a number, never 0.
    pub fn to_raw(self) -> NonZeroU32 {
        self.0
    }

    /// The handle of a number from [`to_raw`](Self::to_raw).
    pub fn from_raw(raw: NonZeroU32) -> Self {
        Handle(raw)
    }

    pub(crate) fn from_index(index: u32) -> Self {
        Handle(NonZeroU32::new(index).expect("entry 0 is never used"))
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0.get()
    }
}

// SAFETY: an entry of zeroes is a free handle.
unsafe impl Zero for Entry {}

/// Entries per page of the table; a shard takes a page at once.
const PAGE_ENTRIES: u32 = (PAGE_SIZE / size_of::<Entry>()) as u32;
/// Pages whose entries a handle can name.
const PAGES_MAX: u32 = (1 << 30) / PAGE_ENTRIES;

/// The table: 8 bytes per handle, in pages that are kept as long as the pool.
pub(crate) struct HandleTable {
    entries: Table<Entry, 9>,
    pages: AtomicU32,
    /// Locked under a shard's lock; no lock is taken under it.
    depot: Lock<Depot>,
}

impl HandleTable {
    pub(crate) fn new() -> Self {
        HandleTable { entries: Table::new(), pages: AtomicU32::new(0), depot: Lock::default() }
    }

    /// Returns the entry of a handle. Panics if the handle was never given out.
    #[inline]
    pub(crate) fn get(&self, handle: Handle) -> &Entry {
        self.entries.get(handle.index()).expect("a handle of this pool")
    }

    /// One more than the highest index that may be in use.
    pub(crate) fn end(&self) -> u32 {
        self.pages.load(Ordering::Acquire) * PAGE_ENTRIES
    }

    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index)
    }

    fn take_page(&self) -> Option<std::ops::Range<u32>> {
        let mut page = self.pages.load(Ordering::Acquire);
        loop {
            if page == PAGES_MAX {
                return None;
            }
            self.entries.reach(page * PAGE_ENTRIES).ok()?;
            match self.pages.compare_exchange(page, page + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => page = now,
            }
        }
        let first = page * PAGE_ENTRIES;
        // Entry 0 is left out: handles are never zero.
        Some(first.max(1)..first + PAGE_ENTRIES)
    }

    fn give_freed(&self, magazine: Magazine) {
        if magazine.count == 0 {
            return;
        }
        let mut depot = self.depot.lock();
        self.get(Handle::from_index(magazine.tail)).set_next(depot.head);
        depot.head = magazine.head;
        depot.count += magazine.count;
    }

    fn take_freed(&self) -> Magazine {
        let mut depot = self.depot.lock();
        let count = depot.count.min(MAGAZINE);
        if count == 0 {
            return Magazine::default();
        }
        let (head, mut tail) = (depot.head, depot.head);
        for _ in 1..count {
            tail = self.get(Handle::from_index(tail)).next();
        }
        depot.head = self.get(Handle::from_index(tail)).next();
        depot.count -= count;
        Magazine { head, tail, count }
    }

    /// Makes room for `count` handles, or fails with ENOMEM.
    pub(crate) fn reserve(&self, count: u32) -> std::io::Result<()> {
        self.entries.reach_all(count.min(PAGES_MAX * PAGE_ENTRIES - 1))
    }

    pub(crate) fn bytes(&self) -> usize {
        Table::<Entry, 9>::bytes_for(self.end())
    }
}

/// Length of each of a shard's two lists of free handles. Where one thread allocates and another
/// frees, the rest moves through the pool's depot to the shards that need it.
const MAGAZINE: u32 = 128;

/// Surplus free handles of all shards, in a list through their entries.
#[derive(Default)]
struct Depot {
    head: u32,
    count: u32,
}

/// A list of free handles through their entries.
#[derive(Default)]
struct Magazine {
    /// First and last; 0 if empty.
    head: u32,
    tail: u32,
    count: u32,
}

impl Magazine {
    #[inline]
    fn pop(&mut self, table: &HandleTable) -> Option<Handle> {
        if self.count == 0 {
            return None;
        }
        let handle = Handle::from_index(self.head);
        self.head = table.get(handle).next();
        self.count -= 1;
        Some(handle)
    }

    #[inline]
    fn push(&mut self, handle: Handle, table: &HandleTable) {
        if self.count == 0 {
            self.tail = handle.index();
        }
        table.get(handle).set_next(if self.count == 0 { 0 } else { self.head });
        self.head = handle.index();
        self.count += 1;
    }
}

#[derive(Default)]
pub(crate) struct FreeHandles {
    /// Most recently freed handles, reused first.
    freed: Magazine,
    /// Full or empty, so that a thread that frees and allocates around a full magazine need not use
    /// the depot each time.
    spare: Magazine,
    fresh: std::ops::Range<u32>,
}

impl FreeHandles {
    /// Takes a handle of this shard, of the depot, or a new one. `None` if memory is exhausted.
    #[inline]
    pub(crate) fn pop(&mut self, table: &HandleTable) -> Option<Handle> {
        if let Some(handle) = self.freed.pop(table) {
            return Some(handle);
        }
        self.pop_other(table)
    }

    #[cold]
    fn pop_other(&mut self, table: &HandleTable) -> Option<Handle> {
        if self.spare.count == 0 {
            self.spare = table.take_freed();
        }
        std::mem::swap(&mut self.freed, &mut self.spare);
        if let Some(handle) = self.freed.pop(table) {
            return Some(handle);
        }
        if self.fresh.is_empty() {
            self.fresh = table.take_page()?;
        }
        self.fresh.next().map(Handle::from_index)
    }

    #[inline]
    pub(crate) fn push(&mut self, handle: Handle, table: &HandleTable) {
        if self.freed.count >= MAGAZINE {
            let full = std::mem::replace(&mut self.spare, std::mem::take(&mut self.freed));
            table.give_freed(full);
        }
        self.freed.push(handle, table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contention between two threads used to decide how far the table grew.
    #[test]
    fn handles_freed_in_one_shard_are_given_out_in_another() {
        let table = HandleTable::new();
        let (mut here, mut there) = (FreeHandles::default(), FreeHandles::default());
        for _ in 0..1000 {
            let handles: Vec<Handle> = (0..150).map(|_| here.pop(&table).unwrap()).collect();
            let mut distinct = handles.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), handles.len());
            handles.into_iter().for_each(|handle| there.push(handle, &table));
        }
        // Two magazines there, and the handles in use.
        assert_eq!(table.end(), PAGE_ENTRIES);
        // No handle is lost.
        let left = std::iter::from_fn(|| here.pop(&table).filter(|_| table.end() == PAGE_ENTRIES)).count();
        let kept = there.freed.count + there.spare.count;
        assert_eq!(left as u32 + kept, PAGE_ENTRIES - 1);
    }

    #[test]
    fn a_thread_around_a_full_magazine_keeps_to_itself() {
        let table = HandleTable::new();
        let mut shard = FreeHandles::default();
        let mut held: Vec<Handle> = (0..MAGAZINE).map(|_| shard.pop(&table).unwrap()).collect();
        held.drain(..).for_each(|handle| shard.push(handle, &table));
        for _ in 0..100 {
            held.extend((0..8).map(|_| shard.pop(&table).unwrap()));
            held.drain(..).for_each(|handle| shard.push(handle, &table));
            held.extend((0..20).map(|_| shard.pop(&table).unwrap()));
            held.drain(..).for_each(|handle| shard.push(handle, &table));
        }
        assert_eq!(table.depot.lock().count, 0);
    }
}
