//! Staging: slots of 16 pages that program pages are moved into on the way out and out of on the
//! way in.
//!
//! There are many more slots than pages that may be in them at once: slots are address space, pages
//! are memory, and the limit is on pages. A block that had one page evicted occupies a slot, yet
//! one page.
//!
//! Slots recycle physical pages. A slot whose pages have been compressed keeps them as *ready*
//! pages: the next fault decompresses into them and moves them into the program, so in steady state
//! the kernel neither allocates, nor zeroes, nor frees a page.
//!
//! ```text
//! empty --evict--> staged (queue, oldest first) --compress--> ready --fault-in--> empty
//!                     \--refault moves pages straight back--/
//! ```

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Mutex;

use sys::{arena, memory};

use super::discard_window::DiscardWindow;
use super::extents::{Extents, EXTENT_PAGES, EXTENT_SLOTS};
use crate::units::{bytes_of, page_at, runs, span, ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES};

struct Slot {
    /// Address of the block whose pages are staged here.
    owner: AtomicUsize,
    /// Pages that physically exist in the slot.
    present: AtomicU32,
}

#[derive(Default)]
pub(crate) struct Lists {
    empty: Vec<u32>,
    /// Ready slots with at least [`FULL`] pages.
    full: Vec<u32>,
    /// Ready slots with fewer.
    partial: Vec<u32>,
    queue: VecDeque<u32>,
    pub(crate) extents: Extents,
}

/// A place in staging memory, which has room for pages and no objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame(usize);

impl Frame {
    /// Its address.
    pub fn address(self) -> usize {
        self.0
    }
}

/// All slots of a pager. A slot outside the lists belongs to the thread that took it; a queued
/// slot's pages belong to its owner's block and are touched under that block's lock only.
pub struct Staging {
    base: usize,
    slots: Box<[Slot]>,
    pub(crate) lists: Mutex<Lists>,
    /// Slots from here on are those of extents.
    pub(crate) first_extent_slot: u32,
    /// Pages that it was made for, and the part of them that may be used now.
    capacity: usize,
    pages_max: AtomicUsize,
    /// Pages in all slots.
    pages: AtomicUsize,
    /// Pages in ready slots.
    pub(crate) ready: AtomicUsize,
    queued: AtomicUsize,
    /// Through which frames are given back.
    pub(super) discard_window: DiscardWindow,
}

/// Pages from which a ready slot is kept for runs rather than for single pages.
pub(crate) const FULL: u32 = 8;

impl Staging {
    /// Makes empty slots for up to `pages_max` pages, wherever they come from.
    ///
    /// # Errors
    /// When the arena is full.
    pub fn new(pages_max: usize, discard_window: DiscardWindow) -> io::Result<Self> {
        // Twice the extents that can be full: those whose pages come back one by one stay occupied
        // for a while.
        let (singles, extents) = (pages_max, 2 * pages_max / EXTENT_PAGES);
        let count = singles + extents * EXTENT_SLOTS;
        let base = arena::take(count * BLOCK_BYTES, BLOCK_BYTES)?.as_ptr() as usize;
        let slot = |_| Slot { owner: AtomicUsize::new(0), present: AtomicU32::new(0) };
        let slots = (0..count).map(slot).collect();
        // Full capacity now: nothing here allocates later.
        let mut lists = Lists {
            empty: Vec::with_capacity(count),
            full: Vec::with_capacity(count),
            partial: Vec::with_capacity(count),
            queue: VecDeque::with_capacity(count + 1),
            extents: Extents::new(extents),
        };
        lists.empty.extend((0..singles as u32).rev());
        let [pages, ready, queued] = [const { AtomicUsize::new(0) }; 3];
        let (lists, first_extent_slot) = (Mutex::new(lists), singles as u32);
        Ok(Staging {
            base,
            slots,
            lists,
            first_extent_slot,
            capacity: pages_max,
            pages_max: AtomicUsize::new(pages_max),
            pages,
            ready,
            queued,
            discard_window,
        })
    }

    /// Gives the slots the protection of memory that may be executed, whose pages cannot move here
    /// otherwise.
    ///
    /// # Errors
    /// EACCES where the system forbids memory that is both writable and executable.
    pub fn allow_execution(&self) -> io::Result<()> {
        let base = NonNull::new(self.base as *mut u8).expect("in the arena");
        // SAFETY: the slots are this structure's.
        unsafe { memory::allow_execution(base, self.slots.len() * BLOCK_BYTES) }
    }

    /// The range of all slots.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.base..self.base + self.slots.len() * BLOCK_BYTES
    }

    /// Pages that may be here at once.
    pub fn pages_max(&self) -> usize {
        self.pages_max.load(Ordering::Relaxed)
    }

    /// Has at most `pages` be here from now on, as far as it was made for so many, and four blocks
    /// at least. What is here beyond that goes as it would anyway.
    pub fn limit(&self, pages: usize) {
        let least = self.capacity.min(4 * BLOCK_PAGES);
        self.pages_max.store(pages.clamp(least, self.capacity), Ordering::Relaxed);
    }

    /// Pages that are here now.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Address of page `index` of `slot`.
    pub fn address(&self, slot: u32, index: usize) -> usize {
        page_at(self.base + slot as usize * BLOCK_BYTES, index)
    }

    /// Place of page `index` of `slot`.
    pub fn frame(&self, slot: u32, index: usize) -> Frame {
        assert!((slot as usize) < self.slots.len() && index < BLOCK_PAGES, "page {index} of slot {slot}");
        Frame(self.address(slot, index))
    }

    /// Reusable pages in listed slots.
    pub fn ready_pages(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    /// Slots that wait for compression.
    pub fn queued_slots(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Address of the block that owns `slot`.
    pub fn owner(&self, slot: u32) -> usize {
        self.slots[slot as usize].owner.load(Ordering::Relaxed)
    }

    /// Pages physically present in `slot`.
    pub fn present(&self, slot: u32) -> u32 {
        self.slots[slot as usize].present.load(Ordering::Relaxed)
    }

    /// Notes that pages arrived in `slot`.
    pub fn arrived(&self, slot: u32, mask: u32) {
        let before = self.slots[slot as usize].present.fetch_or(mask, Ordering::Relaxed);
        assert_eq!(before & mask, 0, "a page arrived where one was");
        self.pages.fetch_add(mask.count_ones() as usize, Ordering::Relaxed);
    }

    /// Notes that pages left `slot`.
    pub fn left(&self, slot: u32, mask: u32) {
        let before = self.slots[slot as usize].present.fetch_and(!mask, Ordering::Relaxed);
        assert_eq!(before & mask, mask, "a page left that was not there");
        self.pages.fetch_sub(mask.count_ones() as usize, Ordering::Relaxed);
    }

    /// A slot without pages.
    pub fn take_empty(&self) -> Option<u32> {
        self.lists.lock().expect("no panic while held").empty.pop()
    }

    /// A slot with some pages ready for use: a full one for a run of `wanted` pages, else one with
    /// partial, if possible.
    pub fn take_ready(&self, wanted: usize) -> Option<u32> {
        if self.ready_pages() == 0 {
            return None;
        }
        let mut lists = self.lists.lock().expect("no panic while held");
        if lists.full.is_empty() && lists.partial.is_empty() {
            let Lists { full, extents, .. } = &mut *lists;
            self.split_ready_extent(extents, full);
        }
        let slot = if wanted > 2 {
            lists.full.pop().or_else(|| lists.partial.pop())
        } else {
            lists.partial.pop().or_else(|| lists.full.pop())
        }?;
        self.ready.fetch_sub(self.present(slot).count_ones() as usize, Ordering::Relaxed);
        Some(slot)
    }

    /// Gives back a slot that holds nothing of value.
    pub fn give(&self, slot: u32) {
        let mut lists = self.lists.lock().expect("no panic while held");
        if slot >= self.first_extent_slot {
            let Lists { full, partial, extents, .. } = &mut *lists;
            let ready = self.give_to_extent(slot, extents, full, partial);
            self.ready.fetch_add(ready, Ordering::Relaxed);
            return;
        }
        match self.present(slot).count_ones() {
            0 => lists.empty.push(slot),
            count => {
                if count >= FULL {
                    lists.full.push(slot);
                } else {
                    lists.partial.push(slot);
                }
                self.ready.fetch_add(count as usize, Ordering::Relaxed);
            }
        }
    }

    /// Queues `slot` for compression on behalf of the block at `owner`.
    pub fn queue(&self, slot: u32, owner: usize) {
        self.slots[slot as usize].owner.store(owner, Ordering::Relaxed);
        self.lists.lock().expect("no panic while held").queue.push_back(slot);
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Names `slot`'s owner before its first page is moved in.
    pub fn set_owner(&self, slot: u32, owner: usize) {
        self.slots[slot as usize].owner.store(owner, Ordering::Relaxed);
    }

    /// The slot that has waited longest.
    pub fn oldest(&self) -> Option<u32> {
        self.oldest_of(BLOCK_PAGES)
    }

    /// The slot that has waited longest, if its pages are at most `pages_max`.
    pub fn oldest_of(&self, pages_max: usize) -> Option<u32> {
        if self.queued_slots() == 0 {
            return None;
        }
        let mut lists = self.lists.lock().expect("no panic while held");
        let fits = |slot: u32| self.present(slot).count_ones() as usize <= pages_max;
        let slot = *lists.queue.front().filter(|slot| fits(**slot))?;
        lists.queue.pop_front();
        drop(lists);
        self.queued.fetch_sub(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Discards the pages at some places of a slot, present according to the books or not.
    ///
    /// # Safety
    /// The caller has the slot, or the lock of the block whose slot it is, which is not being
    /// compressed; and their content is not needed.
    pub unsafe fn discard_stray(&self, slot: u32, first: usize, count: usize) {
        // SAFETY: staging memory, by the caller's promise that its bytes are not needed.
        unsafe { self.give_back(self.address(slot, first), bytes_of(count)) };
    }

    /// Gives frames back to the system.
    ///
    /// # Safety
    /// `[at, at + len)` is staging memory of at most an extent, whose bytes are not needed.
    pub(super) unsafe fn give_back(&self, at: usize, len: usize) {
        // SAFETY: the caller's word.
        unsafe { self.discard_window.discard(at, len) };
    }

    /// Gives the physical pages of a slot back to the system, with one call; returns how many.
    ///
    /// # Safety
    /// The caller has taken the slot, and its content is not needed.
    pub unsafe fn discard(&self, slot: u32) -> usize {
        let present = self.present(slot);
        if present != 0 {
            let first = present.trailing_zeros();
            let count = (present.ilog2() - first + 1) as usize;
            // SAFETY: a part of the slot, by the caller's promise.
            unsafe { self.discard_stray(slot, first as usize, count) };
            self.left(slot, present);
        }
        present.count_ones() as usize
    }

    /// Gives the pages of a ready slot back to the system that lies in no ready extent; returns how
    /// many.
    pub fn discard_scattered(&self) -> Option<usize> {
        let mut lists = self.lists.lock().expect("no panic while held");
        let slot = lists.full.pop().or_else(|| lists.partial.pop())?;
        drop(lists);
        self.ready.fetch_sub(self.present(slot).count_ones() as usize, Ordering::Relaxed);
        // SAFETY: a ready slot, just taken off its list.
        let pages = unsafe { self.discard(slot) };
        self.give(slot);
        Some(pages)
    }

    /// Gives some of the pages that are present in a slot back to the system.
    ///
    /// # Safety
    /// As for [`Staging::discard_stray`].
    pub unsafe fn discard_pages(&self, slot: u32, mask: u32) {
        for (first, count) in runs(mask) {
            // SAFETY: a part of the slot, by the caller's promise.
            unsafe { self.discard_stray(slot, first, count) };
        }
        self.left(slot, mask);
    }
}

/// Pages in the hands of one worker, to fill and move into the program: from ready slots, else from
/// empty ones, whose pages the kernel makes on first touch.
pub struct FrameCache {
    slot: Option<u32>,
}

/// Some pages of a frame cache.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    /// Their slot.
    pub slot: u32,
    /// First page in the slot.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl FrameCache {
    /// An empty frame cache.
    pub const fn new() -> Self {
        FrameCache { slot: None }
    }

    /// Up to `wanted` adjacent pages; `None` when every slot is in use. They stay in the frame
    /// cache until [`FrameCache::spend`].
    pub fn pages(&mut self, staging: &Staging, wanted: usize) -> Option<Pages> {
        if let Some(slot) = self.slot {
            let present = staging.present(slot);
            if let Some((first, count)) = runs(present).max_by_key(|(_, count)| *count) {
                return Some(Pages { slot, first, count: count.min(wanted) });
            }
            staging.give(slot);
            self.slot = None;
        }
        if let Some(slot) = staging.take_ready(wanted) {
            self.slot = Some(slot);
            return self.pages(staging, wanted);
        }
        let slot = staging.take_empty()?;
        self.slot = Some(slot);
        // Only the pages asked for come into being, so that the frame cache holds no surplus.
        let count = wanted.min(ALL_PAGES.count_ones() as usize);
        staging.arrived(slot, span(0, count));
        Some(Pages { slot, first: 0, count })
    }

    /// Notes that the first `count` of `pages` were moved away.
    pub fn spend(&mut self, staging: &Staging, pages: Pages, count: usize) {
        assert_eq!(self.slot, Some(pages.slot));
        staging.left(pages.slot, span(pages.first, count));
    }

    /// Its slot.
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// Gives the slot back to the lists.
    pub fn empty_out(&mut self, staging: &Staging) {
        if let Some(slot) = self.slot.take() {
            staging.give(slot);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round() {
        let Some(staging) = crate::trial::staging(2) else { return };
        let a = staging.take_empty().unwrap();
        staging.arrived(a, 0x00f0);
        staging.queue(a, 0x10000);
        assert_eq!((staging.queued_slots(), staging.oldest(), staging.oldest()), (1, Some(a), None));
        assert_eq!(staging.owner(a), 0x10000);
        staging.give(a);
        assert_eq!((staging.ready_pages(), staging.pages()), (4, 4));
        let mut cache = FrameCache::new();
        let pages = cache.pages(&staging, 3).unwrap();
        assert_eq!((pages.slot, pages.first, pages.count), (a, 4, 3));
        cache.spend(&staging, pages, 3);
        let pages = cache.pages(&staging, 3).unwrap();
        assert_eq!((pages.first, pages.count), (7, 1));
        cache.spend(&staging, pages, 1);
        assert_eq!((staging.ready_pages(), staging.pages()), (0, 0));
        let pages = cache.pages(&staging, 16).unwrap();
        assert_eq!(pages.count, 16);
        cache.empty_out(&staging);
        let (b, c) = (staging.take_ready(1), staging.take_empty());
        assert!(b.is_some() && c.is_some() && b != c && staging.take_empty().is_none());
    }

    #[test]
    fn runs_come_from_full_slots_and_single_pages_from_partial() {
        let Some(staging) = crate::trial::staging(4) else { return };
        let (full, partial) = (staging.take_empty().unwrap(), staging.take_empty().unwrap());
        staging.arrived(full, 0xffff);
        staging.arrived(partial, 0x0101);
        staging.give(full);
        staging.give(partial);
        assert_eq!(staging.take_ready(1), Some(partial));
        staging.give(partial);
        assert_eq!(staging.take_ready(16), Some(full));
        assert_eq!(staging.ready_pages(), 2);
    }

    #[test]
    fn discarded_pages_are_gone() {
        let Some(staging) = crate::trial::staging(1) else { return };
        let slot = staging.take_empty().unwrap();
        for page in [2, 3, 14] {
            // SAFETY: the slot was taken; its pages are this test's.
            unsafe { (staging.address(slot, page) as *mut u8).write_volatile(9) };
        }
        staging.arrived(slot, 1 << 2 | 1 << 3 | 1 << 14);
        // SAFETY: nothing is in it that this test needs.
        assert_eq!(unsafe { staging.discard(slot) }, 3);
        for page in [2, 3, 14] {
            // SAFETY: as above.
            assert_eq!(unsafe { (staging.address(slot, page) as *mut u8).read_volatile() }, 0);
        }
        assert_eq!(staging.present(slot), 0);
    }
}
