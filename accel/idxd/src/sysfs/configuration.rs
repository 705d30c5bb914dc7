//! Settings of devices, and the layouts that users ask for.

use std::collections::BTreeMap;

use super::discovery::DRIVERS;
use super::{Device, Engine, Group, Queue, QueueMode, QueueType, State, Tree};
use crate::Refusal;

/// All settings of one device. Unnamed parts are unused: engines without a group, queues without
/// entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// `iax1`.
    pub device: String,
    /// Whether to enable the device.
    pub enable: bool,
    /// Entries of the event log; `None` leaves it unchanged.
    pub event_log_size: Option<u32>,
    /// Settings of groups. `None` fields stay unchanged.
    pub groups: Vec<Group>,
    /// The engines in use, with their groups.
    pub engines: Vec<Engine>,
    /// The queues in use: enabled are those to enable. `None` fields stay unchanged.
    pub queues: Vec<Queue>,
}

impl Configuration {
    /// The present configuration of a device.
    pub fn of(device: &Device) -> Self {
        let is_used =
            |queue: &&Queue| queue.size > 0 || queue.kind != QueueType::None || queue.group.is_some();
        Self::with(device, device.queues.iter().filter(is_used))
    }

    /// A device that does nothing.
    pub fn disabled(device: &Device) -> Self {
        Configuration {
            device: device.name.clone(),
            enable: false,
            event_log_size: None,
            groups: Vec::new(),
            engines: Vec::new(),
            queues: Vec::new(),
        }
    }

    /// The same with unused queues, for settings they keep from an earlier use.
    pub(super) fn whole(device: &Device) -> Self {
        Self::with(device, device.queues.iter())
    }

    fn with<'a>(device: &Device, queues: impl Iterator<Item = &'a Queue>) -> Self {
        Configuration {
            device: device.name.clone(),
            enable: device.state == State::Enabled,
            event_log_size: device.event_log_size,
            groups: device.groups.clone(),
            engines: device.engines.iter().filter(|engine| engine.group.is_some()).cloned().collect(),
            queues: queues.cloned().collect(),
        }
    }

    /// Checks that it is possible on `device`, before any write.
    ///
    /// # Errors
    /// The fault, and the fix.
    pub fn check(&self, device: &Device) -> Result<(), Refusal> {
        let wrong = |reason: String| Refusal(format!("{}: {reason}", self.device));
        if !device.configurable {
            return Err(Refusal(format!(
                "{} cannot be configured by software: its configuration was fixed by the host or the firmware; use its \
                 queues as they are (`uzswap iaa list`)",
                self.device
            )));
        }
        for queue in &self.queues {
            let name = &queue.name;
            if !device.queues.iter().any(|there| there.number == queue.number) {
                return Err(wrong(format!("there is no {name}; it has {} queues", device.queues.len())));
            }
            let needs_sva = queue.mode == QueueMode::Shared || queue.kind == QueueType::User;
            if queue.is_enabled() && needs_sva && !device.pasid_enabled {
                return Err(Refusal(format!(
                    "{} has shared virtual addresses off (pasid_enabled is 0), which queues for programs and shared \
                     queues need: enable VT-d in the BIOS and boot with intel_iommu=on,sm_on (some machines also need \
                     no5lvl), on a kernel with CONFIG_INTEL_IDXD_SVM; or use --type kernel --mode dedicated",
                    self.device
                )));
            }
            if queue.mode == QueueMode::Shared
                && !(1..=queue.size).contains(&queue.threshold)
                && queue.is_enabled()
            {
                let threshold = queue.threshold;
                return Err(wrong(format!(
                    "{name} has threshold {threshold}, not 1 to its size {}",
                    queue.size
                )));
            }
            if queue.group.is_some_and(|group| group >= device.groups_max) {
                return Err(wrong(format!(
                    "{name} wants a group above {}",
                    device.groups_max.saturating_sub(1)
                )));
            }
            if queue.is_enabled() && (queue.priority == 0 || queue.priority > 15) {
                return Err(wrong(format!("{name} has priority {}, not 1 to 15", queue.priority)));
            }
            if queue.is_enabled() && queue.label.is_empty() {
                return Err(wrong(format!("{name} has no name")));
            }
            if queue.block_on_fault && !device.capabilities.block_on_fault() {
                return Err(wrong(format!("{name} wants block_on_fault, which the device does not have")));
            }
            let engines = self.engines.iter().filter(|engine| engine.group == queue.group).count();
            if queue.is_enabled() && engines == 0 {
                return Err(wrong(format!("{name} is in a group without engines")));
            }
        }
        let entries: u64 = self.queues.iter().map(|queue| u64::from(queue.size)).sum();
        if entries > u64::from(device.entries_max) {
            let most = device.entries_max;
            return Err(wrong(format!("the queues have {entries} entries together, more than its {most}")));
        }
        match self
            .engines
            .iter()
            .find(|engine| !device.engines.iter().any(|there| there.number == engine.number))
        {
            Some(engine) => Err(wrong(format!("there is no engine {}", engine.number))),
            None => Ok(()),
        }
    }
}

/// The devices of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// This many of each package, the first ones.
    PerPackage(u32),
    /// Those named.
    Named(Vec<String>),
    /// All.
    All,
}

/// The kernel driver whose attributes are set together with queues of type kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driver {
    /// Attributes in `/sys/bus/dsa/drivers/crypto` with their values.
    pub attributes: Vec<(String, String)>,
}

/// The driver's attributes with the defaults of its batching series, as its setup script writes
/// them.
pub(super) const DRIVER_DEFAULTS: [(&str, &str); 5] = [
    ("verify_compress", "0"),
    ("sync_mode", "async"),
    ("g_comp_wqs_per_iaa", "1"),
    ("distribute_comps", "1"),
    ("distribute_decomps", "0"),
];

/// Names of attributes before version 9 of the series.
const OLDER_NAMES: [(&str, &str); 1] = [("g_comp_wqs_per_iaa", "g_wqs_per_iaa")];
/// Attributes that only earlier versions had, with defaults: jobs in a row that go to one queue
/// before the next one's turn.
const OLDER_DEFAULTS: [(&str, &str); 1] = [("g_consec_descs_per_gwq", "1")];

impl Driver {
    /// The attributes of `own`, and the differing defaults of all others that the driver in `tree`
    /// has. Attributes under an older name are set by that name.
    pub fn with_defaults(tree: &dyn Tree, own: &[(String, String)]) -> Self {
        let read = |name: &str| tree.read(&format!("{DRIVERS}/crypto/{name}")).ok();
        let present = |name: &str| -> String {
            let older = OLDER_NAMES.iter().find(|(newer, _)| *newer == name);
            let older = older.filter(|(newer, older)| read(newer).is_none() && read(older).is_some());
            older.map_or(name, |(_, older)| older).to_owned()
        };
        let mut attributes: Vec<(String, String)> =
            own.iter().map(|(name, value)| (present(name), value.clone())).collect();
        for (name, value) in DRIVER_DEFAULTS.into_iter().chain(OLDER_DEFAULTS) {
            let name = present(name);
            // Kernels print flags as letters or as numbers.
            let is_default = |text: String| match text.trim() {
                "Y" => value == "1",
                "N" => value == "0",
                text => text == value,
            };
            let is_own = attributes.iter().any(|(own, _)| *own == name);
            if !is_own && read(&name).is_some_and(|text| !is_default(text)) {
                attributes.push((name, value.to_owned()));
            }
        }
        Driver { attributes }
    }
}

/// The same layout for several devices, as a setup script makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Queues of each device, 1 to 8. They share the entries evenly.
    pub queues: u32,
    /// Engines of each device, all in group 0; 0 for all.
    pub engines: u32,
    /// One opener or many.
    pub mode: QueueMode,
    /// For programs or for the kernel.
    pub kind: QueueType,
    /// Name of every queue.
    pub label: String,
    /// 1 to 15.
    pub priority: u32,
    /// 1 to size for shared queues; 0 for the size.
    pub threshold: u32,
    /// Jobs may wait for page faults; `None`: if the device can.
    pub block_on_fault: Option<bool>,
    /// Largest transfer in bytes; `None` for the kernel's default.
    pub transfer_max: Option<u64>,
}

/// Chooses devices.
///
/// # Errors
/// If one is missing, or a package has too few.
pub fn choose<'a>(devices: &'a [Device], choice: &Choice) -> Result<Vec<&'a Device>, Refusal> {
    match choice {
        Choice::All => Ok(devices.iter().collect()),
        Choice::Named(names) => {
            let mut chosen: Vec<&Device> = Vec::new();
            for name in names {
                let found = devices.iter().find(|device| device.name == *name).ok_or_else(|| {
                    let known: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
                    Refusal(format!("there is no device {name}; there are {}", known.join(", ")))
                })?;
                if !chosen.iter().any(|other| other.name == found.name) {
                    chosen.push(found);
                }
            }
            Ok(chosen)
        }
        Choice::PerPackage(wanted) => {
            let mut packages: BTreeMap<Option<u32>, Vec<&Device>> = BTreeMap::new();
            for device in devices {
                packages.entry(device.package.or(device.numa_node)).or_default().push(device);
            }
            let mut chosen: Vec<&Device> = Vec::new();
            for (package, devices) in packages {
                if devices.len() < *wanted as usize {
                    let package =
                        package.map_or_else(|| "of unknown number".to_owned(), |number| number.to_string());
                    return Err(Refusal(format!(
                        "socket {package} has {} devices, {wanted} are wanted; `uzswap iaa list` shows them",
                        devices.len()
                    )));
                }
                chosen.extend_from_slice(&devices[..*wanted as usize]);
            }
            chosen.sort_by_key(|device| device.number);
            Ok(chosen)
        }
    }
}

impl Layout {
    /// The layout for one device.
    ///
    /// # Errors
    /// If it does not fit the device.
    pub fn on(&self, device: &Device) -> Result<Configuration, Refusal> {
        let wrong = |reason: String| Refusal(format!("{}: {reason}", device.name));
        let queues_max = device.queues_max.min(device.queues.len() as u32);
        if !(1..=queues_max).contains(&self.queues) {
            return Err(wrong(format!("{} queues are wanted, it has 1 to {queues_max}", self.queues)));
        }
        let engines_max = device.engines.len() as u32;
        if self.engines > engines_max || engines_max == 0 {
            return Err(wrong(format!("{} engines are wanted, it has {engines_max}", self.engines)));
        }
        let size = device.entries_max / self.queues;
        if self.threshold > size {
            return Err(wrong(format!(
                "threshold {} is above the size {size} of each queue",
                self.threshold
            )));
        }
        let shared = self.mode == QueueMode::Shared;
        let used = if self.engines == 0 { engines_max } else { self.engines } as usize;
        let driver = if self.kind == QueueType::Kernel { "crypto" } else { "user" };
        let block_on_fault = self.block_on_fault.unwrap_or(device.capabilities.block_on_fault());
        let configuration = Configuration {
            device: device.name.clone(),
            enable: true,
            event_log_size: None,
            groups: Vec::new(),
            engines: device.engines[..used]
                .iter()
                .map(|engine| Engine { group: Some(0), ..engine.clone() })
                .collect(),
            queues: device.queues[..self.queues as usize]
                .iter()
                .map(|queue| Queue {
                    state: State::Enabled,
                    mode: self.mode,
                    size,
                    group: Some(0),
                    priority: self.priority,
                    threshold: match (shared, self.threshold) {
                        (false, _) => 0,
                        (true, 0) => size,
                        (true, threshold) => threshold,
                    },
                    kind: self.kind,
                    label: self.label.clone(),
                    driver: Some(driver.to_owned()),
                    block_on_fault,
                    prs_disable: None,
                    ats_disable: None,
                    transfer_max: self.transfer_max,
                    operations: None,
                    enqcmds_retries: None,
                    ..queue.clone()
                })
                .collect(),
        };
        configuration.check(device)?;
        Ok(configuration)
    }
}
