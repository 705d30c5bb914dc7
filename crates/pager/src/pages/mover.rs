//! The system calls on managed pages: each asks for the proof that no event about the address space is unread.
//!
//! Private to this module's parent: the transitions beside it are the only callers, so that whoever moves, copies or fills a
//! managed page holds its block's lock (without which there is no proof) and knows what the table says.

use sys::userfaultfd::{Progress, MISSING, WRITE_PROTECT};
use sys::PAGE_SIZE;

use super::events::{Quiet, QuietAlone};
use super::extents::EXTENT_PAGES;
use super::guard::Guard;
use super::staging::Staging;
use crate::sync::{Pagemap, Userfaultfd};

/// How pages leave the program and come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `UFFDIO_MOVE` both ways.
    Move,
    /// mremap() out, `UFFDIO_COPY` in.
    Remap,
}

/// The proof that no event is unread, however it was had.
pub(super) trait NothingUnread {}
impl NothingUnread for Quiet<'_> {}
impl NothingUnread for QuietAlone<'_> {}

/// The descriptors of one process.
pub(super) struct Mover {
    /// Guards the program's memory, and where pages are moved staging too.
    pub guard: Guard,
    /// Where pages are not moved: has no event features, and returns what was taken by mistake.
    foreign: Option<Userfaultfd>,
    pub pagemap: Pagemap,
    pub way: Way,
}

impl Mover {
    pub fn new(
        uffd: Userfaultfd,
        foreign: Option<Userfaultfd>,
        pagemap: Pagemap,
        way: Way,
        staging: &Staging,
    ) -> std::io::Result<Self> {
        let probe = sys::arena::take(PAGE_SIZE, PAGE_SIZE)?.as_ptr() as usize;
        // SAFETY: the page was taken just now.
        unsafe { (probe as *mut u64).write_volatile(1) };
        let mover = Mover { guard: Guard::new(uffd, probe), foreign, pagemap, way };
        match mover.guard_own(staging, true) {
            true => Ok(mover),
            false => Err(std::io::Error::last_os_error()),
        }
    }

    /// Moves pages out of the program to staging; `Again` while a call that changes mappings is under way.
    pub fn move_out(&self, _proof: &Quiet<'_>, target: usize, source: usize, count: usize) -> Progress {
        // SAFETY: the caller has the lock of the pages' block and says where they are before it lets go; it owns the target's
        // slot, in which these places are empty.
        unsafe { self.guard.move_pages(target, source, count * PAGE_SIZE, false) }
    }

    /// Moves pages into the program.
    pub fn move_in(&self, _proof: &Quiet<'_>, at: usize, source: usize, count: usize) -> Progress {
        // SAFETY: the caller has the lock of the block and puts there what belongs there; present pages refuse.
        unsafe { self.guard.move_pages(at, source, count * PAGE_SIZE, true) }
    }

    /// Copies pages into the program.
    pub fn copy_in(&self, _proof: &impl NothingUnread, at: usize, source: usize, count: usize) -> Progress {
        // SAFETY: as above; the source is memory of the pager's that nobody changes meanwhile.
        unsafe { self.guard.copy(at, source, count * PAGE_SIZE) }
    }

    /// Maps the zero page at missing pages of one mapping.
    pub fn zero(&self, _proof: &impl NothingUnread, at: usize, count: usize) -> Progress {
        self.guard.zero(at, count * PAGE_SIZE)
    }

    /// Registers the probe and staging, or not: while nothing is registered a fork must not wait for anybody to read of it.
    /// Whether that could be.
    pub fn guard_own(&self, staging: &Staging, on: bool) -> bool {
        // Write-protect mode satisfies the kernel's rule that a destination of moves is registered, and leaves first touches
        // to the kernel. No page is ever protected.
        let set = |start: usize, len: usize, mode: u64| match on {
            true => self.guard.reports().register(start, len, mode).is_ok(),
            false => self.guard.reports().unregister(start, len).is_ok(),
        };
        let staging = staging.range();
        let has_set_probe = set(self.guard.probe(), PAGE_SIZE, MISSING);
        let has_set_staging = self.way == Way::Remap || set(staging.start, staging.len(), WRITE_PROTECT);
        has_set_probe && has_set_staging
    }

    /// Whether some call that changes mappings is under way: its event is unread, or its thread has not run since.
    pub fn is_changing(&self) -> bool {
        self.guard.is_changing()
    }

    /// Whether the mapping at `at` is registered with us; `None` while a call is under way.
    pub fn is_registered(&self, at: usize) -> Option<bool> {
        self.guard.is_registered(at)
    }

    /// Has threads that wait for pages look again.
    pub fn wake(&self, at: usize, count: usize) {
        self.guard.reports().wake(at, count * PAGE_SIZE);
    }

    /// Returns copies to a mapping that turned out not to be registered; answers how far that came.
    pub fn copy_to_foreign(
        &self,
        _proof: &QuietAlone<'_>,
        at: usize,
        source: usize,
        count: usize,
    ) -> Progress {
        // SAFETY: the bytes return to where they were a moment ago; present pages refuse.
        unsafe { self.foreign().copy(at, source, count * PAGE_SIZE) }
    }

    /// Guards such a mapping for [`Mover::copy_to_foreign`], or does so no more.
    pub fn guard_foreign(&self, at: usize, len: usize, on: bool) -> bool {
        match on {
            true => self.foreign().register(at, len, MISSING).is_ok(),
            false => self.foreign().unregister(at, len).is_ok(),
        }
    }

    fn foreign(&self) -> &Userfaultfd {
        self.foreign.as_ref().expect("only where pages are not moved")
    }

    /// Which of the first `count` pages from `start` are mapped; at most an extent's.
    pub fn mapped(&self, start: usize, count: usize) -> u128 {
        const HALF: usize = EXTENT_PAGES / 2;
        let low = self.pagemap.mapped(start, count.min(HALF));
        let high = match count.saturating_sub(HALF) {
            0 => 0,
            rest => self.pagemap.mapped(start + HALF * PAGE_SIZE, rest),
        };
        u128::from(high) << HALF | u128::from(low)
    }

    /// Which of `count` pages a move brought from `source` to `target`, whatever it answered.
    ///
    /// Linux 6.18 may answer EEXIST after having moved: when something inside makes it start over (a huge page to split, an
    /// accessed bit that changed), it forgets to count what the second attempt moves, tries once more and finds the
    /// pages there. Taking its word means losing them (seen as zeroes under `stress-ng --vm` with huge pages, November
    /// 2026).
    pub fn arrived(&self, target: usize, source: usize, count: usize) -> u128 {
        self.mapped(target, count) & !self.mapped(source, count)
    }
}
