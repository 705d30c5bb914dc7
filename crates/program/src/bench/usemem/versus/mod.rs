//! The same job by the kernel: in a memory cgroup, with zswap in front of a swap file.

mod cgroup;
pub mod command;
mod counters;
mod swap_file;
pub mod undo;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde::Serialize;

use super::drive::{drive, Driven};
use super::{Plan, Progress};
use counters::Counters;

/// The module's settings.
const ZSWAP: &str = "/sys/module/zswap/parameters";
/// Between looks at the pool's size.
const SAMPLE: Duration = Duration::from_millis(20);

/// What to compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versus {
    /// The kernel's compressor.
    compressor: String,
}

impl FromStr for Versus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, compressor) = text.split_once('=').unwrap_or((text, "lzo"));
        let is_word =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if name != "kernel-zswap" || !is_word(compressor) {
            return Err(
                "write kernel-zswap, or kernel-zswap=COMPRESSOR with one of the kernel's: lzo, lz4, zstd \
                        or deflate"
                    .to_owned(),
            );
        }
        Ok(Versus { compressor: compressor.to_owned() })
    }
}

/// How the job went in the kernel's hands.
#[derive(Debug, Serialize)]
pub struct KernelZswap {
    /// The job itself.
    #[serde(flatten)]
    pub driven: Driven,
    /// The kernel's compressor.
    pub compressor: String,
    /// Most memory that the cgroup used.
    pub cgroup_peak_bytes: u64,
    /// Most memory of zswap's pool, by samples.
    pub pool_peak_bytes: u64,
    /// Whether the pool counts towards the cgroup's limit: not in version 1, where the kernel has that much more.
    pub pool_within_limit: bool,
    /// Bytes stored by the pool's bytes, when the pool was largest.
    pub compression_ratio: f64,
    /// Pages stored, by the size of the folios they were evicted in.
    pub stored_pages_by_folio: BTreeMap<String, u64>,
    /// What the machine counted meanwhile.
    pub counters: BTreeMap<String, u64>,
    /// Settings of the machine that matter and were left as they are.
    pub settings: BTreeMap<String, String>,
}

/// Says why the comparison cannot be made here, before anything is measured.
///
/// # Errors
/// What is missing.
pub fn check() -> Result<()> {
    // SAFETY: no memory is involved.
    let is_root = unsafe { libc::geteuid() } == 0;
    ensure!(is_root, "--versus kernel-zswap changes settings of the machine: run it as root");
    let enabled = Path::new(ZSWAP).join("enabled");
    ensure!(
        enabled.exists(),
        "--versus kernel-zswap: this kernel has no zswap ({} is missing)",
        enabled.display()
    );
    Ok(())
}

/// Runs the job in the plan's memory.
///
/// # Errors
/// When the machine cannot be set up so, or the job fails. The settings are as before in any case, unless the error
/// says otherwise.
pub fn run(plan: &Plan, versus: &Versus, progress: &Progress) -> Result<KernelZswap> {
    check()?;
    let machine = lock_machine()?;
    let changes = undo::Changes::begin(&machine)?;
    let result = in_cgroup(plan, versus, progress, &changes);
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

fn in_cgroup(
    plan: &Plan,
    versus: &Versus,
    progress: &Progress,
    changes: &undo::Changes,
) -> Result<KernelZswap> {
    progress.show("kernel zswap: setting up ...");
    let parameter = |name: &str| PathBuf::from(ZSWAP).join(name);
    changes
        .write(&parameter("compressor"), &versus.compressor)
        .with_context(|| format!("the kernel has no compressor {:?} for zswap", versus.compressor))?;
    let total = plan.total_bytes();
    let percent = pool_percent(&read_trimmed(&parameter("max_pool_percent"))?, total, machine_bytes()?)?;
    if let Some(percent) = percent {
        changes.write(&parameter("max_pool_percent"), &percent.to_string())?;
    }
    if parameter("shrinker_enabled").exists() {
        changes.write(&parameter("shrinker_enabled"), "N")?;
    }
    changes.write(&parameter("enabled"), "Y")?;
    // Everything may be out at once, and some slots are kept for pages that are in.
    swap_file::swap_on(changes, total + total / 8 + (16 << 20))?;
    let group = cgroup::Cgroup::make(changes, plan.ram_bytes)?;

    let mut command = Command::new("/proc/self/exe");
    command.arg0("uzswap").args(plan.job_arguments(progress));
    group.enter(&mut command)?;
    let before = Counters::now();
    let stop = AtomicBool::new(false);
    let (driven, pool) = std::thread::scope(|scope| {
        let pool = scope.spawn(|| {
            let mut peak = Pool::default();
            while !stop.load(Ordering::Relaxed) {
                peak = peak.max(Pool::now());
                std::thread::sleep(SAMPLE);
            }
            peak
        });
        let driven = drive(command, "kernel zswap", progress);
        stop.store(true, Ordering::Relaxed);
        (driven, pool.join().expect("sampling does not panic"))
    });
    let after = Counters::now();
    Ok(KernelZswap {
        driven: driven?,
        compressor: versus.compressor.clone(),
        cgroup_peak_bytes: group.peak_bytes().unwrap_or(0),
        pool_peak_bytes: pool.bytes,
        pool_within_limit: group.pays_for_the_pool(),
        compression_ratio: pool.stored_bytes as f64 / pool.bytes.max(1) as f64,
        stored_pages_by_folio: before.folios_until(&after),
        counters: before.until(&after),
        settings: settings(),
    })
}

/// The share of the machine that the pool may take, if it has to be more than it is, so that nothing is written to
/// the disk: the job's whole size, in case nothing compresses.
fn pool_percent(now: &str, total: u64, machine: u64) -> Result<Option<u64>> {
    let now: u64 = now.parse().with_context(|| format!("max_pool_percent is {now:?}"))?;
    let wanted = (total * 100).div_ceil(machine.max(1)) + 1;
    if wanted > 90 {
        bail!("the job is larger than this machine's memory");
    }
    Ok((wanted > now).then_some(wanted))
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

/// zswap's pool: largest by its bytes.
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

/// Settings that decide how the kernel does.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_compared_with() {
        let versus = |text: &str| text.parse::<Versus>().map(|versus| versus.compressor);
        assert_eq!(versus("kernel-zswap"), Ok("lzo".to_owned()));
        assert_eq!(versus("kernel-zswap=zstd"), Ok("zstd".to_owned()));
        for text in ["zram", "kernel-zswap=", "kernel-zswap=../x", "kernel-zswap=a b"] {
            assert!(versus(text).unwrap_err().contains("kernel-zswap"), "{text}");
        }
    }

    #[test]
    fn the_pool_has_room_for_the_job() {
        assert_eq!(pool_percent("20", 1 << 30, 24 << 30).unwrap(), None);
        assert_eq!(pool_percent("20", 1 << 30, 4 << 30).unwrap(), Some(26));
        assert!(pool_percent("20", 4 << 30, 4 << 30).is_err());
        assert!(pool_percent("many", 1, 4 << 30).is_err());
    }
}
