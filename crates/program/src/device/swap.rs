//! `uzswap device swap`: serves, attaches, formats and enables swap, waits, and undoes all of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{bail, Context, Result};

use super::attach::{Attached, Way};
use super::process::{exists, run as run_program, Companion};
use super::shelter::Shelter;
use super::storage::StorageArguments;
use crate::size::{self, Size};

/// mkswap(8) refuses devices of fewer than ten pages.
const SIZE_BYTES_MIN: u64 = 1 << 20;

const PLUGIN: &str = "libnbdkit_uzswap_plugin.so";

/// Swap to compressed memory until told to stop
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Bytes of swap: 8G, or 50% of the machine's memory
    #[arg(long, value_name = "SIZE")]
    size: String,
    /// Memory for swapped-out pages, allocated at the start [default: a third of --size]
    #[arg(long, value_name = "SIZE")]
    ram: Option<String>,
    #[command(flatten)]
    storage: StorageArguments,
    /// Priority among swap devices
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i32).range(-1..=32767))]
    priority: i32,
    /// How the server becomes a device
    #[arg(long, value_enum, default_value = "auto")]
    attach: Way,
    /// Refuse to start if threads cannot be marked as swap's own, or the out-of-memory score not
    /// set
    #[arg(long)]
    strict: bool,
    /// Write figures to FILE each second, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// nbdkit's plugin [default: beside this program, else in nbdkit's folder]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
}

struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self> {
        let parent = if Path::new("/run").is_dir() { Path::new("/run") } else { Path::new("/tmp") };
        let path = parent.join(format!("uzswap-device-{}-{:08x}", std::process::id(), size::random_u32()));
        sys::owned::make_directory(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0.join("disk"));
        let _ = fs::remove_file(self.0.join("socket"));
        let _ = fs::remove_dir(&self.0);
    }
}

fn swap_on(device: &str, priority: i32) -> Result<()> {
    run_program("mkswap", &[device])?;
    run_program("swapon", &["--discard", "-p", &priority.to_string(), device]).map(|_| ())
}

fn swap_off(device: &str) -> Result<()> {
    run_program("swapoff", &[device]).map(|_| ())
}

pub fn run(arguments: &Arguments) -> Result<i32> {
    arguments.storage.check(true)?;
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        bail!("only root may swap: try sudo");
    }
    let size_bytes = size::in_pages("--size", &arguments.size)?;
    if size_bytes < SIZE_BYTES_MIN {
        bail!("--size {}: the minimum is {}", arguments.size, Size::from(SIZE_BYTES_MIN));
    }
    let ram_bytes = match &arguments.ram {
        Some(text) => size::in_pages("--ram", text)?,
        None => size_bytes / 3 / 4096 * 4096,
    };
    let file_bytes = arguments.storage.swap_bytes()?;
    let stop = super::stop_flag()?;
    // Child processes inherit the mark. The plugin reports missing rights.
    let _ = sys::flusher::mark_thread();

    let directory = Directory::new()?;
    let shelter = Shelter::new().unwrap_or_else(|error| {
        eprintln!("uzswap: {error:#}; what serves swap may be swapped out itself");
        None
    });
    let way = way(arguments)?;
    let (mut server, mut attached) = match way {
        Way::Ublk => by_ublk(arguments, size_bytes, ram_bytes, shelter.as_ref())?,
        _ => by_nbdkit(arguments, size_bytes, ram_bytes, &directory, shelter.as_ref())?,
    };
    swap_on(&attached.device, arguments.priority)?;
    notify("READY=1");
    eprintln!(
        "uzswap: {} of swap on {}, in {} of memory ({}){}",
        Size::from(size_bytes),
        attached.device,
        Size::from(ram_bytes),
        arguments.storage.compressor,
        file_bytes.map_or(String::new(), |bytes| format!(" and {} of disk", Size::from(bytes)))
    );
    let broken = loop {
        if stop.swap(false, Ordering::Relaxed) {
            notify("STOPPING=1");
            match swap_off(&attached.device) {
                Ok(()) => break None,
                Err(error) => eprintln!(
                    "uzswap: {error:#}; without its server what is swapped out would be lost: free memory, and ask again"
                ),
            }
        }
        if let Some(status) = server.ended()? {
            break Some(format!("the server ended by itself ({status}): what was swapped out is lost"));
        }
        if let Err(error) = attached.check() {
            break Some(error.to_string());
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    // The server's pages are lost. swapoff brings back pages that the kernel kept.
    let undone = if broken.is_some() { swap_off(&attached.device) } else { Ok(()) };
    drop((attached, server, shelter, directory));
    match (broken, undone) {
        (Some(reason), Ok(())) => bail!("{reason}"),
        (Some(reason), Err(error)) => {
            bail!("{reason}; and {error:#}: it is gone with the next start of the machine")
        }
        (None, _) => Ok(0),
    }
}

/// Prefers ublk: only its server needs no memory to deliver a reply (docs/operate/block-device.md).
///
/// # Errors
/// Names what both ways lack if neither is there.
fn way(arguments: &Arguments) -> Result<Way> {
    if arguments.attach == Way::Ublk || arguments.plugin.is_some() {
        return Ok(arguments.attach);
    }
    let lacks_ublk = match arguments.attach {
        Way::Auto => {
            super::ublk::load_driver();
            match ublk::look() {
                Ok(()) => return Ok(Way::Ublk),
                Err(ublk::Error::Missing) => "there is no ublk (/dev/ublk-control), and ".to_owned(),
                Err(error) => format!("{error}; and "),
            }
        }
        _ => String::new(),
    };
    let has_plugin = beside().is_some()
        || Command::new("nbdkit")
            .args(["--dump-plugin", "uzswap"])
            .output()
            .is_ok_and(|ran| ran.status.success());
    if !has_plugin {
        let nbdkit = if exists("nbdkit") { "nbdkit has no plugin of uzswap" } else { "there is no nbdkit" };
        bail!(
            "{lacks_ublk}{nbdkit}: load ublk (`sudo modprobe ublk_drv`; Ubuntu has it in linux-modules-extra), or install nbdkit \
             and name the plugin by --plugin (`cargo build --release -p uzswap-nbdkit` makes target/release/{PLUGIN})"
        );
    }
    Ok(arguments.attach)
}

/// Returns nbdkit's plugin beside this program.
fn beside() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name(PLUGIN);
    beside.is_file().then_some(beside)
}

fn by_nbdkit(
    arguments: &Arguments,
    size_bytes: u64,
    ram_bytes: u64,
    directory: &Directory,
    shelter: Option<&Shelter>,
) -> Result<(Companion, Attached)> {
    let socket = directory.0.join("socket");
    let mut server = Companion::start(&mut nbdkit(arguments, &socket, size_bytes, ram_bytes)?, shelter)?;
    // A client that connects early waits for the server.
    server.wait_until("its socket was there", || socket.exists())?;
    let attached = Attached::new(arguments.attach, &socket, &directory.0, shelter)?;
    Ok((server, attached))
}

/// A separate server process, so that this process can undo things when the server dies.
fn by_ublk(
    arguments: &Arguments,
    size_bytes: u64,
    ram_bytes: u64,
    shelter: Option<&Shelter>,
) -> Result<(Companion, Attached)> {
    let own = std::env::current_exe().context("this program's own file")?;
    let (reader, writer) = std::io::pipe()?;
    let mut command = Command::new(own);
    command.args(["device", "ublk", "--size", &size_bytes.to_string(), "--ram", &ram_bytes.to_string()]);
    command.args(arguments.storage.words());
    command.args(["--lock", if arguments.strict { "yes" } else { "try" }]);
    // The kernel writes swap in clusters of at most 128 KiB.
    command.args(["--request", "128k", "--depth", "32"]);
    if let Some(file) = &arguments.stats {
        command.arg("--stats").arg(file);
    }
    // systemd is notified when swap is on, not when the disk exists.
    command.process_group(0).stdout(writer).env_remove("NOTIFY_SOCKET");
    let server = Companion::start(&mut command, shelter)?;
    // Close this copy of the writing end, so that the server's end closes the pipe.
    drop(command);
    let mut device = String::new();
    BufReader::new(reader).read_line(&mut device)?;
    let device = device.trim().to_owned();
    if device.is_empty() {
        bail!("the server of the device ended before there was one");
    }
    Ok((server, Attached::by_ublk(device)))
}

fn nbdkit(arguments: &Arguments, socket: &Path, size_bytes: u64, ram_bytes: u64) -> Result<Command> {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(socket).args(["--mask-handshake=0x3", "--threads=8"]);
    match (&arguments.plugin, beside()) {
        (Some(file), _) => command.arg(file),
        (None, Some(file)) => command.arg(file),
        (None, None) => command.arg("uzswap"),
    };
    command.args([format!("size={size_bytes}"), format!("ram={ram_bytes}")]);
    command.args(arguments.storage.settings()?);
    command.arg(if arguments.strict { "lock=yes" } else { "lock=try" });
    if let Some(file) = &arguments.stats {
        command.arg(format!("stats={}", file.display()));
    }
    // The terminal's signals are for this process, which undoes things in order.
    command.process_group(0);
    if !exists("nbdkit") {
        eprintln!("uzswap: nbdkit is missing: apt install nbdkit");
    }
    Ok(command)
}

/// Notifies systemd if `NOTIFY_SOCKET` is set.
pub(super) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let path = path.to_string_lossy().into_owned();
    let Ok(socket) = UnixDatagram::unbound() else { return };
    match path.strip_prefix('@') {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            if let Ok(address) = std::os::unix::net::SocketAddr::from_abstract_name(name) {
                let _ = socket.send_to_addr(state.as_bytes(), &address);
            }
        }
        None => {
            let _ = socket.send_to(state.as_bytes(), path);
        }
    }
}
