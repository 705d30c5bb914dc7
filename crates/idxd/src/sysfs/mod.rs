//! Devices as the operating system shows them: discovery, configuration, and a model of the kernel's rules.
//!
//! - [`Tree`] is sysfs, or something that answers like it: [`Files`] is a directory (`/sys`, a copy of one, a test's
//!   own), [`Model`] is memory that follows the kernel's rules.
//! - [`discover`] reads all devices with their groups, engines and queues.

mod attribute;
mod capabilities;
mod device;
mod discovery;
mod model;
mod status;
mod tree;

pub use capabilities::Capabilities;
pub use device::{Device, Engine, Group, Queue, QueueType, State};
pub use discovery::{discover, Discovery, Problem};
pub use model::{Image, Model};
pub use status::command_status;
pub use tree::{Files, Tree};

pub use crate::emulated::QueueMode;
