//! The IAA driver: compressors `deflate-iaa` and `deflate-iaa-dynamic` over [`idxd`].
//!
//! - [`Driver`] spreads requests over the queues of its [`Device`]s, real or emulated, and counts
//!   ([`Statistics`]).
//! - [`Iaa`] is a compressor over a driver, one of two; [`register`] adds both to a registry.
//! - [`Settings`] are the kernel driver's parameters, with the defaults of its batching series.
//!
//! `docs/internals/iaa-driver.md` lists what follows the kernel's driver and what differs.

mod algorithm;
mod context;
mod current;
mod device;
mod driver;
mod memory;
mod queue;
mod real;
mod register;
mod settings;
mod shared_counters;
mod source;
mod statistics;
mod table;
mod topology;
mod work;

#[cfg(test)]
extern crate self as iaa;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub use algorithm::Iaa;
pub use device::{Device, Port};
pub use driver::Driver;
pub use register::{register, register_with, take_notice, Options, EMULATE_VARIABLE};
pub use settings::{Patience, Settings, SyncMode};
pub use shared_counters::{published, reset_published, Published, Unreadable};
pub use statistics::{DeviceStatistics, Health, QueueStatistics, Statistics, Traffic};
pub use table::QueueKind;
pub use topology::{CoreId, Topology};
