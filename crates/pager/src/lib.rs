//! Paging a whole process: when pages move, and which. `address_space` moves them.
//!
//! ```text
//!  Pager          builds the parts; hands each call and each thread to one
//!    fork/          forks that leave everything out: sessions, children, inheritance
//!    lifecycle/     the control thread: its duties, halts, the end of a pager, grace periods
//!    fault/         serving faults: who listens, how many pages come along, what waits for the disk
//!    reclaim/       who makes room and when, which pages go, the swap file; never serves a fault
//!    process        the managed process: pages, mappings (registrations), size (gauge), pages that stay
//!                   (kept), which threads may work (quiesce), files of /proc
//!    gate           when the kernel begins to copy the arena
//!    executable     heaps that may be executed
//! ```
//!
//! Each part has those below it as its fields, and uses no other (`tests/parts.rs`).
//!
//! | to add | begin at |
//! |---|---|
//! | a predictor of the next pages | `Streams::find` of `fault/readahead.rs` (one adjacent window) and `fault/serve.rs`, which brings it in; `Clusters` for neighbours |
//! | a reason to evict | `Figures` of `reclaim/watermarks.rs`, filled in `reclaim/workers.rs`, by which `next_action` chooses a worker's step; `reclaim/direct.rs` for handlers |
//! | an order of eviction | `replacement`, which `reclaim/clock.rs` asks for each block |
//! | pages that must stay | `kept.rs` |
//! | a duty of the control thread | `DUTIES` in `lifecycle/watch.rs` |

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
mod process;
mod quiesce;
mod reclaim;
mod registrations;
mod roles;
#[cfg(all(test, target_arch = "x86_64"))]
mod routes;
#[cfg(test)]
mod testing;

pub use address_space::units::{PageNumber, BLOCK_BYTES};
pub use address_space::{staging_pages, Accounts, Counter, FixedText, StartError};
pub use config::{Config, NamedPages, HANDLERS_MAX};
pub use fork::{ForkSession, Outcome, COPIED_MAX};
pub use pager::Pager;
pub use roles::ThreadRole;
pub use sys::thread::end_process;

/// Groups that the pool of a pager needs: [`zswap::Config::max_groups`].
pub const POOL_GROUPS: u16 = address_space::GROUPS;
pub use lifecycle::Watch;
