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

use std::ops::{Deref, Range};
use std::sync::Mutex;

use crate::fault::FaultService;

use grace::GracePeriod;
pub use watch::Watch;

/// The control thread's work, above the fault service and its parts.
pub(crate) struct Lifecycle {
    grace: Mutex<GracePeriod>,
    /// The page that the control thread decompresses into.
    pub own_page: usize,
    pub service: FaultService,
}

impl Deref for Lifecycle {
    type Target = FaultService;

    fn deref(&self) -> &FaultService {
        &self.service
    }
}

impl Lifecycle {
    pub fn new(own_page: usize, service: FaultService) -> Self {
        Lifecycle { grace: Mutex::default(), own_page, service }
    }

    pub fn register(&self, range: Range<usize>) {
        if self.quiesce.is_on() {
            return;
        }
        self.evictions.look_again();
        self.program.register(&self.pages, range, &self.config);
    }

    pub fn release(&self, range: Range<usize>) {
        self.halt();
        self.program.registrations().released.push(range);
        self.resume();
    }

    pub fn refresh_mappings(&self) {
        // Before any page can leave.
        self.keep_pages(sys::now_ns());
        self.evictions.look_again();
        self.program.refresh(&self.pages, &self.config);
    }

    fn keep_pages(&self, now_ns: u64) {
        if self.config.only.is_none() {
            let most = self.accounts.budget();
            self.program.kept.look(now_ns, most, &self.pages, &self.quiesce, self.own_page);
        }
    }

    /// In a forked child, whose only thread is in fork().
    pub fn reset_grace(&self) {
        *self.grace.lock().expect("no panic while held") = GracePeriod::default();
        self.pages.discards.forget(self.pages.table());
    }
}
