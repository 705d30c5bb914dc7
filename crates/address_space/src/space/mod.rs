//! The address space as the page table and the kernel have it, and the proofs that a move needs.
//!
//! ```text
//!  lock(block) -> BlockGuard, RunGuard     no other thread changes the states of these pages
//!     coherent(locked) -> Coherent           and no event about them is unread or unapplied
//!        move_out, move_in, copy_in, zero    the only calls that move or fill a managed page
//! ```

pub mod block;
pub mod changed;
pub mod descriptor;
pub mod events;
pub mod mover;
pub mod run;
pub mod table;

use std::io;
use std::ops::Range;

use sys::userfaultfd::MISSING;

use crate::sync::{Pagemap, Userfaultfd};
use crate::tracker::AccessTracker;
use crate::units::PageMask;
use events::EventQueue;
use mover::Mover;
use table::AddressTable;

/// Page table, events and the userfaultfd. One type, because a proof is made from all three: with a
/// table alone a thread could act on an event that another has read and not applied.
pub struct Space {
    pub(crate) table: AddressTable,
    pub(crate) events: EventQueue,
    pub(crate) mover: Mover,
}

impl Space {
    pub(crate) fn new(
        uffd: Userfaultfd,
        pagemap: Pagemap,
        tracker: Box<dyn AccessTracker>,
    ) -> io::Result<Self> {
        let mover = Mover::new(uffd, pagemap, tracker)?;
        Ok(Space { table: AddressTable::new()?, events: EventQueue::new(), mover })
    }

    pub(crate) fn has_out(&self, range: Range<usize>) -> bool {
        self.table.busy(range.start, range.end).any(|block| {
            let mut pages = PageMask::within(block, range.start, range.end).pages();
            pages.any(|index| self.table.is_out(block.page(index)))
        })
    }

    /// Registers a range with tracking of uses where possible: not in inaccessible mappings.
    fn register_tracked(&self, range: &Range<usize>) -> bool {
        let register = |mode| {
            let len = range.end - range.start;
            self.mover.guard.reports().register(range.start, len, MISSING | mode).is_ok()
        };
        match self.mover.tracker.mode() {
            0 => register(0),
            mode => register(mode) || register(0),
        }
    }

    /// Registers a range, unless reports are unread: the table may still describe an earlier
    /// mapping of it. Returns whether the kernel accepts it.
    pub(crate) fn try_register(&self, range: &Range<usize>) -> Option<bool> {
        let _still = self.events.still()?;
        (!self.mover.guard.is_changing()).then(|| self.register_tracked(range))
    }
}
