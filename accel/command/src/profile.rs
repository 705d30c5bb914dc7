//! Configurations in accel-config's file format: an array of devices, each with groups, each with
//! its queues and engines. Keys come in accel-config's order: it wants `dev` first.

use anyhow::{bail, Context, Result};
use idxd::sysfs::{Configuration, Device, Engine, Group, Queue, QueueMode, QueueType, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Keys of other devices or older versions, without effect here.
const MEANINGLESS: [&str; 14] = [
    "max_batch_size",
    "read_buffer_limit",
    "token_limit",
    "read_buffers_reserved",
    "read_buffers_allowed",
    "use_read_buffer_limit",
    "tokens_reserved",
    "tokens_allowed",
    "use_token_limit",
    "state",
    "clients",
    "cdev_major",
    "cdev_minor",
    "ungrouped_workqueues",
];

type Rest = Map<String, Value>;

#[derive(Debug, Serialize, Deserialize)]
struct DeviceEntry {
    dev: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event_log_size: Option<u32>,
    #[serde(default)]
    groups: Vec<GroupEntry>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, Serialize, Deserialize)]
struct GroupEntry {
    dev: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traffic_class_a: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traffic_class_b: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    desc_progress_limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    batch_progress_limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    grouped_workqueues: Vec<QueueEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    grouped_engines: Vec<EngineEntry>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, Serialize, Deserialize)]
struct QueueEntry {
    dev: String,
    mode: String,
    size: u32,
    #[serde(default)]
    group_id: Option<i64>,
    #[serde(default)]
    priority: u32,
    #[serde(default)]
    block_on_fault: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_transfer_size: Option<u64>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    driver_name: Option<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    threshold: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ats_disable: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prs_disable: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    op_config: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    enqcmds_retries: Option<u32>,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug, Serialize, Deserialize)]
struct EngineEntry {
    dev: String,
    #[serde(default)]
    group_id: Option<i64>,
    #[serde(flatten)]
    rest: Rest,
}

/// A file's content.
#[derive(Debug)]
pub struct Profile {
    /// Its devices.
    pub configurations: Vec<Configuration>,
    /// Parts without effect, for users.
    pub remarks: Vec<String>,
}

/// Reads a profile.
///
/// # Errors
/// The place and the fault, if it is not a profile.
pub fn parse(text: &str) -> Result<Profile> {
    let devices: Vec<DeviceEntry> = serde_json::from_str(text).context(
        "this is no configuration as accel-config saves them (`uzswap iaa save -` prints one to compare with)",
    )?;
    let mut profile = Profile { configurations: Vec::new(), remarks: Vec::new() };
    for device in devices {
        profile.remark(&device.dev, &device.rest);
        if !device.dev.starts_with("iax") {
            profile.remarks.push(format!("{} is no IAA device and is left out", device.dev));
            continue;
        }
        let mut configuration = Configuration {
            device: device.dev.clone(),
            enable: true,
            event_log_size: device.event_log_size,
            groups: Vec::new(),
            engines: Vec::new(),
            queues: Vec::new(),
        };
        let of_device = numbers(&device.dev, "iax")?.0;
        for group in &device.groups {
            let (owner, number) = numbers(&group.dev, "group")?;
            let number = number.with_context(|| format!("{:?} is no name of a group", group.dev))?;
            belongs(&group.dev, owner, of_device, &device.dev)?;
            profile.remark(&group.dev, &group.rest);
            configuration.groups.push(Group {
                name: group.dev.clone(),
                number,
                traffic_class_a: group.traffic_class_a,
                traffic_class_b: group.traffic_class_b,
                descriptor_progress_limit: group.desc_progress_limit,
                batch_progress_limit: group.batch_progress_limit,
            });
            for queue in &group.grouped_workqueues {
                profile.remark(&queue.dev, &queue.rest);
                let (owner, _) = numbers(&queue.dev, "wq")?;
                belongs(&queue.dev, owner, of_device, &device.dev)?;
                configuration.queues.push(queue.settings(number).with_context(|| queue.dev.clone())?);
            }
            for engine in &group.grouped_engines {
                profile.remark(&engine.dev, &engine.rest);
                let (owner, engine_number) = numbers(&engine.dev, "engine")?;
                belongs(&engine.dev, owner, of_device, &device.dev)?;
                let group = group_number(engine.group_id, number);
                if let (Some(number), Some(_)) = (engine_number, group) {
                    configuration.engines.push(Engine { name: engine.dev.clone(), number, group });
                }
            }
        }
        if let Some(number) = twice(configuration.queues.iter().map(|queue| queue.number)) {
            bail!("wq{of_device}.{number} is in the file twice");
        }
        if let Some(number) = twice(configuration.engines.iter().map(|engine| engine.number)) {
            bail!("engine{of_device}.{number} is in the file twice");
        }
        profile.configurations.push(configuration);
    }
    if let Some(name) = twice(profile.configurations.iter().map(|configuration| &configuration.device)) {
        bail!("{name} is in the file twice");
    }
    Ok(profile)
}

fn twice<T: PartialEq>(items: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = Vec::new();
    for item in items {
        if seen.contains(&item) {
            return Some(item);
        }
        seen.push(item);
    }
    None
}

impl Profile {
    fn remark(&mut self, name: &str, rest: &Rest) {
        let unknown = rest.keys().filter(|key| !MEANINGLESS.contains(&key.as_str()));
        self.remarks.extend(unknown.map(|key| format!("{name}: {key:?} is unknown and has no effect")));
    }
}

fn numbers(name: &str, prefix: &str) -> Result<(u32, Option<u32>)> {
    let parse = || {
        let rest = name.strip_prefix(prefix)?;
        match rest.split_once('.') {
            Some((device, number)) => Some((device.parse().ok()?, Some(number.parse().ok()?))),
            None => Some((rest.parse().ok()?, None)),
        }
    };
    parse().with_context(|| {
        format!("{name:?} is not a name as in {prefix}1{}", if prefix == "iax" { "" } else { ".0" })
    })
}

fn belongs(name: &str, owner: u32, device: u32, device_name: &str) -> Result<()> {
    if owner != device {
        bail!("{name} is listed under {device_name}, whose it is not");
    }
    Ok(())
}

/// A group's number: the item's own, or that of the group that lists it. Negative: none.
fn group_number(own: Option<i64>, listed: u32) -> Option<u32> {
    match own {
        Some(number) => u32::try_from(number).ok(),
        None => Some(listed),
    }
}

impl QueueEntry {
    fn settings(&self, group: u32) -> Result<Queue> {
        let number = numbers(&self.dev, "wq")?.1.context("the name lacks a number after the dot")?;
        let mode: QueueMode = self.mode.parse().context("mode")?;
        let kind: QueueType = self.kind.parse().context("type")?;
        let is_used = kind != QueueType::None && self.size > 0;
        Ok(Queue {
            name: self.dev.clone(),
            number,
            state: if is_used { State::Enabled } else { State::Disabled },
            mode,
            size: self.size,
            group: group_number(self.group_id, group),
            priority: self.priority,
            threshold: if mode == QueueMode::Shared { self.threshold } else { 0 },
            kind,
            label: self.name.clone(),
            driver: self.driver_name.clone(),
            block_on_fault: self.block_on_fault != 0,
            prs_disable: self.prs_disable.map(|flag| flag != 0),
            ats_disable: self.ats_disable.map(|flag| flag != 0),
            transfer_max: self.max_transfer_size,
            operations: self.op_config.clone(),
            enqcmds_retries: self.enqcmds_retries,
            clients: 0,
            occupancy: None,
            minor: None,
        })
    }
}

/// The present configuration of devices, as a file.
///
/// # Errors
/// None in practice: everything in it can be written.
pub fn print<'a>(devices: impl Iterator<Item = &'a Device>) -> Result<String> {
    let entries: Vec<DeviceEntry> = devices.map(entry).collect();
    let mut text = serde_json::to_string_pretty(&entries)?;
    text.push('\n');
    Ok(text)
}

fn entry(device: &Device) -> DeviceEntry {
    let configuration = Configuration::of(device);
    let groups = configuration.groups.iter().filter_map(|group| {
        let in_group = |other: Option<u32>| other == Some(group.number);
        let queues: Vec<QueueEntry> = configuration
            .queues
            .iter()
            .filter(|queue| in_group(queue.group))
            .map(|queue| QueueEntry {
                dev: queue.name.clone(),
                mode: queue.mode.to_string(),
                size: queue.size,
                group_id: queue.group.map(i64::from),
                priority: queue.priority,
                block_on_fault: u32::from(queue.block_on_fault),
                max_transfer_size: queue.transfer_max,
                kind: queue.kind.to_string(),
                driver_name: queue.driver.as_ref().map(|_| queue.driver_name().to_owned()),
                name: queue.label.clone(),
                threshold: queue.threshold,
                ats_disable: queue.ats_disable.map(u32::from),
                prs_disable: queue.prs_disable.map(u32::from),
                op_config: queue.operations.clone(),
                // Loaded if present, not saved: accel-config does not know it.
                enqcmds_retries: None,
                rest: Rest::new(),
            })
            .collect();
        let engines: Vec<EngineEntry> = configuration
            .engines
            .iter()
            .filter(|engine| in_group(engine.group))
            .map(|engine| EngineEntry {
                dev: engine.name.clone(),
                group_id: engine.group.map(i64::from),
                rest: Rest::new(),
            })
            .collect();
        if queues.is_empty() && engines.is_empty() {
            return None;
        }
        Some(GroupEntry {
            dev: group.name.clone(),
            traffic_class_a: group.traffic_class_a,
            traffic_class_b: group.traffic_class_b,
            desc_progress_limit: group.descriptor_progress_limit,
            batch_progress_limit: group.batch_progress_limit,
            grouped_workqueues: queues,
            grouped_engines: engines,
            rest: Rest::new(),
        })
    });
    DeviceEntry {
        dev: device.name.clone(),
        event_log_size: device.event_log_size,
        groups: groups.collect(),
        rest: Rest::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idxd::sysfs::{apply, discover, Driver, Model};

    /// A saved and reloaded configuration is unchanged, on devices of every kind.
    #[test]
    fn saved_and_loaded_is_the_same() {
        for spec in [
            "sockets=2,devices=2,queues=2",
            "devices=1,queues=8,mode=shared,threshold=5,generation=2,block_on_fault=1,engines=3",
        ] {
            let spec = spec.parse().unwrap();
            let model = Model::new(&spec);
            let before = discover(&model);
            let text = print(before.devices.iter()).unwrap();
            assert!(
                text.trim_start_matches(['[', '{', ' ', '\n']).starts_with("\"dev\": \"iax0\""),
                "{text}"
            );
            let profile = parse(&text).unwrap();
            assert_eq!(profile.remarks, [""; 0]);
            let mut present: Vec<Configuration> = before.devices.iter().map(Configuration::of).collect();
            for queue in present.iter_mut().flat_map(|configuration| &mut configuration.queues) {
                (queue.enqcmds_retries, queue.occupancy, queue.minor) = (None, None, None);
            }
            // Groups without members are not saved.
            let members = |configurations: &[Configuration]| -> Vec<_> {
                let parts =
                    |one: &Configuration| (one.device.clone(), one.queues.clone(), one.engines.clone());
                configurations.iter().map(parts).collect()
            };
            assert_eq!(members(&profile.configurations), members(&present));

            let fresh = Model::unconfigured(&spec);
            apply(&fresh, &discover(&fresh), &profile.configurations, &Driver::default(), &mut |_| {})
                .unwrap();
            assert_eq!(print(discover(&fresh).devices.iter()).unwrap(), text);
            assert_eq!(discover(&fresh).devices, before.devices);
        }
    }

    /// The stock profile of Intel's query processing library, by its values.
    #[test]
    fn a_profile_of_another_tool() {
        let text = r#"[{"dev":"dsa0","groups":[]},
            {"dev":"iax1","max_batch_size":-2,"groups":[{"dev":"group1.0","read_buffers_reserved":0,
             "grouped_workqueues":[{"dev":"wq1.0","mode":"shared","size":128,"group_id":0,"priority":10,
              "block_on_fault":1,"max_transfer_size":2147483648,"type":"user","name":"app1","threshold":128,
              "wheels":4}],
             "grouped_engines":[{"dev":"engine1.0"},{"dev":"engine1.1","group_id":0},
              {"dev":"engine1.2","group_id":-1}]}]}]"#;
        let profile = parse(text).unwrap();
        assert_eq!(profile.remarks.len(), 2, "{:?}", profile.remarks);
        assert!(profile.remarks[0].contains("dsa0") && profile.remarks[1].contains("wheels"));
        let configuration = &profile.configurations[0];
        let queue = &configuration.queues[0];
        assert_eq!((queue.driver_name(), queue.label.as_str(), queue.group), ("user", "app1", Some(0)));
        assert!(queue.is_enabled() && queue.block_on_fault);
        assert_eq!(configuration.engines.len(), 2);
    }

    #[test]
    fn mistakes_are_placed() {
        let message = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(message("{}").contains("accel-config"));
        assert!(message("[{\"groups\":[]}]").contains("dev"));
        assert!(message("[{\"dev\":\"iaxx\"}]").contains("as in iax1"));
        assert!(message(r#"[{"dev":"iax1","groups":[{"dev":"group3.0"}]}]"#).contains("under iax1"));
        assert!(message(r#"[{"dev":"iax1"},{"dev":"iax1"}]"#).contains("twice"));
        let queue = |rest: &str| {
            message(&format!(
                r#"[{{"dev":"iax1","groups":[{{"dev":"group1.0","grouped_workqueues":[{{"dev":"wq1.0",{rest}}}]}}]}}]"#
            ))
        };
        assert!(queue(r#""mode":"both","size":1,"type":"user""#).contains("wq1.0: mode"));
        assert!(queue(r#""mode":"shared","size":1,"type":"robot""#).contains("none, kernel, user"));
        assert!(queue(r#""mode":"shared","type":"user""#).contains("size"));
        assert!(queue(r#""mode":"shared","size":-1,"type":"user""#).contains("line 1"));
    }
}
