//! `uzswap device ublk`: a compressed disk that the kernel serves from this process.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use device::{Config, SwapDisk};
use sys::flusher;
use ublk::{Server, Settings};

use super::storage::StorageArguments;
use super::swap::notify;
use crate::size::{self, Size};

/// Intervals of checks for the end, and of written figures.
const LOOK: Duration = Duration::from_millis(100);
const STATISTICS: Duration = Duration::from_secs(1);
/// Heap reserved for allocations while serving (the text of figures).
const HEAP_BYTES: usize = 4 << 20;

/// How far a server is made fit to be swapped on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Lock {
    /// An ordinary disk
    No,
    /// All memory is allocated and locked now, threads are marked as swap's own; missing rights,
    /// except for memory, are reported
    Try,
    /// The same; a missing right is an error
    Yes,
}

/// A compressed disk /dev/ublkbN: no nbdkit, no socket, no FUSE (Linux 6.0 and later)
#[derive(Debug, clap::Args)]
#[command(after_help = "A disk of 8 GiB in 2 GiB of memory; its name is printed when it is there:
  sudo modprobe ublk_drv
  sudo uzswap device ublk --size 8G --ram 2G &
  sudo mkfs.ext4 /dev/ublkb0 && sudo mount /dev/ublkb0 /mnt

Swap on it, undone in order by Ctrl-C or SIGTERM:
  sudo uzswap device swap --attach ublk --size 8G --ram 2G

As another user than root, where udev gives him the nodes (the document operate/block-device.md):
  uzswap device ublk --size 1G --ram 256M --unprivileged

SIGTERM, or Ctrl-C, takes the disk away; while it is mounted or swapped on that waits until it is not, unless asked twice. \
Its content is this process's memory and, with --swap, an encrypted file that goes with it: when it is killed, all that comes later \
fails (EIO), and nothing can be recovered.")]
pub struct Arguments {
    /// Bytes of the disk: 8G, or 50% of the machine's memory
    #[arg(long, value_name = "SIZE")]
    size: String,
    /// Memory limit for stored blocks [default: none]
    #[arg(long, value_name = "SIZE")]
    ram: Option<String>,
    #[command(flatten)]
    storage: StorageArguments,
    /// Bytes compressed together: 4k to 64k
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    unit: String,
    /// Queues, each a thread bound to its CPUs [default: one a CPU, 16 at most]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    queues: Option<u16>,
    /// Requests in flight a queue
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// Largest request: 4k to 1M
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    request: String,
    /// Block size of the disk: 4k, or 512
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    block: String,
    /// The number in /dev/ublkbN [default: the first that is free]
    #[arg(long, value_name = "NUMBER")]
    id: Option<u32>,
    /// Prepare the disk for swap; needs --ram
    #[arg(long, value_enum, default_value = "no")]
    lock: Lock,
    /// Serve as another user than root
    #[arg(long)]
    unprivileged: bool,
    /// Write figures to FILE each second, as JSON
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Print the disk as JSON
    #[arg(long)]
    json: bool,
    /// Also use kernels that are known to crash
    #[arg(long)]
    any_kernel: bool,
}

pub fn run(arguments: &Arguments) -> Result<i32> {
    let unit_bytes = size::of_option("--unit", &arguments.unit)?;
    if !unit_bytes.is_power_of_two() || !(4 << 10..=64 << 10).contains(&unit_bytes) {
        bail!("--unit {}: write 4k, 8k, 16k, 32k or 64k", arguments.unit);
    }
    let config = Config {
        size_bytes: size::in_pages("--size", &arguments.size)?,
        ram_bytes: arguments.ram.as_deref().map(|text| size::in_pages("--ram", text)).transpose()?,
        compressor: arguments.storage.compressor.clone(),
        unit_bytes: unit_bytes as usize,
        has_checksums: false,
        is_locked: arguments.lock != Lock::No,
        ..Config::default()
    };
    if config.is_locked && config.ram_bytes.is_none() {
        bail!("--lock needs --ram: memory is locked in advance");
    }
    let narrow = |option: &str, text: &str| {
        u32::try_from(size::of_option(option, text)?).with_context(|| format!("{option} is too large"))
    };
    let settings = Settings {
        queues: arguments.queues.unwrap_or(0),
        depth: arguments.depth,
        request_bytes: narrow("--request", &arguments.request)?,
        block_bytes: narrow("--block", &arguments.block)?,
        id: arguments.id,
        is_unprivileged: arguments.unprivileged,
        is_swapped_on: config.is_locked,
        must_be_marked: arguments.lock == Lock::Yes,
        takes_any_kernel: arguments.any_kernel,
    };
    arguments.storage.check(config.ram_bytes.is_some())?;
    let swap = open_swap(&arguments.storage, arguments.lock)?;
    load_driver();
    let stop = super::stop_flag()?;
    let server = start(arguments.lock, config, swap, &settings)?;
    announce(arguments, &server)?;
    notify("READY=1");
    serve(&server, &stop, arguments.stats.as_deref());
    notify("STOPPING=1");
    if let Some(file) = &arguments.stats {
        // A failed write of the last figures is no reason to keep the disk.
        let _ = write_statistics(file, &server);
    }
    server.stop()?;
    Ok(0)
}

fn open_swap(storage: &StorageArguments, lock: Lock) -> Result<Option<SwapDisk>> {
    let Some(disk) = storage.open()? else { return Ok(None) };
    let why = "the swap file's file system writes by the page cache alone, which takes memory";
    match lock {
        Lock::Yes if !disk.is_direct() => bail!("--lock yes: {why}; --lock try continues without"),
        Lock::Try if !disk.is_direct() => eprintln!("uzswap: {why}"),
        _ => {}
    }
    Ok(Some(disk))
}

/// Loads the driver, if the kernel has it and this process may.
pub(super) fn load_driver() {
    if ublk::is_here() {
        return;
    }
    let null = std::process::Stdio::null;
    let _ = std::process::Command::new("modprobe").arg("ublk_drv").stderr(null()).status();
}

/// Memory order: first heap and thread marks, which threads inherit, then the locked memory.
fn start(lock: Lock, mut config: Config, swap: Option<SwapDisk>, settings: &Settings) -> Result<Server> {
    let allowed = |step: Result<(), flusher::FlusherError>| match step {
        Err(error) if lock == Lock::Yes => Err(error).context("--lock yes (--lock try continues without)"),
        Err(error) => {
            eprintln!("uzswap: {error}");
            Ok(())
        }
        Ok(()) => Ok(()),
    };
    let heap_bytes = HEAP_BYTES + swap.as_ref().map_or(0, |_| SwapDisk::HEAP_BYTES);
    let start_swap = || -> Result<()> {
        config.swap = swap.map(|disk| disk.start(lock != Lock::No)).transpose().context("--swap")?;
        Ok(())
    };
    if lock == Lock::No {
        start_swap()?;
        return Ok(Server::start(device::Device::new(config)?, settings)?);
    }
    flusher::keep_heap(heap_bytes);
    allowed(flusher::mark_thread())?;
    allowed(flusher::spare_from_oom())?;
    // The swap file's threads inherit this thread's mark.
    start_swap()?;
    let device = device::Device::new(config)?;
    allowed(flusher::lock_memory())?;
    Ok(Server::start(device, settings)?)
}

/// Prints the disk's name, one line, which `uzswap device swap` and scripts wait for.
fn announce(arguments: &Arguments, server: &Server) -> Result<()> {
    let device = server.block_device();
    let mut out = std::io::stdout();
    match arguments.json {
        false => writeln!(out, "{}", device.display())?,
        true => {
            let made = serde_json::json!({
                "device": device,
                "size_bytes": server.device().size_bytes(),
                "compressor": arguments.storage.compressor,
                "queues": server.queues(),
                "depth": arguments.depth,
                "copies_itself": server.copies_itself(),
            });
            writeln!(out, "{made}")?;
        }
    }
    out.flush()?;
    let ram = server.device().config().ram_bytes;
    let ram = ram.map(|ram| format!("{} of memory", Size::from(ram)));
    let ram = ram.unwrap_or_else(|| "as much memory as it takes".to_owned());
    let size = Size::from(server.device().size_bytes());
    let (disk, compressor) = (arguments.storage.described(), &arguments.storage.compressor);
    eprintln!("uzswap: {size} on {}, in {ram}{disk} ({compressor})", device.display());
    Ok(())
}

/// Serves until the first request to stop while the disk is unused, or until the second request.
fn serve(server: &Server, stop: &AtomicBool, statistics: Option<&Path>) {
    let mut written: Option<Instant> = None;
    let mut is_asked = false;
    loop {
        if stop.swap(false, Ordering::Relaxed) {
            if is_asked || !server.is_busy() {
                return;
            }
            let device = server.block_device();
            eprintln!(
                "uzswap: {} is mounted or swapped on: it goes when it is not (umount, swapoff), or now if asked again",
                device.display()
            );
            is_asked = true;
        } else if is_asked && !server.is_busy() {
            return;
        }
        if let Some(file) = statistics.filter(|_| written.is_none_or(|at| at.elapsed() >= STATISTICS)) {
            // A full disk does not stop the server; the next write may succeed.
            let _ = write_statistics(file, server);
            written = Some(Instant::now());
        }
        std::thread::sleep(LOOK);
    }
}

/// Replaces the file atomically, so readers see a whole one.
fn write_statistics(file: &Path, server: &Server) -> std::io::Result<()> {
    let mut next = file.as_os_str().to_owned();
    next.push(".new");
    fs::write(&next, server.device().statistics().json())?;
    fs::rename(&next, file)
}
