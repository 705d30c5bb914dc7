//! The heart of a pager: where every page of a process is, and the only code that moves one.
//!
//! ```text
//!  AddressSpace     owns the parts below
//!    transition/      evict, compress, fault_in, discard, relocate, hand_over: a function each
//!    space/           page table, events, the userfaultfd; a lock and the proof of quiet, which has the calls
//!    staging/         slots and extents, which pages pass through on their way out and in
//!    tracker/         which pages are used, where the kernel can tell
//!    accounts         where use is reported and the budget is read
//!    units            addresses, pages and blocks, and how one becomes another
//! ```
//!
//! When pages move, and which, is decided above (`uzswap-pager`).

mod accounts;
mod address_space;
mod errors;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
#[cfg(feature = "shuttle")]
mod model;
mod own_threads;
mod space;
mod staging;
mod sync;
#[cfg(all(any(test, feature = "testing"), not(feature = "shuttle")))]
pub mod testing;
mod tracker;
mod transition;
pub mod units;

pub use accounts::{Accounts, Counter};
pub use address_space::{now_ms, AddressSpace, Bell, Read, Registered, Settings, GROUP, GROUPS};
pub use errors::{FixedText, StartError};
pub use own_threads::ThreadsState;
pub use space::block::NO_SLOT;
pub use space::descriptor::{Guard, Registration, Reports};
pub use staging::slot::{EmptySlot, QueuedSlot, ReadySlot, Slot};
pub use staging::{staging_pages, Staging};
pub use tracker::AccessTracker;
pub use transition::compress::Compressed;
pub use transition::fault_in::FaultedIn;
pub use transition::from_disk::{FromDisk, Scratch};
pub use transition::hand_over::ChildMemory;
pub use transition::inbound::Inbound;

/// The items that the doctests of the proofs need.
#[doc(hidden)]
pub mod proofs {
    pub use crate::space::block::BlockGuard;
    pub use crate::space::events::EventQueue;
    pub use crate::space::mover::Mover;
    pub use crate::space::run::PageRun;
    pub use crate::space::table::AddressTable;
}
