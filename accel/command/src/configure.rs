//! `uzswap iaa configure`, `load` and `save`: the same writes from options or from a file.

use std::fs;
use std::io::{Read, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use idxd::sysfs::{
    apply, choose, plan, Choice, Configuration, Device, Discovery, Driver, Layout, QueueMode, QueueType,
    State, Write,
};
use idxd::DeviceFile;
use serde_json::json;

use super::place::{DeviceOptions, Machine};
use super::{list, names, profile};

/// Give devices queues
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo uzswap iaa configure -d 4 -q 2                       shared queues of 64 entries for programs
  sudo uzswap iaa configure -d 4 -q 2 --access iaa          the same, for the members of group iaa
  sudo uzswap iaa configure -d iax1,iax3 -q 1 -n 4          two devices, four engines each
  sudo uzswap iaa configure -d 4 -q 2 --type kernel         dedicated queues for the kernel alone
  uzswap iaa configure -d all -q 2 --dry-run                print what would be written
  uzswap iaa configure -d 4 -q 2 --emulate sockets=2,devices=4

Disables the devices with their queues, sets engines, groups and queues, enables all, and checks. For the kernel it also \
sets its driver's attributes, and disables the devices that the kernel had and that are not chosen. When a write fails, \
everything is put back as it was.")]
pub struct Arguments {
    /// So many devices of each socket, or names as in iax1,iax3, or all
    #[arg(short, long, value_name = "DEVICES", value_parser = choice)]
    devices: Choice,
    /// Queues of each device, 1 to 8; they share its 128 entries
    #[arg(short, long, value_name = "QUEUES")]
    queues: u32,
    /// shared: several programs at a time; dedicated: one, and less work for each submission
    /// [default: shared for programs, dedicated for the kernel]
    #[arg(short, long, value_name = "MODE")]
    mode: Option<QueueMode>,
    /// user: for programs; kernel: for the kernel's iaa_crypto
    #[arg(short, long, value_name = "TYPE", default_value = "user")]
    r#type: QueueType,
    /// Engines of each device, all in group 0; 0 for all
    #[arg(short = 'n', long, value_name = "ENGINES", default_value_t = 0)]
    engines: u32,
    /// Name of the queues [default: uzswap, or iaa_crypto for the kernel]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Priority of the queues, 1 to 15
    #[arg(short, long, value_name = "PRIORITY", default_value_t = 10)]
    priority: u32,
    /// Entries of a shared queue that programs may fill; 0 for all
    #[arg(long, value_name = "ENTRIES", default_value_t = 0)]
    threshold: u32,
    /// Whether jobs may wait for page faults [default: yes where the device can]
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    block_on_fault: Option<bool>,
    /// Largest transfer in bytes [default: the kernel's, 2M]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    max_transfer: Option<u64>,
    /// What becomes of devices that are not chosen: disable, or keep them as they are [default:
    /// disable those with queues for the kernel when --type is kernel, keep all others]
    #[arg(long, value_name = "keep|disable")]
    others: Option<Others>,
    /// Attribute of the kernel's iaa_crypto, instead of its default of the batching series, as in
    /// sync_mode=async, verify_compress=0, distribute_comps=1, distribute_decomps=0,
    /// g_comp_wqs_per_iaa=1; several times. Attributes not named are set to that default
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    driver: Vec<(String, String)>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: DeviceOptions,
}

/// What becomes of devices that are not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Others {
    Keep,
    Disable,
}

impl Others {
    /// Whether to disable an unchosen device. Without a wish only those with queues for the kernel,
    /// if its driver is configured: it then has exactly the chosen devices.
    fn disables(wish: Option<Others>, kernel: bool, device: &Device) -> bool {
        let is_the_kernels = || device.queues.iter().any(|queue| queue.kind == QueueType::Kernel);
        device.state != State::Disabled
            && wish.map_or(kernel && is_the_kernels(), |wish| wish == Others::Disable)
    }
}

/// How to write.
#[derive(Debug, clap::Args)]
struct How {
    /// Print every write instead of doing it
    #[arg(long)]
    dry_run: bool,
    /// Also when programs or the kernel's zswap use the devices
    #[arg(short, long)]
    force: bool,
    /// Let the members of GROUP use the queues: their device files get that group and mode 0660
    #[arg(long, value_name = "GROUP")]
    access: Option<String>,
}

/// Configure devices as a file of accel-config's says
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo uzswap iaa load /etc/accel-config/accel-config.conf
  uzswap iaa load profile.json --dry-run
  uzswap iaa load - --emulate devices=1 < profile.json")]
pub struct LoadArguments {
    /// The file; - for standard input
    file: PathBuf,
    /// Leave devices and queues disabled
    #[arg(long)]
    no_enable: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: DeviceOptions,
}

/// Write the present configuration to a file in accel-config's format
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap iaa save profile.json
  uzswap iaa save - --emulate sockets=1,devices=2,queues=2")]
pub struct SaveArguments {
    /// The file; - for standard output
    file: PathBuf,
    #[command(flatten)]
    place: DeviceOptions,
}

fn choice(text: &str) -> Result<Choice, String> {
    if text == "all" {
        return Ok(Choice::All);
    }
    match text.parse::<u32>() {
        Ok(0) | Err(_) if !text.starts_with("iax") => {
            Err("write a number of devices a socket, names as in iax1,iax3, or all".to_owned())
        }
        Ok(count) => Ok(Choice::PerPackage(count)),
        Err(_) => Ok(Choice::Named(text.split(',').map(|name| name.trim().to_owned()).collect())),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" | "1" => Ok(true),
        "no" | "0" => Ok(false),
        _ => Err("write yes or no".to_owned()),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_size::Config::new().with_binary().parse_size(text).ok();
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "write bytes, or a number with K, M or G".to_owned())
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !name.contains(['/', '.']) => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let machine = arguments.place.open()?;
    let found = found(&machine)?;
    let kernel = match arguments.r#type {
        QueueType::Kernel => true,
        QueueType::User => false,
        QueueType::None => bail!("queues of type none do nothing: choose user or kernel"),
    };
    if !kernel && !arguments.driver.is_empty() {
        bail!("--driver sets attributes of the kernel's own driver: it goes with --type kernel");
    }
    let layout = Layout {
        queues: arguments.queues,
        engines: arguments.engines,
        mode: arguments.mode.unwrap_or(if kernel { QueueMode::Dedicated } else { QueueMode::Shared }),
        kind: arguments.r#type,
        label: arguments
            .name
            .clone()
            .unwrap_or_else(|| if kernel { "iaa_crypto" } else { "uzswap" }.to_owned()),
        priority: arguments.priority,
        threshold: arguments.threshold,
        block_on_fault: arguments.block_on_fault,
        transfer_max: arguments.max_transfer,
    };
    let chosen = choose(&found.devices, &arguments.devices)?;
    let mut wanted: Vec<Configuration> =
        chosen.iter().map(|device| layout.on(device)).collect::<Result<_, _>>()?;
    let others = found.devices.iter().filter(|device| chosen.iter().all(|chosen| chosen.name != device.name));
    let disabled = others.filter(|device| Others::disables(arguments.others, kernel, device));
    wanted.extend(disabled.map(Configuration::disabled));
    let driver = match kernel {
        true => Driver::with_defaults(&*machine.tree, &arguments.driver),
        false => Driver::default(),
    };
    write_all(&machine, &found, &wanted, &driver, &arguments.how, arguments.place.json)
}

pub fn load(arguments: &LoadArguments) -> Result<()> {
    let machine = arguments.place.open()?;
    let text = if arguments.file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        text
    } else {
        fs::read_to_string(&arguments.file)
            .with_context(|| format!("cannot read {}", arguments.file.display()))?
    };
    let mut profile = profile::parse(&text).with_context(|| arguments.file.display().to_string())?;
    for remark in &profile.remarks {
        eprintln!("uzswap: {}: {remark}", arguments.file.display());
    }
    if profile.configurations.is_empty() {
        bail!("{} names no IAA device", arguments.file.display());
    }
    let found = found(&machine)?;
    for configuration in &mut profile.configurations {
        if arguments.no_enable {
            configuration.enable = false;
        }
        let device = choose(&found.devices, &Choice::Named(vec![configuration.device.clone()]))?;
        configuration.check(device[0])?;
    }
    write_all(
        &machine,
        &found,
        &profile.configurations,
        &Driver::default(),
        &arguments.how,
        arguments.place.json,
    )
}

pub fn save(arguments: &SaveArguments) -> Result<()> {
    let machine = arguments.place.open()?;
    let found = found(&machine)?;
    let configured =
        |device: &&Device| device.queues.iter().any(|queue| queue.group.is_some() && queue.size > 0);
    let devices: Vec<&Device> = found.devices.iter().filter(configured).collect();
    if devices.is_empty() {
        bail!("no device is configured, so there is nothing to save: `uzswap iaa configure` first");
    }
    let text = profile::print(devices.iter().copied())?;
    if arguments.file == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    replace(&arguments.file, &text).with_context(|| format!("cannot write {}", arguments.file.display()))?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    if arguments.place.json {
        println!("{}", json!({"file": arguments.file, "devices": names}));
    } else {
        println!("{} saved to {}.", names.join(", "), arguments.file.display());
    }
    Ok(())
}

/// Replaces a file atomically: it never holds half of a profile.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}", std::process::id()));
    let partial = PathBuf::from(partial);
    let write = || {
        let mut file = fs::File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}

fn found(machine: &Machine) -> Result<Discovery> {
    let found = machine.discover();
    if found.devices.is_empty() {
        bail!("{}", machine.no_device(&found));
    }
    Ok(found)
}

fn write_all(
    machine: &Machine,
    found: &Discovery,
    wanted: &[Configuration],
    driver: &Driver,
    how: &How,
    as_json: bool,
) -> Result<()> {
    let devices: Vec<&Device> = wanted.iter().filter_map(|wanted| found.device(&wanted.device)).collect();
    let tree = &*machine.tree;
    for driver in wanted.iter().flat_map(|wanted| &wanted.queues).map(|queue| queue.driver_name()) {
        if tree.list(&format!("bus/dsa/drivers/{driver}")).is_err() {
            let module = if driver == "crypto" { "iaa_crypto" } else { "idxd" };
            bail!("the kernel's driver {driver:?} is not loaded: modprobe {module}");
        }
    }
    if !how.force && !how.dry_run {
        refuse_if_used(machine, &devices)?;
    }
    let group = match &how.access {
        Some(name) => Some(
            names::gid(name)
                .with_context(|| format!("there is no group {name:?}: groupadd --system {name} makes one"))?,
        ),
        None => None,
    };
    let mut written: Vec<Write> = Vec::new();
    if how.dry_run {
        written = plan(&devices, wanted, driver);
    } else {
        apply(tree, found, wanted, driver, &mut |write| written.push(write.clone()))?;
    }
    if let (Some(gid), false, None) = (group, how.dry_run, &machine.emulated) {
        give(machine, wanted, gid)?;
    }
    let after = if how.dry_run { None } else { Some(machine.discover()) };
    if as_json {
        let writes: Vec<_> = written
            .iter()
            .map(|write| json!({"path": tree.shown(&write.path), "value": write.value}))
            .collect();
        let devices = after.as_ref().map(|after| list::devices_json(machine, after, false));
        let report = json!({
            "dry_run": how.dry_run,
            "emulated": machine.emulated.is_some(),
            "writes": writes,
            "devices": devices,
        });
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    let Some(after) = after else {
        for write in &written {
            println!("{}", write.shell(tree));
        }
        return Ok(());
    };
    println!("{} attributes written.", written.len());
    list::show(machine, &after, false);
    let programs = wanted.iter().flat_map(|wanted| &wanted.queues).any(|queue| queue.kind == QueueType::User);
    if programs && machine.emulated.is_none() && group.is_none() {
        println!(
            "\nPrograms of other users need access to the files in {}: add --access GROUP, or see docs/operate/iaa.md for a \
             udev rule that lasts.",
            machine.dev.join("iax").display()
        );
    }
    Ok(())
}

fn give(machine: &Machine, wanted: &[Configuration], gid: u32) -> Result<()> {
    for configuration in wanted.iter().filter(|configuration| configuration.enable) {
        for queue in configuration.queues.iter().filter(|queue| queue.is_for_programs()) {
            let file = DeviceFile::find(&machine.dev, &queue.name).with_context(|| {
                format!("{} is enabled, but has no file in {}", queue.name, machine.dev.join("iax").display())
            })?;
            let set = || {
                std::os::unix::fs::chown(&file.path, None, Some(gid))?;
                fs::set_permissions(&file.path, fs::Permissions::from_mode(0o660))
            };
            set().with_context(|| format!("cannot give {} to the group", file.path.display()))?;
        }
    }
    Ok(())
}

/// Refuses devices in use unless forced.
fn refuse_if_used(machine: &Machine, devices: &[&Device]) -> Result<()> {
    for device in devices {
        let of_queues: u32 = device.queues.iter().map(|queue| queue.clients).sum();
        let clients = device.clients.max(of_queues);
        if clients > 0 {
            bail!(
                "{} is used by {clients} open file{}: end those programs first, or add --force, and their jobs fail",
                device.name,
                if clients == 1 { "" } else { "s" }
            );
        }
    }
    let kernel_uses = |device: &&&Device| device.queues.iter().any(|queue| queue.kind == QueueType::Kernel);
    let compressor = machine.tree.read("module/zswap/parameters/compressor").unwrap_or_default();
    if let (Some(device), true) = (devices.iter().find(kernel_uses), compressor.starts_with("deflate-iaa")) {
        bail!(
            "the kernel's zswap compresses with {compressor} on {}: choose another compressor first (echo lzo > {}), \
             or add --force",
            device.name,
            machine.tree.shown("module/zswap/parameters/compressor")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, size) in
            [("4096", 4096), ("2M", 2 << 20), ("64k", 64 << 10), ("1GiB", 1 << 30), ("1.5M", 3 << 19)]
        {
            assert_eq!(bytes(text), Ok(size));
        }
        for text in ["", "0", "M", "-1", "50%", "4X", "99999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn devices_as_written() {
        assert_eq!(choice("all"), Ok(Choice::All));
        assert_eq!(choice("4"), Ok(Choice::PerPackage(4)));
        assert_eq!(choice("iax1, iax3"), Ok(Choice::Named(vec!["iax1".into(), "iax3".into()])));
        for text in ["0", "", "four", "-1", "1.5"] {
            assert!(choice(text).unwrap_err().contains("iax1,iax3"), "{text}");
        }
        assert_eq!(assignment("sync_mode=async"), Ok(("sync_mode".to_owned(), "async".to_owned())));
        for text in ["sync_mode", "=1", "../bind=1", ""] {
            assert!(assignment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn device_files_are_given_to_a_group() {
        let dev = std::env::temp_dir().join(format!("uzswap-give-{}", std::process::id()));
        fs::create_dir_all(dev.join("iax")).unwrap();
        for name in ["wq0.0", "wq0.1"] {
            fs::write(dev.join("iax").join(name), "").unwrap();
            fs::set_permissions(dev.join("iax").join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let tree = idxd::sysfs::Model::new(&"queues=2".parse().unwrap());
        let found = idxd::sysfs::discover(&tree);
        let machine = Machine { tree: Box::new(tree), dev: dev.clone(), emulated: None };
        let wanted: Vec<Configuration> = found.devices.iter().map(Configuration::of).collect();
        // This process's own group, which needs no privileges.
        let gid = DeviceFile::find(&dev, "wq0.0").unwrap().gid;
        give(&machine, &wanted, gid).unwrap();
        assert!(["wq0.0", "wq0.1"].iter().all(|name| DeviceFile::find(&dev, name).unwrap().mode == 0o660));
        fs::remove_file(dev.join("iax/wq0.1")).unwrap();
        assert!(give(&machine, &wanted, gid).unwrap_err().to_string().contains("wq0.1 is enabled"));
        fs::remove_dir_all(&dev).unwrap();
    }

    #[test]
    fn files_are_replaced_as_a_whole() {
        let directory = std::env::temp_dir().join(format!("uzswap-save-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("profile.json");
        replace(&path, "one").unwrap();
        replace(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert!(replace(&directory.join("no/such"), "three").is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
