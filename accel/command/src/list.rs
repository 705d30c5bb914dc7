//! `uzswap iaa list`.

use anyhow::Result;
use idxd::sysfs::{command_status, Device, Discovery, Queue, QueueMode, QueueType, State};
use idxd::DeviceFile;
use serde_json::{json, Value};

use super::names;
use super::place::{DeviceOptions, Machine};
use super::table::{or_dash, Table};

/// Devices, engines and queues, and who may use them
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap iaa list
  uzswap iaa list --all --json
  uzswap iaa list --emulate sockets=2,devices=4,engines=8,queues=2,generation=1")]
pub struct Arguments {
    /// Queues that are not configured as well
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    place: DeviceOptions,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let machine = arguments.place.open()?;
    let found = machine.discover();
    if arguments.place.json {
        println!("{}", serde_json::to_string_pretty(&devices_json(&machine, &found, arguments.all))?);
    } else if found.devices.is_empty() {
        println!("{}", machine.no_device(&found));
    } else {
        show(&machine, &found, arguments.all);
    }
    Ok(())
}

fn is_shown(queue: &Queue, all: bool) -> bool {
    all || queue.state == State::Enabled || queue.size > 0
}

/// Everything as JSON; `all`: also queues that are not configured.
pub fn devices_json(machine: &Machine, found: &Discovery, all: bool) -> Vec<Value> {
    found
        .devices
        .iter()
        .map(|device| {
            let queues: Vec<&Queue> = device.queues.iter().filter(|queue| is_shown(queue, all)).collect();
            device_json(machine, device, &queues)
        })
        .collect()
}

/// Prints tables for people.
pub fn show(machine: &Machine, found: &Discovery, all: bool) {
    if machine.emulated.is_some() {
        println!("Emulated: none of this is on this machine.\n");
    }
    print!("{}", devices_table(&found.devices));
    let mut queues = Table::new(&[
        "QUEUE", "STATE", "TYPE", "MODE", "SIZE", "GROUP", "ENGINES", "PRIORITY", "NAME", "CLIENTS", "WHO",
    ]);
    for device in &found.devices {
        for queue in device.queues.iter().filter(|queue| is_shown(queue, all)) {
            queues.row([
                queue.name.clone(),
                queue.state.to_string(),
                queue.kind.to_string(),
                mode(queue),
                queue.size.to_string(),
                or_dash(queue.group),
                queue.group.map_or(0, |group| device.engines_in(group)).to_string(),
                queue.priority.to_string(),
                queue.label.clone(),
                queue.clients.to_string(),
                who(machine, queue),
            ]);
        }
    }
    if queues.is_empty() {
        println!("\nNo queue is configured: `uzswap iaa configure -d 1 -q 1` makes one.");
    } else {
        print!("\n{queues}");
    }
    for device in &found.devices {
        for remark in remarks(device) {
            println!("\n{}: {remark}", device.name);
        }
    }
}

fn devices_table(devices: &[Device]) -> Table {
    let mut table = Table::new(&[
        "DEVICE",
        "STATE",
        "GENERATION",
        "SOCKET",
        "NODE",
        "ENGINES",
        "QUEUES",
        "ENTRIES",
        "CLIENTS",
        "MODES",
        "PCI",
    ]);
    for device in devices {
        let grouped = device.engines.iter().filter(|engine| engine.group.is_some()).count();
        let enabled = device.queues.iter().filter(|queue| queue.state == State::Enabled).count();
        let entries: u32 = device.queues.iter().map(|queue| queue.size).sum();
        table.row([
            device.name.clone(),
            device.state.to_string(),
            device.generation().to_string(),
            or_dash(device.package),
            or_dash(device.numa_node),
            format!("{grouped} of {}", device.engines_max),
            format!("{enabled} of {}", device.queues_max),
            format!("{entries} of {}", device.entries_max),
            device.clients.to_string(),
            if device.capabilities.header_generation() { "fixed, dynamic" } else { "fixed" }.to_owned(),
            or_dash(device.pci_address.as_ref()),
        ]);
    }
    table
}

fn mode(queue: &Queue) -> String {
    match queue.mode {
        QueueMode::Shared if queue.size > 0 && queue.threshold != queue.size => {
            format!("shared, threshold {}", queue.threshold)
        }
        mode => mode.to_string(),
    }
}

fn who(machine: &Machine, queue: &Queue) -> String {
    match queue.kind {
        QueueType::None => "-".to_owned(),
        QueueType::Kernel => format!("the kernel ({})", queue.driver_name()),
        QueueType::User if queue.state != State::Enabled => "-".to_owned(),
        QueueType::User if machine.emulated.is_some() => "emulated".to_owned(),
        QueueType::User => match DeviceFile::find(&machine.dev, &queue.name) {
            None => format!("no user: no {}", machine.dev.join("iax").join(&queue.name).display()),
            Some(file) => format!(
                "{} {}:{}, you: {}",
                file.permissions(),
                names::user(file.uid),
                names::group(file.gid),
                if file.may_open { "yes" } else { "no" }
            ),
        },
    }
}

fn remarks(device: &Device) -> Vec<String> {
    let mut remarks = Vec::new();
    if device.state == State::Halted {
        remarks.push("halted after an error; configure it again to reset it".to_owned());
    }
    if device.has_software_error() {
        let words = device.errors.as_deref().unwrap_or_default();
        remarks.push(format!(
            "a software error is latched ({words}); disabling and enabling the device clears it"
        ));
    }
    if let Some((meaning, fix)) = command_status(device.command_status) {
        remarks.push(format!("its last command failed: {meaning}; {fix}"));
    }
    if !device.pasid_enabled {
        remarks.push(
            "shared virtual addresses are off, so programs cannot use it; enable VT-d in the BIOS and boot with \
             intel_iommu=on,sm_on (some machines also need no5lvl)"
                .to_owned(),
        );
    }
    let grouped = device.engines.iter().filter(|engine| engine.group.is_some()).count();
    if device.state == State::Enabled && grouped < device.engines.len() {
        remarks.push(format!("{} of its engines are in no group and idle", device.engines.len() - grouped));
    }
    remarks
}

fn device_json(machine: &Machine, device: &Device, queues: &[&Queue]) -> Value {
    let command_status = command_status(device.command_status).map(|(meaning, _)| meaning);
    let engines: Vec<Value> =
        device.engines.iter().map(|engine| json!({"dev": engine.name, "group_id": engine.group})).collect();
    let queues: Vec<Value> = queues.iter().map(|queue| queue_json(machine, queue)).collect();
    json!({
        "dev": device.name,
        "emulated": machine.emulated.is_some(),
        "state": device.state.word(),
        "version": format!("{:#x}", device.version),
        "generation": device.generation(),
        "package": device.package,
        "numa_node": device.numa_node,
        "pci_address": device.pci_address,
        "max_groups": device.groups_max,
        "max_work_queues": device.queues_max,
        "max_work_queues_size": device.entries_max,
        "max_engines": device.engines_max,
        "max_transfer_size": device.transfer_max,
        "gen_cap": format!("{:#x}", device.capabilities.general),
        "iaa_cap": format!("{:#x}", device.capabilities.analytics),
        "capabilities": device.capabilities.names(),
        "configurable": device.configurable,
        "pasid_enabled": device.pasid_enabled,
        "clients": device.clients,
        "errors": device.errors,
        "cmd_status": format!("{:#x}", device.command_status),
        "cmd_status_meaning": command_status,
        "remarks": remarks(device),
        "engines": engines,
        "queues": queues,
    })
}

fn queue_json(machine: &Machine, queue: &Queue) -> Value {
    let file = match machine.emulated {
        Some(_) => None,
        None => DeviceFile::find(&machine.dev, &queue.name),
    };
    let may_use = machine.emulated.is_some() || file.as_ref().is_some_and(|file| file.may_open);
    json!({
        "dev": queue.name,
        "state": queue.state.word(),
        "type": queue.kind.word(),
        "mode": queue.mode.word(),
        "size": queue.size,
        "threshold": queue.threshold,
        "group_id": queue.group,
        "priority": queue.priority,
        "name": queue.label,
        "driver_name": queue.driver,
        "block_on_fault": queue.block_on_fault,
        "prs_disable": queue.prs_disable,
        "ats_disable": queue.ats_disable,
        "max_transfer_size": queue.transfer_max,
        "op_config": queue.operations,
        "enqcmds_retries": queue.enqcmds_retries,
        "clients": queue.clients,
        "occupancy": queue.occupancy,
        "cdev_minor": queue.minor,
        "device_file": file.as_ref().map(|file| file.path.display().to_string()),
        "owner": file.as_ref().map(|file| names::user(file.uid)),
        "group": file.as_ref().map(|file| names::group(file.gid)),
        "permissions": file.as_ref().map(|file| format!("{:04o}", file.mode)),
        "may_use": queue.is_for_programs() && may_use,
    })
}
