//! What /proc tells of a process before it is touched.

use std::fs;

use sys::procfs::path_of;

/// A process and which of its programs it is: exec changes the stack's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    started: u64,
    stack: u64,
}

impl Identity {
    /// Of a process; `None` when it has ended.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything: the state is the third field, the start the 22nd, the stack the 28th.
        let rest = &stat[stat.iter().rposition(|byte| *byte == b')')? + 1..];
        let fields: Vec<&str> = std::str::from_utf8(rest).ok()?.split_ascii_whitespace().collect();
        if matches!(fields.first(), None | Some(&"Z" | &"X")) {
            return None;
        }
        let number = |index: usize| fields.get(index - 3)?.parse().ok();
        Some(Identity { started: number(22)?, stack: number(28)? })
    }
}

/// Anonymous resident memory.
pub fn anonymous_bytes(pid: i32) -> Option<u64> {
    sys::procfs::anonymous_bytes(&fs::read(path_of(pid, "statm")?).ok()?)
}

/// The words behind a name in /proc/PID/status; none where the kernel does not tell.
fn status_words<'a>(status: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().split_ascii_whitespace()
}

/// A number in /proc/PID/status; `None` where the kernel does not tell.
fn status_number(status: &str, name: &str) -> Option<u64> {
    status_words(status, name).next()?.parse().ok()
}

/// What stands in the way of a system call of ours in a process, for as long as it runs its present program.
pub fn obstacle(pid: i32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let own = fs::read_to_string("/proc/self/status").ok()?;
    if has_more_rights(&status, &own) {
        return Some("it is setuid or setgid, or has capabilities, and uzswap is not root's".to_owned());
    }
    if status_number(&status, "TracerPid:").is_some_and(|tracer| tracer != 0) {
        return Some("it is being traced".to_owned());
    }
    // Filters that this process runs under, too, let through what it needs. Others may kill for it.
    let filters = |text: &str| {
        let mode = status_number(text, "Seccomp:").unwrap_or(0);
        (mode == 1, status_number(text, "Seccomp_filters:").unwrap_or(mode))
    };
    if filters(&status) != filters(&own) {
        return Some("it has a seccomp filter of its own".to_owned());
    }
    None
}

/// Whether a process may do what this one's user may not. With CAP_SYS_PTRACE this one could reach into it all the same, and what
/// is brought there would be at the mercy of that user's other processes, who share the ledger with it.
pub fn is_above_us(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let own = fs::read_to_string("/proc/self/status");
    !matches!((status, own), (Ok(status), Ok(own)) if !has_more_rights(&status, &own))
}

fn has_more_rights(status: &str, own: &str) -> bool {
    // The second is the effective one.
    if status_words(own, "Uid:").nth(1) == Some("0") {
        return false;
    }
    let has_others = |name: &str| {
        let own = status_words(own, name).next();
        status_words(status, name).next().is_none() || status_words(status, name).any(|id| Some(id) != own)
    };
    let capabilities = |text: &str, name: &str| {
        status_words(text, name).next().and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
    };
    // Ambient ones are the user's in every program; others this program may have of its file alone.
    has_others("Uid:")
        || has_others("Gid:")
        || capabilities(status, "CapPrm:") & !capabilities(own, "CapAmb:") != 0
}

/// The thread of a process that this one traces.
pub fn traced_thread(pid: i32) -> Option<i32> {
    let own = u64::from(std::process::id());
    threads(pid).into_iter().find(|thread| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
        status_number(&status, "TracerPid:") == Some(own)
    })
}

/// Whether a process's environment names another supervisor than the one at `socket`, be it none: it is somebody else's then.
pub fn is_anothers(pid: i32, socket: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    names_another(&environment, socket)
}

fn names_another(environment: &[u8], socket: &str) -> bool {
    let named = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"UZSWAP_SOCKET="));
    named.is_some_and(|named| named != socket.as_bytes())
}

/// The parent.
pub fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status_number(&status, "PPid:").map(|pid| pid as i32)
}

/// Whether a thread of the agent's runs in a process. A forked child has the agent's memory, and
/// none of its threads.
pub fn has_agent(pid: i32) -> bool {
    threads(pid).into_iter().filter(|thread| *thread != pid).any(|thread| {
        let name = fs::read(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
        name.starts_with(b"uzswap")
    })
}

/// Whether two processes have one address space: between vfork() and exec.
pub fn share_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: takes numbers.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0usize, 0usize) };
    match answer {
        0 => true,
        1.. => false,
        // Not there, or not permitted: the same mappings are at the same places in no two programs by chance.
        _ => {
            let maps = |pid| fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
            let own = maps(one);
            !own.is_empty() && own == maps(other)
        }
    }
}

/// Its threads, the first one first.
pub fn threads(pid: i32) -> Vec<i32> {
    let names = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut all: Vec<i32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_by_key(|thread| (*thread != pid, *thread));
    all
}

/// The letter of a thread's state.
pub fn thread_state(pid: i32, thread: i32) -> Option<u8> {
    let stat = fs::read(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    stat.get(stat.iter().rposition(|byte| *byte == b')')? + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let pid = std::process::id() as i32;
        assert_eq!(Identity::of(pid), Identity::of(pid));
        assert!(Identity::of(pid).is_some_and(|identity| identity.stack != 0 || identity.started != 0));
        assert!(anonymous_bytes(pid).unwrap() > 0);
        assert_eq!(threads(pid)[0], pid);
        assert!(matches!(thread_state(pid, pid), Some(b'R' | b'S' | b'D')));
        assert!(share_memory(pid, pid));
        assert!(!share_memory(pid, parent(pid).unwrap()));
    }

    #[test]
    fn supervisors_are_told_apart() {
        for (environment, is_anothers) in [
            (&b""[..], false),
            (b"A=1\0B=UZSWAP_SOCKET=x\0", false),
            (b"A=1\0UZSWAP_SOCKET=own\0", false),
            (b"A=1\0UZSWAP_SOCKET=owner\0", true),
            (b"UZSWAP_SOCKET=\0A=1\0", true),
        ] {
            assert_eq!(names_another(environment, "own"), is_anothers, "{environment:?}");
        }
    }

    #[test]
    fn whoever_may_more_is_left_alone() {
        let status = |users: &str, groups: &str, permitted: &str| {
            format!("Uid:\t{users}\nGid:\t{groups}\nCapPrm:\t{permitted}\n")
        };
        let (ours, all) = ("7\t7\t7\t7", "0000000000080000");
        let own = status(ours, ours, all);
        assert!(!has_more_rights(&status(ours, ours, "0"), &own));
        for (users, groups, permitted) in [
            ("7\t0\t0\t0", ours, "0"),
            ("8\t8\t8\t8", ours, "0"),
            (ours, "7\t5\t5\t5", "0"),
            (ours, ours, "0000000000000400"),
        ] {
            assert!(has_more_rights(&status(users, groups, permitted), &own), "{users} {groups} {permitted}");
        }
        assert!(has_more_rights("", &own), "nothing is known");
        let root = status("0\t0\t0\t0", "0\t0\t0\t0", "000001ffffffffff");
        assert!(!has_more_rights(&status(ours, ours, "0"), &root) && !has_more_rights(&root, &root));
        let ambient = format!("{own}CapAmb:\t0000000000000400\n");
        assert!(!has_more_rights(&status(ours, ours, "0000000000000400"), &ambient), "as all of this user's");
        assert!(is_above_us(i32::MAX), "no such process");
    }

    #[test]
    fn fields_of_a_status() {
        let text = "Name:\tx\nTracerPid:\t17\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        assert_eq!(status_number(text, "TracerPid:"), Some(17));
        assert_eq!(status_number(text, "Seccomp:"), Some(2));
        assert_eq!(status_number(text, "Nothing:"), None);
    }
}
