//! Who works on which block, and which blocks are lost.
//!
//! Every request claims the blocks of a piece before it looks at them. Hence nothing comes or goes
//! while a claim is held: a block is in the pool (in memory or in its swap file, which is the
//! pool's affair), lost, or nowhere, which means zeroes. The pool would let two readers of a block
//! wait for each other too, so claiming costs no concurrency.
//!
//! A leaf's word: bit `i` is set while block `i` is claimed, bit 31 while a thread sleeps until a
//! claim ends.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use sys::futex;

const SLEEPERS: u32 = 1 << 31;
/// Looks before sleeping: a claim mostly ends within some microseconds.
const SPINS: u32 = 200;
/// A sleeper looks again by itself after this time.
const SLEEP_NS: u64 = 10_000_000;

/// The claims and losses of all leaves of a device.
pub(crate) struct Claims {
    words: Box<[AtomicU32]>,
    /// Blocks whose content is lost. Changed only by who has claimed them.
    lost: Box<[AtomicU16]>,
    lost_count: AtomicU64,
}

/// Blocks of a leaf on which no other request works.
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    pub(crate) leaf: usize,
    mask: u16,
}

impl Claims {
    pub(crate) fn new(leaves: usize) -> Self {
        Claims {
            words: (0..leaves).map(|_| AtomicU32::new(0)).collect(),
            lost: (0..leaves).map(|_| AtomicU16::new(0)).collect(),
            lost_count: AtomicU64::new(0),
        }
    }

    /// Claims blocks, waiting for others to end. The holder of a claim must not ask for another.
    pub(crate) fn claim(&self, leaf: usize, mask: u16) -> Claim<'_> {
        debug_assert!(mask != 0);
        let (word, bits) = (&self.words[leaf], u32::from(mask));
        let mut spins = 0;
        loop {
            let seen = word.load(Ordering::Relaxed);
            if seen & bits == 0 {
                if word.compare_exchange_weak(seen, seen | bits, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    return Claim { claims: self, leaf, mask };
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
        assert!(before & u32::from(mask) == u32::from(mask), "blocks are released by who claimed them");
        if before & SLEEPERS != 0 {
            futex::wake(word, i32::MAX);
        }
    }

    /// Which of a leaf's blocks are lost.
    pub(crate) fn lost(&self, leaf: usize) -> u16 {
        self.lost[leaf].load(Ordering::Relaxed)
    }

    /// Blocks lost now.
    pub(crate) fn lost_count(&self) -> u64 {
        self.lost_count.load(Ordering::Relaxed)
    }
}

impl Claim<'_> {
    /// Notes that the content of claimed blocks is lost.
    pub(crate) fn lose(&self, mask: u16) {
        debug_assert!(mask & !self.mask == 0);
        let before = self.claims.lost[self.leaf].fetch_or(mask, Ordering::Relaxed);
        self.claims.lost_count.fetch_add(u64::from((mask & !before).count_ones()), Ordering::Relaxed);
    }

    /// Notes that claimed blocks have content again, or none.
    pub(crate) fn regain(&self, mask: u16) {
        debug_assert!(mask & !self.mask == 0);
        if self.claims.lost(self.leaf) & mask != 0 {
            let before = self.claims.lost[self.leaf].fetch_and(!mask, Ordering::Relaxed);
            self.claims.lost_count.fetch_sub(u64::from((mask & before).count_ones()), Ordering::Relaxed);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.release(self.leaf, self.mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_exclude_and_leave_others_alone() {
        let claims = Claims::new(2);
        let totals: [AtomicU64; 16] = std::array::from_fn(|_| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (claims, totals) = (&claims, &totals);
                scope.spawn(move || {
                    for round in 0..4000 {
                        let first = (round * 7 + thread) % 13;
                        let mask = 0b1011u16 << first;
                        let _claim = claims.claim(1, mask);
                        for block in (0..16).filter(|block| mask >> block & 1 == 1) {
                            // Not atomic as a whole: another thread in here would lose counts.
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
        assert!(claims.words.iter().all(|word| word.load(Ordering::Relaxed) & !SLEEPERS == 0));
    }

    #[test]
    fn losses_are_counted() {
        let claims = Claims::new(1);
        let claim = claims.claim(0, 0xFF);
        claim.lose(0b111);
        claim.lose(0b110);
        assert_eq!((claims.lost(0), claims.lost_count()), (0b111, 3));
        claim.regain(0b011);
        claim.regain(0b011);
        assert_eq!((claims.lost(0), claims.lost_count()), (0b100, 1));
    }
}
