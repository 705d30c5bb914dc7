//! The system calls on managed pages, as methods of a proof only.
//!
//! A [`Coherent`] is made from the lock of a block, or of adjacent blocks, while no event about the
//! address space is unread or unapplied. Its calls name pages by their number in the locked blocks.
//! So no call can move, copy or fill a page without its block's lock, or on stale knowledge of it:
//!
//! ```
//! use address_space::proofs::{BlockGuard, EventQueue, Mover, PageRun};
//!
//! fn fill(mover: &Mover, events: &EventQueue, block: &BlockGuard<'_>) {
//!     if let Some(coherent) = mover.coherent(events, block) {
//!         coherent.zero(PageRun::new(3, 1));
//!     }
//! }
//! ```
//!
//! A page of another block cannot be named:
//!
//! ```compile_fail,E0308
//! use address_space::proofs::{BlockGuard, EventQueue, Mover, PageRun};
//!
//! fn fill(mover: &Mover, events: &EventQueue, block: &BlockGuard<'_>, other: &BlockGuard<'_>) {
//!     if let Some(coherent) = mover.coherent(events, block) {
//!         coherent.zero(other.page(3));
//!     }
//! }
//! ```
//!
//! and the lock cannot be released while the proof lives:
//!
//! ```compile_fail,E0505
//! use address_space::proofs::{BlockGuard, EventQueue, Mover, PageRun};
//!
//! fn fill(mover: &Mover, events: &EventQueue, block: BlockGuard<'_>) {
//!     if let Some(coherent) = mover.coherent(events, &block) {
//!         drop(block);
//!         coherent.zero(PageRun::new(3, 1));
//!     }
//! }
//! ```

use std::ops::Range;

use sys::userfaultfd::{Progress, MISSING, WRITE_PROTECT};
use sys::PAGE_SIZE;

use super::block::Locked;
use super::events::{EventQueue, Still};
use crate::space::descriptor::{Guard, Registration};
use crate::staging::Frame;
use crate::sync::{Pagemap, Userfaultfd};
use crate::tracker::AccessTracker;
use crate::units::{bytes_of, page_at, PageNumber, PageRun, RunMask, EXTENT_PAGES};

/// The descriptors of one process.
pub struct Mover {
    pub(crate) guard: Guard,
    pub(crate) pagemap: Pagemap,
    pub(crate) tracker: Box<dyn AccessTracker>,
}

impl Mover {
    /// Takes a page of the arena as the probe and registers it.
    pub(crate) fn new(
        uffd: Userfaultfd,
        pagemap: Pagemap,
        tracker: Box<dyn AccessTracker>,
    ) -> std::io::Result<Self> {
        let probe = sys::arena::take(PAGE_SIZE, PAGE_SIZE)?.as_ptr() as usize;
        // SAFETY: the page was just taken.
        unsafe { (probe as *mut u64).write_volatile(1) };
        let mover = Mover { guard: Guard::new(uffd, probe), pagemap, tracker };
        match mover.guard_probe(true) {
            true => Ok(mover),
            false => Err(std::io::Error::last_os_error()),
        }
    }

    /// The proof for the locked blocks. `None` while events are unapplied.
    ///
    /// It covers everything seen since the lock was taken: an event about the block that was read
    /// since then cannot have been applied, so the proof is refused. An event that was applied
    /// without the lock changed nothing here.
    pub fn coherent<'a>(&'a self, events: &'a EventQueue, locked: &'a impl Locked) -> Option<Coherent<'a>> {
        let _still = events.still()?;
        Some(Coherent { mover: self, first: locked.start().page(0), pages: locked.pages(), _still })
    }

    /// Registers the probe or not: forks wait for a reader while it is. Returns false on failure.
    pub(crate) fn guard_probe(&self, on: bool) -> bool {
        match on {
            true => self.guard.reports().register(self.guard.probe, PAGE_SIZE, MISSING).is_ok(),
            false => self.guard.reports().unregister(self.guard.probe, PAGE_SIZE).is_ok(),
        }
    }

    /// Registers staging, at `range`, or not, for the same reason. Returns false on failure.
    pub(crate) fn guard_staging(&self, range: Range<usize>, on: bool) -> bool {
        // Write-protect mode fulfills the kernel's rule that the destination of a move is
        // registered, but leaves first touches to the kernel. No page is ever protected.
        let (reports, len) = (self.guard.reports(), range.len());
        match on {
            true => reports.register(range.start, len, WRITE_PROTECT).is_ok(),
            false => reports.unregister(range.start, len).is_ok(),
        }
    }

    pub(crate) fn wake(&self, at: PageNumber, count: usize) {
        self.guard.reports().wake(at.address(), bytes_of(count));
    }

    /// The mapped pages among the first `count` from an address, at most an extent's.
    pub(crate) fn mapped(&self, start: usize, count: usize) -> RunMask {
        const HALF: usize = EXTENT_PAGES / 2;
        let low = self.pagemap.mapped(start, count.min(HALF));
        let high = match count.saturating_sub(HALF) {
            0 => 0,
            rest => self.pagemap.mapped(page_at(start, HALF), rest),
        };
        RunMask::from_bits(u128::from(high) << HALF | u128::from(low))
    }

    /// The pages that a move brought from `source` to `target`, regardless of its result.
    ///
    /// Linux 6.18 may return EEXIST after having moved pages. If it restarts (to split a huge page,
    /// or because an accessed bit changed), it forgets to count what the second attempt moves,
    /// tries again and finds the pages present. Trusting the result loses them (seen as zeroes
    /// under `stress-ng --vm` with huge pages, November 2026).
    pub(crate) fn arrived(&self, target: usize, source: usize, count: usize) -> RunMask {
        self.mapped(target, count) & !self.mapped(source, count)
    }
}

/// Proof that a block's lock is held, every event read has been applied, and none is read while
/// this lives. Only its methods move, copy or fill managed pages.
pub struct Coherent<'a> {
    mover: &'a Mover,
    first: PageNumber,
    pages: usize,
    _still: Still<'a>,
}

impl Coherent<'_> {
    fn locate(&self, run: PageRun) -> (usize, usize) {
        assert!(run.first + run.count <= self.pages, "{run:?} of {} locked pages", self.pages);
        ((self.first + run.first).address(), bytes_of(run.count))
    }

    /// Moves pages to staging. Stops with `Again` while a mapping change is under way.
    pub fn move_out(&self, run: PageRun, target: Frame) -> Progress {
        let (at, len) = self.locate(run);
        // SAFETY: the source's lock is held, and its state changes under it. The target is staging
        // memory, which has no objects. The kernel moves to missing pages only.
        unsafe { self.mover.guard.move_pages(target.address(), at, len, false) }
    }

    /// Moves pages into the program. If uses are tracked, moved pages arrive armed. The first one
    /// is disarmed before its waiting thread runs, which would fault twice otherwise.
    pub fn move_in(&self, run: PageRun, source: Frame) -> Progress {
        let (at, len) = self.locate(run);
        let mover = self.mover;
        let sees_uses = mover.tracker.sees_uses();
        // SAFETY: only missing pages are filled, under their block's lock. The source is staging
        // memory, which has no objects.
        let progress = unsafe { mover.guard.move_pages(at, source.address(), len, !sees_uses) };
        if sees_uses && progress.done > 0 {
            mover.tracker.disarm(at, PAGE_SIZE);
            mover.guard.reports().wake(at, progress.done);
        }
        progress
    }

    /// Copies pages into the program.
    pub fn copy_in(&self, run: PageRun, source: usize) -> Progress {
        let (at, len) = self.locate(run);
        // SAFETY: only missing pages are filled, under their block's lock. The kernel reads the
        // source and refuses unreadable memory.
        unsafe { self.mover.guard.copy(at, source, len) }
    }

    /// Maps the zero page at missing pages of one mapping.
    pub fn zero(&self, run: PageRun) -> Progress {
        let (at, len) = self.locate(run);
        self.mover.guard.zero(at, len)
    }

    /// Whether a page's mapping is registered with us and no change of mappings is under way.
    pub(crate) fn is_guarded(&self, index: usize) -> bool {
        self.mover.guard.registration(self.locate(PageRun::new(index, 1)).0) == Registration::Registered
    }

    pub(crate) fn wake(&self, run: PageRun) {
        let (at, len) = self.locate(run);
        self.mover.guard.reports().wake(at, len);
    }

    /// The pages that a move brought, regardless of its result: see [`Mover::arrived`].
    pub(crate) fn arrived(&self, run: PageRun, source: Frame) -> RunMask {
        let (at, _) = self.locate(run);
        self.mover.arrived(at, source.address(), run.count)
    }
}
