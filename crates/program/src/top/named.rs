//! Maps a user's process id to a run and a process.
//!
//! A run has three processes of uzswap's own: the front that the user started, the supervisor and
//! the guardian. Users know the front's id and see all three in ps(1). None is paged, so each
//! stands for the run and, where one process is needed, for its program. So does `uzswap attach`.

use std::fs;

use super::find::{self, name_of, RunningTree};
use crate::stat::Stat;

/// Bound on the ancestors between a process and its supervisor.
const DEPTH_MAX: usize = 1000;

/// A run that contains the given process.
pub struct Named {
    pub found: RunningTree,
    /// Whether the process is one of uzswap's own and stands for the whole run.
    pub is_run: bool,
}

/// The process that stands for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    pub pid: u32,
    pub name: String,
    /// Number of the run's processes.
    pub among: usize,
}

/// Returns the run of a process, or of uzswap's own one; `None` if this user may not inspect it.
pub fn run_of(pid: u32) -> Option<Named> {
    let above = ancestors(pid);
    find::trees().into_iter().find_map(|found| {
        let is_guardian = || above.first() == Some(&found.holder) && is_guardian(pid);
        let is_run = pid == found.pid || pid == found.holder || is_guardian();
        let is_member = || above.contains(&found.holder) || found.snapshot.live().any(|seen| seen.pid == pid);
        (is_run || is_member()).then_some(Named { found, is_run })
    })
}

/// Returns the process that stands for a run: the program, or after it the oldest process left.
pub fn program_of(found: &RunningTree) -> Option<Chosen> {
    let mut members: Vec<Member> = members(found.holder);
    // An attached program is no descendant of its supervisor.
    if members.is_empty() {
        let paged = found.snapshot.live().filter_map(|seen| Member::of(seen.pid, ancestors(seen.pid).len()));
        members = paged.collect();
    }
    // The supervisor's children are the program and orphans. The program is the oldest.
    members.sort_by_key(|member| (member.depth, member.started, member.pid));
    let first = members.first()?;
    Some(Chosen { pid: first.pid, name: name_of(first.pid), among: members.len() })
}

impl Chosen {
    /// Describes which process is used in place of `pid`.
    pub fn words(&self, pid: u32) -> String {
        let Chosen { pid: program, name, among } = self;
        let of = if *among > 1 { format!(", the first of {among} processes") } else { String::new() };
        format!("{pid} is uzswap itself; taking its program, process {program} ({name}){of}")
    }
}

struct Member {
    pid: u32,
    depth: usize,
    /// In ticks since boot.
    started: u64,
}

impl Member {
    fn of(pid: u32, depth: usize) -> Option<Self> {
        let Stat { started, .. } = Stat::of_living(pid)?;
        Some(Member { pid, depth, started })
    }
}

fn members(supervisor: u32) -> Vec<Member> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let members = pids.filter_map(|pid| {
        let depth = ancestors(pid).iter().position(|above| *above == supervisor)?;
        Member::of(pid, depth).filter(|_| depth > 0 || !is_guardian(pid))
    });
    members.collect()
}

fn ancestors(pid: u32) -> Vec<u32> {
    let parent = |pid: &u32| Stat::of_living(*pid).map(|stat| stat.parent).filter(|parent| *parent != 0);
    std::iter::successors(parent(&pid), parent).take(DEPTH_MAX).collect()
}

fn is_guardian(pid: u32) -> bool {
    name_of(pid) == "uzswap-guardian"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_lead_to_the_first_process() {
        // SAFETY: takes nothing.
        let parent = unsafe { libc::getppid() } as u32;
        let above = ancestors(std::process::id());
        assert_eq!(above.first(), Some(&parent));
        assert!(!above.contains(&std::process::id()));
    }

    #[test]
    fn the_choice_is_said() {
        let chosen = |among| Chosen { pid: 7, name: "sort".into(), among };
        assert_eq!(chosen(1).words(5), "5 is uzswap itself; taking its program, process 7 (sort)");
        assert!(chosen(3).words(5).ends_with("(sort), the first of 3 processes"));
    }
}
