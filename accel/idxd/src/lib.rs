//! Intel IAA devices, work queues, portals and descriptors, and the emulated device.
//!
//! - [`Descriptor`] and [`Completion`] are the 64 bytes each way; [`aecs`] is the state a job may
//!   read and write.
//! - [`Portal`] submits to a queue, of a real or an emulated device.
//! - [`deflate`] is the emulated device's codec; it also makes the code tables that generation 1
//!   requires of its caller.
//! - [`Waiter`] waits for completion records with the processor's instructions.
//! - [`sysfs`] finds and configures devices, [`real`] opens their queues.
//! - [`assumptions`] names the unproven assumptions about real devices.

pub mod aecs;
pub mod assumptions;
mod completion;
pub mod deflate;
mod descriptor;
mod device_file;
pub mod emulated;
mod portal;
pub mod real;
mod refusal;
pub mod sysfs;
mod wait;
mod words;

pub use completion::{Completion, ErrorCode, Record, Status, FAULT_WAS_WRITE, STATUS_MASK};
pub use descriptor::{compress_flags, decompress_flags, flags, Descriptor, Opcode};
pub use device_file::DeviceFile;
pub use portal::{Portal, Submission};
pub use refusal::Refusal;
pub use wait::Waiter;
