//! Handles, and the table that finds their objects.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use sys::PAGE_SIZE;

use crate::entry::Entry;
use crate::table::{Table, Zero};

/// Names an object in a pool; stays valid, and the same, while compaction moves the object.
///
/// Four bytes, never zero. A handle that was freed, or belongs to another pool, is a broken invariant of the caller:
/// using it panics or reaches some other live object, but never memory that is not an object's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(NonZeroU32);

impl Handle {
    /// Names no object in any pool: to fill arrays before [`malloc_bulk`](crate::Pool::malloc_bulk).
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

/// Entries of a page of the table, handed to a shard at once.
const PAGE_ENTRIES: u32 = (PAGE_SIZE / size_of::<Entry>()) as u32;
/// Pages whose entries a handle can name.
const PAGES_MAX: u32 = (1 << 30) / PAGE_ENTRIES;

/// The table: 8 bytes a handle, in pages that are never given back before the pool goes.
pub(crate) struct HandleTable {
    entries: Table<Entry, 9>,
    pages: AtomicU32,
}

impl HandleTable {
    pub(crate) fn new() -> Self {
        HandleTable { entries: Table::new(), pages: AtomicU32::new(0) }
    }

    /// The entry of a handle.
    ///
    /// # Panics
    /// When the handle was never given out.
    #[inline]
    pub(crate) fn get(&self, handle: Handle) -> &Entry {
        self.entries.get(handle.index()).expect("a handle of this pool")
    }

    /// Entries that may be in use: indices below.
    pub(crate) fn end(&self) -> u32 {
        self.pages.load(Ordering::Acquire) * PAGE_ENTRIES
    }

    /// The entry at `index`, below [`end`](Self::end).
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index)
    }

    /// Takes a page of fresh entries.
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
        // Entry 0 is left out: no handle is zero.
        Some(first.max(1)..first + PAGE_ENTRIES)
    }

    /// Makes room for `count` handles.
    ///
    /// # Errors
    /// ENOMEM when there is none.
    pub(crate) fn reserve(&self, count: u32) -> std::io::Result<()> {
        self.entries.reach_all(count.min(PAGES_MAX * PAGE_ENTRIES - 1))
    }

    /// Bytes of the table's pages.
    pub(crate) fn bytes(&self) -> usize {
        Table::<Entry, 9>::bytes_for(self.end())
    }
}

/// Free handles of one shard.
#[derive(Default)]
pub(crate) struct FreeHandles {
    /// First of the list through the entries; 0 ends it.
    head: u32,
    /// Handles on the list.
    count: u32,
    /// Entries never used.
    fresh: std::ops::Range<u32>,
}

/// A shard with at least so many free handles may be robbed of them.
const STEAL_MIN: u32 = 64;

impl FreeHandles {
    /// Free handles at hand.
    pub(crate) fn len(&self) -> u32 {
        self.count + self.fresh.len() as u32
    }

    /// Takes a handle at hand.
    #[inline]
    pub(crate) fn pop(&mut self, table: &HandleTable) -> Option<Handle> {
        if self.head == 0 {
            return self.fresh.next().map(Handle::from_index);
        }
        let handle = Handle::from_index(self.head);
        self.head = table.get(handle).next();
        self.count -= 1;
        Some(handle)
    }

    /// Takes back a handle whose entry is free.
    #[inline]
    pub(crate) fn push(&mut self, handle: Handle, table: &HandleTable) {
        table.get(handle).set_next(self.head);
        self.head = handle.index();
        self.count += 1;
    }

    /// Takes all listed handles of `other`, if they are many: threads that free more than they allocate feed those
    /// that do the opposite, so the table does not grow. This list must be empty.
    pub(crate) fn steal(&mut self, other: &mut FreeHandles) {
        debug_assert_eq!(self.head, 0);
        if other.count >= STEAL_MIN {
            std::mem::swap(&mut self.head, &mut other.head);
            std::mem::swap(&mut self.count, &mut other.count);
        }
    }

    /// Takes a page of entries never used. The old ones must be used up.
    pub(crate) fn refill(&mut self, table: &HandleTable) -> bool {
        debug_assert!(self.fresh.is_empty());
        match table.take_page() {
            Some(fresh) => {
                self.fresh = fresh;
                true
            }
            None => false,
        }
    }
}
