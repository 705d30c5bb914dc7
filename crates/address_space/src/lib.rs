//! The heart of a pager: where every page of a process is, and the only code that moves one.
//!
//! ```text
//!  AddressSpace     owns the parts below
//!    transition/      evict, compress, fault_in, discard, relocate, hand_over: a file each
//!       |  lock(block)          no other thread changes where the block's pages are
//!       v  coherent(lock)       and no event about them is unread: has the calls that move pages
//!    space/           page table, events, the userfaultfd
//!    staging/         slots and extents, which pages pass through on their way out and in
//!    tracker/         which pages are used, where the kernel can tell
//!    accounts         where use is reported and the budget is read
//!    units            pages, blocks, slots and masks of them: a type each
//! ```
//!
//! A page on its way out is in a staging slot, which waits in a queue to be compressed. A slot has
//! one owner: the thread that took it off a list and has it as a value, [`EmptySlot`],
//! [`QueuedSlot`] or [`ReadySlot`]. That thread alone may give it back or discard its frames. While
//! a slot is queued and not being compressed, the holder of its block's lock may take or discard
//! single pages of it. A forked child gives back the slots that its parent's threads had. From the
//! pool a page may leave for the disk: `zswap` copies it into a pack of `swapfile`, where it waits
//! for the write, and drops the pool's copy when that has completed.
//!
//! When pages move, and which, is decided above (`uzswap-pager`). A tracker of accesses implements
//! [`AccessTracker`] in `tracker/`; [`AddressSpace::new`] makes the one in use, which is `Rwp`.

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
    pub use crate::space::table::AddressTable;
    pub use crate::units::PageRun;
}
