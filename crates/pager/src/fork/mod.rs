//! fork() with everything left where it is: the child inherits table, staging and pool as copies,
//! and pages itself.
//!
//! The arena is ordinary private memory, which fork() copies. A copy of it is of use only if no
//! thread of the pager changed it while the kernel was copying, and only the kernel knows when that
//! is: between the fork handlers' last word and the system call, the C library takes its locks,
//! touches memory that may be out, and waits for threads that wait for faults. So:
//!
//! * Workers and handlers stand still from before the call until after it. One thread attends, the
//!   control thread: it serves what must be served, and leaves the arena in order after each step.
//! * The userfaultfd reports forks: the kernel gives the child one of its own, with every
//!   registration, before the child runs. **At no time does the child have an unguarded missing
//!   page.** What the child touches before it has threads of its own is copied into it by the
//!   parent, which changes nothing until the child has taken over. The pages copied so are named to
//!   the child: its table says that they are out.
//! * The lowest page of the arena is guarded by a userfaultfd of its own, the *gate*, which refuses
//!   every operation from when fork() has come to that page until the event about it was read.
//!   After each step the control thread asks it. Not refused: what the step changed was in order
//!   before the first page of the arena was copied. Refused: the copy may be torn, and the child is
//!   not to use it. It gets copies of all that is out instead, and starts again.
//! * Faults of the forking thread cannot be the latter: it is not in the system call. Those of
//!   others wait a little.
//! * Once there is a child, no fault is served and no event is applied: what the child misses is
//!   what was out at the fork. But the child may be another thread's, by a bare system call, and
//!   the forking thread may need a page before it comes to its own fork, or behind it, from a child
//!   that has ended. So when that takes too long the children there are get copies of all that is
//!   out, and the session continues without them.
//!
//! | file | what is there |
//! |---|---|
//! | `session` | one fork: the faults that wait, the children, what they lack |
//! | `attend` | what is served from the first standing thread to the last child |
//! | `inherit` | the child: other files under the same numbers, threads that are not there |
//!
//! All of it is methods of [`Forks`], which one thread runs, the control thread.
//!
//! The pages of staging are shared after a fork and cannot be moved: they are copied where they are
//! needed, or written to first. Ranges that the child does not have (MADV_DONTFORK) are forgotten
//! there.

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

/// Descriptors of pagers that can be inherited have lower numbers than this.
const NUMBERS: i32 = 64;

/// What a fork came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The child continues with its copies and these descriptors, which the caller closes. The
    /// pages are in place there.
    Inherits {
        /// Guards the child's memory.
        main: i32,
        /// Its gate.
        gate: i32,
        /// Addresses.
        copied: &'a [u64],
    },
    /// The child has all its memory and starts again.
    Complete,
    /// The child cannot go on.
    Lost,
}

/// Who attends to forks: the parts of a pager that it uses.
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
    /// Attends to forks of a pager made of these parts.
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

    /// Whether forks can leave everything out at all.
    pub fn can_fork(&self) -> bool {
        self.gate.is_there() && self.numbers_end() <= NUMBERS
    }

    /// Has all threads stand still and begins to attend to a fork of thread `forker`; `None` when
    /// that cannot be watched. Call from a pager thread that is no worker and no handler; end with
    /// [`Forks::end`].
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
        // The order of all events up to here must be known, since the child hears of no other.
        let give_up = session.since_ns + PATIENCE_NS;
        while self.pages.has_pending_events() && sys::now_ns() < give_up {
            self.attend(&mut session);
            self.pages.apply_events();
            thread::sleep_ns(20_000);
        }
        session.torn |= self.pages.has_pending_events();
        Some(session)
    }

    /// The descriptors to wait for, besides the caller's own; -1 for none.
    pub fn descriptors(&self, session: &ForkSession) -> [i32; 3] {
        let main = if !session.held.is_full() { self.pages.reports().descriptor() } else { -1 };
        [main, self.gate.descriptor().unwrap_or(-1), session.children.first().copied().unwrap_or(-1)]
    }

    /// Whether there is something to look after that no descriptor tells: faults that wait for time
    /// to pass, further children.
    pub fn has_held(&self, session: &ForkSession) -> bool {
        !session.held.is_empty() || session.children.len() > 1
    }

    /// What becomes of the child, which is ready to take over, or will not be for a while. Serves
    /// it no more.
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

    /// All threads continue. What was not handed over is closed.
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
        // Those that did not fit in, and those that were read just now on the way to an event: a
        // handler that waits for messages would not see them.
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
