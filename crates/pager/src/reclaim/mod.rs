//! Reclaim: who makes room, when, and how much of it. It never serves a fault.
//!
//! | file | what is there |
//! |---|---|
//! | `steps` | what a worker and a handler do to make room, a step at a time |
//! | `watermarks` | what a worker does next, a pure function of figures |
//! | `clock` | which pages go |
//! | `stock` | frames that are ready for pages to come in |
//! | `swap_out` | what goes to the swap file |
//! | `promotion` | denser objects for cold pages |
//!
//! All of it is methods of [`Reclaimer`], which sees these parts of a pager and no others. A
//! handler that makes room may have to wait for the disk while events are its to read: it passes
//! what reads them ([`Reclaimer::balance`]). How pages leave the program, and the way into the
//! pool, is `pages`' business.

mod clock;
mod promotion;
mod steps;
mod stock;
mod swap_out;
mod watermarks;

use std::sync::Mutex;

use crate::accounts::Accounts;
use crate::files::ProcFiles;
use crate::gauge::Gauge;
use crate::halt::Halt;
use crate::kept::KeptPages;
use crate::pages::Pages;
use crate::registrations::Registrations;

pub(crate) use clock::Hand;
pub(crate) use promotion::Promotion;
pub(crate) use steps::Reclaim;
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) use steps::{Role, Step};
pub(crate) use swap_out::Swap;

/// Who makes room: what it has of its own, and what it uses of other parts.
#[derive(Clone, Copy)]
pub(crate) struct Reclaimer<'a> {
    pub reclaim: &'a Reclaim,
    pub hand: &'a Mutex<Hand>,
    pub promotion: &'a Promotion,
    pub swap: &'a Swap,
    pub accounts: &'static dyn Accounts,
    pub gauge: &'a Gauge,
    pub pages: &'a Pages,
    pub registrations: &'a Mutex<Registrations>,
    pub kept: &'a KeptPages,
    pub halt: &'a Halt,
    pub files: &'a ProcFiles,
    /// Handlers that there may be.
    pub handlers: usize,
}

impl Reclaimer<'_> {
    /// Measures this process's use; returns the total of all processes.
    fn measure(&self) -> u64 {
        self.gauge.measure(&self.files.statm, self.pages)
    }

    /// The level that reclaim works towards.
    fn low_water(&self) -> u64 {
        self.gauge.low_water()
    }
}
