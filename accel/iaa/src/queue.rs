//! A queue under the driver: credits, health, counters.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use idxd::{Completion, Descriptor, Portal, Submission};

use crate::device::Port;
use crate::shared_counters::{Line, SharedCounters};
use crate::statistics::{count, Health};

/// Successive device failures after which a queue is quarantined.
const HARDWARE_ERRORS_MAX: u32 = 8;
/// Longest quarantine, in doublings of the first.
const BACKOFF_MAX: u32 = 10;

const LIVE: u32 = 0;
/// Failed lately; retried later, with a no-op.
const QUARANTINED: u32 = 1;
/// Its access to memory was ended. Final.
const REVOKED: u32 = 2;

/// A line of its own: submitting threads of all processors write here.
#[repr(align(128))]
struct Credits(AtomicI64);

/// A queue, shared by the tables that list it; dropping the last of them closes it.
pub(crate) struct Queue {
    // Dropped first: closing the portal ends the device's access to the record below.
    portal: Box<dyn Portal>,
    probe: Completion,
    pub name: String,
    pub blocks_on_fault: bool,
    pub has_header_generation: bool,
    entries: i64,
    free: Credits,
    state: AtomicU32,
    backoff: AtomicU32,
    quarantine_ns: u64,
    retry_at_ns: AtomicU64,
    hardware_errors: AtomicU32,
    /// Accepted no-ops that have not completed yet.
    probes: AtomicU32,
    pub traffic: Line,
    counters: Arc<SharedCounters>,
}

impl Queue {
    pub fn new(
        port: Port,
        has_header_generation: bool,
        quarantine_ms: u64,
        counters: Arc<SharedCounters>,
    ) -> Self {
        assert!(port.entries > 0, "a queue without entries");
        let traffic = SharedCounters::line(&counters, &port.name);
        Queue {
            portal: port.portal,
            probe: Completion::new(),
            name: port.name,
            blocks_on_fault: port.blocks_on_fault,
            has_header_generation,
            entries: i64::from(port.entries),
            free: Credits(AtomicI64::new(i64::from(port.entries))),
            state: AtomicU32::new(LIVE),
            backoff: AtomicU32::new(0),
            quarantine_ns: quarantine_ms * 1_000_000,
            retry_at_ns: AtomicU64::new(0),
            hardware_errors: AtomicU32::new(0),
            probes: AtomicU32::new(0),
            traffic,
            counters,
        }
    }

    #[inline]
    pub fn portal(&self) -> &dyn Portal {
        &*self.portal
    }

    /// Takes up to `want` credits; returns how many. Never more are out than the queue has entries.
    #[inline]
    pub fn take(&self, want: u32) -> u32 {
        let before = self.free.0.fetch_sub(i64::from(want), Ordering::Acquire);
        if before >= i64::from(want) {
            return want;
        }
        // Credits that other threads give back in between are found at the next try.
        let got = before.max(0);
        self.free.0.fetch_add(i64::from(want) - got, Ordering::Relaxed);
        got as u32
    }

    #[inline]
    pub fn give(&self, credits: u32) {
        let before = self.free.0.fetch_add(i64::from(credits), Ordering::Release);
        debug_assert!(before + i64::from(credits) <= self.entries);
    }

    /// Credits that are out, apart from those of probes.
    pub fn outstanding(&self) -> i64 {
        let probes = i64::from(self.probes.load(Ordering::Acquire));
        self.entries - self.free.0.load(Ordering::Acquire) - probes
    }

    #[inline]
    pub fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
    }

    /// Whether the device can be reached; quarantines the queue if not. Checked before a request
    /// submits anything: a store to an unmapped portal would end the process.
    #[inline]
    pub fn is_there(&self) -> bool {
        let is_there = self.portal.is_there();
        if !is_there {
            self.quarantine();
        }
        is_there
    }

    pub fn health(&self) -> Health {
        match self.state.load(Ordering::Acquire) {
            LIVE => Health::Live,
            QUARANTINED => Health::Quarantined,
            _ => Health::Revoked,
        }
    }

    /// Quarantines the queue.
    #[cold]
    pub fn quarantine(&self) {
        if self.state.compare_exchange(LIVE, QUARANTINED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.postpone();
            count(&self.counters.quarantines);
        }
    }

    fn postpone(&self) {
        let doublings = self.backoff.fetch_add(1, Ordering::Relaxed).min(BACKOFF_MAX);
        let until = sys::now_ns() + (self.quarantine_ns << doublings);
        self.retry_at_ns.store(until, Ordering::Release);
    }

    /// Ends the device's access to memory through this queue, for good.
    #[cold]
    pub fn revoke(&self) {
        if self.state.swap(REVOKED, Ordering::AcqRel) != REVOKED {
            count(&self.counters.revocations);
        }
        self.portal.revoke();
        self.give(self.probes.swap(0, Ordering::AcqRel));
    }

    /// Tests whether a queue that failed works again; never waits. Returns whether it is live now.
    #[cold]
    pub fn revive(&self) -> bool {
        if self.state.load(Ordering::Acquire) != QUARANTINED {
            return self.is_live();
        }
        if self.has_answered() {
            return self.is_live();
        }
        let retry_at = self.retry_at_ns.load(Ordering::Acquire);
        let claimed = sys::now_ns() >= retry_at
            && self
                .retry_at_ns
                .compare_exchange(retry_at, u64::MAX, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !claimed {
            return false;
        }
        // No other thread gets here until this one sets the next time.
        if self.portal.is_there() {
            self.send_probe();
        }
        self.postpone();
        self.has_answered() && self.is_live()
    }

    /// Makes the queue live if a probe has succeeded.
    fn has_answered(&self) -> bool {
        if self.probes.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.portal.progress();
        if !self.probe.poll().is_some_and(|record| record.is_success()) {
            return false;
        }
        if self.state.compare_exchange(QUARANTINED, LIVE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.hardware_errors.store(0, Ordering::Relaxed);
            self.give(self.probes.swap(0, Ordering::AcqRel));
        }
        true
    }

    /// Submits a no-op. Each keeps a credit until one of them completes: a late one may still be in
    /// the queue.
    fn send_probe(&self) {
        if self.take(1) == 0 {
            return;
        }
        // A record with a failure, or of an earlier quarantine, is meaningless now. An open one
        // stays for the no-op that completes first.
        if self.probes.load(Ordering::Acquire) == 0 || self.probe.is_done() {
            self.probe.reset();
        }
        // SAFETY: a no-op has no buffers; its record lives in this queue, whose portal is closed
        // before.
        let submission = unsafe { self.portal.submit(&Descriptor::noop(&self.probe)) };
        if submission == Submission::Accepted {
            self.probes.fetch_add(1, Ordering::AcqRel);
        } else {
            self.give(1);
        }
    }

    /// The device failed a valid job.
    #[cold]
    pub fn note_hardware_error(&self) {
        if self.hardware_errors.fetch_add(1, Ordering::Relaxed) + 1 >= HARDWARE_ERRORS_MAX {
            self.quarantine();
        }
    }

    /// Jobs of a request have succeeded.
    #[inline]
    pub fn note_success(&self) {
        if self.hardware_errors.load(Ordering::Relaxed) != 0 {
            self.hardware_errors.store(0, Ordering::Relaxed);
        }
        if self.backoff.load(Ordering::Relaxed) != 0 {
            self.backoff.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.counters.past.add_all(self.traffic.read());
    }
}
