//! The page table: a 48-byte record ([`Block`]) per 64 KiB of address space.
//!
//! It has two levels over the whole user address space. Leaves cover 1 GiB and are made on first
//! use. Records never move, so the fault path follows one pointer and takes one lock.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use sys::memory::ADDRESS_BITS;
use sys::{arena, PAGE_SIZE};

use super::block::{Block, BlockGuard};
use crate::sync::sleep_ns;
use crate::units::{BlockNumber, PageNumber, BLOCK_BYTES};

const LEAF_BITS: usize = 30;
const LEAF_BLOCKS: usize = (1 << LEAF_BITS) / BLOCK_BYTES;
const LEAVES: usize = 1 << (ADDRESS_BITS - LEAF_BITS);

/// The table: 128 Ki leaves of 16 Ki blocks.
pub struct AddressTable {
    leaves: NonNull<AtomicPtr<Block>>,
}

// SAFETY: leaves are published by release stores and never freed. Blocks have their own locks.
unsafe impl Send for AddressTable {}
// SAFETY: as above.
unsafe impl Sync for AddressTable {}

impl AddressTable {
    /// Makes an empty table: 1 MiB of address space, nothing resident.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn new() -> io::Result<Self> {
        Ok(AddressTable { leaves: arena::take(LEAVES * 8, PAGE_SIZE)?.cast() })
    }

    /// Frees the memory of all records and empties the table.
    ///
    /// # Safety
    /// No other thread has the table, and this one no block of it.
    pub unsafe fn free_memory(&self) {
        let leaf_bytes = LEAF_BLOCKS * std::mem::size_of::<Block>();
        for index in 0..LEAVES {
            if let Some(leaf) = NonNull::new(self.leaf(index).load(Ordering::Acquire)) {
                // SAFETY: whole pages of the arena; no other thread has the table.
                unsafe { sys::memory::discard(leaf.cast(), leaf_bytes) };
            }
        }
        // SAFETY: as above.
        unsafe { sys::memory::discard(self.leaves.cast(), LEAVES * 8) };
    }

    fn leaf(&self, index: usize) -> &AtomicPtr<Block> {
        assert!(index < LEAVES, "a block beyond the user space");
        // SAFETY: the array has LEAVES zeroed entries and is never freed.
        unsafe { &*self.leaves.as_ptr().add(index) }
    }

    /// The record of a block, if its leaf exists.
    pub fn find(&self, at: BlockNumber) -> Option<&Block> {
        let leaf = self.leaf(at.index() / LEAF_BLOCKS).load(Ordering::Acquire);
        if leaf.is_null() {
            return None;
        }
        // SAFETY: a leaf has LEAF_BLOCKS zeroed blocks and is never freed.
        Some(unsafe { &*leaf.add(at.index() % LEAF_BLOCKS) })
    }

    /// Whether a page is staged or stored. A hint: no lock is taken.
    pub fn is_out(&self, at: PageNumber) -> bool {
        self.find(at.block()).is_some_and(|block| block.is_out(at.index()))
    }

    /// The record of a block. Makes its leaf if needed: 768 KiB of address space, resident as
    /// used.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn block(&self, at: BlockNumber) -> io::Result<&Block> {
        if let Some(block) = self.find(at) {
            return Ok(block);
        }
        let entry = self.leaf(at.index() / LEAF_BLOCKS);
        let fresh: NonNull<Block> =
            arena::take(LEAF_BLOCKS * std::mem::size_of::<Block>(), PAGE_SIZE)?.cast();
        // If two threads race, the loser's leaf stays unused address space.
        let null = std::ptr::null_mut();
        let _ = entry.compare_exchange(null, fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        Ok(self.find(at).expect("the leaf exists now"))
    }

    /// Waits for the lock of a block.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn lock(&self, at: BlockNumber) -> io::Result<BlockGuard<'_>> {
        let block = self.block(at)?;
        block.lock();
        Ok(BlockGuard::locked(block, at))
    }

    /// Waits for the lock, or returns `None` if the block has no record.
    pub fn lock_existing(&self, at: BlockNumber) -> Option<BlockGuard<'_>> {
        let block = self.find(at)?;
        block.lock();
        Some(BlockGuard::locked(block, at))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self, at: BlockNumber) -> Option<BlockGuard<'_>> {
        if at >= BlockNumber::of(sys::memory::USER_END) {
            return None;
        }
        let block = self.block(at).ok()?;
        block.try_lock().then(|| BlockGuard::locked(block, at))
    }

    /// Waits for the lock of a block whose slot is not being compressed. Compressing takes
    /// microseconds and waits only for leaf locks, so every thread but a compressor may wait here,
    /// or for a thread that does.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn lock_settled(&self, at: BlockNumber) -> io::Result<BlockGuard<'_>> {
        loop {
            let guard = self.lock(at)?;
            if !guard.is_compressing() {
                return Ok(guard);
            }
            drop(guard);
            sleep_ns(5_000);
        }
    }

    /// The blocks of `[start, end)` with out or discarded pages. The cost follows the
    /// leaves in use, not the length of the range. Concurrent changes may be missed.
    pub fn busy(&self, start: usize, end: usize) -> impl Iterator<Item = BlockNumber> + '_ {
        self.blocks(start, end, |block| !block.is_idle())
    }

    /// Like [`AddressTable::busy`], and blocks with refused pages, too.
    pub fn known(&self, start: usize, end: usize) -> impl Iterator<Item = BlockNumber> + '_ {
        self.blocks(start, end, |block| !block.is_blank())
    }

    fn blocks(
        &self,
        start: usize,
        end: usize,
        test: fn(&Block) -> bool,
    ) -> impl Iterator<Item = BlockNumber> + '_ {
        let mut next = BlockNumber::of(start);
        std::iter::from_fn(move || {
            while next.address() < end {
                let at = next;
                let Some(block) = self.find(at) else {
                    next += LEAF_BLOCKS - at.index() % LEAF_BLOCKS;
                    continue;
                };
                next += 1;
                if test(block) {
                    return Some(at);
                }
            }
            None
        })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::space::block::PageState;
    use crate::units::{PageMask, SlotNumber};
    use sys::memory::USER_END;

    #[test]
    fn states_slots_flags_and_lock_share_a_record() {
        let table = AddressTable::new().unwrap();
        assert!(table.block(BlockNumber::of(USER_END - 1)).is_ok());
        let number = BlockNumber::of(0x7fff_1234_5000);
        let guard = table.lock(number).unwrap();
        assert_eq!((guard.slot(), guard.number().address()), (None, 0x7fff_1234_0000));
        let slot = Some(SlotNumber::new(77));
        guard.set_slot(slot);
        guard.set_compressing(true);
        guard.change(PageMask::span(3, 4), PageState::Kernel, PageState::Staged);
        guard.change(PageMask::span(4, 2), PageState::Staged, PageState::Stored);
        guard.change_kernels(PageMask::span(9, 1), PageState::DiscardOdd);
        assert_eq!(
            (guard.slot(), guard.mask(PageState::Staged), guard.mask(PageState::Stored)),
            (slot, PageMask::from_bits(0x48), PageMask::from_bits(0x30))
        );
        assert_eq!(guard.mask_of(PageState::is_kernels), !PageMask::from_bits(0x78));
        assert!(table.try_lock(number).is_none());
        drop(guard);
        let block = table.find(number).unwrap();
        assert!(block.is_compressing());
        assert!(table.find(BlockNumber::of(0x5555_0000_0000)).is_none());
        assert_eq!(table.busy(0, USER_END).collect::<Vec<_>>(), [number]);
        assert_eq!(table.busy(0x7fff_1235_0000, USER_END).count(), 0);
    }
}
