//! The same job by the kernel: in a memory cgroup, with zswap in front of a swap file, or with the
//! file alone.

mod cgroup;
pub mod command;
mod counters;
mod kernel;
mod swap_file;
pub mod undo;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use super::drive::{drive, Driven};
use super::Plan;
use counters::Counters;
pub use kernel::Versus;

const ZSWAP: &str = "/sys/module/zswap/parameters";
/// Between two samples of the pool's size.
const SAMPLE: Duration = Duration::from_millis(20);

/// The job's result under the kernel.
#[derive(Debug, Serialize)]
pub struct KernelZswap {
    #[serde(flatten)]
    pub driven: Driven,
    /// `kernel zswap` or `kernel swap`.
    pub kind: &'static str,
    /// The kernel's compressor, with zswap.
    pub compressor: Option<String>,
    pub cgroup_peak_bytes: u64,
    /// Times the cgroup's limit was hit.
    pub cgroup_limit_hits: u64,
    /// Peak of zswap's pool, by samples.
    pub pool_peak_bytes: u64,
    /// Whether the pool counts towards the cgroup's limit: not in version 1, where the kernel has
    /// that much more.
    pub pool_within_limit: bool,
    /// The pool's limit, if it is before a disk.
    pub pool_limit_bytes: Option<u64>,
    /// Written to the swap file, from the pool and past it.
    pub disk_written_bytes: u64,
    pub disk_read_bytes: u64,
    /// Bytes stored by the pool's bytes, when the pool was largest.
    pub compression_ratio: f64,
    /// Pages stored, by the size of the folios they were evicted in.
    pub stored_pages_by_folio: BTreeMap<String, u64>,
    /// The increase of the machine's counters during the run.
    pub counters: BTreeMap<String, u64>,
    /// Relevant settings of the machine that were not changed.
    pub settings: BTreeMap<String, String>,
}

/// Runs the job in the plan's memory.
///
/// # Errors
/// If the machine cannot be set up, or the job fails. The settings are restored in any case, unless
/// the error says otherwise.
pub fn run(plan: &Plan, versus: &Versus) -> Result<KernelZswap> {
    versus.check()?;
    let machine = lock_machine()?;
    let changes = undo::Changes::begin(&machine)?;
    let result = in_cgroup(plan, versus, &changes);
    changes.end()?;
    result
}

/// Only one comparison at a time: the second would take the first's settings for the machine's own.
fn lock_machine() -> Result<File> {
    let path = Path::new(ZSWAP).join("enabled");
    let file = File::open(&path).with_context(|| path.display().to_string())?;
    // SAFETY: locks an open file.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    ensure!(locked == 0, "another comparison with the kernel's zswap is being made on this machine");
    Ok(file)
}

fn in_cgroup(plan: &Plan, versus: &Versus, changes: &undo::Changes) -> Result<KernelZswap> {
    let title = versus.title();
    let pool_limit = versus.set_up(changes, plan.total_bytes(), plan.ram_bytes, plan.run.swap.directory())?;
    // The pool beside the group is the kernel's memory, too.
    let beside = pool_limit.unwrap_or(0);
    let group = cgroup::Cgroup::make(changes, |pays_for_the_pool| {
        plan.ram_bytes - if pays_for_the_pool { 0 } else { beside }
    })?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uzswap-lab").args(plan.job_arguments());
    group.enter(&mut command)?;
    let (driven, sampled) = sample(&group, || drive(command, title));
    Ok(KernelZswap {
        driven: driven?,
        kind: title,
        compressor: versus.compressor().map(str::to_owned),
        cgroup_peak_bytes: group.peak_bytes().unwrap_or(0),
        cgroup_limit_hits: group.limit_hits().unwrap_or(0),
        pool_peak_bytes: sampled.pool.bytes,
        pool_within_limit: group.pays_for_the_pool(),
        pool_limit_bytes: pool_limit,
        disk_written_bytes: sampled.disk_bytes("pswpout"),
        disk_read_bytes: sampled.disk_bytes("pswpin"),
        compression_ratio: sampled.ratio(),
        stored_pages_by_folio: sampled.stored_pages_by_folio,
        counters: sampled.counters,
        settings: settings(),
    })
}

/// The machine while a command ran in a cgroup.
struct Sampled {
    /// Peak of anonymous memory and pool together.
    total_peak_bytes: u64,
    /// The largest pool, less its pages at the start.
    pool: Pool,
    /// The increase of the machine's counters.
    counters: BTreeMap<String, u64>,
    stored_pages_by_folio: BTreeMap<String, u64>,
}

impl Sampled {
    fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// The bytes of a counter of pages. `pswpout` and `pswpin` concern the disk alone, without
    /// zswap.
    fn disk_bytes(&self, name: &str) -> u64 {
        self.count(name) * uzswap::PAGE_SIZE as u64
    }

    fn ratio(&self) -> f64 {
        self.pool.stored_bytes as f64 / self.pool.bytes.max(1) as f64
    }
}

/// Samples a group's memory and the machine's pool during `run`.
fn sample<T>(group: &cgroup::Cgroup, run: impl FnOnce() -> T) -> (T, Sampled) {
    let (before, pool_before) = (Counters::now(), Pool::now());
    let stop = AtomicBool::new(false);
    let (outcome, (total_peak_bytes, pool)) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let (mut total, mut largest) = (0, Pool::default());
            while !stop.load(Ordering::Relaxed) {
                let now = Pool::now();
                let pool = Pool {
                    bytes: now.bytes.saturating_sub(pool_before.bytes),
                    stored_bytes: now.stored_bytes.saturating_sub(pool_before.stored_bytes),
                };
                total = total.max(group.anonymous_bytes().unwrap_or(0) + pool.bytes);
                largest = largest.max(pool);
                std::thread::sleep(SAMPLE);
            }
            (total, largest)
        });
        let outcome = run();
        stop.store(true, Ordering::Relaxed);
        (outcome, sampler.join().expect("sampling does not panic"))
    });
    let after = Counters::now();
    let (counters, stored_pages_by_folio) = (before.until(&after), before.folios_until(&after));
    (outcome, Sampled { total_peak_bytes, pool, counters, stored_pages_by_folio })
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("{value} to {}", path.display()))
}

fn read_trimmed(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

fn meminfo(text: &str, name: &str) -> u64 {
    sys::procfs::kilobytes_field(text.as_bytes(), name.as_bytes()).unwrap_or(0)
}

fn machine_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    Ok(meminfo(&text, "MemTotal:"))
}

/// zswap's pool. The order compares bytes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Pool {
    bytes: u64,
    stored_bytes: u64,
}

impl Pool {
    fn now() -> Self {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Pool { bytes: meminfo(&text, "Zswap:"), stored_bytes: meminfo(&text, "Zswapped:") }
    }
}

/// Settings that affect the kernel's result.
fn settings() -> BTreeMap<String, String> {
    let files = [
        ("page_cluster", "/proc/sys/vm/page-cluster"),
        ("swappiness", "/proc/sys/vm/swappiness"),
        ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ];
    files
        .into_iter()
        .filter_map(|(name, path)| {
            let text = read_trimmed(Path::new(path)).ok()?;
            // Of several words the one in brackets is chosen.
            let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            Some((name.to_owned(), chosen.map_or(text.clone(), |(word, _)| word.to_owned())))
        })
        .collect()
}
