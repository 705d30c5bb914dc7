//! A growing array whose items never move, in blocks that double: 22 pointers find any item, and a
//! small pool touches one page.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use sys::PAGE_SIZE;

use crate::blocks::Block;

/// Types for which all-zero bytes are valid, and which need no drop.
///
/// # Safety
/// The implementor promises both.
pub(crate) unsafe trait Zero {}

const BLOCKS: usize = 22;

/// The array. Block 0 has items `0..1 << FIRST_BITS`; each later block is as large as all before.
pub(crate) struct Table<T, const FIRST_BITS: u32> {
    blocks: [AtomicPtr<T>; BLOCKS],
}

impl<T, const FIRST_BITS: u32> Table<T, FIRST_BITS> {
    fn block_bytes(block: usize) -> usize {
        let items = 1usize << (FIRST_BITS as usize + block.saturating_sub(1));
        (items * size_of::<T>()).next_multiple_of(PAGE_SIZE)
    }
}

impl<T: Zero, const FIRST_BITS: u32> Table<T, FIRST_BITS> {
    pub(crate) fn new() -> Self {
        Table { blocks: [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS] }
    }

    #[inline]
    fn block_of(index: u32) -> (usize, u32) {
        let block = u32::BITS - (index >> FIRST_BITS).leading_zeros();
        let first = if block == 0 { 0 } else { 1 << (FIRST_BITS + block - 1) };
        (block as usize, first)
    }

    /// Item `index`, if the table has grown that far.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (block, first) = Self::block_of(index);
        let items = NonNull::new(self.blocks.get(block)?.load(Ordering::Acquire))?;
        // SAFETY: the block holds the items from `first` on, `index` is one of them by the
        // arithmetic above, zeroes are a valid T, and blocks live as long as the table.
        Some(unsafe { items.add((index - first) as usize).as_ref() })
    }

    /// Makes sure that item `index` exists, or fails with ENOMEM.
    pub(crate) fn reach(&self, index: u32) -> io::Result<()> {
        let (block, _) = Self::block_of(index);
        let Some(slot) = self.blocks.get(block) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        if !slot.load(Ordering::Acquire).is_null() {
            return Ok(());
        }
        let taken = Block::take(Self::block_bytes(block))?;
        let items = taken.at().as_ptr().cast();
        // Unless another thread was faster: then this block was never visible.
        if slot.compare_exchange(ptr::null_mut(), items, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            taken.leave();
        }
        Ok(())
    }

    /// Makes sure that all items up to `index` exist, or fails with ENOMEM.
    pub(crate) fn reach_all(&self, index: u32) -> io::Result<()> {
        self.reach(0)?;
        let (last, _) = Self::block_of(index);
        (1..=last).try_for_each(|block| self.reach(1 << (FIRST_BITS as usize + block - 1)))
    }

    /// Bytes of the pages that `items` items touch.
    pub(crate) fn bytes_for(items: u32) -> usize {
        let Some(last) = items.checked_sub(1) else { return 0 };
        let (block, first) = Self::block_of(last);
        let whole: usize = (0..block).map(Self::block_bytes).sum();
        whole + ((last - first + 1) as usize * size_of::<T>()).next_multiple_of(PAGE_SIZE)
    }
}

impl<T, const FIRST_BITS: u32> Drop for Table<T, FIRST_BITS> {
    fn drop(&mut self) {
        for (block, items) in self.blocks.iter_mut().enumerate() {
            let Some(items) = NonNull::new(*items.get_mut()) else { continue };
            // SAFETY: `reach` took it with this length; the table is no longer borrowed.
            drop(unsafe { Block::of(items.cast(), Self::block_bytes(block)) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    // SAFETY: an AtomicU64 of zeroes is 0 and needs no drop.
    unsafe impl Zero for AtomicU64 {}

    #[test]
    fn items_are_zero_distinct_and_stay() {
        let table = Table::<AtomicU64, 9>::new();
        assert!(table.get(0).is_none());
        for index in (0..5000).rev() {
            table.reach(index).unwrap();
            let item = table.get(index).unwrap();
            assert_eq!(item.swap(u64::from(index) + 1, Ordering::Relaxed), 0);
        }
        for index in 0..5000 {
            assert_eq!(table.get(index).unwrap().load(Ordering::Relaxed), u64::from(index) + 1);
        }
        assert!(table.get(8192).is_none());
        assert!(table.get(u32::MAX).is_none());
        assert!(table.reach(u32::MAX).is_err());
    }

    #[test]
    fn touched_bytes_are_counted_by_page() {
        assert_eq!(Table::<AtomicU64, 9>::bytes_for(0), 0);
        assert_eq!(Table::<AtomicU64, 9>::bytes_for(1), 4096);
        assert_eq!(Table::<AtomicU64, 9>::bytes_for(512), 4096);
        assert_eq!(Table::<AtomicU64, 9>::bytes_for(513), 8192);
        assert_eq!(Table::<AtomicU64, 9>::bytes_for(2048), 16384);
        assert_eq!(Table::<AtomicU64, 9>::bytes_for(2049), 20480);
    }
}
