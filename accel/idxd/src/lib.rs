//! Intel IAA devices, work queues, portals and descriptors, and the emulated device.
//!
//! - [`Descriptor`] and [`Completion`] are the 64 bytes each way; [`aecs`] is the state a job may
//!   read and write.
//! - [`Portal`] is a queue's door, the same for real and emulated devices.
//! - [`deflate`] is the codec inside the emulated device, also used for the code tables that
//!   generation 1 wants from its caller.
//! - [`Waiter`] waits for completion records as the processor can.
//! - [`sysfs`] finds and configures devices, [`real`] opens their queues.
//! - [`assumptions`] names everything that is believed but not proven about real devices.

pub mod aecs;
pub mod assumptions;
mod completion;
mod counted;
pub mod deflate;
mod descriptor;
mod device_file;
pub mod emulated;
mod portal;
pub mod real;
pub mod sysfs;
mod wait;

pub use completion::{Completion, ErrorCode, Record, Status, FAULT_WAS_WRITE, STATUS_MASK};
pub use counted::Counted;
pub use descriptor::{compress_flags, decompress_flags, flags, Descriptor, Opcode};
pub use device_file::DeviceFile;
pub use portal::{Portal, Submission};
pub use wait::Waiter;
