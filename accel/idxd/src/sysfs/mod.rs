//! Devices as the operating system shows them: discovery, configuration, and a model of the
//! kernel's rules.
//!
//! - [`Tree`] is sysfs, or a stand-in: [`Files`] is a directory (`/sys`, a copy of one, a test's
//!   own), [`Model`] is memory that follows the kernel's rules.
//! - [`discover`] reads all devices with their groups, engines and queues.
//! - A [`Configuration`] holds settings; [`plan`] lists the writes that reach it, [`apply`] does
//!   them and undoes them when one fails.

mod apply;
mod attribute;
mod capabilities;
mod configuration;
mod device;
mod discovery;
mod model;
mod plan;
mod status;
mod tree;

pub use apply::{apply, ApplyError, Undo};
pub use capabilities::Capabilities;
pub use configuration::{choose, Choice, Configuration, Driver, Layout};
pub use device::{Device, Engine, Group, Queue, QueueType, State};
pub use discovery::{discover, Discovery, Problem};
pub use model::Model;
pub use plan::{plan, Effect, Write};
pub use status::command_status;
pub use tree::{Files, Tree};

pub use crate::emulated::QueueMode;
