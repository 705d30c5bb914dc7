//! Equal-sized items named by a `u32`, in blocks from the arena.
//!
//! The slab keeps the address space of blocks, but gives an empty block's pages back to the system,
//! so that [`Slab::bytes`] returns to zero with the last item. Name 0 is no item.

use std::io;
use std::ptr::NonNull;

use sys::PAGE_SIZE;

use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, Ordering};

use crate::sync::{lock, Mutex};

/// Names are block and index within the block; this many bits are the index.
pub(crate) struct Slab {
    stride: usize,
    index_bits: u32,
    directory: Box<[AtomicPtr<u8>]>,
    state: Mutex<State>,
    bytes: AtomicU64,
    /// For tests: allocations until failure; negative means no limit.
    allowed: AtomicI64,
}

struct State {
    /// Blocks with an address. This bookkeeping grows by doubling, in the global allocator.
    blocks: Vec<Block>,
    /// First block with both used and free items, +1.
    partial: u32,
    /// First block with an address and no item, +1.
    empty: u32,
}

#[derive(Clone, Copy, Default)]
struct Block {
    used: u32,
    /// Items below this were handed out at least once since the block was last empty.
    fresh: u32,
    /// First freed item, +1; each freed item's first word names the next.
    free: u32,
    /// Neighbours on the partial list, or the next on the empty list, +1.
    prev: u32,
    next: u32,
}

/// `count` null pointers. The memory comes zeroed and is not touched here: of a directory of more
/// than a megabyte a small pool uses a few lines.
fn nulls(count: usize) -> Box<[AtomicPtr<u8>]> {
    let zeroes = Box::into_raw(vec![0usize; count].into_boxed_slice());
    // SAFETY: an atomic pointer has the size, the alignment and the valid values of a usize; null
    // is 0.
    unsafe { Box::from_raw(zeroes as *mut [AtomicPtr<u8>]) }
}

impl Slab {
    /// A slab of up to `items_max` items of `stride` bytes, `1 << index_bits` a block.
    pub(crate) fn new(stride: usize, index_bits: u32, items_max: usize) -> Self {
        assert!(stride >= 4 && stride.is_multiple_of(4));
        let blocks = items_max.div_ceil(1 << index_bits).max(1);
        assert!((blocks << index_bits) < u32::MAX as usize);
        Slab {
            stride,
            index_bits,
            directory: nulls(blocks),
            state: Mutex::new(State { blocks: Vec::new(), partial: 0, empty: 0 }),
            bytes: AtomicU64::new(0),
            allowed: AtomicI64::new(-1),
        }
    }

    fn block_bytes(&self) -> usize {
        (self.stride << self.index_bits).next_multiple_of(PAGE_SIZE)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The address of item `name`.
    ///
    /// # Safety
    /// `name` was allocated here and not freed since. The callers guard the memory: a leaf and a
    /// node belong to the group that links them, under its lock.
    pub(crate) unsafe fn get(&self, name: u32) -> *mut u8 {
        let number = name as usize - 1;
        let block = self.directory[number >> self.index_bits].load(Ordering::Acquire);
        debug_assert!(!block.is_null());
        // SAFETY: the block has `1 << index_bits` items and `number` was allocated in it.
        unsafe { block.add((number & ((1 << self.index_bits) - 1)) * self.stride) }
    }

    /// Allocates an item of zeroes, or fails with ENOMEM if the arena or the directory is full.
    pub(crate) fn alloc(&self) -> io::Result<u32> {
        if self.fails() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut state = lock(&self.state);
        let number = match (state.partial, state.empty) {
            (0, 0) => {
                let number = self.add_block(&mut state)?;
                state.link(number);
                number
            }
            (0, empty) => {
                let number = empty - 1;
                state.empty = state.blocks[number as usize].next;
                state.blocks[number as usize] = Block::default();
                state.link(number);
                number
            }
            (partial, _) => partial - 1,
        };
        let base = self.directory[number as usize].load(Ordering::Relaxed);
        let per_block = 1u32 << self.index_bits;
        let block = &mut state.blocks[number as usize];
        if block.used == 0 {
            self.bytes.fetch_add(self.block_bytes() as u64, Ordering::Relaxed);
        }
        let index = if block.free != 0 {
            let index = block.free - 1;
            // SAFETY: a freed item of the block, whose first word names the next freed one; the
            // lock is held.
            let at = unsafe { base.add(index as usize * self.stride) };
            // SAFETY: as above; items are aligned to four bytes.
            block.free = unsafe { at.cast::<u32>().read() };
            // SAFETY: as above; no other name refers to the item.
            unsafe { at.write_bytes(0, self.stride) };
            index
        } else {
            // Unused since the block was mapped or discarded: already zero.
            block.fresh += 1;
            block.fresh - 1
        };
        block.used += 1;
        if block.used == per_block {
            state.unlink(number);
        }
        Ok((number << self.index_bits) + index + 1)
    }

    /// For tests: after `count` more items, allocations fail, until `None`.
    pub(crate) fn fail_after(&self, count: Option<u32>) {
        self.allowed.store(count.map_or(-1, i64::from), Ordering::Relaxed);
    }

    fn fails(&self) -> bool {
        if self.allowed.load(Ordering::Relaxed) < 0 {
            return false;
        }
        let left = |left: i64| (left > 0).then_some(left - 1);
        self.allowed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_err()
    }

    /// Adds a block, which is on no list.
    fn add_block(&self, state: &mut State) -> io::Result<u32> {
        let number = state.blocks.len();
        if number == self.directory.len() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        state.blocks.try_reserve(1).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let at: NonNull<u8> = sys::arena::take(self.block_bytes(), PAGE_SIZE)?;
        self.directory[number].store(at.as_ptr(), Ordering::Release);
        state.blocks.push(Block::default());
        Ok(number as u32)
    }

    /// Takes addresses for `items` items, so that they need no more later; ENOMEM as for `alloc`.
    pub(crate) fn reserve(&self, items: usize) -> io::Result<()> {
        let mut state = lock(&self.state);
        let wanted = items.div_ceil(1 << self.index_bits);
        while state.blocks.len() < wanted {
            let number = self.add_block(&mut state)?;
            state.blocks[number as usize].next = state.empty;
            state.empty = number + 1;
        }
        Ok(())
    }

    /// Frees an item.
    ///
    /// # Safety
    /// `name` was allocated here, was not freed since, and is no longer used.
    pub(crate) unsafe fn free(&self, name: u32) {
        let mut state = lock(&self.state);
        let number = (name - 1) >> self.index_bits;
        let index = (name - 1) & ((1 << self.index_bits) - 1);
        let base = self.directory[number as usize].load(Ordering::Relaxed);
        let full = state.blocks[number as usize].used == 1 << self.index_bits;
        let block = &mut state.blocks[number as usize];
        debug_assert!(block.used > 0 && index < block.fresh);
        block.used -= 1;
        if block.used > 0 {
            // SAFETY: the item is within the block and the caller gave it up.
            unsafe { base.add(index as usize * self.stride).cast::<u32>().write(block.free) };
            block.free = index + 1;
            if full {
                state.link(number);
            }
            return;
        }
        if !full {
            state.unlink(number);
        }
        self.bytes.fetch_sub(self.block_bytes() as u64, Ordering::Relaxed);
        let at = NonNull::new(base).expect("blocks have addresses");
        // SAFETY: whole pages from the arena, and no item of the block is in use.
        unsafe { sys::memory::discard(at, self.block_bytes()) };
        state.blocks[number as usize] = Block { next: state.empty, ..Block::default() };
        state.empty = number + 1;
    }
}

impl State {
    fn link(&mut self, number: u32) {
        let head = self.partial;
        if head != 0 {
            self.blocks[head as usize - 1].prev = number + 1;
        }
        let block = &mut self.blocks[number as usize];
        (block.prev, block.next) = (0, head);
        self.partial = number + 1;
    }

    fn unlink(&mut self, number: u32) {
        let Block { prev, next, .. } = self.blocks[number as usize];
        match prev {
            0 => self.partial = next,
            prev => self.blocks[prev as usize - 1].next = next,
        }
        if next != 0 {
            self.blocks[next as usize - 1].prev = prev;
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // The arena keeps the addresses; their pages go back to the system.
        for (block, at) in lock(&self.state).blocks.iter().zip(self.directory.iter()) {
            if block.used > 0 {
                let at = NonNull::new(at.load(Ordering::Relaxed)).expect("blocks have addresses");
                // SAFETY: whole pages from the arena; the slab's users hold it by reference, so
                // none is left.
                unsafe { sys::memory::discard(at, self.block_bytes()) };
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn items_are_distinct_zero_and_return_to_nothing() {
        let slab = Slab::new(20, 6, 10_000);
        let mut names = Vec::new();
        for round in 0u32..3 {
            for _ in 0..1000 {
                let name = slab.alloc().unwrap();
                // SAFETY: allocated above, 20 bytes, used by this thread only.
                let bytes = unsafe { std::slice::from_raw_parts_mut(slab.get(name), 20) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(round as u8 + 1);
                names.push(name);
            }
            let mut sorted = names.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), names.len());
            assert!(slab.bytes() as usize >= names.len() * 20);
            // An order that leaves holes in every block.
            for start in 0..7 {
                for name in names.iter().skip(start).step_by(7) {
                    // SAFETY: each name is freed once.
                    unsafe { slab.free(*name) };
                }
            }
            names.clear();
            assert_eq!(slab.bytes(), 0);
        }
    }

    #[test]
    fn the_directory_is_a_limit() {
        let slab = Slab::new(8, 4, 32);
        let names: Vec<u32> = (0..32).map(|_| slab.alloc().unwrap()).collect();
        assert!(slab.alloc().is_err());
        // SAFETY: allocated above, freed once.
        unsafe { slab.free(names[5]) };
        assert_eq!(slab.alloc().unwrap(), names[5]);
    }
}
