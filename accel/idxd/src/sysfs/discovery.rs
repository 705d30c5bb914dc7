//! Reading all devices.

use std::fmt;

use super::attribute::{number, Attributes};
use super::{Capabilities, Device, Engine, Group, Queue, QueueType, State, Tree};

pub(super) const DEVICES: &str = "bus/dsa/devices";
pub(super) const DRIVERS: &str = "bus/dsa/drivers";

/// A part of the tree that could not be read or understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// The devices found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Discovery {
    /// Whether the kernel's idxd driver is present.
    pub has_bus: bool,
    /// IAA devices by number, without those whose state or version cannot be read.
    pub devices: Vec<Device>,
    /// Names of DSA devices, which do other work.
    pub dsa_devices: Vec<String>,
    /// All problems met.
    pub problems: Vec<Problem>,
}

impl Discovery {
    /// A device by name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Every queue that programs can open.
    pub fn program_queues(&self) -> impl Iterator<Item = (&Device, &Queue)> {
        self.devices
            .iter()
            .filter(|device| device.state == State::Enabled)
            .flat_map(|device| device.queues.iter().map(move |queue| (device, queue)))
            .filter(|(_, queue)| queue.is_for_programs())
    }
}

/// Reads all IAA devices with their groups, engines and queues. Unreadable parts are noted and
/// skipped.
pub fn discover(tree: &dyn Tree) -> Discovery {
    let mut found = Discovery::default();
    let names = match tree.list(DEVICES) {
        Ok(names) => names,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                let reason = format!("cannot be listed: {error}");
                found.problems.push(Problem { path: tree.shown(DEVICES), reason });
            }
            return found;
        }
    };
    found.has_bus = true;
    found.dsa_devices = names.iter().filter(|name| suffix(name, "dsa").is_some()).map(String::from).collect();
    let mut numbered: Vec<(u32, &String)> =
        names.iter().filter_map(|name| Some((suffix(name, "iax")?, name))).collect();
    numbered.sort();
    for (device_number, name) in numbered {
        let device = device(tree, name, device_number, &names, &mut found.problems);
        found.devices.extend(device);
    }
    found
}

fn suffix(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// The names `wq1.0` of one device, sorted by the second number.
fn children<'a>(names: &'a [String], prefix: &str, device: u32) -> Vec<(u32, &'a String)> {
    let prefix = format!("{prefix}{device}.");
    let mut children: Vec<_> = names.iter().filter_map(|name| Some((suffix(name, &prefix)?, name))).collect();
    children.sort();
    children
}

fn device(
    tree: &dyn Tree,
    name: &str,
    device_number: u32,
    names: &[String],
    problems: &mut Vec<Problem>,
) -> Option<Device> {
    let path = format!("{DEVICES}/{name}");
    let mut at = Attributes::new(tree, path.clone(), problems);
    // Both are read before either is missed, so that both are reported.
    let (state, version) = (at.word::<State>("state"), at.number("version"));
    let (state, version) = (state?, u32::try_from(version?).ok()?);
    let capabilities = Capabilities {
        general: at.optional_number("gen_cap").unwrap_or(0),
        analytics: at.optional_number("iaa_cap").unwrap_or(0),
    };
    let numa_node = at.optional_index("numa_node");
    let mut device = Device {
        name: name.to_owned(),
        number: device_number,
        version,
        state,
        numa_node,
        package: numa_node.and_then(|node| package_of(tree, node)),
        pci_address: tree.link(&path).and_then(|target| pci_address(&target)),
        groups_max: at.count("max_groups"),
        queues_max: at.count("max_work_queues"),
        entries_max: at.count("max_work_queues_size"),
        engines_max: at.count("max_engines"),
        transfer_max: at.number("max_transfer_size").unwrap_or(0),
        capabilities,
        configurable: at.optional_flag("configurable").unwrap_or(capabilities.configurable()),
        pasid_enabled: at.optional_flag("pasid_enabled").unwrap_or(false),
        clients: at.optional_count("clients").unwrap_or(0),
        event_log_size: at.optional_count("event_log_size"),
        errors: at.optional_text("errors"),
        command_status: at.optional_count("cmd_status").unwrap_or(0),
        groups: Vec::new(),
        engines: Vec::new(),
        queues: Vec::new(),
    };
    for (number, name) in children(names, "group", device_number) {
        let mut at = Attributes::new(tree, format!("{DEVICES}/{name}"), problems);
        device.groups.push(Group {
            name: name.clone(),
            number,
            traffic_class_a: at.optional_count("traffic_class_a"),
            traffic_class_b: at.optional_count("traffic_class_b"),
            descriptor_progress_limit: at.optional_count("desc_progress_limit"),
            batch_progress_limit: at.optional_count("batch_progress_limit"),
        });
    }
    for (number, name) in children(names, "engine", device_number) {
        let mut at = Attributes::new(tree, format!("{DEVICES}/{name}"), problems);
        device.engines.push(Engine { name: name.clone(), number, group: at.optional_index("group_id") });
    }
    for (number, name) in children(names, "wq", device_number) {
        device.queues.extend(queue(tree, name, number, problems));
    }
    Some(device)
}

fn queue(tree: &dyn Tree, name: &str, number: u32, problems: &mut Vec<Problem>) -> Option<Queue> {
    let mut at = Attributes::new(tree, format!("{DEVICES}/{name}"), problems);
    let (state, mode, kind) = (at.word("state"), at.word("mode"), at.word::<QueueType>("type"));
    Some(Queue {
        name: name.to_owned(),
        number,
        state: state?,
        mode: mode?,
        kind: kind?,
        size: at.count("size"),
        group: at.optional_index("group_id"),
        priority: at.optional_count("priority").unwrap_or(0),
        threshold: at.optional_count("threshold").unwrap_or(0),
        label: at.optional_text("name").unwrap_or_default(),
        driver: at.optional_text("driver_name"),
        block_on_fault: at.optional_flag("block_on_fault").unwrap_or(false),
        prs_disable: at.optional_flag("prs_disable"),
        ats_disable: at.optional_flag("ats_disable"),
        transfer_max: at.optional_number("max_transfer_size"),
        operations: at.optional_text("op_config"),
        enqcmds_retries: at.optional_count("enqcmds_retries"),
        clients: at.optional_count("clients").unwrap_or(0),
        occupancy: at.optional_count("occupancy"),
        minor: at.optional_count("cdev_minor"),
    })
}

/// The package of a memory node: that of its first CPU.
fn package_of(tree: &dyn Tree, node: u32) -> Option<u32> {
    let cpus = tree.read(&format!("devices/system/node/node{node}/cpulist")).ok()?;
    let first = cpus.split([',', '-']).next()?.trim();
    let first: u32 = first.parse().ok()?;
    let package = tree.read(&format!("devices/system/cpu/cpu{first}/topology/physical_package_id")).ok()?;
    package.trim().parse().ok()
}

/// The last PCI address in a device's path, as in `../../../devices/pci0000:6a/0000:6a:02.0/iax1`.
fn pci_address(target: &str) -> Option<String> {
    let is_address = |part: &str| {
        let numbers: Vec<&str> = part.split([':', '.']).collect();
        numbers.len() == 4 && numbers.iter().all(|word| number(&format!("0x{word}")).is_some())
    };
    target.rsplit('/').find(|part| is_address(part)).map(str::to_owned)
}
