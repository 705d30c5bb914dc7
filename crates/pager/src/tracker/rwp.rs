//! userfaultfd's asynchronous RWP (Linux 7.3): the kernel disarms a page at its first use without a
//! message. `sys/tests/tracking.rs` tests the kernel's rules.
//!
//! Arming costs 150 to 250 ns a page, looking 16 to 38 ns, and the first use of an armed page 1.5
//! to 1.9 us (write protection on Linux 6.18, which takes nearly the same path; 2-CPU virtual
//! machine, Zen 3, 24 November 2026).

use sys::pagemap::Run;
use sys::userfaultfd::{feature, TRACKED};

use super::AccessTracker;
use crate::sync::{Pagemap, Userfaultfd};

/// The userfaultfd that guards the program's memory. A forked child's has the same number.
pub(super) struct Rwp {
    uffd: Userfaultfd,
    pagemap: Pagemap,
}

impl Rwp {
    /// `None` if `features` lack tracking.
    pub fn new(uffd: &Userfaultfd, pagemap: Pagemap, features: u64) -> Option<Self> {
        let can = features & feature::TRACKING == feature::TRACKING;
        can.then_some(Rwp { uffd: *uffd, pagemap })
    }
}

impl AccessTracker for Rwp {
    fn sees_uses(&self) -> bool {
        true
    }

    fn mode(&self) -> u64 {
        TRACKED
    }

    fn arm(&self, start: usize, len: usize) {
        // Refused while mappings change, or if a part is not tracked. The rest stays used.
        let _ = self.uffd.arm(start, len);
    }

    fn disarm(&self, start: usize, len: usize) {
        // If refused, the next use disarms.
        let _ = self.uffd.disarm(start, len);
    }

    fn look(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        self.pagemap.uses(start, end, runs)
    }
}
