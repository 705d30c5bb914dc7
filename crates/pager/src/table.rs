//! Where each page of the managed address space is.
//!
//! A *block* is 64 KiB of address space, 16 pages. Its state is one 16-byte record in a two-level table over the whole
//! user address space; leaves cover 1 GiB and are made on first use. Records are found by address alone and
//! never move, so the fault path follows one pointer and takes one lock.
//!
//! ```text
//! Block   word  31........8  7........2  1..0      pages  4 bits a page, page 0 lowest
//!               slot number  flags       lock             0 kernel  1 staged  2 stored
//! ```
//!
//! *kernel* means that the kernel's own page tables know more: the page is mapped, or was never touched (or was
//! discarded) and reads as zeroes. Keeping these two apart here would need an update for every first touch.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use sys::memory::ADDRESS_BITS;
use sys::{futex, house, PAGE_SIZE};

/// Pages in a block.
pub const BLOCK_PAGES: usize = 16;
/// Bytes in a block.
pub const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// All pages of a block, as a mask.
pub const ALL_PAGES: u32 = 0xffff;

const LEAF_BITS: usize = 30;
const LEAF_BLOCKS: usize = (1 << LEAF_BITS) / BLOCK_BYTES;
const LEAVES: usize = 1 << (ADDRESS_BITS - LEAF_BITS);

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageState {
    /// Mapped, or never touched: the kernel knows.
    Kernel = 0,
    /// In the block's staging slot.
    Staged = 1,
    /// In the pool, under its page number.
    Stored = 2,
}

/// Flag: faulted in since the reclaimer last looked; spared once.
pub const RECENT: u32 = 1 << 2;
/// Flag: the block's staged pages are being compressed without the lock; no second compression may begin.
pub const COMPRESSING: u32 = 1 << 3;
/// Flag: pages here did not compress or could not be moved; passed over for a while.
pub const STUBBORN: u32 = 1 << 4;
/// How long evicting from a block is unsafe after an event discarded pages in it, in milliseconds. The event comes
/// before the kernel's own discarding, and nothing tells when that is done: a page still present in between must not be
/// saved as data. The thread behind the event needs microseconds; a second covers one that lost its CPU.
const QUARANTINE_MS: u32 = 1000;
const SLOT_SHIFT: u32 = 8;
/// No staging slot.
pub const NO_SLOT: u32 = 0xff_ffff;

/// State of 16 pages. All but the lock is changed under the lock only.
pub struct Block {
    word: AtomicU32,
    /// Milliseconds (of some clock, made odd) when an event last discarded or moved pages here; 0 for never.
    discarded_ms: AtomicU32,
    pages: AtomicU64,
}
const _: () = assert!(std::mem::size_of::<Block>() == 16);

impl Block {
    /// Waits for the block's lock.
    pub fn lock(&self) {
        futex::lock_bits(&self.word);
    }

    /// Takes the lock if nobody has it.
    pub fn try_lock(&self) -> bool {
        futex::try_lock_bits(&self.word)
    }

    /// Releases the lock.
    pub fn unlock(&self) {
        futex::unlock_bits(&self.word);
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u32) -> bool {
        self.word.load(Ordering::Relaxed) & flag != 0
    }

    /// Sets `flag`.
    pub fn set(&self, flag: u32) {
        self.word.fetch_or(flag, Ordering::Relaxed);
    }

    /// Clears `flag`; answers whether it was set.
    pub fn clear(&self, flag: u32) -> bool {
        self.word.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }

    /// Notes that an event has discarded or moved pages here.
    pub fn quarantine(&self, now_ms: u32) {
        self.discarded_ms.store(now_ms | 1, Ordering::Relaxed);
    }

    /// Whether evicting is unsafe because of a recent event.
    pub fn is_quarantined(&self, now_ms: u32) -> bool {
        is_within_quarantine(&self.discarded_ms, now_ms)
    }

    /// The staging slot of the block's staged pages. Stored inverted, so that a zeroed record has none.
    pub fn slot(&self) -> u32 {
        (!self.word.load(Ordering::Relaxed) >> SLOT_SHIFT) & NO_SLOT
    }

    /// Sets the staging slot.
    pub fn set_slot(&self, slot: u32) {
        assert!(slot <= NO_SLOT);
        let wanted = !slot << SLOT_SHIFT;
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let next = seen & 0xff | wanted;
            match self.word.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Where page `index` is.
    pub fn state(&self, index: usize) -> PageState {
        match self.pages.load(Ordering::Relaxed) >> (4 * index) & 0xf {
            0 => PageState::Kernel,
            1 => PageState::Staged,
            2 => PageState::Stored,
            other => panic!("page state {other} does not exist"),
        }
    }

    /// Mask of the pages in `state`.
    pub fn mask(&self, state: PageState) -> u32 {
        let pages = self.pages.load(Ordering::Relaxed);
        (0..BLOCK_PAGES)
            .filter(|index| pages >> (4 * index) & 0xf == state as u64)
            .fold(0, |mask, index| mask | 1 << index)
    }

    /// Whether every page is the kernel's.
    pub fn is_idle(&self) -> bool {
        self.pages.load(Ordering::Relaxed) == 0
    }

    /// Moves the pages of `mask` from one state to another.
    ///
    /// # Panics
    /// When one of them is not in `from`: a page was lost track of.
    pub fn change(&self, mask: u32, from: PageState, to: PageState) {
        let mut pages = self.pages.load(Ordering::Relaxed);
        for index in 0..BLOCK_PAGES {
            if mask >> index & 1 != 0 {
                assert_eq!(pages >> (4 * index) & 0xf, from as u64, "state of page {index} of a block");
                pages = pages & !(0xf << (4 * index)) | (to as u64) << (4 * index);
            }
        }
        self.pages.store(pages, Ordering::Relaxed);
    }
}

fn is_within_quarantine(discarded_ms: &AtomicU32, now_ms: u32) -> bool {
    match discarded_ms.load(Ordering::Relaxed) {
        0 => false,
        then if now_ms.wrapping_sub(then).wrapping_add(1) <= QUARANTINE_MS => true,
        then => {
            // Unless it was renewed this very moment.
            let _ = discarded_ms.compare_exchange(then, 0, Ordering::Relaxed, Ordering::Relaxed);
            false
        }
    }
}

/// The table: 128 Ki leaves of 16 Ki blocks.
pub struct AddressTable {
    leaves: NonNull<AtomicPtr<Block>>,
    /// When an event last discarded pages in a leaf that did not exist then, as for blocks.
    discarded_ms: NonNull<AtomicU32>,
}

// SAFETY: leaves are published with release stores and never freed; blocks have their own locks.
unsafe impl Send for AddressTable {}
// SAFETY: as above.
unsafe impl Sync for AddressTable {}

impl AddressTable {
    /// An empty table: 1 MiB of address space, nothing resident.
    ///
    /// # Errors
    /// When the house is full.
    pub fn new() -> io::Result<Self> {
        let leaves = house::take(LEAVES * 8, PAGE_SIZE)?.cast();
        Ok(AddressTable { leaves, discarded_ms: house::take(LEAVES * 4, PAGE_SIZE)?.cast() })
    }

    fn leaf_discarded(&self, address: usize) -> &AtomicU32 {
        let index = address >> LEAF_BITS;
        assert!(index < LEAVES, "address beyond the user space");
        // SAFETY: the array has LEAVES zeroed entries and lives for ever.
        unsafe { &*self.discarded_ms.as_ptr().add(index) }
    }

    /// Notes that an event discards `[start, end)` now.
    pub fn quarantine(&self, start: usize, end: usize, now_ms: u32) {
        let mut at = start & !(BLOCK_BYTES - 1);
        while at < end {
            let leaf_end = (((at >> LEAF_BITS) + 1) << LEAF_BITS).min(end);
            if self.leaf(at >> LEAF_BITS).load(Ordering::Acquire).is_null() {
                self.leaf_discarded(at).store(now_ms | 1, Ordering::Relaxed);
            } else {
                self.for_each(at, leaf_end, |_, block| block.quarantine(now_ms));
            }
            at = leaf_end;
        }
    }

    /// Whether evicting from the leaf around `address` is unsafe because of an event from before it existed.
    pub fn is_leaf_quarantined(&self, address: usize, now_ms: u32) -> bool {
        is_within_quarantine(self.leaf_discarded(address), now_ms)
    }

    fn leaf(&self, index: usize) -> &AtomicPtr<Block> {
        assert!(index < LEAVES, "address beyond the user space");
        // SAFETY: the array has LEAVES zeroed entries and lives for ever.
        unsafe { &*self.leaves.as_ptr().add(index) }
    }

    /// The block of `address`, if its leaf exists.
    pub fn find(&self, address: usize) -> Option<&Block> {
        let leaf = self.leaf(address >> LEAF_BITS).load(Ordering::Acquire);
        if leaf.is_null() {
            return None;
        }
        // SAFETY: a leaf has LEAF_BLOCKS zeroed blocks and lives for ever.
        Some(unsafe { &*leaf.add(address / BLOCK_BYTES % LEAF_BLOCKS) })
    }

    /// The block of `address`, its leaf made if need be: 256 KiB of address space, resident as used.
    ///
    /// # Errors
    /// When the house is full.
    pub fn block(&self, address: usize) -> io::Result<&Block> {
        if let Some(block) = self.find(address) {
            return Ok(block);
        }
        let entry = self.leaf(address >> LEAF_BITS);
        let fresh: NonNull<Block> =
            house::take(LEAF_BLOCKS * std::mem::size_of::<Block>(), PAGE_SIZE)?.cast();
        // Two threads may race; the loser's leaf stays unused address space.
        let null = std::ptr::null_mut();
        let _ = entry.compare_exchange(null, fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        Ok(self.find(address).expect("the leaf exists now"))
    }

    /// Calls `each` with the address of every block in `[start, end)` that is not idle. The cost follows the leaves in
    /// use, not the length of the range.
    pub fn for_each_busy(&self, start: usize, end: usize, mut each: impl FnMut(usize, &Block)) {
        self.for_each(start, end, |at, block| {
            if !block.is_idle() {
                each(at, block);
            }
        });
    }

    /// Calls `each` with the address of every block of `[start, end)` whose leaf exists.
    pub fn for_each(&self, start: usize, end: usize, mut each: impl FnMut(usize, &Block)) {
        let mut at = start & !(BLOCK_BYTES - 1);
        while at < end {
            let leaf_end = ((at >> LEAF_BITS) + 1) << LEAF_BITS;
            if self.leaf(at >> LEAF_BITS).load(Ordering::Acquire).is_null() {
                at = leaf_end;
                continue;
            }
            while at < end.min(leaf_end) {
                each(at, self.find(at).expect("the leaf exists"));
                at += BLOCK_BYTES;
            }
        }
    }
}

/// Longest runs of set bits of `mask`, as (first, count).
pub fn runs(mask: u32) -> impl Iterator<Item = (usize, usize)> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let count = (rest >> first).trailing_ones();
        rest &= !(((1u64 << count) - 1) << first) as u32;
        Some((first as usize, count as usize))
    })
}

/// A mask of `count` bits from bit `first`.
pub fn span(first: usize, count: usize) -> u32 {
    (((1u64 << count) - 1) << first) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::memory::USER_END;

    #[test]
    fn states_slots_flags_and_lock_share_a_record() {
        let table = AddressTable::new().unwrap();
        // The highest address there is, and one below.
        assert!(table.block(USER_END - 1).is_ok());
        let block = table.block(0x7fff_1234_5000).unwrap();
        assert_eq!(block.slot(), NO_SLOT);
        block.lock();
        block.set_slot(77);
        block.set(RECENT | COMPRESSING);
        block.change(span(3, 4), PageState::Kernel, PageState::Staged);
        block.change(span(4, 2), PageState::Staged, PageState::Stored);
        block.unlock();
        assert_eq!(
            (block.slot(), block.mask(PageState::Staged), block.mask(PageState::Stored)),
            (77, 0x48, 0x30)
        );
        assert!(block.clear(RECENT) && !block.has(RECENT) && block.has(COMPRESSING));
        assert!(table.find(0x5555_0000_0000).is_none());
        let mut busy = Vec::new();
        table.for_each_busy(0, USER_END, |at, _| busy.push(at));
        assert_eq!(busy, [0x7fff_1234_0000]);
        table.for_each_busy(0x7fff_1235_0000, USER_END, |_, _| panic!("none above"));
    }

    #[test]
    fn quarantine_ends() {
        let table = AddressTable::new().unwrap();
        let block = table.block(0x1000_0000).unwrap();
        assert!(!block.is_quarantined(5));
        block.quarantine(1000);
        assert!(block.is_quarantined(1000) && block.is_quarantined(1999));
        assert!(!block.is_quarantined(2100) && !block.is_quarantined(1001), "forgotten once it is over");
        block.quarantine(u32::MAX - 10);
        assert!(block.is_quarantined(100), "the clock may wrap");
        // A leaf that does not exist yet is remembered as a whole.
        table.quarantine(0x4000_0000, 0x4001_0000, 1000);
        assert!(
            table.is_leaf_quarantined(0x7fff_0000, 1500) && !table.is_leaf_quarantined(0x8000_0000, 1500)
        );
        assert!(!table.is_leaf_quarantined(0x7fff_0000, 2100));
        table.quarantine(0x1000_0000, 0x1001_0000, 5000);
        assert!(block.is_quarantined(5500) && !table.is_leaf_quarantined(0x1000_0000, 5500));
    }

    #[test]
    #[should_panic(expected = "state of page 3")]
    fn a_page_in_the_wrong_state_is_noticed() {
        let table = AddressTable::new().unwrap();
        table.block(0).unwrap().change(8, PageState::Stored, PageState::Kernel);
    }

    #[test]
    fn runs_of_masks() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(0xffff).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(runs(0b1011_0110).collect::<Vec<_>>(), [(1, 2), (4, 2), (7, 1)]);
        assert_eq!(runs(0x8000_0001).collect::<Vec<_>>(), [(0, 1), (31, 1)]);
    }
}
