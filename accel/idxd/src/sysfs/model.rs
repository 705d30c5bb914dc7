//! sysfs in memory, with the kernel's rules for writes and their effects.
//!
//! Stands in for `/sys` on machines without a device: the same discovery, plans and undoing run
//! against it. Its rules are those of Linux's idxd driver (attributes of the ABI document
//! `sysfs-driver-dma-idxd`, order of checks of its enable paths). One write in a row can be made to
//! fail.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;

use super::configuration::DRIVER_DEFAULTS;
use super::discovery::{DEVICES, DRIVERS};
use super::{QueueMode, Tree};
use crate::assumptions;
use crate::emulated::{EmulateSpec, ENTRIES, QUEUES_MAX};

const CPUS_PER_PACKAGE: u32 = 8;

/// Attributes of a queue that disabling its device resets.
const RESET_QUEUE: [(&str, &str); 13] = [
    ("mode", "shared"),
    ("size", "0"),
    ("group_id", "-1"),
    ("priority", "0"),
    ("threshold", "0"),
    ("type", "none"),
    ("name", ""),
    ("driver_name", ""),
    ("block_on_fault", "0"),
    ("prs_disable", "0"),
    ("ats_disable", "0"),
    ("max_transfer_size", "2097152"),
    ("enqcmds_retries", "0"),
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Content {
    files: BTreeMap<String, String>,
    /// Names of devices and queues, each with the driver it is bound to.
    bound: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Inner {
    content: Content,
    writes: usize,
    fail_at: Option<(usize, i32)>,
}

/// Devices in memory.
#[derive(Debug, Default)]
pub struct Model {
    inner: Mutex<Inner>,
}

impl Model {
    /// The devices of an emulated machine, configured and enabled by the specification.
    pub fn new(spec: &EmulateSpec) -> Self {
        let model = Self::unconfigured(spec);
        let mut inner = model.lock();
        let content = &mut inner.content;
        for device in 0..spec.sockets * spec.devices {
            for engine in 0..spec.engines {
                content.put(format!("{DEVICES}/engine{device}.{engine}/group_id"), 0);
            }
            for queue in 0..spec.queues {
                let name = format!("wq{device}.{queue}");
                let shared = spec.mode == QueueMode::Shared;
                let threshold = if spec.threshold == 0 { spec.queue_size() } else { spec.threshold };
                let values = [
                    ("mode", spec.mode.word().to_owned()),
                    ("size", spec.queue_size().to_string()),
                    ("group_id", "0".to_owned()),
                    ("priority", "10".to_owned()),
                    ("threshold", if shared { threshold } else { 0 }.to_string()),
                    ("type", "user".to_owned()),
                    ("name", "uzswap".to_owned()),
                    ("driver_name", "user".to_owned()),
                    ("block_on_fault", u32::from(spec.block_on_fault).to_string()),
                    ("state", "enabled".to_owned()),
                ];
                for (attribute, value) in values {
                    content.put(format!("{DEVICES}/{name}/{attribute}"), value);
                }
                content.put(format!("{DEVICES}/{name}/cdev_minor"), device * QUEUES_MAX + queue);
                content.bound.insert(name, "user".to_owned());
            }
            content.put(format!("{DEVICES}/iax{device}/state"), "enabled");
            content.bound.insert(format!("iax{device}"), "idxd".to_owned());
        }
        drop(inner);
        model
    }

    /// The same devices after boot: disabled, nothing configured.
    pub fn unconfigured(spec: &EmulateSpec) -> Self {
        let mut content = Content::default();
        for driver in ["idxd", "user", "crypto", "dmaengine"] {
            content.put(format!("{DRIVERS}/{driver}/bind"), "");
        }
        for (attribute, value) in DRIVER_DEFAULTS {
            content.put(format!("{DRIVERS}/crypto/{attribute}"), value);
        }
        for package in 0..spec.sockets {
            let first = package * CPUS_PER_PACKAGE;
            let last = first + CPUS_PER_PACKAGE - 1;
            content.put(format!("devices/system/node/node{package}/cpulist"), format!("{first}-{last}"));
            for cpu in first..=last {
                content.put(format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"), package);
            }
        }
        for device in 0..spec.sockets * spec.devices {
            content.add_device(spec, device);
        }
        Model { inner: Mutex::new(Inner { content, ..Inner::default() }) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // A panic of another thread leaves whole, plain values.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes one write fail with an error number: the first is 0. Later ones work.
    pub fn fail_write(&self, index: usize, errno: i32) {
        let mut inner = self.lock();
        inner.writes = 0;
        inner.fail_at = Some((index, errno));
    }

    /// Sets an attribute without any rule, so that tests can make odd devices.
    pub fn set(&self, path: &str, value: &str) {
        self.lock().content.put(path.to_owned(), value);
    }

    /// Removes an attribute, as in a kernel without it.
    pub fn remove(&self, path: &str) {
        self.lock().content.files.remove(path);
    }

    /// All attributes with their values.
    pub fn files(&self) -> Vec<(String, String)> {
        self.lock().content.files.iter().map(|(path, value)| (path.clone(), value.clone())).collect()
    }
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn check(condition: bool, errno: i32) -> io::Result<()> {
    if condition {
        Ok(())
    } else {
        Err(error(errno))
    }
}

impl Content {
    fn put(&mut self, path: String, value: impl ToString) {
        self.files.insert(path, value.to_string());
    }

    fn get(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    fn attribute(&self, name: &str, attribute: &str) -> &str {
        self.get(&format!("{DEVICES}/{name}/{attribute}"))
    }

    fn set_attribute(&mut self, name: &str, attribute: &str, value: impl ToString) {
        self.put(format!("{DEVICES}/{name}/{attribute}"), value);
    }

    fn number(&self, name: &str, attribute: &str) -> i64 {
        super::attribute::number(self.attribute(name, attribute)).map_or(-1, |value| value as i64)
    }

    fn add_device(&mut self, spec: &EmulateSpec, device: u32) {
        let name = format!("iax{device}");
        let transfer = u64::from(assumptions::MAX_TRANSFER.trailing_zeros());
        let general = u64::from(spec.block_on_fault) | transfer << 16 | 1 << 31 | 1 << 40;
        let mut put =
            |attribute: &str, value: &dyn ToString| self.set_attribute(&name, attribute, value.to_string());
        put("version", &if spec.generation == 1 { "0x100" } else { "0x200" });
        put("max_groups", &assumptions::MAX_GROUPS);
        put("max_work_queues", &QUEUES_MAX);
        put("max_work_queues_size", &ENTRIES);
        put("max_engines", &spec.engines);
        put("numa_node", &(device / spec.devices));
        put("max_transfer_size", &assumptions::MAX_TRANSFER);
        // No-op, drain, decompress, compress.
        put("op_cap", &"00000000,00000000,00000000,00000000,00000000,0000000c,00000000,00000005");
        put("gen_cap", &format!("{general:#x}"));
        if spec.generation > 1 {
            // Decompress AECS format 2 and header generation.
            put("iaa_cap", &"0x101");
        }
        put("configurable", &1);
        put("clients", &0);
        put("pasid_enabled", &1);
        put("state", &"disabled");
        put("errors", &"0x0 0x0 0x0 0x0");
        put("cmd_status", &"0x0");
        put("cdev_major", &234);
        put("event_log_size", &64);
        for group in 0..assumptions::MAX_GROUPS {
            let name = format!("group{device}.{group}");
            for attribute in ["traffic_class_a", "traffic_class_b"] {
                self.set_attribute(&name, attribute, 1);
            }
            for attribute in ["desc_progress_limit", "batch_progress_limit"] {
                self.set_attribute(&name, attribute, 0);
            }
        }
        for engine in 0..spec.engines {
            self.set_attribute(&format!("engine{device}.{engine}"), "group_id", -1);
        }
        for queue in 0..QUEUES_MAX {
            let name = format!("wq{device}.{queue}");
            self.reset_queue(&name);
            for (attribute, value) in [("state", "disabled"), ("clients", "0"), ("occupancy", "0")] {
                self.set_attribute(&name, attribute, value);
            }
            if spec.generation > 1 {
                let operations = self.attribute(&format!("iax{device}"), "op_cap").to_owned();
                self.set_attribute(&name, "op_config", operations);
            }
        }
    }

    fn reset_queue(&mut self, name: &str) {
        for (attribute, value) in RESET_QUEUE {
            self.set_attribute(name, attribute, value);
        }
    }

    /// Names of a device's children with a prefix, as in `wq1.`.
    fn children(&self, prefix: &str) -> Vec<String> {
        let names = self.files.keys().filter_map(|path| path.strip_prefix(DEVICES)?.split('/').nth(1));
        let names: BTreeSet<&str> = names.filter(|name| name.starts_with(prefix)).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    fn is_enabled(&self, name: &str) -> bool {
        self.attribute(name, "state") == "enabled"
    }

    fn refuse(&mut self, device: &str, code: u32, errno: i32) -> io::Result<()> {
        self.set_attribute(device, "cmd_status", format_args!("{code:#x}"));
        Err(error(errno))
    }

    fn bind_device(&mut self, device: &str) -> io::Result<()> {
        check(self.files.contains_key(&format!("{DEVICES}/{device}/state")), libc::ENODEV)?;
        if self.attribute(device, "state") != "disabled" {
            return self.refuse(device, 0x8000_0010, libc::ENXIO);
        }
        let number = device.trim_start_matches("iax");
        let grouped = |name: &String| self.attribute(name, "group_id") != "-1";
        let queues: Vec<String> =
            self.children(&format!("wq{number}.")).into_iter().filter(grouped).collect();
        let engines = self.children(&format!("engine{number}.")).iter().filter(|name| grouped(name)).count();
        if queues.is_empty() {
            return self.refuse(device, 0x800d_0000, libc::EINVAL);
        }
        if engines == 0 {
            return self.refuse(device, 0x15, libc::EINVAL);
        }
        let shared = queues
            .iter()
            .any(|name| self.attribute(name, "mode") == "shared" && self.number(name, "size") > 0);
        if shared && self.attribute(device, "pasid_enabled") != "1" {
            return self.refuse(device, 0x800c_0000, libc::EOPNOTSUPP);
        }
        self.set_attribute(device, "state", "enabled");
        self.set_attribute(device, "cmd_status", "0x0");
        self.bound.insert(device.to_owned(), "idxd".to_owned());
        Ok(())
    }

    fn unbind_device(&mut self, device: &str) -> io::Result<()> {
        let number = device.trim_start_matches("iax").to_owned();
        for queue in self.children(&format!("wq{number}.")) {
            self.unbind_queue(&queue);
            if self.attribute(device, "configurable") == "1" {
                self.reset_queue(&queue);
            }
        }
        for engine in self.children(&format!("engine{number}.")) {
            self.set_attribute(&engine, "group_id", -1);
        }
        for group in self.children(&format!("group{number}.")) {
            for (attribute, value) in [
                ("traffic_class_a", 1),
                ("traffic_class_b", 1),
                ("desc_progress_limit", 0),
                ("batch_progress_limit", 0),
            ] {
                self.set_attribute(&group, attribute, value);
            }
        }
        self.set_attribute(device, "state", "disabled");
        self.bound.remove(device);
        Ok(())
    }

    fn bind_queue(&mut self, queue: &str, driver: &str) -> io::Result<()> {
        check(self.files.contains_key(&format!("{DEVICES}/{queue}/state")), libc::ENODEV)?;
        let device = format!("iax{}", queue.trim_start_matches("wq").split('.').next().unwrap_or(""));
        let of = |attribute: &str| self.attribute(queue, attribute).to_owned();
        let shared = of("mode") == "shared";
        let refusal = if !self.is_enabled(&device) {
            Some((0x8000_0020, libc::EPERM))
        } else if of("state") == "enabled" {
            Some((0x8000_0021, libc::EBUSY))
        } else if of("group_id") == "-1" {
            Some((0x8003_0000, libc::EINVAL))
        } else if of("name").is_empty() {
            Some((0x8004_0000, libc::EINVAL))
        } else if shared && self.attribute(&device, "pasid_enabled") != "1" {
            Some((0x8005_0000, libc::ENXIO))
        } else if shared && self.number(queue, "threshold") <= 0 {
            Some((0x8006_0000, libc::EINVAL))
        } else if driver == "user" && self.attribute(&device, "pasid_enabled") != "1" {
            Some((0x8011_0000, libc::EOPNOTSUPP))
        } else if self.files.contains_key(&format!("{DEVICES}/{queue}/driver_name"))
            && of("driver_name") != driver
        {
            Some((0x8020_0000, libc::ENODEV))
        } else if self.number(queue, "size") <= 0 {
            Some((0x22, libc::ENXIO))
        } else if self.number(queue, "priority") <= 0 {
            Some((0x23, libc::ENXIO))
        } else {
            None
        };
        if let Some((code, errno)) = refusal {
            return self.refuse(&device, code, errno);
        }
        self.set_attribute(queue, "state", "enabled");
        self.set_attribute(&device, "cmd_status", "0x0");
        if driver == "user" {
            let mut parts =
                queue.trim_start_matches("wq").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
            let minor = parts.next().unwrap_or(0) * QUEUES_MAX + parts.next().unwrap_or(0);
            self.set_attribute(queue, "cdev_minor", minor);
        }
        self.bound.insert(queue.to_owned(), driver.to_owned());
        Ok(())
    }

    /// Disabling a queue resets the attributes that only matter while it has an owner.
    fn unbind_queue(&mut self, queue: &str) {
        self.set_attribute(queue, "state", "disabled");
        self.files.remove(&format!("{DEVICES}/{queue}/cdev_minor"));
        self.bound.remove(queue);
    }

    fn unbind(&mut self, name: &str) -> io::Result<()> {
        check(self.bound.contains_key(name), libc::ENODEV)?;
        if name.starts_with("iax") {
            self.unbind_device(name)
        } else {
            self.unbind_queue(name);
            Ok(())
        }
    }

    fn write_queue(&mut self, queue: &str, attribute: &str, value: &str) -> io::Result<()> {
        let device = format!("iax{}", queue.trim_start_matches("wq").split('.').next().unwrap_or(""));
        check(self.attribute(&device, "configurable") == "1", libc::EPERM)?;
        let wants_enxio = matches!(attribute, "block_on_fault" | "threshold");
        check(!self.is_enabled(queue), if wants_enxio { libc::ENXIO } else { libc::EPERM })?;
        let number = value.parse::<i64>();
        let integer = || number.clone().map_err(|_| error(libc::EINVAL));
        let flag = || check(matches!(value, "0" | "1"), libc::EINVAL);
        let size = self.number(queue, "size");
        let shared = self.attribute(queue, "mode") == "shared";
        match attribute {
            "mode" => match value {
                "dedicated" => self.set_attribute(queue, "threshold", 0),
                "shared" => check(self.attribute(&device, "pasid_enabled") == "1", libc::EINVAL)?,
                _ => return Err(error(libc::EINVAL)),
            },
            "size" => {
                check(!self.is_enabled(&device), libc::EPERM)?;
                let number = device.trim_start_matches("iax").to_owned();
                let queues = self.children(&format!("wq{number}."));
                let claimed: i64 = queues.iter().map(|name| self.number(name, "size").max(0)).sum();
                let new = integer()?;
                check(new >= 0 && claimed - size.max(0) + new <= i64::from(ENTRIES), libc::EINVAL)?;
            }
            "group_id" => {
                check(!self.is_enabled(&device), libc::EPERM)?;
                check((-1..i64::from(assumptions::MAX_GROUPS)).contains(&integer()?), libc::EINVAL)?;
            }
            "priority" => check((0..=15).contains(&integer()?), libc::EINVAL)?,
            "threshold" => check(shared && (1..=size).contains(&integer()?), libc::EINVAL)?,
            "type" => {
                check(matches!(value, "none" | "kernel" | "user"), libc::EINVAL)?;
                if self.attribute(queue, "type") != value {
                    self.set_attribute(queue, "name", "");
                }
            }
            "name" => {
                check(!value.is_empty() && value.len() <= 1024, libc::EINVAL)?;
                check(self.attribute(queue, "type") != "none", libc::EPERM)?;
            }
            "driver_name" | "op_config" => {}
            "block_on_fault" => {
                flag()?;
                let capable =
                    super::attribute::number(self.attribute(&device, "gen_cap")).unwrap_or(0) & 1 != 0;
                let prs_off = self.attribute(queue, "prs_disable") == "1";
                check(capable && (value == "0" || !prs_off), libc::EOPNOTSUPP)?;
            }
            "prs_disable" | "ats_disable" => flag()?,
            "max_transfer_size" => {
                let bytes = value.parse::<u64>().map_err(|_| error(libc::EINVAL))?;
                check(bytes > 0 && bytes <= u64::from(assumptions::MAX_TRANSFER), libc::EINVAL)?;
                self.set_attribute(queue, attribute, bytes.next_power_of_two());
                return Ok(());
            }
            "enqcmds_retries" => check((0..=64).contains(&integer()?), libc::EINVAL)?,
            _ => return Err(error(libc::EACCES)),
        }
        self.set_attribute(queue, attribute, value);
        Ok(())
    }

    fn write(&mut self, path: &str, value: &str) -> io::Result<()> {
        let value = value.trim();
        if let Some(rest) = path.strip_prefix(DRIVERS) {
            let (driver, file) =
                rest.trim_start_matches('/').split_once('/').ok_or_else(|| error(libc::EISDIR))?;
            check(self.files.contains_key(&format!("{DRIVERS}/{driver}/bind")), libc::ENOENT)?;
            return match file {
                "bind" if driver == "idxd" => self.bind_device(value),
                "bind" => self.bind_queue(value, driver),
                "unbind" => {
                    check(self.bound.get(value).is_some_and(|bound| bound == driver), libc::ENODEV)?;
                    self.unbind(value)
                }
                _ => {
                    check(self.files.contains_key(path), libc::ENOENT)?;
                    check(!self.bound.values().any(|bound| bound == driver), libc::EBUSY)?;
                    self.put(path.to_owned(), value);
                    Ok(())
                }
            };
        }
        let rest = path.strip_prefix(DEVICES).ok_or_else(|| error(libc::EACCES))?;
        let (name, attribute) =
            rest.trim_start_matches('/').split_once('/').ok_or_else(|| error(libc::EISDIR))?;
        if attribute == "driver/unbind" {
            check(self.bound.contains_key(name), libc::ENOENT)?;
            check(name == value, libc::ENODEV)?;
            return self.unbind(name);
        }
        check(self.files.contains_key(path), libc::ENOENT)?;
        if name.starts_with("wq") {
            return self.write_queue(name, attribute, value);
        }
        let number = name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
        let device = format!("iax{}", number.split('.').next().unwrap_or(""));
        check(self.attribute(&device, "configurable") == "1", libc::EPERM)?;
        match attribute {
            "cmd_status" => self.put(path.to_owned(), "0x0"),
            "group_id" => {
                check(!self.is_enabled(&device), libc::EPERM)?;
                let group = value.parse::<i64>().map_err(|_| error(libc::EINVAL))?;
                check((-1..i64::from(assumptions::MAX_GROUPS)).contains(&group), libc::EINVAL)?;
                self.put(path.to_owned(), value);
            }
            "traffic_class_a"
            | "traffic_class_b"
            | "desc_progress_limit"
            | "batch_progress_limit"
            | "event_log_size" => {
                check(!self.is_enabled(&device), libc::EPERM)?;
                let number = value.parse::<i64>().map_err(|_| error(libc::EINVAL))?;
                let range = match attribute {
                    "traffic_class_a" | "traffic_class_b" => 0..=7,
                    "event_log_size" => 64..=65535,
                    _ => 0..=3,
                };
                check(range.contains(&number), libc::EINVAL)?;
                self.put(path.to_owned(), value);
            }
            _ => return Err(error(libc::EACCES)),
        }
        Ok(())
    }
}

impl Tree for Model {
    fn read(&self, path: &str) -> io::Result<String> {
        self.lock().content.files.get(path).cloned().ok_or_else(|| error(libc::ENOENT))
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut inner = self.lock();
        let index = inner.writes;
        inner.writes += 1;
        if let Some((_, errno)) = inner.fail_at.take_if(|(at, _)| *at == index) {
            return Err(error(errno));
        }
        inner.content.write(path, value)
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let inner = self.lock();
        let prefix = format!("{directory}/");
        let below =
            inner.content.files.keys().filter_map(|path| path.strip_prefix(&prefix)?.split('/').next());
        let names: BTreeSet<String> = below.map(str::to_owned).collect();
        check(!names.is_empty(), libc::ENOENT)?;
        Ok(names.into_iter().collect())
    }

    fn link(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(DEVICES)?.strip_prefix('/')?.strip_suffix("/driver")?;
        let driver = self.lock().content.bound.get(name).cloned()?;
        Some(format!("../../bus/dsa/drivers/{driver}"))
    }
}
