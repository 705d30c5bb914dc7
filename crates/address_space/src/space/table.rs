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
use crate::units::{block_of, BLOCK_BYTES};

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
        assert!(index < LEAVES, "address beyond the user space");
        // SAFETY: the array has LEAVES zeroed entries and is never freed.
        unsafe { &*self.leaves.as_ptr().add(index) }
    }

    /// The block of `address`, if its leaf exists.
    pub fn find(&self, address: usize) -> Option<&Block> {
        let leaf = self.leaf(address >> LEAF_BITS).load(Ordering::Acquire);
        if leaf.is_null() {
            return None;
        }
        // SAFETY: a leaf has LEAF_BLOCKS zeroed blocks and is never freed.
        Some(unsafe { &*leaf.add(address / BLOCK_BYTES % LEAF_BLOCKS) })
    }

    /// The block of `address`. Makes its leaf if needed: 768 KiB of address space, resident as
    /// used.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn block(&self, address: usize) -> io::Result<&Block> {
        if let Some(block) = self.find(address) {
            return Ok(block);
        }
        let entry = self.leaf(address >> LEAF_BITS);
        let fresh: NonNull<Block> =
            arena::take(LEAF_BLOCKS * std::mem::size_of::<Block>(), PAGE_SIZE)?.cast();
        // If two threads race, the loser's leaf stays unused address space.
        let null = std::ptr::null_mut();
        let _ = entry.compare_exchange(null, fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        Ok(self.find(address).expect("the leaf exists now"))
    }

    /// Waits for the lock of the block of `address`.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn lock(&self, address: usize) -> io::Result<BlockGuard<'_>> {
        let block = self.block(address)?;
        block.lock();
        Ok(BlockGuard::locked(block, block_of(address)))
    }

    /// Waits for the lock, or returns `None` if the block has no record.
    pub fn lock_existing(&self, address: usize) -> Option<BlockGuard<'_>> {
        let block = self.find(address)?;
        block.lock();
        Some(BlockGuard::locked(block, block_of(address)))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self, address: usize) -> Option<BlockGuard<'_>> {
        if address >= sys::memory::USER_END {
            return None;
        }
        let block = self.block(address).ok()?;
        block.try_lock().then(|| BlockGuard::locked(block, block_of(address)))
    }

    /// Waits for the lock of a block whose slot is not being compressed. Compressing takes
    /// microseconds and waits only for leaf locks, so every thread but a compressor may wait here,
    /// or for a thread that does.
    ///
    /// # Errors
    /// If the arena is full.
    pub fn lock_settled(&self, address: usize) -> io::Result<BlockGuard<'_>> {
        loop {
            let guard = self.lock(address)?;
            if !guard.is_compressing() {
                return Ok(guard);
            }
            drop(guard);
            sleep_ns(5_000);
        }
    }

    /// Addresses of the blocks in `[start, end)` with out or discarded pages. The cost follows the
    /// leaves in use, not the length of the range. Concurrent changes may be missed.
    pub fn busy(&self, start: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        self.blocks(start, end, |block| !block.is_idle())
    }

    /// Like [`AddressTable::busy`], and blocks with refused pages, too.
    pub fn known(&self, start: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        self.blocks(start, end, |block| !block.is_blank())
    }

    fn blocks(&self, start: usize, end: usize, test: fn(&Block) -> bool) -> impl Iterator<Item = usize> + '_ {
        let mut next = block_of(start);
        std::iter::from_fn(move || {
            while next < end {
                let at = next;
                let Some(block) = self.find(at) else {
                    next = ((at >> LEAF_BITS) + 1) << LEAF_BITS;
                    continue;
                };
                next += BLOCK_BYTES;
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
    use crate::space::block::{PageState, NO_SLOT};
    use crate::units::{span, ALL_PAGES};
    use sys::memory::USER_END;

    #[test]
    fn states_slots_flags_and_lock_share_a_record() {
        let table = AddressTable::new().unwrap();
        assert!(table.block(USER_END - 1).is_ok());
        let guard = table.lock(0x7fff_1234_5000).unwrap();
        assert_eq!((guard.slot(), guard.base()), (NO_SLOT, 0x7fff_1234_0000));
        guard.set_slot(77);
        guard.set_compressing(true);
        guard.change(span(3, 4), PageState::Kernel, PageState::Staged);
        guard.change(span(4, 2), PageState::Staged, PageState::Stored);
        guard.change_kernels(1 << 9, PageState::DiscardOdd);
        assert_eq!(
            (guard.slot(), guard.mask(PageState::Staged), guard.mask(PageState::Stored)),
            (77, 0x48, 0x30)
        );
        assert_eq!(guard.mask_of(PageState::is_kernels), !0x78 & ALL_PAGES);
        assert!(table.try_lock(0x7fff_1234_0000).is_none());
        drop(guard);
        let block = table.find(0x7fff_1234_0000).unwrap();
        assert!(block.is_compressing());
        assert!(table.find(0x5555_0000_0000).is_none());
        assert_eq!(table.busy(0, USER_END).collect::<Vec<_>>(), [0x7fff_1234_0000]);
        assert_eq!(table.busy(0x7fff_1235_0000, USER_END).count(), 0);
    }
}
