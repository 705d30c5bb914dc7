//! Locks of blocks, and the set of lost blocks.
//!
//! Every request locks the blocks of a piece before it looks at them. While it holds the lock, no
//! other request stores or drops these blocks: each is in the pool (in memory or in its swap file),
//! lost, or absent, which means zeroes. The pool serialises readers of a block anyway, so the locks
//! cost no concurrency.
//!
//! A leaf's word: bit `i` is set while block `i` is locked, bit 31 while a thread sleeps until a
//! lock is released.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use sys::futex;

const SLEEPERS: u32 = 1 << 31;
/// Spins before sleeping: a lock is mostly held for some microseconds.
const SPINS: u32 = 200;
/// A sleeper looks again after this time without a wake-up.
const SLEEP_NS: u64 = 10_000_000;

/// The locks and losses of all leaves of a device.
pub(crate) struct BlockLocks {
    words: Box<[AtomicU32]>,
    /// Blocks whose content is lost. Changed only by the holder of their lock.
    lost: Box<[AtomicU16]>,
    lost_count: AtomicU64,
}

pub(crate) struct BlockLock<'a> {
    locks: &'a BlockLocks,
    pub(crate) leaf: usize,
    mask: u16,
}

impl BlockLocks {
    pub(crate) fn new(leaves: usize) -> Self {
        BlockLocks {
            words: (0..leaves).map(|_| AtomicU32::new(0)).collect(),
            lost: (0..leaves).map(|_| AtomicU16::new(0)).collect(),
            lost_count: AtomicU64::new(0),
        }
    }

    /// Locks blocks; waits for requests that hold any of them. A thread must not hold two locks.
    pub(crate) fn lock(&self, leaf: usize, mask: u16) -> BlockLock<'_> {
        debug_assert!(mask != 0);
        let (word, bits) = (&self.words[leaf], u32::from(mask));
        let mut spins = 0;
        loop {
            let seen = word.load(Ordering::Relaxed);
            if seen & bits == 0 {
                if word.compare_exchange_weak(seen, seen | bits, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    return BlockLock { locks: self, leaf, mask };
                }
            } else if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                let asleep = seen | SLEEPERS;
                if seen == asleep
                    || word.compare_exchange(seen, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                {
                    futex::wait(word, asleep, Some(SLEEP_NS));
                }
            }
        }
    }

    fn release(&self, leaf: usize, mask: u16) {
        let word = &self.words[leaf];
        let before = word.fetch_and(!(u32::from(mask) | SLEEPERS), Ordering::Release);
        assert!(
            before & u32::from(mask) == u32::from(mask),
            "blocks are released by the holder of their lock"
        );
        if before & SLEEPERS != 0 {
            futex::wake(word, i32::MAX);
        }
    }

    pub(crate) fn lost(&self, leaf: usize) -> u16 {
        self.lost[leaf].load(Ordering::Relaxed)
    }

    pub(crate) fn lost_count(&self) -> u64 {
        self.lost_count.load(Ordering::Relaxed)
    }
}

impl BlockLock<'_> {
    /// Marks locked blocks as lost.
    pub(crate) fn lose(&self, mask: u16) {
        debug_assert!(mask & !self.mask == 0);
        let before = self.locks.lost[self.leaf].fetch_or(mask, Ordering::Relaxed);
        self.locks.lost_count.fetch_add(u64::from((mask & !before).count_ones()), Ordering::Relaxed);
    }

    /// Marks locked blocks as not lost: they have content again, or are absent.
    pub(crate) fn regain(&self, mask: u16) {
        debug_assert!(mask & !self.mask == 0);
        if self.locks.lost(self.leaf) & mask != 0 {
            let before = self.locks.lost[self.leaf].fetch_and(!mask, Ordering::Relaxed);
            self.locks.lost_count.fetch_sub(u64::from((mask & before).count_ones()), Ordering::Relaxed);
        }
    }
}

impl Drop for BlockLock<'_> {
    fn drop(&mut self) {
        self.locks.release(self.leaf, self.mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_exclude_and_leave_others_alone() {
        let block_locks = BlockLocks::new(2);
        let totals: [AtomicU64; 16] = std::array::from_fn(|_| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (block_locks, totals) = (&block_locks, &totals);
                scope.spawn(move || {
                    for round in 0..4000 {
                        let first = (round * 7 + thread) % 13;
                        let mask = 0b1011u16 << first;
                        let _lock = block_locks.lock(1, mask);
                        for block in (0..16).filter(|block| mask >> block & 1 == 1) {
                            // Not atomic as a whole: a second thread in here would lose counts.
                            let seen = totals[block].load(Ordering::Relaxed);
                            if round % 64 == 0 {
                                std::thread::yield_now();
                            }
                            totals[block].store(seen + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let sum: u64 = totals.iter().map(|total| total.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 4 * 4000 * 3);
        assert!(block_locks.words.iter().all(|word| word.load(Ordering::Relaxed) & !SLEEPERS == 0));
    }

    #[test]
    fn losses_are_counted() {
        let block_locks = BlockLocks::new(1);
        let lock = block_locks.lock(0, 0xFF);
        lock.lose(0b111);
        lock.lose(0b110);
        assert_eq!((block_locks.lost(0), block_locks.lost_count()), (0b111, 3));
        lock.regain(0b011);
        lock.regain(0b011);
        assert_eq!((block_locks.lost(0), block_locks.lost_count()), (0b100, 1));
    }
}
