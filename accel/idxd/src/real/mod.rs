//! Queues of real devices: opened through `/dev/iax/wqN.M`, fed by a store of 64 bytes or by
//! `write`.
//!
//! [`open`] reads sysfs first, so that each refusal has its own error with its own fix.

mod error;
mod instruction;
mod portal;

use std::path::Path;

use crate::sysfs::{Device, Queue, QueueType, State};
use crate::{DeviceFile, Refusal};

pub use instruction::Instructions;
pub use portal::{RealPortal, Way};

/// Opens a queue for this process, below `dev`, which stands for `/dev`.
///
/// # Errors
/// The reason and the fix.
pub fn open(dev: &Path, device: &Device, queue: &Queue) -> Result<RealPortal, Refusal> {
    let refuse = |text: String| Err(Refusal(text));
    let enable = "`uzswap iaa configure` or `uzswap iaa load` enables it";
    match device.state {
        State::Disabled => return refuse(format!("{} is disabled: {enable}", device.name)),
        State::Halted => {
            return refuse(format!(
                "{} has halted after an error: configure it again to reset it; the kernel's log (dmesg) has the cause",
                device.name
            ))
        }
        State::Enabled => {}
    }
    let name = &queue.name;
    if queue.kind == QueueType::Kernel {
        return refuse(format!(
            "{name} is the kernel's (type kernel): configure one of type user for programs"
        ));
    }
    if queue.state != State::Enabled || queue.kind != QueueType::User {
        return refuse(format!("{name} is disabled: {enable}"));
    }
    let Some(file) = DeviceFile::find(dev, name) else {
        return refuse(error::no_file(name, &dev.join("iax").join(name).display().to_string()));
    };
    RealPortal::open(&file.path, &queue.name, queue.mode)
}
