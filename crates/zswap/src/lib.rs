//! The compressed pool: pages go in by group and key, come out again byte for byte, and take little
//! room between.
//!
//! A *group* is a program or a tenant; a *key* is a page number, up to 2^36 of them, sparse.
//! [`Zswap::store`] takes a folio of consecutive pages, all or nothing, [`Zswap::store_scattered`]
//! pages of many folios; [`Zswap::load`] gives pages back, keeping the entries or not;
//! [`Zswap::invalidate`] forgets a range of any length. What is stored can be told from
//! [`Zswap::present`].
//!
//! Behaviour, counters and their names follow the Linux zswap. Four things are its own:
//!
//! - Entries live in *leaves* of 16 pages ([`LEAF_PAGES`]): table, LRU links and entries of 64 KiB
//!   of address space in 160 bytes, so that a batch touches three cache lines instead of eight
//!   scattered entries.
//! - A unit of compression may be larger than a page. Its pages share one object; a partial load
//!   gives the pages asked for and keeps the rest.
//! - Pages that repeat one 8-byte word take no object at all.
//! - Cold pages' objects can be made denser ([`Zswap::promote`]), where the compressor has a second
//!   tier.
//!
//! The state is plain memory from [`sys::arena`] and the global allocator: no thread-local storage,
//! no threads, no file descriptors. It survives `fork` when no call is in progress.
//!
//! Lock order: pages pinned by a load, in ascending order, or by a promotion, of one leaf; a
//! worker's context; the group; slabs and the allocator.

mod balance;
mod batch;
mod checksum;
mod config;
mod counters;
mod disk;
mod filled;
mod forms;
mod group;
mod invalidate;
mod leaf;
mod load;
mod lru;
mod maintenance;
mod padded;
mod pool;
mod promote;
mod returned;
mod scatter;
mod shrink;
mod slab;
mod store;
mod swap_out;
mod sync;
mod tree;
mod zswap;

pub use acomp::{Page, TierSample, PAGE_SIZE};
pub use balance::Costs;
pub use config::{Config, Error, Group, Keep, LoadError, StoreError, KEY_BITS, NODES_MAX, POOLS_MAX};
pub use counters::{Counters, GroupUsage};
pub use forms::{form_names, Forms, Tally, FORMS_MAX};
pub use leaf::LEAF_PAGES;
pub use maintenance::MaintenanceReport;
pub use promote::PromoteReport;
pub use scatter::{Refused, SCATTERED_MAX};
pub use shrink::ShrinkReport;
pub use swapfile::{ReadFault, SwapFile};
pub use zsmalloc::{compacting_bytes, TIDYING_BYTES};
pub use zswap::Zswap;
