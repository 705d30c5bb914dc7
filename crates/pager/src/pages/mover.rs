//! The system calls on managed pages: each asks for the proof that no event about the address space is unread.
//!
//! Private to this module's parent: the transitions beside it are the only callers, so that whoever moves, copies or fills a
//! managed page holds its block's lock (without which there is no proof) and knows what the table says.

use sys::userfaultfd::{Progress, Stop, MISSING, WRITE_PROTECT};
use sys::PAGE_SIZE;

use super::events::{Quiet, QuietAlone};
use super::extents::EXTENT_PAGES;
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
    /// Guards the program's memory.
    pub uffd: Userfaultfd,
    /// Has no event features: discarding a staging page must not wait for this very pager. Where pages are not moved,
    /// staging is not registered with it.
    pub staging_uffd: Userfaultfd,
    pub pagemap: Pagemap,
    pub way: Way,
    /// A page that is present and registered, to ask the kernel about.
    probe: usize,
}

impl Mover {
    pub fn new(
        uffd: Userfaultfd,
        staging_uffd: Userfaultfd,
        pagemap: Pagemap,
        way: Way,
    ) -> std::io::Result<Self> {
        let probe = sys::arena::take(PAGE_SIZE, PAGE_SIZE)?.as_ptr() as usize;
        // SAFETY: the page was taken just now.
        unsafe { (probe as *mut u64).write_volatile(1) };
        if uffd.register(probe, PAGE_SIZE, MISSING).is_err() {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Mover { uffd, staging_uffd, pagemap, way, probe })
    }

    /// Moves pages out of the program to staging.
    pub fn move_out(&self, _proof: &Quiet<'_>, target: usize, source: usize, count: usize) -> Progress {
        // SAFETY: the caller has the lock of the pages' block and says where they are before it lets go; it owns the target's
        // slot, in which these places are empty.
        unsafe { self.staging_uffd.move_pages(target, source, count * PAGE_SIZE, false) }
    }

    /// Moves pages into the program.
    pub fn move_in(&self, _proof: &Quiet<'_>, at: usize, source: usize, count: usize) -> Progress {
        // SAFETY: the caller has the lock of the block and puts there what belongs there; present pages refuse.
        unsafe { self.uffd.move_pages(at, source, count * PAGE_SIZE, true) }
    }

    /// Copies pages into the program.
    pub fn copy_in(&self, _proof: &impl NothingUnread, at: usize, source: usize, count: usize) -> Progress {
        // SAFETY: as above; the source is memory of the pager's that nobody changes meanwhile.
        unsafe { self.uffd.copy(at, source, count * PAGE_SIZE) }
    }

    /// Maps the zero page at missing pages of one mapping.
    pub fn zero(&self, _proof: &impl NothingUnread, at: usize, count: usize) -> Progress {
        self.uffd.zero(at, count * PAGE_SIZE)
    }

    /// Registers the probe, or not: while nothing is registered a fork must not wait for anybody to read of it.
    pub fn guard_probe(&self, on: bool) {
        // Either may be so already.
        let _ = match on {
            true => self.uffd.register(self.probe, PAGE_SIZE, MISSING),
            false => self.uffd.unregister(self.probe, PAGE_SIZE),
        };
    }

    /// Whether some call that changes mappings is under way: its event is unread, or its thread has not run since.
    pub fn is_changing(&self) -> bool {
        self.uffd.zero(self.probe, PAGE_SIZE).stop == Some(Stop::Again)
    }

    /// Whether the mapping at `at` is registered with us; `None` while a call is under way.
    pub fn is_registered(&self, at: usize) -> Option<bool> {
        self.uffd.is_registered(at)
    }

    /// Has threads that wait for pages look again.
    pub fn wake(&self, at: usize, count: usize) {
        self.uffd.wake(at, count * PAGE_SIZE);
    }

    /// Undoes [`Mover::move_out`] from a mapping that turned out not to be registered; answers how far that came.
    pub fn return_to_foreign(&self, _proof: &Quiet<'_>, at: usize, source: usize, count: usize) -> Progress {
        const NOTHING: Progress = Progress { done: 0, stop: None };
        let len = count * PAGE_SIZE;
        // The main descriptor refuses to move while the event is unread, and reading waits for us.
        if self.staging_uffd.register(at, len, WRITE_PROTECT).is_err() {
            return NOTHING;
        }
        // SAFETY: the pages return to where they were a moment ago.
        let progress = unsafe { self.staging_uffd.move_pages(at, source, len, true) };
        // A mapping that is gone again needs nothing.
        let _ = self.staging_uffd.unregister(at, len);
        progress
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
        unsafe { self.staging_uffd.copy(at, source, count * PAGE_SIZE) }
    }

    /// Guards such a mapping for [`Mover::copy_to_foreign`], or does so no more.
    pub fn guard_foreign(&self, at: usize, len: usize, on: bool) -> bool {
        match on {
            true => self.staging_uffd.register(at, len, MISSING).is_ok(),
            false => self.staging_uffd.unregister(at, len).is_ok(),
        }
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
