//! Halting brings everything in and unregisters everything, as if the process had no pager.
//!
//! fork() needs it, because a child would find evicted pages as zeroes and locks of threads that it
//! does not have. It is permanent before the program removes what a pager needs (a seccomp filter
//! for all threads, mlockall).

use address_space::units::BLOCK_PAGES;
use address_space::{Counter, Inbound, ThreadsState};
use sys::memory::USER_END;
use sys::thread;

use super::Lifecycle;

/// Longest wait for threads to park. None waits for the program, but the machine may be slow.
const PARK_NS: u64 = 10_000_000_000;

impl Lifecycle {
    /// See `Pager::halt`.
    pub fn halt(&self) {
        self.process.quiesce.begin();
        self.reclaimer.direct.wait();
        let mut inbound = Inbound::new(self.own_page);
        let mut brought = 0;
        // Terminates because eviction is off; only blocks with pending events remain. Handlers read
        // the events. Their order may be known only after their threads have continued, which no
        // message reports.
        while self.fault_in_everything(&mut inbound, &mut brought) {
            self.process.pages.apply_events();
            self.service.gate.dismiss_reports();
            thread::sleep_ns(50_000);
        }
        inbound.frames.empty_out(&self.process.pages.staging);
        self.process.accounts.add(Counter::BroughtIn, brought as u64);
        self.unregister_everything();
        self.process.pages.watch_changes(false);
        while self.service.is_busy() || self.process.pages.has_pending_events() {
            self.process.pages.apply_events();
            thread::sleep_ns(10_000);
        }
        while let Some(slot) = self.process.pages.staging.oldest_of(BLOCK_PAGES) {
            self.process.pages.staging.give(slot.done());
        }
        while let Some(slot) = self.process.pages.staging.take_ready(1) {
            self.process.pages.staging.discard(&slot);
            self.process.pages.staging.give(slot);
        }
        self.process.measure();
    }

    /// Unregisters all mappings: without fault service, threads would wait there for ever.
    fn unregister_everything(&self) {
        loop {
            self.process.unregister();
            if self.unregister_moved() {
                return;
            }
        }
    }

    /// Unregisters reported moves of other threads. Returns false if they were too many.
    fn unregister_moved(&self) -> bool {
        let (mut has_moved, mut is_known) = (true, true);
        while has_moved && is_known {
            while self.process.pages.has_pending_events() || self.process.pages.guard().is_changing() {
                self.process.pages.apply_events();
                self.service.gate.dismiss_reports();
                thread::sleep_ns(10_000);
            }
            has_moved = false;
            self.process.pages.changed.take(|start, end| {
                has_moved = true;
                is_known &= end != usize::MAX;
                // Errors are expected: most of these mappings are gone, or were never registered.
                let _ = self.process.pages.reports().unregister(start, end - start);
            });
        }
        is_known
    }

    fn fault_in_everything(&self, inbound: &mut Inbound, brought: &mut usize) -> bool {
        let mut is_left = false;
        for block in self.process.pages.table().busy(0, USER_END) {
            let (pages, blocked) = self.process.pages.fault_in_block(inbound, block);
            *brought += pages;
            is_left |= blocked;
        }
        is_left
    }

    /// See `Pager::park`.
    pub fn park(&self) {
        self.process.quiesce.park();
        self.reclaimer.wake_all();
        self.service.handlers.call_all();
        let give_up = sys::now_ns() + PARK_NS;
        let threads = self.reclaimer.threads() + self.service.handlers.count();
        while self.process.quiesce.parked() < threads && sys::now_ns() < give_up {
            thread::sleep_ns(50_000);
        }
        // Between the count and the wait are a few instructions, and no other call.
        loop {
            match self.process.pages.own_threads.state() {
                ThreadsState::Running if sys::now_ns() < give_up => thread::sleep_ns(50_000),
                ThreadsState::Running | ThreadsState::Blocked => break,
                ThreadsState::Unknown => break thread::sleep_ns(1_000_000),
            }
        }
    }

    pub fn resume(&self) {
        self.process.pages.watch_changes(true);
        self.process.quiesce.resume();
        self.refresh_mappings();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use address_space::units::BLOCK_BYTES;
    use address_space::Registration;

    use crate::testing::{pager_of, range_of};

    /// Regression: mlockall() just after a mapping had moved. It stayed registered without fault
    /// service, and a thread that first touched a page of it waited for ever.
    #[test]
    fn nothing_stays_registered_wherever_it_has_been_moved() {
        let Some((pager, base)) = pager_of(16) else { return };
        pager.register(range_of(base, 4));
        let (from, to, is_over) = (base.address(), (base + 8).address(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (at, to, len) = (from as *mut libc::c_void, to as *mut libc::c_void, 4 * BLOCK_BYTES);
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: this test's mapping.
                assert_eq!(unsafe { libc::mremap(at, len, len, flags, to) }, to);
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                pager.process.pages.read_message();
            }
        });
        assert_eq!(pager.process.pages.guard().registration(to), Registration::Registered);
        pager.halt();
        assert_eq!(pager.process.pages.guard().registration(to), Registration::Unregistered);
    }
}
