//! The compressed pool: stores pages by group and key, and loads them byte for byte.
//!
//! A *group* is a program or a tenant; a *key* is a page number, up to 2^36 of them, sparse.
//! [`Zswap::store`] stores a folio of consecutive pages, all or nothing, [`Zswap::store_scattered`]
//! pages of many folios. [`Zswap::load`] loads pages and keeps the entries or not.
//! [`Zswap::invalidate`] removes a range of any length. [`Zswap::present`] returns which pages are
//! stored.
//!
//! Behaviour, counters and their names follow the Linux zswap. Four things differ:
//!
//! - Entries live in *leaves* of 16 pages ([`LEAF_PAGES`]): table, LRU links and entries of 64 KiB
//!   of address space in 160 bytes, so that a batch touches three cache lines instead of eight
//!   scattered entries.
//! - A unit of compression may be larger than a page. Its pages share one object; a partial load
//!   returns the requested pages and keeps the rest.
//! - Pages that repeat one 8-byte word need no object.
//! - Cold pages' objects can be made denser ([`Zswap::promote`]), if the compressor has a second
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
mod common;
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
pub use common::SEGMENT_NAME;
pub use config::{Config, Error, Group, Keep, LoadError, StoreError, KEY_BITS, NODES_MAX, POOLS_MAX};
pub use counters::{Counters, GroupUsage};
pub use forms::{form_names, Forms, LoadTally, Requests, Tally, FORMS_MAX};
pub use leaf::LEAF_PAGES;
pub use maintenance::MaintenanceReport;
pub use promote::PromoteReport;
pub use scatter::{Refused, SCATTERED_MAX};
pub use shrink::ShrinkReport;
pub use swapfile::{ReadFault, SwapFile};
pub use zsmalloc::{compacting_bytes, TIDYING_BYTES};
pub use zswap::Zswap;
