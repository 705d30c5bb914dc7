//! How much of its memory a running process uses, by the kernel's accessed bits.
//!
//! Writing to /proc/PID/clear_refs clears the bits; /proc/PID/smaps counts the bits that are set
//! again. The program is not stopped and gets no pager. A page whose translation a CPU still has
//! cached may be missed, so the first second is the least reliable.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use super::trial::Settings;
use crate::pages::sample;
use crate::run::RAM_BYTES_MIN;
use crate::size::{self, Size};
use crate::stat::Stat;

/// Pages that are compressed for the ratio.
const SAMPLE_PAGES: u64 = 1024;
/// A budget's room beside pages, at least: tables and staging of a small program.
const ROOM_BYTES: u64 = 8 << 20;

/// Memory used within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    pub seconds: u64,
    pub used_bytes: u64,
    /// The budget that holds these pages as they are and the others compressed.
    pub budget_bytes: u64,
}

/// The use of a process's memory.
#[derive(Debug, Clone, Serialize)]
pub struct Watched {
    pub pid: u32,
    /// Anonymous resident memory at the end.
    pub resident_bytes: u64,
    pub compression_ratio: f64,
    pub windows: Vec<Window>,
}

/// Private anonymous memory, and the part of it that was used since the bits were cleared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Memory {
    resident_bytes: u64,
    used_bytes: u64,
}

impl Memory {
    fn add(&mut self, other: Memory) {
        self.resident_bytes += other.resident_bytes;
        self.used_bytes += other.used_bytes;
    }
}

/// Watches a process and its descendants.
pub fn watch(pid: u32, time: Duration, settings: &Settings) -> Result<Watched> {
    ensure!(Stat::of_living(pid).is_some(), "there is no process {pid}");
    let ratio = ratio(pid, settings.compressor())?;
    let tree = tree_of(pid);
    for one in &tree {
        let path = format!("/proc/{one}/clear_refs");
        // All pages: the kernel's first kind.
        let cleared = fs::write(&path, "1");
        if *one == pid {
            cleared.context(path)?;
        }
    }
    let begin = Instant::now();
    let (mut windows, mut memory) = (Vec::new(), Memory::default());
    for seconds in marks(time.as_secs()) {
        std::thread::sleep(Duration::from_secs(seconds).saturating_sub(begin.elapsed()));
        memory = tree.iter().fold(Memory::default(), |mut sum, one| {
            sum.add(
                fs::read_to_string(format!("/proc/{one}/smaps"))
                    .map_or(Memory::default(), |text| of_smaps(&text)),
            );
            sum
        });
        ensure!(memory.resident_bytes > 0, "process {pid} has ended");
        windows.push(Window { seconds, used_bytes: memory.used_bytes, budget_bytes: budget(memory, ratio) });
    }
    Ok(Watched { pid, resident_bytes: memory.resident_bytes, compression_ratio: ratio, windows })
}

/// 1, 3, 10, 30, ... seconds, and the end.
fn marks(end: u64) -> Vec<u64> {
    let steps = (0..).map(|step| [1, 3][step % 2] * 10u64.pow(step as u32 / 2));
    steps.take_while(|seconds| *seconds < end).chain([end]).collect()
}

/// The process and its descendants, children after their parents.
fn tree_of(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, Stat::of_living(pid)?.parent))).collect();
    let mut tree = vec![pid];
    let mut at = 0;
    while at < tree.len() {
        let parent = tree[at];
        tree.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(child, _)| *child));
        at += 1;
    }
    tree
}

/// Sums the anonymous mappings in the text of /proc/PID/smaps.
fn of_smaps(text: &str) -> Memory {
    let (mut sum, mut is_meant) = (Memory::default(), false);
    for line in text.lines() {
        if let Some(mapping) = sys::maps::parse(line.as_bytes()) {
            is_meant = !mapping.file && !mapping.shared && !mapping.special;
            continue;
        }
        let bytes = |name| {
            let kilobytes = line.strip_prefix(name)?.trim().strip_suffix(" kB")?;
            kilobytes.parse::<u64>().ok()?.checked_mul(1024)
        };
        if is_meant {
            sum.resident_bytes += bytes("Rss:").unwrap_or(0);
            sum.used_bytes += bytes("Referenced:").unwrap_or(0);
        }
    }
    sum
}

fn ratio(pid: u32, compressor: &str) -> Result<f64> {
    let algorithm =
        uzswap::registry().find(compressor).map_err(|error| anyhow::anyhow!("--compressor: {error}"))?;
    let pages = sample(pid, SAMPLE_PAGES)?;
    let totals = uzswap::pages::compress(&*algorithm, 4096, &mut &pages[..], &mut std::io::sink())?;
    Ok(pages.len() as f64 / totals.object_bytes.max(1) as f64)
}

/// Used pages, the others compressed, and an eighth for tables and pages on their way.
fn budget(memory: Memory, ratio: f64) -> u64 {
    let idle = memory.resident_bytes.saturating_sub(memory.used_bytes);
    let bytes = memory.used_bytes + (idle as f64 / ratio.max(1.0)) as u64;
    (bytes + (bytes / 8).max(ROOM_BYTES)).max(RAM_BYTES_MIN)
}

impl Watched {
    /// Formats the table and the advice.
    pub fn text(&self) -> String {
        let mut text = format!(
            "process {} and its descendants have {} of anonymous memory, whose pages compress to 1/{:.1}\n\n\
             {:>9} {:>10} {:>10}\n",
            self.pid,
            Size::from(self.resident_bytes),
            self.compression_ratio,
            "WITHIN",
            "USED",
            "BUDGET"
        );
        for window in &self.windows {
            text += &format!(
                "{:>9} {:>10} {:>10}\n",
                format!("{} s", window.seconds),
                Size::from(window.used_bytes).to_string(),
                Size::from(window.budget_bytes).to_string(),
            );
        }
        let last = self.windows.last().expect("at least one");
        text += "\nA budget holds what was used within that time; a page that is used more rarely costs a fault.\n";
        match last.budget_bytes < self.resident_bytes {
            true => {
                text += &format!("uzswap attach --ram {} {}\n", size::as_option(last.budget_bytes), self.pid)
            }
            false => text += "It uses its memory: less would cost much.\n",
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_anonymous_mappings_count() {
        let smaps = "55d0a0000000-55d0a0021000 rw-p 00000000 00:00 0                          [heap]\n\
                     Size:                132 kB\nRss:                 100 kB\nReferenced:           40 kB\n\
                     7f0000000000-7f0000004000 rw-p 00001000 fe:00 12                         /bin/x\n\
                     Rss:                  16 kB\nReferenced:           16 kB\n\
                     7f1000000000-7f1000004000 rw-s 00000000 00:01 5                          /dev/zero\n\
                     Rss:                  16 kB\nReferenced:           16 kB\n\
                     7f2000000000-7f2000004000 rw-p 00000000 00:00 0\n\
                     Rss:                   8 kB\nReferenced:            8 kB\n";
        assert_eq!(of_smaps(smaps), Memory { resident_bytes: 108 << 10, used_bytes: 48 << 10 });
    }

    #[test]
    fn windows_grow_to_the_end() {
        assert_eq!(marks(30), [1, 3, 10, 30]);
        assert_eq!(marks(60), [1, 3, 10, 30, 60]);
        assert_eq!(marks(1), [1]);
    }

    #[test]
    fn idle_memory_counts_compressed() {
        let memory = Memory { resident_bytes: 400 << 20, used_bytes: 100 << 20 };
        assert_eq!(budget(memory, 3.0), 225 << 20);
        assert_eq!(budget(memory, 0.5), 450 << 20, "incompressible");
        assert_eq!(budget(Memory::default(), 3.0), RAM_BYTES_MIN);
    }

    #[test]
    fn a_process_is_in_its_tree() {
        let own = std::process::id();
        assert_eq!(tree_of(own)[0], own);
        // SAFETY: takes nothing.
        let parent = unsafe { libc::getppid() } as u32;
        assert!(tree_of(parent).contains(&own));
    }
}
