//! The life of a pager: what its control thread does besides serving and reclaiming.
//!
//! | file | what is there |
//! |---|---|
//! | `watch` | one look of the control thread: measures, finds new mappings, notices what is stuck |
//! | `halt` | everything comes in and nothing is registered, for a while or for good |
//! | `retire` | the end of a pager whose process does not end |
//! | `found` | which pages are in memory before anything is registered |
//! | `grace` | when every thread has been seen outside of the calls that discard memory |
//!
//! All of it is methods of [`Lifecycle`], which one thread runs, the control thread. It stands
//! above the fault service and reclaim: it asks their threads to stand still (`quiesce`), and they
//! never call it.
//!
//! Invariants: a halt begins after all workers stand and ends with nothing registered; between
//! [`Lifecycle::halt`] and [`Lifecycle::resume`] no page is out and no mapping is registered. A
//! pager that is dismissed has been halted before.

mod found;
mod grace;
mod halt;
mod retire;
mod watch;

use std::ops::Range;

use crate::accounts::Accounts;
use crate::config::Config;
use crate::fault::FaultService;
use crate::gate::Gate;
use crate::pages::Pages;
use crate::program::Program;
use crate::quiesce::Quiesce;
use crate::reclaim::Reclaimer;

use grace::GracePeriods;
pub use watch::Watch;

/// What the control thread has of its own. Only [`Lifecycle`] uses it.
pub(crate) struct LifecycleState {
    grace: GracePeriods,
    /// The page that the control thread decompresses into.
    own_page: usize,
}

impl LifecycleState {
    /// `own_page` is the address of a page that nothing else uses.
    pub fn new(own_page: usize) -> Self {
        LifecycleState { grace: GracePeriods::default(), own_page }
    }
}

/// The control thread: what it has of its own, and what it uses of other parts.
#[derive(Clone, Copy)]
pub(crate) struct Lifecycle<'a> {
    grace: &'a GracePeriods,
    own_page: usize,
    service: FaultService<'a>,
    reclaimer: Reclaimer<'a>,
    pages: &'a Pages,
    program: &'a Program,
    quiesce: &'a Quiesce,
    gate: &'a Gate,
    accounts: &'static dyn Accounts,
    config: &'a Config,
}

impl<'a> Lifecycle<'a> {
    /// Looks after the threads of `service` and its reclaimer.
    #[allow(clippy::too_many_arguments, reason = "each is a part of a pager")]
    pub fn new(
        state: &'a LifecycleState,
        service: FaultService<'a>,
        pages: &'a Pages,
        program: &'a Program,
        quiesce: &'a Quiesce,
        gate: &'a Gate,
        accounts: &'static dyn Accounts,
        config: &'a Config,
    ) -> Self {
        let LifecycleState { grace, own_page } = state;
        let (own_page, reclaimer) = (*own_page, service.reclaimer());
        Lifecycle { grace, own_page, service, reclaimer, pages, program, quiesce, gate, accounts, config }
    }

    /// The page that the control thread decompresses into.
    pub fn own_page(&self) -> usize {
        self.own_page
    }

    /// Registers a mapping that the program has just made, before it is touched if possible.
    pub fn register(&self, range: Range<usize>) {
        if self.quiesce.is_on() {
            return;
        }
        self.reclaimer.look_again();
        self.program.register(self.pages, range, self.config);
    }

    /// Lets go of a range for good, as if there was no pager: the program guards it itself.
    pub fn release(&self, range: Range<usize>) {
        self.halt();
        self.program.registrations().release(range);
        self.resume();
    }

    /// Looks at the program's mappings again.
    pub fn refresh_mappings(&self) {
        // Before anything can go.
        self.keep_pages(sys::now_ns());
        self.reclaimer.look_again();
        self.program.refresh(self.pages, self.config);
    }

    /// Fetches pages that must never be out, now and then.
    fn keep_pages(&self, now_ns: u64) {
        if self.config.only.is_none() {
            let most = self.accounts.budget();
            self.program.kept().look(now_ns, most, self.pages, self.quiesce, self.own_page);
        }
    }

    /// In a forked child, which has one thread, and that in fork().
    pub fn reset_grace(&self) {
        self.grace.reset(self.pages);
    }
}
