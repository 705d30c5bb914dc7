//! The life of a pager: the control thread's work besides serving and reclaiming.
//!
//! | file | content |
//! |---|---|
//! | `watch` | the duties of the control thread and their intervals |
//! | `halt` | everything comes in and nothing is registered, for a while or for good |
//! | `retire` | the end of a pager whose process does not end |
//! | `found` | which pages are in memory before anything is registered |
//! | `common` | pages that relatives have, too: one compressed copy for all |
//! | `grace` | when every thread has been seen outside of the calls that discard memory |
//!
//! All of it is methods of [`Lifecycle`], which only the control thread runs. It is above the fault
//! service and reclaim: it makes their threads stand still (`quiesce`), and they never call it.
//!
//! Invariants: a halt begins after all workers stand and ends with nothing registered. Between
//! [`Lifecycle::halt`] and [`Lifecycle::resume`] no page is out and no mapping is registered. A
//! pager is halted before it is dismissed.

mod common;
mod found;
mod grace;
mod halt;
mod retire;
mod watch;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::fault::FaultService;
use crate::process::Process;
use crate::reclaim::Reclaimer;

use grace::GracePeriod;
pub use watch::Watch;

/// The control thread's work. It makes the threads of fault service and reclaimer stand still; they
/// do not know it.
pub(crate) struct Lifecycle {
    process: Arc<Process>,
    reclaimer: Arc<Reclaimer>,
    service: Arc<FaultService>,
    grace: Mutex<GracePeriod>,
    /// The page that the control thread decompresses into.
    pub own_page: usize,
}

impl Lifecycle {
    pub fn new(
        process: Arc<Process>,
        reclaimer: Arc<Reclaimer>,
        service: Arc<FaultService>,
        own_page: usize,
    ) -> Self {
        Lifecycle { process, reclaimer, service, grace: Mutex::default(), own_page }
    }

    pub fn register(&self, range: Range<usize>) {
        if self.process.quiesce.is_on() {
            return;
        }
        self.reclaimer.evictions.look_again();
        self.process.register(range);
    }

    pub fn release(&self, range: Range<usize>) {
        self.halt();
        self.process.registrations().released.push(range);
        self.resume();
    }

    pub fn refresh_mappings(&self) {
        // Before any page can leave.
        self.keep_pages(sys::now_ns());
        self.reclaimer.evictions.look_again();
        self.process.refresh();
    }

    fn keep_pages(&self, now_ns: u64) {
        if self.process.config.only.is_none() {
            let most = self.process.accounts.budget();
            self.process.kept.look(now_ns, most, &self.process.pages, &self.process.quiesce, self.own_page);
        }
    }

    /// In a forked child, whose only thread is in fork().
    pub fn reset_grace(&self) {
        *self.grace.lock().expect("no panic while held") = GracePeriod::default();
        self.process.pages.discards.forget(self.process.pages.table());
    }
}
