//! Any command by the kernel: in a memory cgroup, with zswap in front of a swap file or with the
//! file alone, within a total of memory.
//!
//! The total is anonymous memory and the pool together. Version 1 of cgroups does not charge the
//! pool, and in no version does a limit determine the pool's share beforehand: so the command runs
//! several times, with another limit each time, until the total meets the budget.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use serde::Serialize;

use super::cgroup::Cgroup;
use super::undo::Changes;
use super::{lock_machine, sample, Versus};

/// The runs end when the total is within this share of the budget.
const CLOSE: f64 = 0.03;
const RUNS_MAX: usize = 5;

/// The memory and pages of a command's run, under any manager.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// Peak of anonymous memory and pool together.
    pub peak_bytes: u64,
    /// Pages brought in: from the pool, from staging and from the disk, readahead included.
    pub pages_in: u64,
    /// Pages moved out, to the pool or past it.
    pub pages_out: u64,
    /// Written to the swap file, from the pool and past it; 0 without one.
    pub disk_written_bytes: u64,
    pub disk_read_bytes: u64,
    /// Bytes stored by the pool's bytes, when the pool was largest.
    pub ratio: f64,
}

/// A program by the kernel: within a total, or in a cgroup of a given limit.
#[derive(Debug, Clone, Copy)]
pub struct ByKernel<'a> {
    pub versus: &'a Versus,
    /// The program's demand, which the swap file has room for.
    pub wanted_bytes: u64,
    /// Takes the pages that the pool has no room for.
    pub disk: Option<&'a Path>,
}

impl ByKernel<'_> {
    /// Finds the cgroup's limit by which anonymous memory and pool together come nearest to
    /// `budget_bytes`. `start` makes and awaits the command. Limits in which the command ends well
    /// are preferred.
    ///
    /// # Errors
    /// If the machine cannot be set up, or a command cannot be run.
    pub fn find_limit<T>(
        self,
        budget_bytes: u64,
        mut start: impl FnMut(&mut dyn FnMut(&mut Command) -> Result<()>) -> Result<T>,
        has_ended_well: impl Fn(&T) -> bool,
    ) -> Result<u64> {
        self.on_the_machine(budget_bytes, |changes| {
            let (mut low, mut high) = (0, budget_bytes + budget_bytes / 8);
            let mut limit = budget_bytes - budget_bytes / 8;
            let mut best: Option<(bool, f64, u64)> = None;
            for _ in 0..RUNS_MAX {
                let (outcome, figures) = run_in(changes, limit, &mut start)?;
                let ended_well = has_ended_well(&outcome);
                let off = figures.peak_bytes as f64 / budget_bytes as f64 - 1.0;
                let is_better = |best: &(bool, f64, u64)| {
                    (ended_well, -off.abs()).partial_cmp(&(best.0, -best.1.abs()))
                        == Some(std::cmp::Ordering::Greater)
                };
                if best.as_ref().is_none_or(is_better) {
                    best = Some((ended_well, off, limit));
                }
                if off.abs() <= CLOSE && ended_well {
                    break;
                }
                // A command that fails in this limit gets more; otherwise the total gives the
                // direction.
                match off > 0.0 && ended_well {
                    true => high = limit,
                    false => low = limit,
                }
                limit = match low {
                    0 => limit - ((off * budget_bytes as f64 * 1.5) as u64).clamp(1 << 20, limit / 2),
                    low => low + (high - low) / 2,
                };
            }
            Ok(best.expect("at least one run").2)
        })
    }

    /// Runs a command once in a cgroup of this limit. The machine's settings are restored
    /// afterwards, so other programs can take turns.
    ///
    /// # Errors
    /// If the machine cannot be set up, or the command cannot be run.
    pub fn run<T>(
        self,
        limit_bytes: u64,
        budget_bytes: u64,
        mut start: impl FnMut(&mut dyn FnMut(&mut Command) -> Result<()>) -> Result<T>,
    ) -> Result<(T, Figures)> {
        self.on_the_machine(budget_bytes, |changes| run_in(changes, limit_bytes, &mut start))
    }

    /// Runs `act` while the machine is set up.
    fn on_the_machine<T>(self, budget_bytes: u64, act: impl FnOnce(&Changes) -> Result<T>) -> Result<T> {
        self.versus.check()?;
        let machine = lock_machine()?;
        let changes = Changes::begin(&machine)?;
        let result = self
            .versus
            .set_up(&changes, self.wanted_bytes, budget_bytes, self.disk)
            .and_then(|_| act(&changes));
        changes.end()?;
        result
    }
}

fn run_in<T>(
    changes: &Changes,
    limit_bytes: u64,
    start: &mut impl FnMut(&mut dyn FnMut(&mut Command) -> Result<()>) -> Result<T>,
) -> Result<(T, Figures)> {
    let group = Cgroup::make(changes, |_| limit_bytes)?;
    let (outcome, sampled) = sample(&group, || start(&mut |command| group.enter(command)));
    group.remove()?;
    let figures = Figures {
        peak_bytes: sampled.total_peak_bytes,
        // Pages that zswap stored, and pages that it refused for any reason.
        pages_in: sampled.count("zswpin") + sampled.count("pswpin"),
        // Pages that leave the pool were counted when they entered it.
        pages_out: (sampled.count("zswpout") + sampled.count("pswpout"))
            .saturating_sub(sampled.count("zswpwb")),
        disk_written_bytes: sampled.disk_bytes("pswpout"),
        disk_read_bytes: sampled.disk_bytes("pswpin"),
        ratio: sampled.ratio(),
    };
    Ok((outcome?, figures))
}

/// The last component of a cgroup's path counts up, so that one can be made while another is being
/// emptied.
pub(super) fn next_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("uzswap-bench-{}-{number}", std::process::id())
}

pub(super) fn stat_field(path: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
