//! Emulated devices: the same 64 bytes in, the same completion record out.
//!
//! [`EmulateSpec`] says what to emulate, [`Machine`] is it, and [`Machine::open`] gives a
//! [`crate::Portal`]. In the modes [`Run::Inline`] and [`Run::Poll`] nothing is allocated after
//! [`Machine::new`], no thread is started and no thread-local storage is used, so that they work
//! inside programs that are being paged.
//!
//! What is served, refused and assumed is listed in `docs/internals/idxd-emulated.md`.

pub(crate) mod codec;
mod control;
mod device;
mod faults;
mod machine;
mod spec;
pub(crate) mod validate;

pub use control::{Control, Presence};
pub use device::{OpenError, QueueStatistics, SoftwareError};
pub use faults::{Faults, RETRY_STORM, SLOW_NS};
pub use machine::{EmulatedPortal, Machine, QueueId};
pub use spec::{
    Clock, EmulateSpec, QueueMode, Run, SpecError, Work, ENGINES_MAX, ENTRIES, QUEUES_MAX, STEP_NS,
};
