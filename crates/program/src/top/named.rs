//! The run and the process that a user means by a process number.
//!
//! A run has processes of uzswap's own: the front that the user started, the supervisor and the
//! guardian. Users have the number of the first and see all three in ps(1). None of them is paged,
//! so each stands for the run, and where one process is wanted, for its program.

use std::fs;

use super::find::{self, name_of, Found};
use crate::stat::Stat;

/// Processes between one of a run and its supervisor.
const DEPTH_MAX: usize = 1000;

/// A run that has a process of this number.
pub struct Named {
    /// The run.
    pub found: Found,
    /// The number is of one of uzswap's own processes and stands for all of the run.
    pub is_run: bool,
}

/// A process that stands for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Processes of the run among which it was chosen.
    pub among: usize,
}

/// The run that a process is in, or is uzswap's own process of; `None` when there is none that this
/// user may look at.
pub fn run_of(pid: u32) -> Option<Named> {
    let above = ancestors(pid);
    find::trees().into_iter().find_map(|found| {
        let is_guardian = || above.first() == Some(&found.holder) && is_guardian(pid);
        let is_run = pid == found.pid || pid == found.holder || is_guardian();
        let is_member = || above.contains(&found.holder) || found.snapshot.live().any(|seen| seen.pid == pid);
        (is_run || is_member()).then_some(Named { found, is_run })
    })
}

/// The process that a run's own processes stand for: the program, while it lives; then the oldest
/// of those that it left.
pub fn program_of(found: &Found) -> Option<Chosen> {
    let mut members: Vec<Member> = members(found.holder);
    // Children of the supervisor are the program and orphans, of which the program is the oldest.
    members.sort_by_key(|member| (member.depth, member.started, member.pid));
    let first = members.first()?;
    Some(Chosen { pid: first.pid, name: name_of(first.pid), among: members.len() })
}

impl Chosen {
    /// Which process is taken for `pid`, in words.
    pub fn words(&self, pid: u32) -> String {
        let Chosen { pid: program, name, among } = self;
        let of = if *among > 1 { format!(", the first of {among} processes") } else { String::new() };
        format!("{pid} is `uzswap run`; taking its program, process {program} ({name}){of}")
    }
}

struct Member {
    pid: u32,
    depth: usize,
    /// In ticks since the machine's start.
    started: u64,
}

/// The living processes below a supervisor, its guardian aside.
fn members(supervisor: u32) -> Vec<Member> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let members = pids.filter_map(|pid| {
        let depth = ancestors(pid).iter().position(|above| *above == supervisor)?;
        let Stat { started, .. } = living(pid)?;
        (depth > 0 || !is_guardian(pid)).then_some(Member { pid, depth, started })
    });
    members.collect()
}

/// The parents of a process, nearest first.
fn ancestors(pid: u32) -> Vec<u32> {
    let parent = |pid: &u32| living(*pid).map(|stat| stat.parent).filter(|parent| *parent != 0);
    std::iter::successors(parent(&pid), parent).take(DEPTH_MAX).collect()
}

fn is_guardian(pid: u32) -> bool {
    name_of(pid) == "uzswap-guardian"
}

/// A process that has not ended.
fn living(pid: u32) -> Option<Stat> {
    Stat::of(pid).filter(|stat| !stat.has_ended())
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
        assert_eq!(chosen(1).words(5), "5 is `uzswap run`; taking its program, process 7 (sort)");
        assert!(chosen(3).words(5).ends_with("(sort), the first of 3 processes"));
    }
}
