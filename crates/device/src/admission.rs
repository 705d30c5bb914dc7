//! Checks that memory suffices for a write before the write changes anything.
//!
//! The pool drops the content that a failed store would have replaced, so a store must not fail for
//! want of memory. Each write is admitted with the most bytes that it can take; writes in progress
//! count in full.
//!
//! Measuring free memory takes a microsecond. A measurement therefore leaves *credit*, bytes known
//! to be free, from which writes are admitted without measuring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A thread that waits for room looks again after this time without a signal.
const WAIT: Duration = Duration::from_millis(20);

/// Bounds on the memory that a write can take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Worst {
    pub(crate) block_bytes: u64,
    /// Most bytes that a piece can take in addition.
    pub(crate) piece_bytes: u64,
}

impl Worst {
    /// Ordinary memory: an object begins a zspage, of which it reaches two pages; a block of
    /// leaves, one of nodes.
    pub(crate) const TOUCHED: Worst = Worst { block_bytes: 2 * 4096, piece_bytes: 32 << 10 };
    /// A stocked arena: an object begins a zspage, which has a frame of 64 KiB to itself.
    pub(crate) const STOCKED: Worst = Worst { block_bytes: 64 << 10, piece_bytes: 0 };

    fn bytes(self, blocks: usize) -> u64 {
        self.block_bytes * blocks as u64 + self.piece_bytes
    }
}

/// Keeps the bound and the writes in progress.
#[derive(Default)]
pub(crate) struct AdmissionControl {
    worst: Worst,
    /// Most bytes of credit that one measurement gives.
    credit_max: u64,
    /// Bytes that writes may take without measuring.
    credit: AtomicU64,
    /// The most that writes in progress can take. Raised before credit is taken.
    in_flight: AtomicU64,
    measuring: Mutex<()>,
    waiting: AtomicU64,
    ended: Condvar,
}

pub(crate) struct Admission<'a> {
    control: &'a AdmissionControl,
    bytes: u64,
}

impl AdmissionControl {
    pub(crate) fn new(worst: Worst, credit_max: u64) -> Self {
        AdmissionControl { worst, credit_max, ..AdmissionControl::default() }
    }

    /// Admits a write of `blocks` blocks. `free_bytes` measures; `make` tries to free the given
    /// number of bytes and returns whether it freed any. Returns `None` if there is no room and no
    /// admitted write that could make some.
    pub(crate) fn admit(
        &self,
        blocks: usize,
        free_bytes: impl Fn() -> u64,
        make: impl Fn(u64) -> bool,
    ) -> Option<Admission<'_>> {
        let bytes = self.worst.bytes(blocks);
        self.in_flight.fetch_add(bytes, Ordering::SeqCst);
        let taken = self
            .credit
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |credit| credit.checked_sub(bytes))
            .is_ok();
        if taken {
            return Some(Admission { control: self, bytes });
        }
        self.in_flight.fetch_sub(bytes, Ordering::SeqCst);
        self.admit_slowly(bytes, free_bytes, make)
    }

    /// Reserves bytes against later admissions, if they are free and no request waits for any.
    pub(crate) fn hold(&self, bytes: u64, free_bytes: impl Fn() -> u64) -> Option<Admission<'_>> {
        let _guard = match self.measuring.try_lock() {
            Err(TryLockError::WouldBlock) => return None,
            other => other,
        };
        // As in `admit_slowly`; the next one measures again.
        self.credit.store(0, Ordering::SeqCst);
        let others = self.in_flight.load(Ordering::SeqCst);
        free_bytes().checked_sub(others + bytes)?;
        self.in_flight.fetch_add(bytes, Ordering::SeqCst);
        Some(Admission { control: self, bytes })
    }

    fn admit_slowly(
        &self,
        bytes: u64,
        free_bytes: impl Fn() -> u64,
        make: impl Fn(u64) -> bool,
    ) -> Option<Admission<'_>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.measuring);
        let admitted = loop {
            // Without credit no other request is admitted, and all admitted ones are in flight.
            self.credit.store(0, Ordering::SeqCst);
            let others = self.in_flight.load(Ordering::SeqCst);
            let free = free_bytes();
            if let Some(credit) = free.checked_sub(others + bytes) {
                self.in_flight.fetch_add(bytes, Ordering::SeqCst);
                self.credit.store(credit.min(self.credit_max), Ordering::SeqCst);
                break true;
            }
            if others > 0 {
                // Writes mostly take far less than their bound.
                guard = self.ended.wait_timeout(guard, WAIT).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            // Another thread may have freed memory since.
            if !make(bytes - free) && free_bytes() <= free {
                break false;
            }
        };
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        admitted.then(|| Admission { control: self, bytes })
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.control.in_flight.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.control.waiting.load(Ordering::SeqCst) > 0 {
            self.control.ended.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORST: Worst = Worst { block_bytes: 100, piece_bytes: 0 };

    #[test]
    fn the_bound_holds_for_all_threads() {
        let control = AdmissionControl::new(WORST, u64::MAX);
        let used = AtomicU64::new(0);
        let most = AtomicU64::new(0);
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (control, used, most, refused) = (&control, &used, &most, &refused);
                scope.spawn(move || {
                    for round in 0..3000u64 {
                        let free = || 1000 - used.load(Ordering::SeqCst);
                        // Every third write takes all it may, the others next to nothing.
                        let Some(admission) = control.admit(3, free, |_| false) else {
                            refused.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        let bytes = if round % 3 == 0 { 300 } else { 1 };
                        let now = used.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        most.fetch_max(now, Ordering::SeqCst);
                        if round % 64 == thread {
                            std::thread::yield_now();
                        }
                        used.fetch_sub(bytes, Ordering::SeqCst);
                        drop(admission);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 1000);
        assert_eq!(refused.load(Ordering::Relaxed), 0, "waiting is enough here");
        assert_eq!(control.in_flight.load(Ordering::SeqCst), 0);
        assert_eq!(control.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn room_is_made_or_refused() {
        let control = AdmissionControl::new(WORST, u64::MAX);
        let free = AtomicU64::new(50);
        assert!(control.admit(1, || free.load(Ordering::Relaxed), |_| false).is_none());
        let made = control.admit(
            1,
            || free.load(Ordering::Relaxed),
            |missing| {
                assert_eq!(missing, 50);
                free.fetch_add(missing, Ordering::Relaxed);
                true
            },
        );
        assert!(made.is_some());
    }

    #[test]
    fn credit_saves_measuring() {
        let control = AdmissionControl::new(WORST, u64::MAX);
        let measured = AtomicU64::new(0);
        for _ in 0..10 {
            let free = || {
                measured.fetch_add(1, Ordering::Relaxed);
                1000
            };
            assert!(control.admit(1, free, |_| false).is_some());
        }
        assert_eq!(measured.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn credit_has_a_bound_and_held_bytes_are_not_credit() {
        let control = AdmissionControl::new(WORST, 250);
        let measured = AtomicU64::new(0);
        let free = || {
            measured.fetch_add(1, Ordering::Relaxed);
            1000
        };
        let admissions: Vec<_> = (0..6).map(|_| control.admit(1, free, |_| false).unwrap()).collect();
        assert_eq!(measured.load(Ordering::Relaxed), 2, "one and two on credit, twice");
        assert!(control.hold(401, free).is_none());
        let held = control.hold(400, free).unwrap();
        drop(admissions);
        assert_eq!(control.in_flight.load(Ordering::SeqCst), 400);
        drop(held);
        assert!(control.admit(10, free, |_| false).is_some());
    }
}
