//! Why a program was killed: its signal, and the kills that the kernel's OOM killer has counted.

use std::fs;

use crate::size::{self, Size};

/// Numbers of OOM kills; `None` where the kernel does not count them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OomKills {
    /// In this process's memory cgroup.
    cgroup: Option<u64>,
    /// On the whole machine, cgroups included.
    machine: Option<u64>,
}

impl OomKills {
    pub fn now() -> Self {
        let of = |text: &String| count(text);
        OomKills {
            cgroup: size::cgroup_texts("memory.events", "memory.oom_control").iter().find_map(of),
            machine: fs::read_to_string("/proc/vmstat").ok().as_ref().and_then(of),
        }
    }

    /// Returns the kills from then until now.
    pub fn since(&self) -> Self {
        let now = Self::now();
        let more = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        OomKills { cgroup: more(now.cgroup, self.cgroup), machine: more(now.machine, self.machine) }
    }
}

/// Returns the count in `memory.events`, `memory.oom_control` or `/proc/vmstat`.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Returns a signal's name, or its number.
pub fn name_of(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// Returns messages about the program's end by `signal`, and about OOM kills during the run.
pub fn lines(signal: Option<i32>, kills: &OomKills, limit: Option<u64>, budget: u64) -> Vec<String> {
    let mut lines = Vec::new();
    let (of_cgroup, of_machine) = (kills.cgroup.unwrap_or(0), kills.machine.unwrap_or(0));
    match signal {
        // The user's own interrupt, and a closed pipe, need no explanation.
        None | Some(libc::SIGINT | libc::SIGPIPE) => {}
        Some(libc::SIGKILL) if of_cgroup + of_machine == 0 => {
            let sender = match kills.machine.or(kills.cgroup) {
                Some(_) => {
                    "sent by a process (systemd-oomd, a batch system, a user): the kernel counted no OOM kill"
                }
                None => "this kernel does not count OOM kills, so the sender is unknown",
            };
            lines.push(format!("the program was killed by SIGKILL; {sender}"));
        }
        Some(signal) => lines.push(format!("the program was killed by {}", name_of(signal))),
    }
    if of_cgroup > 0 {
        let limit_shown = limit.map(|limit| format!(", whose limit is {}", Size::from(limit)));
        lines.push(format!(
            "the kernel's OOM killer killed {} of the memory cgroup{}: {}",
            processes(of_cgroup),
            limit_shown.unwrap_or_default(),
            advice(limit, budget),
        ));
    } else if of_machine > 0 {
        lines.push(format!(
            "the kernel's OOM killer killed {} of this machine during the run: if the program was one, give a --ram that the \
             machine has available (--ram auto takes nine tenths of it)",
            processes(of_machine),
        ));
    }
    lines
}

fn processes(count: u64) -> String {
    if count == 1 {
        "1 process".to_owned()
    } else {
        format!("{count} processes")
    }
}

fn advice(limit: Option<u64>, budget: u64) -> String {
    match limit.and_then(size::below_limit) {
        Some(fitting) if fitting < budget => format!("--ram {} or less fits there", size::as_option(fitting)),
        _ => format!(
            "files and shared memory count there too, beside the {} of --ram: give less, or raise the limit",
            Size::from(budget)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_counted_in_each_file() {
        assert_eq!(count("low 0\nhigh 3\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
        assert!(OomKills::now().since().machine.is_some() || OomKills::now().machine.is_none());
    }

    #[test]
    fn a_kill_is_explained() {
        let counted = |cgroup, machine| OomKills { cgroup, machine };
        let of = |signal, kills, limit| lines(signal, &kills, limit, 512 << 20).join("\n");
        let none = counted(Some(0), Some(0));
        assert_eq!(of(None, none, None), "");
        assert_eq!(of(Some(libc::SIGINT), none, None), "");
        assert_eq!(of(Some(libc::SIGSEGV), none, None), "the program was killed by SIGSEGV");
        assert!(of(Some(libc::SIGKILL), none, None).contains("SIGKILL; sent by a process"));
        assert!(of(Some(libc::SIGKILL), OomKills::default(), None).contains("the sender is unknown"));
        let of_cgroup = of(Some(libc::SIGKILL), counted(Some(1), Some(1)), Some(256 << 20));
        assert_eq!(
            of_cgroup,
            "the program was killed by SIGKILL\nthe kernel's OOM killer killed 1 process of the memory cgroup, whose limit is \
             256 MiB: --ram 224M or less fits there"
        );
        let within = of(None, counted(Some(2), Some(2)), Some(1 << 30));
        assert!(
            within.contains("2 processes") && within.contains("files and shared memory count"),
            "{within}"
        );
        assert!(of(None, counted(Some(0), Some(1)), None).contains("of this machine"));
    }
}
