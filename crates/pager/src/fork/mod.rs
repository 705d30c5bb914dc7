//! fork() without bringing anything in: the child inherits copies of table, staging and pool, and
//! pages itself.
//!
//! The arena is private memory, which fork() copies. The copy is useful only if no thread of the
//! pager changed the arena during the copy, and only the kernel knows when that is: between the
//! last fork handler and the system call, the C library takes its locks, touches memory that may be
//! out, and waits for threads that wait for faults. So:
//!
//! * Workers and handlers stand still from before the call until after it. The control thread
//!   serves urgent faults, and leaves the arena in order after each step.
//! * The userfaultfd reports forks: the kernel gives the child its own, with every registration,
//!   before the child runs. **At no time does the child have an unguarded missing page.** The
//!   parent copies in the pages that the child touches before it has threads of its own, and
//!   changes nothing until the child has taken over. The child learns which pages were copied: its
//!   table has them out.
//! * A second userfaultfd, the *gate*, guards the lowest page of the arena. It refuses every
//!   operation from when fork() reaches that page until its event is read. The control thread asks
//!   it after each step. Not refused: the step's changes were in order before the arena was copied.
//!   Refused: the copy may be torn, and the child must not use it. It gets copies of all out pages,
//!   and starts again.
//! * A fault of the forking thread never finds the gate refused, because the thread is not in the
//!   system call. Faults of other threads wait a little.
//! * Once a child exists, no fault is served and no event applied: the child misses pages out at
//!   the fork. But another thread may have made the child by a bare system call, and the forking
//!   thread may need a page before its own fork, or after a child that has ended. So after a
//!   timeout the children get copies of all out pages, and the session continues without them.
//!
//! | file | content |
//! |---|---|
//! | `session` | one fork: the faults that wait, the children, and their missing pages |
//! | `attend` | serving, from the first standing thread to the last child |
//! | `inherit` | the child: other files under the same numbers, threads that are not there |
//!
//! All of it is methods of [`Forks`], which only the control thread runs.
//!
//! After a fork the pages of staging are shared and cannot be moved: they are copied where needed,
//! or written to first. The child forgets ranges that it does not have (MADV_DONTFORK).

mod attend;
mod inherit;
mod session;

use std::sync::Arc;

use address_space::Counter;
use sys::thread;

use crate::fault::FaultService;
use crate::lifecycle::Lifecycle;
use crate::process::Process;
use crate::reclaim::Reclaimer;
use sys::userfaultfd::Userfaultfd;

use session::PATIENCE_NS;
pub use session::{ForkSession, COPIED_MAX};

/// A pager can be inherited if all its descriptors are below this number.
const NUMBERS: i32 = 64;

/// The result of a fork.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The child continues with its copies and these descriptors, which the caller closes. The
    /// copied pages are in place in the child.
    Inherits {
        /// Guards the child's memory.
        main: i32,
        /// Its gate.
        gate: i32,
        /// Addresses of the copied pages.
        copied: &'a [u64],
    },
    /// The child has all its memory and starts again.
    Complete,
    /// The child cannot continue.
    Lost,
}

/// Forks. While one is attended to, no other part runs.
pub(crate) struct Forks {
    pub process: Arc<Process>,
    pub reclaimer: Arc<Reclaimer>,
    pub service: Arc<FaultService>,
    pub lifecycle: Arc<Lifecycle>,
}

impl Forks {
    pub fn can_fork(&self) -> bool {
        self.service.gate.is_there() && self.numbers_end() <= NUMBERS
    }

    /// See `Pager::begin_fork`.
    pub fn begin(&self, forker: u32) -> Option<ForkSession> {
        if !self.service.gate.is_there() {
            return None;
        }
        self.process.quiesce.stop();
        self.reclaimer.swap.wait_until_idle();
        self.process.pages.apply_events();
        if !self.service.gate.begin(self.process.pages.reports()) {
            self.process.quiesce.resume();
            return None;
        }
        let mut session = ForkSession::new(*self.process.pages.guard(), forker, self.lifecycle.own_page);
        // The order of all events so far must be known, because the child learns of no others.
        let give_up = session.since_ns + PATIENCE_NS;
        while self.process.pages.has_pending_events() && sys::now_ns() < give_up {
            self.attend(&mut session);
            self.process.pages.apply_events();
            thread::sleep_ns(20_000);
        }
        session.torn |= self.process.pages.has_pending_events();
        Some(session)
    }

    pub fn descriptors(&self, session: &ForkSession) -> [i32; 3] {
        let main = if session.can_hold() { self.process.pages.reports().descriptor() } else { -1 };
        [
            main,
            self.service.gate.descriptor().unwrap_or(-1),
            session.children.list.first().copied().unwrap_or(-1),
        ]
    }

    /// See `Pager::has_held`.
    pub fn has_held(&self, session: &ForkSession) -> bool {
        !session.held.is_empty() || session.children.list.len() > 1
    }

    /// See `Pager::settle`.
    pub fn settle<'s>(&self, session: &'s mut ForkSession, is_ready: bool) -> Outcome<'s> {
        if session.children.list.is_empty() {
            return if session.children.has_completed { Outcome::Complete } else { Outcome::Lost };
        }
        if is_ready && session.children.list.len() == 1 && session.children.gates.len() == 1 && !session.torn
        {
            let (main, gate) = (session.children.list.remove(0), session.children.gates.remove(0));
            return Outcome::Inherits { main, gate, copied: &session.children.copied };
        }
        self.complete_children(session);
        Outcome::Complete
    }

    pub fn end(&self, mut session: ForkSession) {
        for descriptor in session.children.list.drain(..).chain(session.children.gates.drain(..)) {
            Userfaultfd::from_descriptor(descriptor).close();
        }
        self.service.gate.end(self.process.pages.reports());
        session.stash.drain(..).for_each(|event| self.process.pages.apply_now(event));
        self.process.quiesce.resume();
        self.process.accounts.add(Counter::Forks, 1);
        while let Some(fault) = session.held.pop_front() {
            self.service.serve(&mut session.handler, fault);
        }
        // Faults that did not fit in, or were read on the way to an event: no handler sees them.
        while let Some(fault) = self.service.faults.parked.pop() {
            self.service.serve(&mut session.handler, fault);
        }
        session.handler.inbound.frames.empty_out(&self.process.pages.staging);
    }
}

#[cfg(test)]
mod tests {
    use address_space::units::{PageMask, BLOCK_PAGES};

    use super::*;
    use crate::fault::Fault;
    use crate::testing::{evict, pager_with, read};

    #[test]
    fn faults_that_are_parked_when_a_fork_is_over_are_served() {
        let Some((pager, base)) = pager_with(1) else { return };
        evict(&pager.process.pages, base, PageMask::ALL);
        let session = ForkSession::new(*pager.process.pages.guard(), 0, pager.lifecycle.own_page);
        for page in 0..BLOCK_PAGES {
            let fault = Fault { page: base.page(page), write: true, thread: 1, read_ns: sys::now_ns() };
            assert!(pager.service.faults.parked.push(fault));
        }
        pager.end_fork(session);
        assert!(!pager.service.is_busy());
        assert_eq!(pager.process.pages.pages_out(), 0);
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
