//! Devices, groups, engines and queues: the values of their attributes.

use super::{Capabilities, QueueMode};
use crate::words::words;

/// Whether a device or queue works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It takes no work; it can be configured.
    Disabled,
    /// It takes work.
    Enabled,
    /// The device stopped at an error; it must be disabled and enabled.
    Halted,
}

/// The users of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueType {
    /// Not configured.
    None,
    /// The kernel's own drivers.
    Kernel,
    /// Programs, through a device file.
    User,
}

words!(State, "disabled, enabled, halted", Disabled => "disabled", Enabled => "enabled", Halted => "halted");
words!(QueueType, "none, kernel, user", None => "none", Kernel => "kernel", User => "user");

/// A device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// `iax1`.
    pub name: String,
    /// The number in the name. DSA devices count in the same space.
    pub number: u32,
    /// The version register: 0x100 is generation 1, 0x200 generation 2.
    pub version: u32,
    /// Whether it works.
    pub state: State,
    /// The nearest memory node.
    pub numa_node: Option<u32>,
    /// The package (socket) of that node's CPUs.
    pub package: Option<u32>,
    /// PCI address, as in `0000:6a:02.0`.
    pub pci_address: Option<String>,
    /// Most groups.
    pub groups_max: u32,
    /// Most queues.
    pub queues_max: u32,
    /// Entries of all queues together.
    pub entries_max: u32,
    /// Most engines.
    pub engines_max: u32,
    /// Largest transfer in bytes.
    pub transfer_max: u64,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Whether software may configure it.
    pub configurable: bool,
    /// Whether programs' own addresses can be used (SVA). Without it there are neither user nor
    /// shared queues.
    pub pasid_enabled: bool,
    /// Open files of all its queues.
    pub clients: u32,
    /// Entries of the event log.
    pub event_log_size: Option<u32>,
    /// Words of the software error register; zero without an error.
    pub errors: Option<String>,
    /// The status of the last command.
    pub command_status: u32,
    /// Its groups.
    pub groups: Vec<Group>,
    /// Its engines.
    pub engines: Vec<Engine>,
    /// Its queues.
    pub queues: Vec<Queue>,
}

impl Device {
    /// 1: Sapphire and Emerald Rapids. 2: Granite Rapids.
    pub fn generation(&self) -> u32 {
        self.version >> 8
    }

    /// Whether a software error is latched.
    pub fn has_software_error(&self) -> bool {
        self.errors.as_deref().is_some_and(|words| {
            words
                .split([' ', ','])
                .any(|word| super::attribute::number(word.trim()).is_some_and(|word| word != 0))
        })
    }

    /// Engines of a group.
    pub fn engines_in(&self, group: u32) -> usize {
        self.engines.iter().filter(|engine| engine.group == Some(group)).count()
    }
}

/// A group: its queues are served by its engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// `group1.0`.
    pub name: String,
    /// The number within the device.
    pub number: u32,
    /// Traffic class of address 1.
    pub traffic_class_a: Option<u32>,
    /// Traffic class of address 2.
    pub traffic_class_b: Option<u32>,
    /// Limit of descriptors in progress: 0 to 3 for all, half, a quarter, an eighth.
    pub descriptor_progress_limit: Option<u32>,
    /// The same for batches.
    pub batch_progress_limit: Option<u32>,
}

/// An engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// `engine1.0`.
    pub name: String,
    /// The number within the device.
    pub number: u32,
    /// Its group.
    pub group: Option<u32>,
}

/// A work queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// `wq1.0`.
    pub name: String,
    /// The number within the device.
    pub number: u32,
    /// Whether it takes work.
    pub state: State,
    /// One opener or many.
    pub mode: QueueMode,
    /// Entries.
    pub size: u32,
    /// Its group.
    pub group: Option<u32>,
    /// 1 to 15 within its group.
    pub priority: u32,
    /// Occupancy from which a shared queue refuses programs.
    pub threshold: u32,
    /// Its users.
    pub kind: QueueType,
    /// Its name; must not be empty to enable it.
    pub label: String,
    /// The driver it is for (`user`, `crypto`, `dmaengine`): kernels since 6.7.
    pub driver: Option<String>,
    /// Jobs may ask to wait for page faults.
    pub block_on_fault: bool,
    /// Page requests are off.
    pub prs_disable: Option<bool>,
    /// Address translation services are off.
    pub ats_disable: Option<bool>,
    /// Largest transfer in bytes.
    pub transfer_max: Option<u64>,
    /// Allowed operations (generation 2).
    pub operations: Option<String>,
    /// How often the kernel tries to submit to it.
    pub enqcmds_retries: Option<u32>,
    /// Open files.
    pub clients: u32,
    /// Descriptors in it, if the device reports them.
    pub occupancy: Option<u32>,
    /// Minor number of its device file.
    pub minor: Option<u32>,
}

impl Queue {
    /// Whether it takes work.
    pub fn is_enabled(&self) -> bool {
        self.state == State::Enabled
    }

    /// Whether programs can open it.
    pub fn is_for_programs(&self) -> bool {
        self.kind == QueueType::User && self.is_enabled()
    }

    /// The driver that binds it, for every version of the kernel.
    pub fn driver_name(&self) -> &str {
        match (&self.driver, self.kind) {
            (Some(driver), _) if !driver.is_empty() => driver,
            (_, QueueType::Kernel) => "crypto",
            _ => "user",
        }
    }
}
