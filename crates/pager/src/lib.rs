//! Paging a whole process: address space, staging, reclaim and the fault service.
//!
//! ```text
//!  Pager          the parts, and what the threads run
//!    pages        where every page is; the only code that moves one (proofs and guards)
//!    registrations  which mappings are registered
//!    fault/       serving faults: who listens, how many pages come along, what waits for the disk
//!    reclaim/     who makes room and when, which pages go, what goes to the swap file; never serves a fault
//!    tracker/     which pages are used, where the kernel can tell
//!    gauge        how much memory the process uses
//!    halt, standstill, fork_session   standing still: for good, for a while, around a fork
//!    retire                       the end of a pager whose process does not end
//!    executable   heaps that may be executed
//!    grace, kept, watch           threads outside of calls, pages that stay, what is stuck
//! ```

pub mod accounts;
mod config;
pub mod executable;
mod fault;
mod files;
mod fork_session;
mod gate;
mod gauge;
mod grace;
mod halt;
mod kept;
#[cfg(feature = "shuttle")]
mod model;
mod pager;
mod pages;
mod reclaim;
mod registrations;
mod retire;
mod standstill;
mod sync;
mod tracker;
#[cfg(all(test, not(feature = "shuttle")))]
mod trial;
mod watch;

pub use accounts::{Accounts, Counter};
pub use config::{Config, FixedText, NamedPages, StartError, HANDLERS_MAX};
pub use fault::DISK_THREADS;
pub use fork_session::{ForkSession, Outcome, COPIED_MAX};
pub use pager::Pager;
pub use pages::staging::Staging;

/// Of what moves a page, as much as the documentation of its proofs compiles against.
#[doc(hidden)]
pub mod proofs {
    pub use crate::pages::table::{AddressTable, BlockGuard, PageRun};
    pub use crate::pages::{EventQueue, Mover};
}

/// Groups that the pool of a pager must have: [`zswap::Config::max_groups`].
pub const POOL_GROUPS: u16 = pages::GROUPS;
pub use pages::table::{runs, span, BLOCK_BYTES, BLOCK_PAGES};
pub use watch::Watch;

/// Ends the process by SIGABRT, past any handler of the program's, or SIGKILL.
pub fn end_process() -> ! {
    sys::thread::end_process()
}
