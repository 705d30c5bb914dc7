//! Processes whose pages may be written by devices, where such pages cannot be told from others.
//!
//! `UFFDIO_MOVE` refuses a page that is pinned. Without it a pinned page would leave and come back as a copy, and what
//! the device writes later would be lost. So while the process has anything that such writes come from, nothing of it is
//! evicted. The look is repeated every [`LOOK_NS`]; a process that sets up its first ring and has a request answered
//! between two looks, into a page that is evicted just then, is not protected.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::pager::Pager;

/// Between looks: one costs a few system calls for each open file.
const LOOK_NS: u64 = 10_000_000;

/// What the last look said.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    looked_ns: AtomicU64,
    found: AtomicBool,
    said: AtomicBool,
}

impl Pager {
    /// Whether pages may be pinned, by the last look or a new one.
    pub(crate) fn may_have_pins(&self) -> bool {
        let (now, looked) = (sys::now_ns(), self.pins.looked_ns.load(Ordering::Relaxed));
        let is_due = now.wrapping_sub(looked) > LOOK_NS;
        let (order, ours) = (Ordering::AcqRel, Ordering::Relaxed);
        if is_due && self.pins.looked_ns.compare_exchange(looked, now, order, ours).is_ok() {
            let found = sys::pins::look(&self.files.maps);
            self.pins.found.store(found.is_some(), Ordering::Release);
            if let Some(evidence) = found.filter(|_| !self.pins.said.swap(true, Ordering::Relaxed)) {
                self.say(format_args!(
                    "nothing is evicted while {}: kernels before 6.8 cannot tell pages that devices write to",
                    evidence.describe()
                ));
            }
        }
        self.pins.found.load(Ordering::Acquire)
    }
}
