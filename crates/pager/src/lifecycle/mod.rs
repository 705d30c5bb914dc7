//! The life of a pager: the control thread's work besides serving and reclaiming.
//!
//! | file | what is there |
//! |---|---|
//! | `watch` | one look of the control thread: measures, finds new mappings, notices what is stuck |
//! | `halt` | everything comes in and nothing is registered, for a while or for good |
//! | `retire` | the end of a pager whose process does not end |
//! | `found` | which pages are in memory before anything is registered |
//! | `grace` | when every thread has been seen outside of the calls that discard memory |
//!
//! All of it is methods of [`Lifecycle`], which only the control thread runs. It is above the fault
//! service and reclaim: it makes their threads stand still (`quiesce`), and they never call it.
//!
//! Invariants: a halt begins after all workers stand and ends with nothing registered. Between
//! [`Lifecycle::halt`] and [`Lifecycle::resume`] no page is out and no mapping is registered. A
//! pager is halted before it is dismissed.

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

/// State of the control thread. Only [`Lifecycle`] uses it.
pub(crate) struct LifecycleState {
    grace: GracePeriods,
    own_page: usize,
}

impl LifecycleState {
    pub fn new(own_page: usize) -> Self {
        LifecycleState { grace: GracePeriods::default(), own_page }
    }
}

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

    pub fn register(&self, range: Range<usize>) {
        if self.quiesce.is_on() {
            return;
        }
        self.reclaimer.look_again();
        self.program.register(self.pages, range, self.config);
    }

    pub fn release(&self, range: Range<usize>) {
        self.halt();
        self.program.registrations().release(range);
        self.resume();
    }

    pub fn refresh_mappings(&self) {
        // Before any page can leave.
        self.keep_pages(sys::now_ns());
        self.reclaimer.look_again();
        self.program.refresh(self.pages, self.config);
    }

    fn keep_pages(&self, now_ns: u64) {
        if self.config.only.is_none() {
            let most = self.accounts.budget();
            self.program.kept().look(now_ns, most, self.pages, self.quiesce, self.own_page);
        }
    }

    pub fn reset_grace(&self) {
        self.grace.reset(self.pages);
    }
}
