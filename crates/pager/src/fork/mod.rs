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
//! | file | what is there |
//! |---|---|
//! | `session` | one fork: the faults that wait, the children, what they lack |
//! | `attend` | what is served from the first standing thread to the last child |
//! | `inherit` | the child: other files under the same numbers, threads that are not there |
//!
//! All of it is methods of [`Forks`], which only the control thread runs.
//!
//! After a fork the pages of staging are shared and cannot be moved: they are copied where needed,
//! or written to first. The child forgets ranges that it does not have (MADV_DONTFORK).

mod attend;
mod inherit;
mod session;

use sys::thread;

use crate::accounts::{Accounts, Counter};
use crate::config::Config;
use crate::fault::FaultService;
use crate::gate::Gate;
use crate::lifecycle::Lifecycle;
use crate::pages::Pages;
use crate::program::Program;
use crate::quiesce::Quiesce;
use crate::reclaim::Reclaimer;
use crate::sync::Userfaultfd;

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

#[derive(Clone, Copy)]
pub(crate) struct Forks<'a> {
    lifecycle: Lifecycle<'a>,
    service: FaultService<'a>,
    reclaimer: Reclaimer<'a>,
    pages: &'a Pages,
    program: &'a Program,
    quiesce: &'a Quiesce,
    gate: &'a Gate,
    accounts: &'static dyn Accounts,
    config: &'a Config,
}

impl<'a> Forks<'a> {
    #[allow(clippy::too_many_arguments, reason = "each is a part of a pager")]
    pub fn new(
        lifecycle: Lifecycle<'a>,
        service: FaultService<'a>,
        pages: &'a Pages,
        program: &'a Program,
        quiesce: &'a Quiesce,
        gate: &'a Gate,
        accounts: &'static dyn Accounts,
        config: &'a Config,
    ) -> Self {
        let reclaimer = service.reclaimer();
        Forks { lifecycle, service, reclaimer, pages, program, quiesce, gate, accounts, config }
    }

    pub fn can_fork(&self) -> bool {
        self.gate.is_there() && self.numbers_end() <= NUMBERS
    }

    /// See `Pager::begin_fork`.
    pub fn begin(&self, forker: u32) -> Option<ForkSession> {
        if !self.gate.is_there() {
            return None;
        }
        self.quiesce.stop();
        self.reclaimer.still_swap();
        self.pages.apply_events();
        if !self.gate.begin(self.pages.reports()) {
            self.quiesce.resume();
            return None;
        }
        let mut session = ForkSession::new(*self.pages.guard(), forker, self.lifecycle.own_page());
        // The order of all events so far must be known, because the child learns of no others.
        let give_up = session.since_ns + PATIENCE_NS;
        while self.pages.has_pending_events() && sys::now_ns() < give_up {
            self.attend(&mut session);
            self.pages.apply_events();
            thread::sleep_ns(20_000);
        }
        session.torn |= self.pages.has_pending_events();
        Some(session)
    }

    pub fn descriptors(&self, session: &ForkSession) -> [i32; 3] {
        let main = if !session.held.is_full() { self.pages.reports().descriptor() } else { -1 };
        [main, self.gate.descriptor().unwrap_or(-1), session.children.first().copied().unwrap_or(-1)]
    }

    /// See `Pager::has_held`.
    pub fn has_held(&self, session: &ForkSession) -> bool {
        !session.held.is_empty() || session.children.len() > 1
    }

    /// See `Pager::settle`.
    pub fn settle<'s>(&self, session: &'s mut ForkSession, is_ready: bool) -> Outcome<'s> {
        if session.children.is_empty() {
            return if session.has_completed { Outcome::Complete } else { Outcome::Lost };
        }
        if is_ready && session.children.len() == 1 && session.gates.len() == 1 && !session.torn {
            let (main, gate) = (session.children.remove(0), session.gates.remove(0));
            return Outcome::Inherits { main, gate, copied: session.copied.pages() };
        }
        self.complete_children(session);
        Outcome::Complete
    }

    pub fn end(&self, mut session: ForkSession) {
        for descriptor in session.children.drain(..).chain(session.gates.drain(..)) {
            Userfaultfd::from_descriptor(descriptor).close();
        }
        self.gate.end(self.pages.reports());
        session.stash.drain(..).for_each(|event| self.pages.apply_now(event));
        self.quiesce.resume();
        self.accounts.add(Counter::Forks, 1);
        self.program.gauge().note_relatives();
        while let Some(fault) = session.held.take() {
            self.service.serve(&mut session.handler, fault);
        }
        // Faults that did not fit in, or were read on the way to an event: no handler sees them.
        while let Some(fault) = self.service.unpark() {
            self.service.serve(&mut session.handler, fault);
        }
        session.handler.inbound.frames.empty_out(self.pages.staging());
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {

    use super::*;
    use crate::fault::Fault;
    use crate::trial::{blocks, pager, read};
    use crate::units::{page_at, ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES};

    #[test]
    fn faults_that_are_parked_when_a_fork_is_over_are_served() {
        let Some(pager) = pager() else { return };
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        let mut spare = pager.pages().staging().take_empty();
        assert!(pager.pages().evict(&mut spare, base, ALL_PAGES, false));
        let session = ForkSession::new(*pager.pages().guard(), 0, pager.own_page());
        for page in 0..BLOCK_PAGES {
            let address = page_at(base, page);
            assert!(pager.service().park(Fault { address, write: true, thread: 1, read_ns: sys::now_ns() }));
        }
        pager.end_fork(session);
        assert!(!pager.service().is_busy());
        assert_eq!(pager.pages().pages_out(), 0);
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
