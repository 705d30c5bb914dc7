//! Properties of a process in /proc, read before it is touched.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;

use sys::procfs::path_of;

use crate::stat::Stat;

/// Bound on the part of an environment that is read.
const ENVIRONMENT_BYTES: u64 = 4 << 20;

/// A process and its current program: exec changes the stack's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    started: u64,
    stack: u64,
}

impl Identity {
    /// Identifies a process; `None` if it has ended.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of_living(pid as u32)?;
        Some(Identity { started: stat.started, stack: stat.stack })
    }
}

pub fn anonymous_bytes(pid: i32) -> Option<u64> {
    sys::procfs::anonymous_bytes(&fs::read(path_of(pid, "statm")?).ok()?)
}

/// Returns whether a process still has memory: an ending process gives it up before it is a zombie.
pub fn has_memory(pid: i32) -> bool {
    let statm = fs::read(format!("/proc/{pid}/statm")).unwrap_or_default();
    sys::procfs::sizes(&statm).is_some_and(|(total, _)| total > 0)
}

/// A thread's rights as /proc shows them.
#[derive(Debug)]
pub struct Rights {
    status: String,
    /// Owner of the thread's files in /proc: its effective user, if the process is dumpable.
    owner: u32,
    /// The user namespace of its capabilities; `None` where the kernel does not tell.
    namespace: Option<u64>,
}

impl Rights {
    /// Reads the rights of a thread, or of a process's first thread.
    pub fn of(thread: i32) -> Option<Self> {
        let mut file = File::open(format!("/proc/{thread}/status")).ok()?;
        let mut status = String::new();
        file.read_to_string(&mut status).ok()?;
        let namespace = fs::metadata(format!("/proc/{thread}/ns/user")).ok().map(|link| link.ino());
        Some(Rights { status, owner: file.metadata().ok()?.uid(), namespace })
    }

    pub fn own() -> Option<Self> {
        Self::of(sys::thread::id())
    }

    /// The words after a name; none where the kernel lacks the line.
    fn words<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let line = self.status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_ascii_whitespace()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.words(name).next()?.parse().ok()
    }

    /// Returns the user or group if real, effective, saved and file system id agree.
    fn only_id(&self, name: &str) -> Option<u64> {
        let first = self.words(name).next()?;
        (self.words(name).count() == 4 && self.words(name).all(|id| id == first))
            .then(|| first.parse().ok())?
    }

    fn is_root(&self) -> bool {
        // The second id is the effective one.
        self.words("Uid:").nth(1) == Some("0")
    }

    /// Permitted capabilities; all where the kernel does not tell.
    fn permitted(&self) -> u64 {
        let digits = self.words("CapPrm:").next();
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(u64::MAX)
    }

    /// Returns whether it has capabilities that `own` lacks. Those in another user namespace do not
    /// count: the kernel requires more before it lets outsiders trace.
    fn exceeds(&self, own: &Rights) -> bool {
        let is_elsewhere =
            self.namespace.is_some() && own.namespace.is_some() && self.namespace != own.namespace;
        !is_elsewhere && self.permitted() & !own.permitted() != 0
    }

    /// Seccomp mode and number of filters. Only this process's filters surely permit the calls.
    fn filters(&self) -> (bool, u64) {
        let mode = self.number("Seccomp:").unwrap_or(0);
        (mode == 1, self.number("Seccomp_filters:").unwrap_or(mode))
    }

    /// Returns why a process with rights `own` may not touch this thread, which `tracer` may trace.
    pub fn refusal(&self, own: &Rights, tracer: u64) -> Option<&'static str> {
        const MORE: &str = "it is setuid or setgid, or has capabilities that uzswap does not have";
        let (Some(user), Some(group)) = (self.only_id("Uid:"), self.only_id("Gid:")) else {
            return Some(MORE);
        };
        let is_same = || own.only_id("Uid:") == Some(user) && own.only_id("Gid:") == Some(group);
        if !own.is_root() && !is_same() {
            return Some("it is another user's, and uzswap is not root's");
        }
        if self.exceeds(own) {
            return Some(MORE);
        }
        if u64::from(self.owner) != user {
            return Some("it may not be looked into");
        }
        if self.number("TracerPid:").is_none_or(|found| found != 0 && found != tracer) {
            return Some("it is being traced");
        }
        if self.filters() != own.filters() {
            return Some("it has a seccomp filter of its own");
        }
        None
    }

    pub fn is_same_user(&self, own: &Rights) -> bool {
        self.only_id("Uid:").is_some_and(|user| own.only_id("Uid:") == Some(user))
    }
}

pub fn is_above_us(pid: i32) -> bool {
    let is_above = |rights: Rights, own: Rights| {
        !own.is_root()
            && (rights.only_id("Uid:").is_none_or(|user| own.only_id("Uid:") != Some(user))
                || rights.only_id("Gid:").is_none_or(|group| own.only_id("Gid:") != Some(group))
                || rights.exceeds(&own))
    };
    Rights::of(pid).zip(Rights::own()).is_none_or(|(rights, own)| is_above(rights, own))
}

/// Returns whether a process's environment names a supervisor other than `socket`, or none: the
/// process opted out then. May block for as long as the process likes.
pub fn is_anothers(pid: i32, socket: &str) -> bool {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ"));
    let _ = file.and_then(|file| file.take(ENVIRONMENT_BYTES).read_to_end(&mut environment));
    names_another(&environment, socket)
}

fn names_another(environment: &[u8], socket: &str) -> bool {
    let named = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"UZSWAP_SOCKET="));
    named.is_some_and(|named| named != socket.as_bytes())
}

/// Returns a process's number in its own process namespace.
pub fn own_number(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().last()?.parse().ok()
}

/// The name of an agent's process.
const AGENT: &str = "uzswap";

/// An agent's process, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    Named,
    /// It waits for the supervisor, which it offers the descriptor with this number.
    Waits(i32),
}

impl Agent {
    /// Returns the agent that a process is.
    pub fn of(pid: i32) -> Option<Self> {
        let name = name_of(pid)?;
        let number = || name.strip_prefix(ledger::wire::WAITING_NAME)?.parse().ok();
        if name == AGENT {
            Some(Agent::Named)
        } else {
            number().map(Agent::Waits)
        }
    }
}

/// Returns whether a process is an agent.
pub fn is_agent(pid: i32) -> bool {
    Agent::of(pid).is_some()
}

/// Returns whether a process has an agent, connected or not. Looks at all processes.
pub fn has_agent(pid: i32) -> bool {
    others(pid).any(|other| is_agent(other) && share_memory(pid, other))
}

/// Returns whether another process has this one's memory: an agent, which has its program's name at
/// first, or a child between vfork() and exec. Looks at all processes.
pub fn is_shared(pid: i32) -> bool {
    others(pid).any(|other| share_memory(pid, other))
}

fn others(pid: i32) -> impl Iterator<Item = i32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(move |other| *other != pid)
}

fn name_of(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// Returns whether two processes share an address space, as between vfork() and exec. Two that have
/// ended have none.
pub fn share_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: takes numbers.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0usize, 0usize) };
    match result {
        0 => has_memory(one),
        1.. => false,
        // The process is gone, or kcmp is not permitted. Two programs have the same mappings at the
        // same addresses only if they share them.
        _ => {
            let maps = |pid| fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
            let own = maps(one);
            !own.is_empty() && own == maps(other)
        }
    }
}

/// A file, by device and inode.
pub type FileId = (u32, u32, u64);

pub fn file_at(path: &str) -> Option<FileId> {
    status_of(path).map(|file| (file.stx_dev_major, file.stx_dev_minor, file.stx_ino))
}

pub fn program_of(pid: &str) -> Option<FileId> {
    file_at(&format!("/proc/{pid}/exe"))
}

pub fn runs_setuid_program(pid: i32) -> bool {
    let rights = (libc::S_ISUID | libc::S_ISGID) as u16;
    status_of(&format!("/proc/{pid}/exe")).is_none_or(|file| file.stx_mode & rights != 0)
}

/// Returns the kernel's cached attributes of a file, without asking its server, maybe the process.
fn status_of(path: &str) -> Option<libc::statx> {
    let path = CString::new(path).ok()?;
    let mut file = MaybeUninit::<libc::statx>::zeroed();
    let (how, what) = (libc::AT_STATX_DONT_SYNC, libc::STATX_INO | libc::STATX_MODE);
    // SAFETY: a NUL-terminated path, and room for the result.
    if unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), how, what, file.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: plain numbers, filled by the kernel.
    Some(unsafe { file.assume_init() })
}

/// Returns the process's threads, the first one first.
pub fn threads(pid: i32) -> Vec<i32> {
    let names = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut all: Vec<i32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_by_key(|thread| (*thread != pid, *thread));
    all
}

/// Returns a thread that can be held, also of a process that is stopped (T). One in uninterruptible
/// sleep (disk, a child's exec) would not stop, and one that is traced has its tracer.
pub fn interruptible_thread(pid: i32) -> Option<i32> {
    let is_ready = |thread: &i32| matches!(thread_state(pid, *thread), Some(b'R' | b'S' | b'T'));
    threads(pid).into_iter().find(is_ready)
}

/// Returns the letter of a thread's state.
pub fn thread_state(pid: i32, thread: i32) -> Option<u8> {
    Some(Stat::parse(&fs::read(format!("/proc/{pid}/task/{thread}/stat")).ok()?)?.state)
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
        assert!(has_memory(pid) && !has_memory(i32::MAX));
        assert_eq!(threads(pid)[0], pid);
        assert!(matches!(thread_state(pid, pid), Some(b'R' | b'S' | b'D')));
        assert!(share_memory(pid, pid));
        assert!(!share_memory(pid, Stat::of(pid as u32).unwrap().parent as i32));
        let mut ended = [(); 2].map(|()| std::process::Command::new("true").spawn().unwrap());
        let pids = ended.each_ref().map(|child| child.id());
        while pids.iter().any(|pid| Stat::of_living(*pid).is_some()) {
            std::thread::yield_now();
        }
        assert!(!share_memory(pids[0] as i32, pids[1] as i32));
        assert!(ended.iter_mut().all(|child| child.wait().unwrap().success()));
        let own = Rights::own().unwrap();
        assert_eq!(Rights::of(pid).unwrap().refusal(&own, 0), None);
        assert!(own.is_same_user(&own));
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

    fn rights(users: &str, groups: &str, permitted: &str, owner: u32) -> Rights {
        let more = "TracerPid:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        Rights {
            status: format!("Uid:\t{users}\nGid:\t{groups}\nCapPrm:\t{permitted}\n{more}"),
            owner,
            namespace: Some(1),
        }
    }

    fn changed(rights: &Rights, from: &str, to: &str) -> Rights {
        assert!(rights.status.contains(from));
        Rights { status: rights.status.replace(from, to), owner: rights.owner, namespace: rights.namespace }
    }

    const OURS: &str = "7\t7\t7\t7";
    const ROOTS: &str = "0\t0\t0\t0";

    #[test]
    fn an_ordinary_user_reaches_processes_with_the_same_rights() {
        let own = rights(OURS, OURS, "0000000000000000", 7);
        assert_eq!(own.refusal(&own, 0), None);
        for (users, groups, permitted, owner) in [
            ("7\t0\t0\t0", OURS, "0", 0),
            ("7\t7\t0\t7", OURS, "0", 7),
            ("7\t7\t7\t0", OURS, "0", 7),
            ("8\t8\t8\t8", OURS, "0", 8),
            (ROOTS, ROOTS, "0", 0),
            (OURS, "7\t5\t5\t5", "0", 7),
            (OURS, "5\t5\t5\t5", "0", 7),
            (OURS, OURS, "0000000000000400", 7),
            (OURS, OURS, "", 7),
            (OURS, OURS, "x", 7),
            ("7\t7\t7", OURS, "0", 7),
            ("", OURS, "0", 7),
        ] {
            let other = rights(users, groups, permitted, owner);
            assert!(other.refusal(&own, 0).is_some(), "{other:?}");
        }
        let unknown = Rights { status: String::new(), owner: 7, namespace: None };
        assert!(unknown.refusal(&own, 0).is_some());
        let elsewhere = Rights { namespace: Some(2), ..rights(OURS, OURS, "000001ffffffffff", 7) };
        assert_eq!(elsewhere.refusal(&own, 0), None, "they are for its own namespace");
        assert!(Rights { namespace: None, ..elsewhere }.refusal(&own, 0).is_some(), "perhaps they are not");
        let ambient = rights(OURS, OURS, "0000000000000400", 7);
        assert_eq!(ambient.refusal(&ambient, 0), None, "as all of this user's");
        assert!(is_above_us(i32::MAX), "no such process");
        assert!(!is_above_us(std::process::id() as i32));
    }

    #[test]
    fn root_reaches_processes_that_gave_up_rights_for_good() {
        let root = rights(ROOTS, ROOTS, "000001ffffffffff", 0);
        assert_eq!(root.refusal(&root, 0), None);
        let dropped = rights(OURS, OURS, "0", 7);
        assert_eq!(dropped.refusal(&root, 0), None);
        for other in [
            rights("7\t0\t0\t0", OURS, "0", 0),
            rights("7\t0\t0\t0", OURS, "0", 7),
            rights("0\t7\t0\t7", OURS, "0", 7),
            rights("7\t7\t0\t7", OURS, "0", 7),
            rights(OURS, "7\t0\t0\t0", "0", 7),
        ] {
            assert!(other.refusal(&root, 0).is_some(), "setuid or setgid: {other:?}");
        }
        assert!(rights(OURS, OURS, "0", 0).refusal(&root, 0).unwrap().contains("looked into"));
        let confined = rights(ROOTS, ROOTS, "00000000a80425fb", 0);
        assert!(root.refusal(&confined, 0).is_some(), "more capabilities than this container's");
    }

    #[test]
    fn traced_and_filtered_processes_are_left_alone() {
        let own = rights(OURS, OURS, "0", 7);
        let traced = changed(&own, "TracerPid:\t0", "TracerPid:\t9");
        assert_eq!((traced.number("TracerPid:"), traced.number("Nothing:")), (Some(9), None));
        assert!(traced.refusal(&own, 0).unwrap().contains("traced"));
        assert!(traced.refusal(&own, 8).is_some());
        assert_eq!(traced.refusal(&own, 9), None);
        for (from, to) in [("Seccomp_filters:\t1", "Seccomp_filters:\t2"), ("Seccomp:\t2", "Seccomp:\t1")] {
            assert!(changed(&own, from, to).refusal(&own, 0).unwrap().contains("seccomp"));
        }
    }
}
