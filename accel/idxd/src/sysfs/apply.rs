//! Applying a plan, and undoing it when a write fails.

use std::fmt;
use std::io;

use super::configuration::Driver;
use super::discovery::{DEVICES, DRIVERS};
use super::plan::{is_as_wanted, settings, start, stop};
use super::{command_status, discover, plan, Configuration, Device, Discovery, Effect, State, Tree, Write};

/// The outcome of undoing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// Nothing had been changed.
    NotNeeded,
    /// Everything was restored.
    Done,
    /// The failures; the rest was restored.
    Failed(Vec<String>),
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undo::NotNeeded => write!(f, "Nothing was changed"),
            Undo::Done => write!(f, "Everything was put back as it was"),
            Undo::Failed(problems) => write!(
                f,
                "Not everything could be put back: {}; `uzswap iaa list` shows what is",
                problems.join(", ")
            ),
        }
    }
}

/// A write that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {value:?} to {path}: {cause}. {undo}")]
pub struct ApplyError {
    /// The attribute.
    pub path: String,
    /// The value written.
    pub value: String,
    /// The system's error, or a state that was not reached, with the device's explanation and the
    /// fix, if any.
    pub cause: String,
    /// The outcome of undoing the earlier writes.
    pub undo: Undo,
}

/// Brings devices into the wanted configurations. `each` sees every write before it is done.
///
/// # Errors
/// The first write that failed; everything before it has been undone, as far as that worked.
pub fn apply(
    tree: &dyn Tree,
    before: &Discovery,
    wanted: &[Configuration],
    driver: &Driver,
    each: &mut dyn FnMut(&Write),
) -> Result<(), ApplyError> {
    let devices: Vec<&Device> = before
        .devices
        .iter()
        .filter(|device| wanted.iter().any(|wanted| wanted.device == device.name))
        .collect();
    let driver_before = Driver {
        attributes: driver
            .attributes
            .iter()
            .filter_map(|(name, _)| {
                Some((name.clone(), tree.read(&format!("{DRIVERS}/crypto/{name}")).ok()?))
            })
            .collect(),
    };
    for (index, write) in plan(&devices, wanted, driver).iter().enumerate() {
        each(write);
        if let Err(cause) = perform(tree, write) {
            // A failed bind may still have done half of its work.
            let undo = if index == 0 && write.effect == Effect::Set {
                Undo::NotNeeded
            } else {
                take_back(tree, &devices, &driver_before)
            };
            let (path, value) = (tree.shown(&write.path), write.value.clone());
            return Err(ApplyError { path, value, cause, undo });
        }
    }
    Ok(())
}

/// Writes, and checks that the effect came about.
fn perform(tree: &dyn Tree, write: &Write) -> Result<(), String> {
    let with = |cause: String, fix: Option<String>| match fix {
        Some(fix) => format!("{cause}; {fix}"),
        None => cause,
    };
    if let Err(error) = tree.write(&write.path, &write.value) {
        let refusal = if write.effect == Effect::Enable { refusal(tree, &write.device) } else { None };
        return Err(with(error.to_string(), refusal.or_else(|| advice(&error, write))));
    }
    let wanted = match write.effect {
        Effect::Set => return Ok(()),
        Effect::Disable => "disabled",
        Effect::Enable => "enabled",
    };
    let state = tree.read(&format!("{DEVICES}/{}/state", write.value));
    let state = state.unwrap_or_else(|error| error.to_string());
    if state.trim() == wanted {
        return Ok(());
    }
    let cause = format!("it was taken, but the state is {:?}, not {wanted}", state.trim());
    Err(with(cause, refusal(tree, &write.device)))
}

/// The device's explanation of its last command.
fn refusal(tree: &dyn Tree, device: &str) -> Option<String> {
    let text = tree.read(&format!("{DEVICES}/{device}/cmd_status")).ok()?;
    let code = super::attribute::number(text.trim())? as u32;
    let (meaning, fix) = command_status(code)?;
    Some(format!("{device} says {code:#x}, {meaning}: {fix}"))
}

/// The fix for an error number.
fn advice(error: &io::Error, write: &Write) -> Option<String> {
    let is_driver = write.path.starts_with(DRIVERS);
    let advice = match error.raw_os_error()? {
        libc::EACCES => "only root may configure devices: use sudo",
        libc::EROFS => "sysfs is read-only here, as in most containers: configure on the host",
        libc::EPERM => "the kernel allows it to root only, while queue and device are disabled, on a configurable device",
        libc::ENOENT if write.effect == Effect::Enable => "the driver is not loaded: modprobe idxd, or for queues of \
                                                           type kernel modprobe iaa_crypto",
        libc::ENOENT => "this kernel does not have the attribute",
        libc::EBUSY if write.effect == Effect::Set && is_driver => {
            "the driver's attributes can be set only while no queue is bound to it: configure all devices that have \
             queues of type kernel together"
        }
        libc::EBUSY => "programs have its queues open: stop them (`uzswap iaa list` counts them)",
        libc::EINVAL => "the kernel does not take the value",
        libc::EOPNOTSUPP => "the device or the kernel cannot do it",
        libc::ENODEV | libc::ENXIO => "the device does not answer to it; the kernel's log (dmesg) may say why",
        _ => return None,
    };
    Some(advice.to_owned())
}

fn take_back(tree: &dyn Tree, before: &[&Device], driver: &Driver) -> Undo {
    let mut problems = Vec::new();
    let mut changed = false;
    let mut run = |writes: Vec<Write>| {
        for write in writes {
            changed = true;
            if let Err(cause) = perform(tree, &write) {
                problems.push(format!("{}: {cause}", tree.shown(&write.path)));
            }
        }
    };
    let now = discover(tree);
    let present = |name: &str| now.device(name);
    let driver_changed = driver
        .attributes
        .iter()
        .any(|(name, value)| tree.read(&format!("{DRIVERS}/crypto/{name}")).ok().as_ref() != Some(value));
    // Attributes that differ from before can only be set on a disabled device.
    for device in before {
        let Some(present) = present(&device.name) else { continue };
        if driver_changed || !is_configured_as(present, device) {
            run(stop(present));
        }
    }
    for (name, value) in &driver.attributes {
        let path = format!("{DRIVERS}/crypto/{name}");
        if tree.read(&path).ok().as_ref() != Some(value) {
            let device = before.first().map_or_else(String::new, |device| device.name.clone());
            run(vec![Write { path, value: value.clone(), effect: Effect::Set, device }]);
        }
    }
    let now = discover(tree);
    for device in before {
        let Some(present) = now.device(&device.name) else { continue };
        let wanted = Configuration::whole(device);
        if !is_configured_as(present, device) {
            run(settings(present, &wanted, false));
        }
        let up = |name: &str| {
            let queues = present.queues.iter().map(|queue| (&queue.name, queue.state));
            let mut all = queues.chain([(&present.name, present.state)]);
            all.any(|(there, state)| there == name && state == State::Enabled)
        };
        run(start(&wanted, &up));
    }
    for device in before {
        let status = format!("{DEVICES}/{}/cmd_status", device.name);
        if device.command_status == 0 && refusal(tree, &device.name).is_some() {
            // Any write clears it. The failure has been read; leaving it would mislead.
            let _ = tree.write(&status, "0");
        }
    }
    match (problems.is_empty(), changed) {
        (true, false) => Undo::NotNeeded,
        (true, true) => Undo::Done,
        (false, _) => Undo::Failed(problems),
    }
}

/// Whether the attributes are unchanged, regardless of enabled states.
fn is_configured_as(present: &Device, before: &Device) -> bool {
    let wanted = Configuration::whole(before);
    let engines =
        present.engines.iter().zip(&before.engines).all(|(present, before)| present.group == before.group);
    let groups = present.groups == before.groups && present.event_log_size == before.event_log_size;
    let queues = present.queues.iter().all(|queue| {
        let before = wanted.queues.iter().find(|before| before.number == queue.number);
        before.is_some_and(|before| is_as_wanted(queue, before))
    });
    engines && groups && queues
}
