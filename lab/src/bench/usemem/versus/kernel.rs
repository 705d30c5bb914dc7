//! The kernel's setup for a comparison: zswap or not, the limit of its pool, and the swap file
//! behind it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{bail, ensure, Context, Result};

use super::swap_file;
use super::undo::Changes;
use super::{machine_bytes, read_trimmed, ZSWAP};

/// The kernel's side of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Versus {
    /// zswap before a swap file.
    Zswap {
        /// The kernel's name of it.
        compressor: String,
    },
    /// A swap file alone.
    Swap,
}

impl FromStr for Versus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "kernel-swap" {
            return Ok(Versus::Swap);
        }
        let (name, compressor) = text.split_once('=').unwrap_or((text, "lzo"));
        let is_word =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if name != "kernel-zswap" || !is_word(compressor) {
            return Err(
                "write kernel-zswap, kernel-zswap=COMPRESSOR with one of the kernel's (lzo, lz4, zstd or \
                        deflate), or kernel-swap"
                    .to_owned(),
            );
        }
        Ok(Versus::Zswap { compressor: compressor.to_owned() })
    }
}

impl Versus {
    /// The name in output for people.
    pub fn title(&self) -> &'static str {
        match self {
            Versus::Zswap { .. } => "kernel zswap",
            Versus::Swap => "kernel swap",
        }
    }

    /// The compressor of zswap, if it is used.
    pub fn compressor(&self) -> Option<&str> {
        match self {
            Versus::Zswap { compressor } => Some(compressor),
            Versus::Swap => None,
        }
    }

    /// Checks that the comparison can be made here, before any measurement.
    ///
    /// # Errors
    /// The missing requirement.
    pub fn check(&self) -> Result<()> {
        // SAFETY: no memory is involved.
        let is_root = unsafe { libc::geteuid() } == 0;
        ensure!(is_root, "--versus changes settings of the machine: run it as root");
        let enabled = Path::new(ZSWAP).join("enabled");
        ensure!(
            enabled.exists(),
            "--versus {}: this kernel has no zswap ({} is missing)",
            self.title().replace(' ', "-"),
            enabled.display()
        );
        Ok(())
    }

    /// Sets the machine up for a job of `job_bytes`.
    ///
    /// Without a disk the pool may hold all of the job, and nothing is written. With one (`disk` is
    /// the swap file's directory) the pool is limited, and its shrinker is on. The limit is half of
    /// `budget_bytes`, rounded down to whole hundredths of the machine, the kernel's smallest step,
    /// and at least one. Returns that limit.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub(super) fn set_up(
        &self,
        changes: &Changes,
        job_bytes: u64,
        budget_bytes: u64,
        disk: Option<&Path>,
    ) -> Result<Option<u64>> {
        let parameter = |name: &str| PathBuf::from(ZSWAP).join(name);
        let mut pool_limit = None;
        if let Versus::Zswap { compressor } = self {
            changes
                .write(&parameter("compressor"), compressor)
                .with_context(|| format!("the kernel has no compressor {compressor:?} for zswap"))?;
            let machine = machine_bytes()?;
            let percent = match disk {
                None => pool_percent(&read_trimmed(&parameter("max_pool_percent"))?, job_bytes, machine)?,
                Some(_) => {
                    let percent = limited_percent(budget_bytes, machine)?;
                    pool_limit = Some(machine / 100 * percent);
                    Some(percent)
                }
            };
            if let Some(percent) = percent {
                changes.write(&parameter("max_pool_percent"), &percent.to_string())?;
            }
            if parameter("shrinker_enabled").exists() {
                let word = if disk.is_some() { "Y" } else { "N" };
                changes.write(&parameter("shrinker_enabled"), word)?;
            }
        }
        let is_zswap = matches!(self, Versus::Zswap { .. });
        changes.write(&parameter("enabled"), if is_zswap { "Y" } else { "N" })?;
        // All pages may be out at once, and some slots are kept for pages that are in.
        swap_file::swap_on(changes, job_bytes + job_bytes / 4 + (64 << 20), disk)?;
        Ok(pool_limit)
    }
}

/// The share of the machine that the pool needs so that nothing is written to the disk: the job's
/// whole size, in case nothing compresses. `None` if the setting suffices.
fn pool_percent(now: &str, total: u64, machine: u64) -> Result<Option<u64>> {
    let now: u64 = now.parse().with_context(|| format!("max_pool_percent is {now:?}"))?;
    let wanted = (total * 100).div_ceil(machine.max(1)) + 1;
    if wanted > 90 {
        bail!("the job is larger than this machine's memory");
    }
    Ok((wanted > now).then_some(wanted))
}

/// The share of the machine that a pool before a disk may take.
fn limited_percent(budget_bytes: u64, machine: u64) -> Result<u64> {
    let hundredth = (machine / 100).max(1);
    ensure!(
        budget_bytes > hundredth + hundredth / 4,
        "--swap: the kernel limits its pool by hundredths of the machine, and one of them ({}) is as much as the job may have",
        program::size::Size::from(hundredth)
    );
    Ok((budget_bytes / 2 / hundredth).clamp(1, 90))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_baselines_are_parsed() {
        let versus = |text: &str| text.parse::<Versus>();
        let zswap = |compressor: &str| Versus::Zswap { compressor: compressor.to_owned() };
        assert_eq!(versus("kernel-zswap"), Ok(zswap("lzo")));
        assert_eq!(versus("kernel-zswap=zstd"), Ok(zswap("zstd")));
        assert_eq!(versus("kernel-swap"), Ok(Versus::Swap));
        for text in ["zram", "kernel-zswap=", "kernel-zswap=../x", "kernel-zswap=a b", "kernel-swap=lzo"] {
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

    #[test]
    fn a_pool_before_a_disk_is_half_of_the_budget_at_most_where_the_kernel_can_say_so() {
        assert_eq!(limited_percent(500 << 20, 10_000 << 20).unwrap(), 2);
        assert_eq!(limited_percent(130 << 20, 10_000 << 20).unwrap(), 1);
        assert!(limited_percent(100 << 20, 10_000 << 20).unwrap_err().to_string().contains("100 MiB"));
    }
}
