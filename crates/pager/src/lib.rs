//! Paging a whole process: address space, staging, reclaim and the fault service.
//!
//! ```text
//!  Pager          builds the parts; hands each call and each thread to one
//!    fork/          forks that leave everything out: sessions, children, inheritance
//!    lifecycle/     the control thread: its looks, halts, the end of a pager, grace periods
//!    fault/         serving faults: who listens, how many pages come along, what waits for the disk
//!    reclaim/       who makes room and when, which pages go, what goes to the swap file; never serves a fault
//!    program        mappings (registrations), size (gauge), pages that stay (kept), files of /proc
//!    gate           when the kernel begins to copy the arena
//!    quiesce        which threads may work, and which stand still
//!    pages/         where every page is; the only code that moves one (proofs and guards)
//!    tracker/       which pages are used, where the kernel can tell
//!    executable     heaps that may be executed
//!    units          addresses, pages and blocks, and how one becomes another
//! ```
//!
//! Each part uses those below it only (`tests/parts.rs`).

mod config;
pub mod executable;
mod fault;
mod files;
mod fork;
mod gate;
mod gauge;
mod kept;
mod lifecycle;
mod pager;
mod program;
mod quiesce;
mod reclaim;
mod registrations;
mod roles;
#[cfg(test)]
mod testing;

pub use address_space::units::BLOCK_BYTES;
pub use address_space::{staging_pages, Accounts, Counter, FixedText, StartError};
pub use config::{Config, NamedPages, HANDLERS_MAX};
pub use fork::{ForkSession, Outcome, COPIED_MAX};
pub use pager::Pager;
pub use roles::ThreadRole;
pub use sys::thread::end_process;

/// Groups that the pool of a pager needs: [`zswap::Config::max_groups`].
pub const POOL_GROUPS: u16 = address_space::GROUPS;
pub use lifecycle::Watch;
