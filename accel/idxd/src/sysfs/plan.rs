//! The writes that bring devices from one configuration to another.

use super::configuration::Driver;
use super::discovery::{DEVICES, DRIVERS};
use super::{Configuration, Device, Queue, QueueType, State, Tree};

/// The purpose of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Sets an attribute.
    Set,
    /// Unbinds a queue or a device.
    Disable,
    /// Binds a queue or a device.
    Enable,
}

/// One write to one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Relative to `/sys`.
    pub path: String,
    /// The value written.
    pub value: String,
    /// The purpose.
    pub effect: Effect,
    /// The device concerned.
    pub device: String,
}

impl Write {
    /// The equivalent shell command.
    pub fn shell(&self, tree: &dyn Tree) -> String {
        format!("echo {} > {}", shell_word(&self.value), shell_word(&tree.shown(&self.path)))
    }
}

fn shell_word(value: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.,:/".contains(letter);
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}

/// All writes, in order: queues and devices are disabled, the driver's and the devices' attributes
/// set, devices and queues enabled. `devices` are the present ones of the same names.
pub fn plan(devices: &[&Device], wanted: &[Configuration], driver: &Driver) -> Vec<Write> {
    let pairs: Vec<(&Device, &Configuration)> = wanted
        .iter()
        .filter_map(|wanted| Some((*devices.iter().find(|device| device.name == wanted.device)?, wanted)))
        .collect();
    let mut writes: Vec<Write> = pairs.iter().flat_map(|(device, _)| stop(device)).collect();
    let device = pairs.first().map_or("", |(device, _)| device.name.as_str());
    writes.extend(driver.attributes.iter().map(|(attribute, value)| Write {
        path: format!("{DRIVERS}/crypto/{attribute}"),
        value: value.clone(),
        effect: Effect::Set,
        device: device.to_owned(),
    }));
    for (device, wanted) in pairs {
        // Disabling an enabled device resets it.
        writes.extend(settings(device, wanted, device.state != State::Disabled));
        writes.extend(start(wanted, &|_| false));
    }
    writes
}

/// Disables a device with its queues.
pub(super) fn stop(device: &Device) -> Vec<Write> {
    let unbind = |name: &str| Write {
        path: format!("{DEVICES}/{name}/driver/unbind"),
        value: name.to_owned(),
        effect: Effect::Disable,
        device: device.name.clone(),
    };
    let queues = device.queues.iter().filter(|queue| queue.state != State::Disabled);
    let mut writes: Vec<Write> = queues.map(|queue| unbind(&queue.name)).collect();
    if device.state != State::Disabled {
        writes.push(unbind(&device.name));
    }
    writes
}

/// Enables the wanted device and queues, except those for which `is_up` returns true.
pub(super) fn start(wanted: &Configuration, is_up: &dyn Fn(&str) -> bool) -> Vec<Write> {
    let bind = |name: &str, driver: &str| Write {
        path: format!("{DRIVERS}/{driver}/bind"),
        value: name.to_owned(),
        effect: Effect::Enable,
        device: wanted.device.clone(),
    };
    let mut writes = Vec::new();
    if wanted.enable && !is_up(&wanted.device) {
        writes.push(bind(&wanted.device, "idxd"));
    }
    for queue in wanted.queues.iter().filter(|queue| queue.is_enabled() && wanted.enable) {
        if !is_up(&queue.name) {
            writes.push(bind(&queue.name, queue.driver_name()));
        }
    }
    writes
}

/// Sets the attributes of a disabled device. `reset`: disabling it clears its configuration.
pub(super) fn settings(device: &Device, wanted: &Configuration, reset: bool) -> Vec<Write> {
    let mut writes = Vec::new();
    let mut set = |name: &str, attribute: &str, value: String| {
        writes.push(Write {
            path: format!("{DEVICES}/{name}/{attribute}"),
            value,
            effect: Effect::Set,
            device: device.name.clone(),
        });
    };
    if let (Some(wanted), Some(_)) = (wanted.event_log_size, device.event_log_size) {
        // Disabling a device keeps this.
        if device.event_log_size != Some(wanted) {
            set(&device.name, "event_log_size", wanted.to_string());
        }
    }
    for group in &wanted.groups {
        let Some(present) = device.groups.iter().find(|present| present.number == group.number) else {
            continue;
        };
        for (attribute, wanted, present) in [
            ("traffic_class_a", group.traffic_class_a, present.traffic_class_a),
            ("traffic_class_b", group.traffic_class_b, present.traffic_class_b),
            ("desc_progress_limit", group.descriptor_progress_limit, present.descriptor_progress_limit),
            ("batch_progress_limit", group.batch_progress_limit, present.batch_progress_limit),
        ] {
            if let (Some(value), Some(there)) = (wanted, present) {
                if reset || value != there {
                    set(&group.name, attribute, value.to_string());
                }
            }
        }
    }
    for engine in &device.engines {
        let group = wanted
            .engines
            .iter()
            .find(|wanted| wanted.number == engine.number)
            .and_then(|wanted| wanted.group);
        let present = if reset { None } else { engine.group };
        if group != present {
            set(&engine.name, "group_id", group.map_or_else(|| "-1".to_owned(), |group| group.to_string()));
        }
    }
    let wanted_for = |queue: &Queue| wanted.queues.iter().find(|wanted| wanted.number == queue.number);
    if !reset {
        // Entries are given up first, so that they suffice at every moment.
        for queue in &device.queues {
            let wanted = wanted_for(queue);
            if wanted.is_some_and(|wanted| is_as_wanted(queue, wanted)) {
                continue;
            }
            if queue.size > 0 {
                set(&queue.name, "size", "0".to_owned());
            }
            if wanted.is_none() {
                forget(queue, &mut set);
            }
        }
    }
    for queue in &device.queues {
        if let Some(wanted) = wanted_for(queue) {
            if reset || !is_as_wanted(queue, wanted) {
                set_queue(device, queue, wanted, reset, &mut set);
            }
        }
    }
    writes
}

/// Whether the attributes of a queue are those wanted, regardless of its state.
pub(super) fn is_as_wanted(queue: &Queue, wanted: &Queue) -> bool {
    fn agrees<T: PartialEq>(present: &Option<T>, wanted: &Option<T>) -> bool {
        present.is_none() || wanted.is_none() || present == wanted
    }
    queue.mode == wanted.mode
        && queue.size == wanted.size
        && queue.group == wanted.group
        && queue.priority == wanted.priority
        && queue.threshold == wanted.threshold
        && queue.kind == wanted.kind
        && queue.label == wanted.label
        && queue.driver_name() == wanted.driver_name()
        && queue.block_on_fault == wanted.block_on_fault
        && agrees(&queue.prs_disable, &wanted.prs_disable)
        && agrees(&queue.ats_disable, &wanted.ats_disable)
        && agrees(&queue.transfer_max, &wanted.transfer_max)
        && agrees(&queue.operations, &wanted.operations)
        && agrees(&queue.enqcmds_retries, &wanted.enqcmds_retries)
}

/// Makes a queue unused, as far as its attributes can be reset.
fn forget(queue: &Queue, set: &mut dyn FnMut(&str, &str, String)) {
    if queue.threshold > 0 {
        // The only way to reset it.
        set(&queue.name, "mode", "dedicated".to_owned());
    }
    if queue.threshold > 0 || queue.mode == super::QueueMode::Dedicated {
        set(&queue.name, "mode", "shared".to_owned());
    }
    if queue.group.is_some() {
        set(&queue.name, "group_id", "-1".to_owned());
    }
    if queue.kind != QueueType::None {
        // Clears the name as well.
        set(&queue.name, "type", "none".to_owned());
    }
    if queue.priority > 0 {
        set(&queue.name, "priority", "0".to_owned());
    }
    if queue.block_on_fault {
        set(&queue.name, "block_on_fault", "0".to_owned());
    }
}

fn set_queue(
    device: &Device,
    queue: &Queue,
    wanted: &Queue,
    reset: bool,
    set: &mut dyn FnMut(&str, &str, String),
) {
    let name = &queue.name;
    let flag = |value: bool| u32::from(value).to_string();
    if !reset && queue.threshold > wanted.threshold && wanted.mode == super::QueueMode::Shared {
        set(name, "mode", "dedicated".to_owned());
    }
    let group = wanted.group.map_or_else(|| "-1".to_owned(), |group| group.to_string());
    set(name, "group_id", group);
    set(name, "mode", wanted.mode.to_string());
    set(name, "size", wanted.size.to_string());
    set(name, "priority", wanted.priority.to_string());
    if wanted.mode == super::QueueMode::Shared && wanted.threshold > 0 {
        set(name, "threshold", wanted.threshold.to_string());
    }
    set(name, "type", wanted.kind.to_string());
    if !wanted.label.is_empty() {
        set(name, "name", wanted.label.clone());
    }
    // Attributes that only some kernels have are present when the queue has them now.
    if queue.driver.is_some() && wanted.kind != QueueType::None {
        set(name, "driver_name", wanted.driver_name().to_owned());
    }
    // Devices without the ability refuse any value for these attributes, so clear ones are not
    // cleared.
    let flags = [
        ("prs_disable", wanted.prs_disable, queue.prs_disable),
        ("ats_disable", wanted.ats_disable, queue.ats_disable),
    ];
    for (attribute, wanted, present) in flags {
        if let (Some(wanted), Some(present)) = (wanted, present) {
            if wanted != (present && !reset) {
                set(name, attribute, flag(wanted));
            }
        }
    }
    if device.capabilities.block_on_fault() {
        set(name, "block_on_fault", flag(wanted.block_on_fault));
    }
    if let Some(bytes) = wanted.transfer_max {
        set(name, "max_transfer_size", bytes.to_string());
    }
    if let (Some(wanted), Some(_)) = (&wanted.operations, &queue.operations) {
        set(name, "op_config", wanted.clone());
    }
    if let (Some(wanted), Some(_)) = (wanted.enqcmds_retries, queue.enqcmds_retries) {
        set(name, "enqcmds_retries", wanted.to_string());
    }
}
