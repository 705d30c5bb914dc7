//! Queues of real devices: opened through `/dev/iax/wqN.M`, fed by a store of 64 bytes or by
//! `write`.
//!
//! [`open`] reads sysfs first, so that each refusal has its own error with its own fix.

mod error;
mod instruction;
mod portal;

use std::path::Path;

use crate::sysfs::{Device, Queue, QueueType, State};
use crate::DeviceFile;

pub use error::OpenError;
pub use instruction::Instructions;
pub use portal::{RealPortal, Way};

/// Opens a queue for this process, below `dev`, which stands for `/dev`.
///
/// # Errors
/// The reason and the fix.
pub fn open(dev: &Path, device: &Device, queue: &Queue) -> Result<RealPortal, OpenError> {
    let name = || queue.name.clone();
    match device.state {
        State::Disabled => return Err(OpenError::DeviceDisabled(device.name.clone())),
        State::Halted => return Err(OpenError::DeviceHalted(device.name.clone())),
        State::Enabled => {}
    }
    if queue.kind == QueueType::Kernel {
        return Err(OpenError::ForTheKernel(name()));
    }
    if queue.state != State::Enabled || queue.kind != QueueType::User {
        return Err(OpenError::QueueDisabled(name()));
    }
    let Some(file) = DeviceFile::find(dev, &queue.name) else {
        let path = dev.join("iax").join(&queue.name);
        return Err(OpenError::NoFile { queue: name(), path: path.display().to_string() });
    };
    RealPortal::open(&file.path, &queue.name, queue.mode)
}
