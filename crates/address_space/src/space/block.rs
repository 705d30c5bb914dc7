//! The record of a block: where its 16 pages are.
//!
//! ```text
//! word     31........8  7........2  1..0      pages  4 bits a page, page 0 lowest: a PageState, and above
//!          slot number  flags       lock             it whether it is being read from the swap file
//! refused  31..28  27......16  15.........0
//!          level   until       pages that are left alone for a while
//! ```
//!
//! The policy's memory of each page follows, two bytes a page ([`History`]).
//!
//! The rest of a record is accessed only through a [`BlockGuard`], which holds its lock. Only the
//! modules beside this one, which alone call the kernel for managed pages, change where a page is.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use replacement::policy::History;

use crate::sync::{lock_bits, try_lock_bits, unlock_bits};
use crate::units::{BlockNumber, PageMask, PageNumber, SlotNumber, BLOCK_PAGES};

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageState {
    /// Mapped or never touched: telling these apart would need an update for every first touch.
    Kernel = 0,
    /// In the block's staging slot.
    Staged = 1,
    /// In the pool, under its page number.
    Stored = 2,
    /// Seen mapped after an event said that the kernel is about to discard it: its bytes must not
    /// be saved. Ends when the page is refilled or a grace period has passed.
    DiscardEven = 4,
    /// The same, for the other generation of grace periods.
    DiscardOdd = 5,
}

impl PageState {
    /// Whether the kernel's page tables say where the page is.
    pub fn is_kernels(self) -> bool {
        !matches!(self, PageState::Staged | PageState::Stored)
    }

    fn of(bits: u64) -> PageState {
        match bits & (WATCHED - 1) {
            0 => PageState::Kernel,
            1 => PageState::Staged,
            2 => PageState::Stored,
            4 => PageState::DiscardEven,
            5 => PageState::DiscardOdd,
            other => panic!("page state {other} does not exist"),
        }
    }
}

/// Flag: the slot is read without the lock. It must not change, nor be compressed again.
const COMPRESSING: u32 = 1 << 3;
/// Flag: a thread reads pages of the block from the swap file, without the lock. At most one does.
const READING: u32 = 1 << 4;
/// Added to the state of each page that is being read from the swap file. Any change of the state
/// clears it: even if the page is stored again, it may hold other bytes.
const WATCHED: u64 = 8;
const SLOT_SHIFT: u32 = 8;

/// The unit of [`Block::refused`]'s clock.
const REFUSED_TICK_MS: u32 = 256;
const REFUSED_UNTIL_MASK: u32 = 0xfff;
/// Ticks for which refused pages are first skipped (4 s). Doubled each time, up to two minutes.
const REFUSED_TICKS: u32 = 16;
const REFUSED_LEVEL_MAX: u32 = 5;
/// Ticks for which shared pages are skipped.
const BRIEF_TICKS: u32 = 2;

/// State of 16 pages.
#[derive(Default)]
pub struct Block {
    word: AtomicU32,
    refused: AtomicU32,
    pages: AtomicU64,
    history: History,
}
const _: () = assert!(std::mem::size_of::<Block>() == 48);

impl Block {
    pub(crate) fn lock(&self) {
        lock_bits(&self.word);
    }

    pub(crate) fn try_lock(&self) -> bool {
        try_lock_bits(&self.word)
    }

    fn has(&self, flag: u32) -> bool {
        self.word.load(Ordering::Relaxed) & flag != 0
    }

    /// Whether page `index` is staged or stored. A hint: no lock is taken.
    pub fn is_out(&self, index: usize) -> bool {
        !PageState::of(self.pages.load(Ordering::Relaxed) >> (4 * index)).is_kernels()
    }

    /// The stored pages. A hint: no lock is taken.
    pub fn stored(&self) -> PageMask {
        self.mask_of(|state| state == PageState::Stored)
    }

    fn mask_of(&self, test: impl Fn(PageState) -> bool) -> PageMask {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages == 0 {
            return if test(PageState::Kernel) { PageMask::ALL } else { PageMask::NONE };
        }
        (0..BLOCK_PAGES).filter(|index| test(PageState::of(pages >> (4 * index)))).collect()
    }

    /// The policy's memory of the pages. Hints: no lock is needed.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Whether the slot is being compressed. A hint: no lock is taken.
    pub fn is_compressing(&self) -> bool {
        self.has(COMPRESSING)
    }

    /// Pages to skip at `now_ms`. A hint: no lock is taken.
    pub fn refused_at(&self, now_ms: u32) -> PageMask {
        let word = self.refused.load(Ordering::Relaxed);
        let now = now_ms / REFUSED_TICK_MS;
        let left = (word >> 16 & REFUSED_UNTIL_MASK).wrapping_sub(now) & REFUSED_UNTIL_MASK;
        if left > 0 && left <= REFUSED_TICKS << REFUSED_LEVEL_MAX {
            return PageMask::from_bits(word);
        }
        if !PageMask::from_bits(word).is_empty() {
            // Clear the pages, because the clock wraps after 17 minutes. Keep the refusal level.
            let over = word & !PageMask::ALL.bits();
            let _ = self.refused.compare_exchange(word, over, Ordering::Relaxed, Ordering::Relaxed);
        }
        PageMask::NONE
    }

    /// Whether the record holds no more than a fresh one.
    pub(crate) fn is_blank(&self) -> bool {
        self.pages.load(Ordering::Relaxed) == 0 && self.refused.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pages.load(Ordering::Relaxed) == 0
    }
}

/// Holds a block's lock until it is dropped. The record has no method that changes a state, so none
/// changes without the lock; a lock and a record apart could belong to two blocks.
pub struct BlockGuard<'a> {
    block: &'a Block,
    number: BlockNumber,
}

impl Drop for BlockGuard<'_> {
    fn drop(&mut self) {
        // A panic has already said what broke.
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.check("unlocked");
        }
        unlock_bits(&self.block.word);
    }
}

impl<'a> BlockGuard<'a> {
    /// Wraps a block, whose lock the caller has just taken.
    pub(crate) fn locked(block: &'a Block, number: BlockNumber) -> Self {
        let guard = BlockGuard { block, number };
        if cfg!(debug_assertions) {
            guard.check("locked");
        }
        guard
    }
}

impl BlockGuard<'_> {
    /// Checks the invariants of an unlocked block. Debug builds do so at each lock and unlock.
    ///
    /// # Panics
    /// If an invariant is broken.
    fn check(&self, when: &str) {
        let (word, number) = (self.block.word.load(Ordering::Relaxed), self.number);
        let broken = |what: &str| panic!("the block at {number:?} is {when} although {what}: {word:#x}");
        let (staged, stored) = (self.mask(PageState::Staged), self.mask(PageState::Stored));
        if self.slot().is_none() && !staged.is_empty() {
            broken("it has staged pages and no slot");
        }
        if self.slot().is_none() && self.is_compressing() {
            broken("a slot is being compressed that it does not have");
        }
        let watched = self.watched();
        if !(watched & !stored).is_empty() || !watched.is_empty() && !self.is_reading() {
            broken("pages are watched that are not read from the swap file");
        }
        if self.block.refused.load(Ordering::Relaxed) >> 28 > REFUSED_LEVEL_MAX {
            broken("pages were refused more often than is counted");
        }
    }

    /// Which block it is.
    pub fn number(&self) -> BlockNumber {
        self.number
    }

    /// Its page `index`.
    pub fn page(&self, index: usize) -> PageNumber {
        self.number.page(index)
    }

    /// Where page `index` is.
    pub fn state(&self, index: usize) -> PageState {
        PageState::of(self.block.pages.load(Ordering::Relaxed) >> (4 * index))
    }

    /// The pages in `state`.
    pub fn mask(&self, state: PageState) -> PageMask {
        self.mask_of(|other| other == state)
    }

    /// The pages whose state passes `test`.
    pub fn mask_of(&self, test: impl Fn(PageState) -> bool) -> PageMask {
        self.block.mask_of(test)
    }

    /// The slot of the block's staged pages. Stored inverted: a zeroed record has none.
    pub fn slot(&self) -> Option<SlotNumber> {
        SlotNumber::of_word(!self.block.word.load(Ordering::Relaxed) >> SLOT_SHIFT)
    }

    /// The slot of a block that has staged pages.
    pub fn staged_slot(&self) -> SlotNumber {
        self.slot().expect("staged pages have a slot")
    }

    /// Whether the slot is being compressed.
    pub fn is_compressing(&self) -> bool {
        self.block.is_compressing()
    }

    /// The policy's memory of the pages.
    pub fn history(&self) -> &History {
        &self.block.history
    }

    /// Skips pages of `mask` for a while, longer each time: incompressible or immovable pages.
    pub fn refuse(&self, mask: PageMask, now_ms: u32) {
        let word = self.block.refused.load(Ordering::Relaxed);
        let level = if word == 0 { 0 } else { (word >> 28) + 1 }.min(REFUSED_LEVEL_MAX);
        let until = (now_ms / REFUSED_TICK_MS + (REFUSED_TICKS << level)) & REFUSED_UNTIL_MASK;
        // Pages still refused stay refused. Retried pages count again.
        let kept = self.block.refused_at(now_ms) | mask;
        self.block.refused.store(level << 28 | until << 16 | kept.bits(), Ordering::Relaxed);
    }

    /// Skips the pages of `mask` for half a second: a relative still shares them. They join pages
    /// that are skipped no longer than that.
    pub fn refuse_briefly(&self, mask: PageMask, now_ms: u32) {
        let word = self.block.refused.load(Ordering::Relaxed);
        let refused = self.block.refused_at(now_ms);
        let until = (now_ms / REFUSED_TICK_MS + BRIEF_TICKS) & REFUSED_UNTIL_MASK;
        let lasts = until.wrapping_sub(word >> 16) & REFUSED_UNTIL_MASK;
        if refused.is_empty() || lasts <= BRIEF_TICKS {
            let all = refused | mask;
            self.block.refused.store(word & 0xf000_0000 | until << 16 | all.bits(), Ordering::Relaxed);
        }
    }

    /// Clears refusals of the pages of `mask`, whose content has changed.
    pub fn forget_refused(&self, mask: PageMask) {
        let word = self.block.refused.load(Ordering::Relaxed);
        if word & mask.bits() != 0 {
            let left = word & !mask.bits();
            let is_over = PageMask::from_bits(left).is_empty();
            self.block.refused.store(if is_over { 0 } else { left }, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_compressing(&self, on: bool) {
        if on {
            self.block.word.fetch_or(COMPRESSING, Ordering::Relaxed);
        } else {
            self.block.word.fetch_and(!COMPRESSING, Ordering::Relaxed);
        }
    }

    /// Whether a thread reads pages of the block from the swap file.
    pub fn is_reading(&self) -> bool {
        self.block.has(READING)
    }

    /// Marks the pages of `mask` as being read from the swap file, without the lock.
    ///
    /// # Panics
    /// If another thread reads the block, or one of the pages is not stored.
    pub(crate) fn begin_reading(&self, mask: PageMask) {
        assert!(!self.is_reading(), "two readers of the block at {:?}", self.number);
        assert_eq!(self.mask(PageState::Stored) & mask, mask, "pages that are not stored");
        self.block.word.fetch_or(READING, Ordering::Relaxed);
        let marks = mask.pages().fold(0, |marks, index| marks | WATCHED << (4 * index));
        self.block.pages.fetch_or(marks, Ordering::Relaxed);
    }

    /// The pages being read whose state has not changed since [`BlockGuard::begin_reading`].
    pub(crate) fn watched(&self) -> PageMask {
        let pages = self.block.pages.load(Ordering::Relaxed);
        (0..BLOCK_PAGES).filter(|index| pages >> (4 * index) & WATCHED != 0).collect()
    }

    pub(crate) fn end_reading(&self) {
        let all = (0..BLOCK_PAGES).fold(0, |marks, index| marks | WATCHED << (4 * index));
        self.block.pages.fetch_and(!all, Ordering::Relaxed);
        self.block.word.fetch_and(!READING, Ordering::Relaxed);
    }

    pub(crate) fn set_slot(&self, slot: Option<SlotNumber>) {
        let wanted = !SlotNumber::word_of(slot) << SLOT_SHIFT;
        let set = |seen: u32| Some(seen & 0xff | wanted);
        let _ = self.block.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    pub(crate) fn drop_slot_if_unused(&self) {
        if self.mask(PageState::Staged).is_empty() {
            self.set_slot(None);
        }
    }

    /// Moves the pages of `mask` from one state to another.
    ///
    /// # Panics
    /// If one of them is not in `from`: a page was lost track of.
    pub(crate) fn change(&self, mask: PageMask, from: PageState, to: PageState) {
        self.change_if(mask, to, |index, state| {
            assert_eq!(state, from, "state of page {index} of the block at {:?}", self.number);
        });
    }

    /// Moves the pages of `mask` from any of the kernel's states to another state.
    ///
    /// # Panics
    /// If one of them is not the kernel's.
    pub(crate) fn change_kernels(&self, mask: PageMask, to: PageState) {
        self.change_if(mask, to, |index, state| {
            assert!(state.is_kernels(), "page {index} of the block at {:?} is {state:?}", self.number);
        });
    }

    fn change_if(&self, mask: PageMask, to: PageState, check: impl Fn(usize, PageState)) {
        let mut pages = self.block.pages.load(Ordering::Relaxed);
        for index in mask.pages() {
            check(index, PageState::of(pages >> (4 * index)));
            pages = pages & !(0xf << (4 * index)) | (to as u64) << (4 * index);
        }
        self.block.pages.store(pages, Ordering::Relaxed);
    }
}

/// One or more blocks whose locks are held while this lives.
pub trait Locked {
    /// The first block.
    fn start(&self) -> BlockNumber;
    /// Number of pages.
    fn pages(&self) -> usize;
}

impl Locked for BlockGuard<'_> {
    fn start(&self) -> BlockNumber {
        self.number()
    }

    fn pages(&self) -> usize {
        BLOCK_PAGES
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::space::table::AddressTable;
    use sys::memory::USER_END;

    /// Regression: a page that was refused briefly kept others of its block from being so, and
    /// these were tried again and again.
    #[test]
    fn briefly_refused_pages_of_a_block_join_each_other_but_not_long_refusals() {
        let table = AddressTable::new().unwrap();
        let number = BlockNumber::of(0x1000_0000);
        let guard = table.lock(number).unwrap();
        let block = table.find(number).unwrap();
        let some = PageMask::from_bits;
        guard.refuse_briefly(some(0x1), 1_000_000);
        guard.refuse_briefly(some(0x6), 1_000_300);
        assert_eq!(block.refused_at(1_000_400), some(0x7));
        assert_eq!(block.refused_at(1_001_000), PageMask::NONE);
        guard.refuse(some(0x8), 1_002_000);
        guard.refuse_briefly(some(0x10), 1_002_000);
        assert_eq!(block.refused_at(1_003_000), some(0x8), "0x10 would stay for four seconds");
    }

    #[test]
    fn refused_pages_are_left_alone_for_a_while_longer_each_time() {
        let table = AddressTable::new().unwrap();
        let number = BlockNumber::of(0x1000_0000);
        let guard = table.lock(number).unwrap();
        let block = table.find(number).unwrap();
        let (some, none) = (PageMask::from_bits, PageMask::NONE);
        assert_eq!(block.refused_at(5), none);
        let mut now = 1_000_000u32;
        for (mask, seconds) in [(0x1, 4), (0x6, 8), (0x6, 16), (0x6, 32), (0x6, 64), (0x6, 128), (0x6, 128)] {
            let mask = some(mask);
            guard.refuse(mask, now);
            assert_eq!(block.refused_at(now) & mask, mask);
            assert_eq!(block.refused_at(now + seconds * 1024 - 600) & mask, mask, "{seconds}");
            assert_eq!(block.refused_at(now + seconds * 1024 + 600), none, "{seconds}");
            now += seconds * 1024 + 600;
        }
        let round = (REFUSED_UNTIL_MASK + 1) * REFUSED_TICK_MS;
        assert_eq!(
            block.refused_at(now - 1200 + round),
            none,
            "the clock is where it was before that was over"
        );
        guard.refuse(some(0x9), now);
        assert_eq!(block.refused_at(now + 127 * 1024), some(0x9), "refused often");
        guard.forget_refused(some(0x1));
        assert_eq!(block.refused_at(now), some(0x8));
        assert_eq!(table.known(0, USER_END).collect::<Vec<_>>(), [number]);
        guard.forget_refused(PageMask::ALL);
        assert_eq!(table.known(0, USER_END).count(), 0);
    }

    #[test]
    fn a_reader_sees_which_pages_changed_during_its_read() {
        let table = AddressTable::new().unwrap();
        let block = table.lock(BlockNumber::of(0x70000)).unwrap();
        let some = PageMask::from_bits;
        block.change(some(0xf0), PageState::Kernel, PageState::Stored);
        block.begin_reading(some(0x70));
        assert!(block.is_reading() && block.watched() == some(0x70));
        assert_eq!((block.mask(PageState::Stored), block.state(5)), (some(0xf0), PageState::Stored));
        block.change(some(1 << 5), PageState::Stored, PageState::Kernel);
        block.change(some(1 << 5), PageState::Kernel, PageState::Stored);
        block.change(some(1 << 6), PageState::Stored, PageState::Kernel);
        assert_eq!((block.watched(), block.mask(PageState::Stored)), (some(0x10), some(0xb0)));
        block.end_reading();
        assert!(!block.is_reading() && block.watched().is_empty());
        assert_eq!(block.mask(PageState::Stored), some(0xb0));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "staged pages and no slot")]
    fn a_block_that_broke_is_noticed_when_it_is_unlocked() {
        let table = AddressTable::new().unwrap();
        table.lock(BlockNumber::of(0)).unwrap().change(
            PageMask::span(3, 1),
            PageState::Kernel,
            PageState::Staged,
        );
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "watched that are not read")]
    fn a_reader_that_left_its_marks_is_noticed() {
        let table = AddressTable::new().unwrap();
        let block = table.lock(BlockNumber::of(0)).unwrap();
        block.change(PageMask::span(0, 1), PageState::Kernel, PageState::Stored);
        block.block.pages.fetch_or(WATCHED, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "state of page 3")]
    fn a_page_in_the_wrong_state_is_noticed() {
        let table = AddressTable::new().unwrap();
        table.lock(BlockNumber::of(0)).unwrap().change(
            PageMask::span(3, 1),
            PageState::Stored,
            PageState::Kernel,
        );
    }
}
