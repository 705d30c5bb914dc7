//! Emulated devices: the same 64 bytes in, the same completion record out.
//!
//! An [`EmulateSpec`] describes a [`Machine`], and [`Machine::open`] gives a [`crate::Portal`]. The
//! modes [`Run::Inline`] and [`Run::Poll`] neither allocate after [`Machine::new`] nor start
//! threads nor use thread-local storage, so that they work inside programs that are being paged.
//!
//! `docs/internals/idxd-emulated.md` lists the served, refused and assumed behaviour.

pub(crate) mod codec;
mod control;
mod device;
mod faults;
mod machine;
mod spec;
pub(crate) mod validate;

pub use control::{Control, Presence};
pub use device::{QueueStatistics, SoftwareError};
pub use faults::{Faults, RETRY_STORM, SLOW_NS};
pub use machine::{EmulatedPortal, Machine, QueueId};
pub use spec::{Clock, EmulateSpec, QueueMode, Run, Work, ENGINES_MAX, ENTRIES, QUEUES_MAX, STEP_NS};
