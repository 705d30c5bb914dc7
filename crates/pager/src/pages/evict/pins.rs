//! Processes whose pages may be written by devices, where such pages cannot be told from others.
//!
//! `UFFDIO_MOVE` refuses a page that is pinned. Without it a pinned page would leave and come back
//! as a copy, and what the device writes later would be lost. So while the process has anything
//! that such writes come from, nothing of it is evicted. The look is repeated every [`LOOK_NS`]; a
//! process may set up its first ring between two looks, and have a page pinned that is evicted just
//! then. So what was moved out is compressed only after a look that began later and found nothing.
//! Until then its frame stays as it is, and what a device writes there is what comes back. Not
//! protected is a page that came back before the device was done with it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sys::procfs::ProcFile;

use crate::pages::Pages;

/// Between looks: one costs a few system calls for each open file.
const LOOK_NS: u64 = 10_000_000;

/// What the last look said.
#[derive(Debug, Default)]
pub(super) struct Pins {
    looked_ns: AtomicU64,
    /// When the last look began that found nothing.
    clean_ns: AtomicU64,
    found: AtomicBool,
    said: AtomicBool,
}

impl Pins {
    /// Whether pages may be pinned, by the last look or a new one.
    pub(super) fn may_be(&self, pages: &Pages, maps: &ProcFile) -> bool {
        let (now, looked) = (sys::now_ns(), self.looked_ns.load(Ordering::Relaxed));
        let is_due = now.wrapping_sub(looked) > LOOK_NS;
        let (order, ours) = (Ordering::AcqRel, Ordering::Relaxed);
        if is_due && self.looked_ns.compare_exchange(looked, now, order, ours).is_ok() {
            self.look(pages, maps, now);
        }
        self.found.load(Ordering::Acquire)
    }

    /// Until when what was moved out had no pins: looks again if that is before the pages that have
    /// waited longest for compression were moved out. One look does for all that wait.
    pub(super) fn were_none_ns(&self, pages: &Pages, maps: &ProcFile) -> u64 {
        let clean = self.clean_ns.load(Ordering::Acquire);
        let is_known = pages.staging().oldest_moved_ns().is_none_or(|moved| moved < clean);
        if is_known || self.found.load(Ordering::Acquire) && self.may_be(pages, maps) {
            return clean;
        }
        self.look(pages, maps, sys::now_ns());
        self.clean_ns.load(Ordering::Acquire)
    }

    fn look(&self, pages: &Pages, maps: &ProcFile, now: u64) {
        let found = sys::pins::look(maps);
        if found.is_none() {
            self.clean_ns.fetch_max(now, Ordering::AcqRel);
        }
        self.found.store(found.is_some(), Ordering::Release);
        if let Some(evidence) = found.filter(|_| !self.said.swap(true, Ordering::Relaxed)) {
            pages.say(format_args!(
                "nothing is evicted while {}: kernels before 6.8 cannot tell pages that devices write to",
                evidence.describe()
            ));
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use crate::pages::Compressed;
    use crate::reclaim::{Role, Step};
    use crate::trial::{blocks, pager, read, write};
    use crate::units::BLOCK_BYTES;

    #[test]
    fn what_a_device_writes_after_a_page_has_left_comes_back() {
        let Some(pager) = pager(true) else { return };
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        // Another test's pins keep pages here, too.
        let mut tries = 0;
        while pager.reclaimer().evict_neighbours(Role::Worker) == 0 {
            pager.reclaimer().look_again();
            tries += 1;
            assert!(tries < 1000, "nothing goes");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let mut context = 0usize;
        // SAFETY: room for the answer.
        if unsafe { libc::syscall(libc::SYS_io_setup, 1, &mut context) } != 0 {
            testkit::skip!("kernel", "no context of io_setup()");
            return;
        }
        assert!(pager.reclaimer().compress_oldest() == Step::Nothing, "a page may be pinned by now");
        assert_eq!(pager.pages().staging().queued_slots(), 1);
        let slot = pager.pages().staging().oldest().expect("it waits");
        write(pager.pages().staging().address(slot, 0), 3, 99);
        pager.pages().staging().queue(slot, base);
        assert_eq!(read(base, 3), 99, "what the device wrote");
        // SAFETY: made above.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        let mut tries = 0;
        while pager.reclaimer().compress_oldest() == Step::Nothing {
            tries += 1;
            assert!(tries < 1000, "nothing is compressed");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(pager.pages().compress_oldest(), Compressed::Nothing);
        assert_eq!((read(base, 3), read(base, 4)), (99, 5));
    }
}
