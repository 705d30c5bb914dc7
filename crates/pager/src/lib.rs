//! Address space, folios, staging, reclaim and the fault service.

pub mod accounts;
mod clock;
mod events;
mod eviction;
mod halt;
mod heritage;
mod listeners;
mod long_runs;
mod mappings;
mod pager;
mod pins;
mod promotion;
mod racks;
mod reclaim;
mod refs;
mod remap;
mod service;
mod staging;
mod streams;
mod table;
#[cfg(test)]
mod trial;
mod usher;
mod watch;

pub use accounts::{Accounts, Count};
pub use heritage::{Outcome, Window, COPIED_MAX};
pub use pager::{end_process, Config, FixedText, Pager, StartError, HANDLERS_MAX};
pub use staging::Staging;
pub use table::{runs, span, BLOCK_BYTES, BLOCK_PAGES};
pub use watch::Watch;
