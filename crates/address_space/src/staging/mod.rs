//! Staging: slots of 16 pages, which program pages pass through on their way out and in.
//!
//! Slots are address space, pages are memory, and only pages are limited. So there are many more
//! slots than pages: a block with one evicted page occupies a slot, but one page of memory.
//!
//! Slots recycle physical pages. After compression a slot keeps its pages as *ready* pages. The
//! next fault decompresses into them and moves them into the program, so in steady state the kernel
//! neither allocates, zeroes nor frees a page.
//!
//! ```text
//! empty --evict--> staged (queue, oldest first) --compress--> ready --fault-in--> empty
//!                     \--refault moves pages straight back--/
//! ```

pub mod discard_window;
mod extents;
pub mod refs;
pub mod slot;

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::Mutex;

use sys::{arena, memory, PAGE_SIZE};

use crate::units::{bytes_of, page_at, BlockNumber, PageMask, SlotNumber};
use crate::units::{BLOCK_BYTES, BLOCK_PAGES, EXTENT_PAGES, EXTENT_SLOTS};
use discard_window::DiscardWindow;
use extents::Extents;
use slot::{EmptySlot, Free, QueuedSlot, ReadySlot, Slot};

struct SlotRecord {
    /// Address of the block that owns the slot.
    owner: AtomicUsize,
    /// Pages physically present in the slot.
    present: AtomicU32,
}

#[derive(Default)]
pub(crate) struct Lists {
    empty: Vec<SlotNumber>,
    /// Ready slots with at least [`FULL`] pages.
    full: Vec<SlotNumber>,
    /// Ready slots with fewer than [`FULL`] pages.
    partial: Vec<SlotNumber>,
    queue: VecDeque<SlotNumber>,
    pub extents: Extents,
}

/// A page-sized place in staging memory, which has no objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame(usize);

impl Frame {
    pub fn address(self) -> usize {
        self.0
    }
}

/// Pages and slots in staging, counted beside the lists' lock.
struct Counts {
    /// Most pages that `pages_max` may allow.
    capacity: usize,
    pages_max: AtomicUsize,
    pages: AtomicUsize,
    ready: AtomicUsize,
    queued: AtomicUsize,
}

/// All slots of a pager. The thread that took an unlisted slot owns it. A queued slot's pages
/// belong to its owner's block and are accessed only under that block's lock.
pub struct Staging {
    /// Address of the first slot.
    start: usize,
    slots: Box<[SlotRecord]>,
    pub(crate) lists: Mutex<Lists>,
    /// The first slot of the extents.
    pub(crate) first_extent_slot: SlotNumber,
    counts: Counts,
    /// Frames of moved pages are refilled. If false they return to the system, because something
    /// beside the program may still refer to them.
    recycles: AtomicBool,
    /// Through which frames return to the system.
    pub discard_window: DiscardWindow,
}

/// Ready slots with at least this number of pages are kept for runs, not single pages.
pub const FULL: usize = 8;
/// Four blocks.
const STAGING_PAGES_MIN: usize = 4 * BLOCK_PAGES;

impl Staging {
    /// Makes empty slots for up to `pages_max` pages.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn new(pages_max: usize, discard_window: DiscardWindow) -> io::Result<Self> {
        // Twice the number of full extents: an extent whose pages return one by one stays occupied.
        let (singles, extents) = (pages_max, 2 * pages_max / EXTENT_PAGES);
        let count = singles + extents * EXTENT_SLOTS;
        let start = arena::take(count * BLOCK_BYTES, BLOCK_BYTES)?.as_ptr() as usize;
        let slot = |_| SlotRecord { owner: AtomicUsize::new(0), present: AtomicU32::new(0) };
        let slots = (0..count).map(slot).collect();
        // Allocate full capacity now, because nothing here may allocate later.
        let mut lists = Lists {
            empty: Vec::with_capacity(count),
            full: Vec::with_capacity(count),
            partial: Vec::with_capacity(count),
            queue: VecDeque::with_capacity(count + 1),
            extents: Extents::new(extents),
        };
        lists.empty.extend((0..singles).rev().map(SlotNumber::new));
        let [pages, ready, queued] = [const { AtomicUsize::new(0) }; 3];
        let pages_limit = AtomicUsize::new(pages_max);
        Ok(Staging {
            start,
            slots,
            lists: Mutex::new(lists),
            first_extent_slot: SlotNumber::new(singles),
            counts: Counts { capacity: pages_max, pages_max: pages_limit, pages, ready, queued },
            recycles: AtomicBool::new(true),
            discard_window,
        })
    }

    /// Makes the slots executable: pages of executable mappings cannot move here otherwise.
    ///
    /// # Errors
    /// EACCES if the system forbids memory that is both writable and executable.
    pub fn allow_execution(&self) -> io::Result<()> {
        let start = NonNull::new(self.start as *mut u8).expect("in the arena");
        // SAFETY: this structure owns the slots.
        unsafe { memory::allow_execution(start, self.slots.len() * BLOCK_BYTES) }
    }

    /// The range of all slots.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.slots.len() * BLOCK_BYTES
    }

    /// Most pages that may be here at once.
    pub fn pages_max(&self) -> usize {
        self.counts.pages_max.load(Ordering::Relaxed)
    }

    /// Limits staging to `pages`, but not below four blocks. Surplus pages leave by compression.
    pub fn limit(&self, pages: usize) {
        let least = self.counts.capacity.min(4 * BLOCK_PAGES);
        self.counts.pages_max.store(pages.clamp(least, self.counts.capacity), Ordering::Relaxed);
    }

    /// Pages that are here now.
    pub fn pages(&self) -> usize {
        self.counts.pages.load(Ordering::Relaxed)
    }

    /// Address of page `index` of `slot`.
    pub fn address(&self, slot: SlotNumber, index: usize) -> usize {
        page_at(self.start + slot.index() * BLOCK_BYTES, index)
    }

    /// The frame of page `index` of `slot`.
    pub fn frame(&self, slot: SlotNumber, index: usize) -> Frame {
        assert!(slot.index() < self.slots.len() && index < BLOCK_PAGES, "page {index} of {slot:?}");
        Frame(self.address(slot, index))
    }

    /// Ready pages in listed slots.
    pub fn ready_pages(&self) -> usize {
        self.counts.ready.load(Ordering::Relaxed)
    }

    /// Slots that wait for compression.
    pub fn queued_slots(&self) -> usize {
        self.counts.queued.load(Ordering::Relaxed)
    }

    /// The block that owns `slot`.
    pub fn owner(&self, slot: SlotNumber) -> BlockNumber {
        BlockNumber::of(self.slots[slot.index()].owner.load(Ordering::Relaxed))
    }

    /// Pages physically present in `slot`.
    pub fn present(&self, slot: SlotNumber) -> PageMask {
        PageMask::from_bits(self.slots[slot.index()].present.load(Ordering::Relaxed))
    }

    /// Records that pages arrived in `slot`.
    pub fn arrived(&self, slot: SlotNumber, mask: PageMask) {
        let before = self.slots[slot.index()].present.fetch_or(mask.bits(), Ordering::Relaxed);
        assert_eq!(before & mask.bits(), 0, "a page arrived where one was");
        self.counts.pages.fetch_add(mask.count(), Ordering::Relaxed);
    }

    /// Records that pages left `slot`.
    pub fn left(&self, slot: SlotNumber, mask: PageMask) {
        let before = self.slots[slot.index()].present.fetch_and(!mask.bits(), Ordering::Relaxed);
        assert_eq!(before & mask.bits(), mask.bits(), "a page left that was not there");
        self.counts.pages.fetch_sub(mask.count(), Ordering::Relaxed);
    }

    /// Takes a slot without pages.
    pub fn take_empty(&self) -> Option<EmptySlot> {
        self.lists.lock().expect("no panic while held").empty.pop().map(Slot::new)
    }

    /// Takes a slot with ready pages: a full one for a run, a partial one for fewer, if possible.
    pub fn take_ready(&self, wanted: usize) -> Option<ReadySlot> {
        if self.ready_pages() == 0 {
            return None;
        }
        let mut lists = self.lists.lock().expect("no panic while held");
        if lists.full.is_empty() && lists.partial.is_empty() {
            let Lists { full, extents, .. } = &mut *lists;
            extents.split_ready(self.first_extent_slot, full);
        }
        let slot = if wanted > 2 {
            lists.full.pop().or_else(|| lists.partial.pop())
        } else {
            lists.partial.pop().or_else(|| lists.full.pop())
        }?;
        self.counts.ready.fetch_sub(self.present(slot).count(), Ordering::Relaxed);
        Some(Slot::new(slot))
    }

    /// Stops refilling frames, for good. The program shares references to its pages (vmsplice,
    /// MSG_ZEROCOPY), and the kernel keeps them after the page has moved away.
    pub fn stop_recycling(&self) {
        self.recycles.store(false, Ordering::Release);
    }

    /// Whether frames of moved pages are refilled.
    pub fn recycles(&self) -> bool {
        self.recycles.load(Ordering::Acquire)
    }

    /// Returns a slot whose pages are stored or were brought in.
    pub(crate) fn release(&self, slot: QueuedSlot) {
        let slot = slot.done();
        if !self.recycles() {
            self.discard(&slot);
        }
        self.give(slot);
    }

    /// Returns a slot whose content is not needed.
    pub fn give<State: Free>(&self, slot: Slot<State>) {
        self.give_number(slot.number());
    }

    /// Returns a slot by its number. Elsewhere than in [`Staging::give`] only in a forked child,
    /// for slots that threads of the parent had.
    pub fn give_number(&self, slot: SlotNumber) {
        let mut lists = self.lists.lock().expect("no panic while held");
        if slot >= self.first_extent_slot {
            let Lists { full, partial, extents, .. } = &mut *lists;
            let ready = self.give_to_extent(slot, extents, full, partial);
            self.counts.ready.fetch_add(ready, Ordering::Relaxed);
            return;
        }
        match self.present(slot).count() {
            0 => lists.empty.push(slot),
            count => {
                if count >= FULL {
                    lists.full.push(slot);
                } else {
                    lists.partial.push(slot);
                }
                self.counts.ready.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// Queues `slot` for compression on behalf of the block `owner`.
    pub(crate) fn queue(&self, slot: QueuedSlot, owner: BlockNumber) {
        self.set_owner(slot.number(), owner);
        self.lists.lock().expect("no panic while held").queue.push_back(slot.number());
        self.counts.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the owner of `slot` before its first page is moved in.
    pub fn set_owner(&self, slot: SlotNumber, owner: BlockNumber) {
        self.slots[slot.index()].owner.store(owner.address(), Ordering::Relaxed);
    }

    /// Takes the slot that has waited longest, if it has at most `pages_max` pages.
    pub fn oldest_of(&self, pages_max: usize) -> Option<QueuedSlot> {
        if self.queued_slots() == 0 {
            return None;
        }
        let mut lists = self.lists.lock().expect("no panic while held");
        let fits = |slot: SlotNumber| self.present(slot).count() <= pages_max;
        let slot = *lists.queue.front().filter(|slot| fits(**slot))?;
        lists.queue.pop_front();
        drop(lists);
        self.counts.queued.fetch_sub(1, Ordering::Relaxed);
        Some(Slot::new(slot))
    }

    /// Discards pages of a slot, whether or not they are recorded as present.
    ///
    /// # Safety
    /// The caller has the slot, or the lock of the block that owns it and is not being compressed.
    /// The content is not needed.
    pub unsafe fn discard_stray(&self, slot: SlotNumber, first: usize, count: usize) {
        // SAFETY: staging memory, whose bytes the caller does not need.
        unsafe { self.discard_window.discard(self.address(slot, first), bytes_of(count)) };
    }

    /// Returns the pages of a slot to the system with one call. Returns their number.
    pub fn discard(&self, slot: &ReadySlot) -> usize {
        let slot = slot.number();
        let present = self.present(slot);
        if let (Some(first), Some(last)) = (present.pages().next(), present.pages().last()) {
            // SAFETY: a part of the slot, which is the caller's.
            unsafe { self.discard_stray(slot, first, last - first + 1) };
            self.left(slot, present);
        }
        present.count()
    }

    /// Discards a ready slot outside ready extents. Returns the number of its pages.
    pub fn discard_scattered(&self) -> Option<usize> {
        let mut lists = self.lists.lock().expect("no panic while held");
        let slot = lists.full.pop().or_else(|| lists.partial.pop())?;
        drop(lists);
        self.counts.ready.fetch_sub(self.present(slot).count(), Ordering::Relaxed);
        let slot = Slot::new(slot);
        let pages = self.discard(&slot);
        self.give(slot);
        Some(pages)
    }

    /// Returns some present pages of a slot to the system.
    ///
    /// # Safety
    /// As for [`Staging::discard_stray`].
    pub unsafe fn discard_pages(&self, slot: SlotNumber, mask: PageMask) {
        for (first, count) in mask.runs() {
            // SAFETY: a part of the slot, by the caller's promise.
            unsafe { self.discard_stray(slot, first, count) };
        }
        self.left(slot, mask);
    }
}

/// Returns the most pages that may be staged at once in a program with this budget: fewer if their
/// address space would take more than half of the arena's rest.
pub fn staging_pages(budget_bytes: u64) -> usize {
    let wanted = (budget_bytes / 100).clamp(4 << 20, 256 << 20) as usize / PAGE_SIZE;
    // Each page may have a block to itself, and extents have an eighth of that on top.
    let page_bytes = BLOCK_BYTES + BLOCK_BYTES / 8;
    let fitting = arena::left_bytes().map_or(wanted, |left| left / 2 / page_bytes);
    wanted.min(fitting.max(STAGING_PAGES_MIN))
}

/// One thread's frames, which it fills and moves into the program. They come from ready slots, else
/// from empty ones, whose pages the kernel allocates on first touch. A thread keeps a slot from
/// fault to fault: to take one for each page would take the lists' lock each time.
#[derive(Default)]
pub struct FrameCache {
    slot: Option<ReadySlot>,
}

#[derive(Debug, Clone, Copy)]
pub struct Frames {
    pub slot: SlotNumber,
    pub first: usize,
    pub count: usize,
}

impl FrameCache {
    /// Up to `wanted` adjacent pages, in the cache until [`FrameCache::spend`]. `None`: no slot.
    pub fn pages(&mut self, staging: &Staging, wanted: usize) -> Option<Frames> {
        if let Some(slot) = self.slot.take() {
            let (number, present) = (slot.number(), staging.present(slot.number()));
            if let Some((first, count)) = present.runs().max_by_key(|(_, count)| *count) {
                self.slot = Some(slot);
                return Some(Frames { slot: number, first, count: count.min(wanted) });
            }
            staging.give(slot);
        }
        if let Some(slot) = staging.take_ready(wanted) {
            self.slot = Some(slot);
            return self.pages(staging, wanted);
        }
        let slot = staging.take_empty()?.with_frames();
        let (number, count) = (slot.number(), wanted.min(BLOCK_PAGES));
        self.slot = Some(slot);
        staging.arrived(number, PageMask::span(0, count));
        Some(Frames { slot: number, first: 0, count })
    }

    /// Records that the first `count` of `frames` were moved away.
    pub fn spend(&mut self, staging: &Staging, frames: Frames, count: usize) {
        assert_eq!(self.slot_number(), Some(frames.slot));
        staging.left(frames.slot, PageMask::span(frames.first, count));
    }

    /// The slot in it.
    pub fn slot_number(&self) -> Option<SlotNumber> {
        self.slot.as_ref().map(Slot::number)
    }

    /// Returns the slot to the lists.
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
        let Some(staging) = crate::testing::staging(2) else { return };
        let slot = staging.take_empty().unwrap();
        let a = slot.number();
        staging.arrived(a, PageMask::span(4, 4));
        staging.queue(slot.filled(), BlockNumber::of(0x10000));
        assert_eq!((staging.queued_slots(), staging.oldest_of(3)), (1, None));
        let slot = staging.oldest_of(4).unwrap();
        assert_eq!((staging.oldest_of(4), staging.owner(slot.number())), (None, BlockNumber::of(0x10000)));
        staging.give(slot.done());
        assert_eq!((staging.ready_pages(), staging.pages()), (4, 4));
        let mut cache = FrameCache::default();
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
        let (b, c) = (staging.take_ready(1).unwrap(), staging.take_empty().unwrap());
        assert!(b.number() != c.number() && staging.take_empty().is_none());
    }

    #[test]
    fn runs_come_from_full_slots_and_single_pages_from_partial() {
        let Some(staging) = crate::testing::staging(4) else { return };
        let (full, partial) = (staging.take_empty().unwrap(), staging.take_empty().unwrap());
        let numbers = [full.number(), partial.number()];
        staging.arrived(numbers[0], PageMask::ALL);
        staging.arrived(numbers[1], PageMask::from_bits(0x0101));
        staging.give(full);
        staging.give(partial);
        let partial = staging.take_ready(1).unwrap();
        assert_eq!(partial.number(), numbers[1]);
        staging.give(partial);
        assert_eq!(staging.take_ready(16).unwrap().number(), numbers[0]);
        assert_eq!(staging.ready_pages(), 2);
    }

    #[test]
    fn discarded_pages_are_gone() {
        let Some(staging) = crate::testing::staging(1) else { return };
        let taken = staging.take_empty().unwrap().with_frames();
        let slot = taken.number();
        for page in [2, 3, 14] {
            // SAFETY: this test took the slot.
            unsafe { (staging.address(slot, page) as *mut u8).write_volatile(9) };
        }
        staging.arrived(slot, [2, 3, 14].into_iter().collect());
        assert_eq!(staging.discard(&taken), 3);
        for page in [2, 3, 14] {
            // SAFETY: as above.
            assert_eq!(unsafe { (staging.address(slot, page) as *mut u8).read_volatile() }, 0);
        }
        assert!(staging.present(slot).is_empty());
    }
}
