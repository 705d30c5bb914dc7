//! userfaultfd's asynchronous RWP (Linux 7.3): the kernel disarms a page at its first use without a
//! message. `sys/tests/tracking.rs` tests the kernel's rules. On other kernels only present pages
//! are known.
//!
//! Arming costs 150 to 250 ns a page, looking 16 to 38 ns, and the first use of an armed page 1.5
//! to 1.9 us (write protection on Linux 6.18, which takes nearly the same path; 2-CPU virtual
//! machine, Zen 3, 24 November 2026).

use sys::pagemap::Run;
use sys::userfaultfd::{feature, TRACKED};

use super::AccessTracker;
use crate::sync::{Pagemap, Userfaultfd};

/// Sees uses if the userfaultfd that guards the program's memory can. A forked child's has the same
/// number.
pub struct Rwp {
    uffd: Userfaultfd,
    pagemap: Pagemap,
    sees_uses: bool,
}

impl Rwp {
    /// `uffd` guards the program's memory and has `features` enabled.
    pub fn new(uffd: &Userfaultfd, pagemap: Pagemap, features: u64) -> Self {
        let sees_uses = features & feature::TRACKING == feature::TRACKING;
        Rwp { uffd: *uffd, pagemap, sees_uses }
    }
}

impl AccessTracker for Rwp {
    fn sees_uses(&self) -> bool {
        self.sees_uses
    }

    fn mode(&self) -> u64 {
        if self.sees_uses {
            TRACKED
        } else {
            0
        }
    }

    fn arm(&self, start: usize, len: usize) {
        if self.sees_uses {
            // Refused while mappings change, or if a part is not tracked. The rest stays used.
            let _ = self.uffd.arm(start, len);
        }
    }

    fn disarm(&self, start: usize, len: usize) {
        if self.sees_uses {
            // If refused, the next use disarms.
            let _ = self.uffd.disarm(start, len);
        }
    }

    fn look(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize) {
        match self.sees_uses {
            true => self.pagemap.uses(start, end, runs),
            false => self.pagemap.present(start, end, runs),
        }
    }
}
