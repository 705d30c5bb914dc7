//! A thread's rights: its users, groups and capabilities.
//!
//! The kernel keeps them per thread; the C library applies changes to all threads that it knows. A
//! thread that it does not know takes them by itself ([`Credentials::take`]).

use std::ffi::CStr;
use std::io;

use crate::capabilities::VERSION;
use crate::procfs::{path_in, ProcFile};

/// Length of a status text without the list of groups, which may have 65,536 entries.
const TEXT_BYTES: usize = 4096;
const TEXT_BYTES_MAX: usize = 1 << 20;

/// A thread's rights, as /proc shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective, saved, file system.
    pub users: [u32; 4],
    /// Real, effective, saved, file system.
    pub groups: [u32; 4],
    /// Supplementary groups.
    pub others: Vec<u32>,
    /// Capabilities that executed programs may inherit.
    pub inheritable: u64,
    /// Permitted capabilities.
    pub permitted: u64,
    /// Effective capabilities.
    pub effective: u64,
    /// Capabilities that it can gain.
    pub bounding: u64,
    /// Executed programs gain no new privileges.
    pub no_new_privileges: bool,
}

impl Credentials {
    /// The rights of the program's first thread ([`crate::threads`]), and whether that thread is
    /// alive. Returns `None` if /proc does not show them.
    pub fn of_first() -> Option<(Credentials, bool)> {
        match crate::threads::program() {
            Some(process) => Self::of(process),
            None => Self::read(c"/proc/self/status"),
        }
    }

    /// The rights of another thread, and whether it is alive.
    pub fn of(thread: i32) -> Option<(Credentials, bool)> {
        Self::read(CStr::from_bytes_until_nul(&path_in(thread, "status")).ok()?)
    }

    fn read(path: &CStr) -> Option<(Credentials, bool)> {
        let file = ProcFile::open(path).ok()?;
        let mut buffer = [0; TEXT_BYTES];
        let mut told = parse(file.read_at(&mut buffer, 0));
        let mut len = TEXT_BYTES;
        while told.is_none() && len < TEXT_BYTES_MAX {
            len *= 16;
            told = parse(file.read_at(&mut vec![0; len], 0));
        }
        file.close();
        told
    }

    /// Gives these credentials to the calling thread alone. Keeps the process's dumpable flag.
    ///
    /// # Errors
    /// If the kernel refuses a part; the thread may then have any part of them.
    pub fn take(&self) -> io::Result<()> {
        let (own, _) = Credentials::of(crate::threads::own()).ok_or_else(io::Error::last_os_error)?;
        let is_dumpable = prctl(libc::PR_GET_DUMPABLE, 0);
        let taken = self.take_from(&own);
        // The kernel clears the dumpable flag of the whole process when a thread changes its user.
        if is_dumpable == 1 {
            prctl(libc::PR_SET_DUMPABLE, 1);
        }
        taken?;
        let (now, _) = Credentials::of(crate::threads::own()).ok_or_else(io::Error::last_os_error)?;
        let is_same = (now.users, now.groups, &now.others) == (self.users, self.groups, &self.others)
            && now.permitted == self.permitted
            && now.effective == self.effective;
        is_same.then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::EPERM))
    }

    fn take_from(&self, own: &Credentials) -> io::Result<()> {
        set_capabilities(own.inheritable, own.permitted, own.permitted)?;
        for capability in (0..64).filter(|bit| (own.bounding & !self.bounding) >> bit & 1 == 1) {
            prctl(libc::PR_CAPBSET_DROP, capability);
        }
        if own.others != self.others {
            call(libc::SYS_setgroups, [self.others.len(), self.others.as_ptr().addr(), 0])?;
        }
        prctl(libc::PR_SET_KEEPCAPS, 1);
        let set = |number, ids: [u32; 4]| call(number, [ids[0], ids[1], ids[2]].map(|id| id as usize));
        set(libc::SYS_setresgid, self.groups)?;
        call(libc::SYS_setfsgid, [self.groups[3] as usize, 0, 0])?;
        set(libc::SYS_setresuid, self.users)?;
        call(libc::SYS_setfsuid, [self.users[3] as usize, 0, 0])?;
        prctl(libc::PR_SET_KEEPCAPS, 0);
        set_capabilities(self.inheritable, self.permitted, self.effective)?;
        if self.no_new_privileges {
            prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
        }
        Ok(())
    }
}

/// A bare system call: the C library's functions would change other threads, too.
fn call(number: libc::c_long, arguments: [usize; 3]) -> io::Result<i64> {
    // SAFETY: the callers pass numbers, or their own memory with its length.
    crate::checked(unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) })
}

fn prctl(option: i32, argument: usize) -> i32 {
    // SAFETY: options of the calling thread and its process, given as numbers.
    unsafe { libc::prctl(option, argument, 0, 0, 0) }
}

fn set_capabilities(inheritable: u64, permitted: u64, effective: u64) -> io::Result<i64> {
    let header = [VERSION, 0];
    let half = |shift: u32| [effective, permitted, inheritable].map(|set| (set >> shift) as u32);
    let sets = [half(0), half(32)];
    call(libc::SYS_capset, [header.as_ptr().addr(), sets.as_ptr().addr(), 0])
}

/// Parses /proc/PID/status, and whether the thread is alive; `None` for truncated or other text.
fn parse(status: &[u8]) -> Option<(Credentials, bool)> {
    let text = std::str::from_utf8(behind_name(status)?).ok()?;
    let (mut found, mut seen, mut is_alive) = (Credentials::default(), 0u32, true);
    // A truncated line has no end.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let Some((name, value)) = line.split_once(':') else { continue };
        let mut numbers = value.split_ascii_whitespace().map_while(|word| word.parse::<u32>().ok());
        let set = || u64::from_str_radix(value.trim(), 16).ok();
        match name {
            "State" => is_alive = !value.trim_start().starts_with(['Z', 'X']),
            "Uid" => found.users = four(&mut numbers)?,
            "Gid" => found.groups = four(&mut numbers)?,
            "Groups" => found.others = numbers.collect(),
            "CapInh" => found.inheritable = set()?,
            "CapPrm" => found.permitted = set()?,
            "CapEff" => found.effective = set()?,
            "CapBnd" => found.bounding = set()?,
            "NoNewPrivs" => found.no_new_privileges = value.trim() != "0",
            _ => continue,
        }
        seen += 1;
    }
    const WANTED: u32 = 9;
    (seen == WANTED).then_some((found, is_alive))
}

/// The text after the first line, which has the name: any bytes but a newline.
fn behind_name(status: &[u8]) -> Option<&[u8]> {
    let end = status.iter().position(|byte| *byte == b'\n')?;
    status.starts_with(b"Name:").then(|| &status[end + 1..])
}

fn four(numbers: &mut impl Iterator<Item = u32>) -> Option<[u32; 4]> {
    Some([numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_whole_or_not_at_all() {
        let (own, is_alive) = Credentials::of(crate::threads::own()).expect("this thread");
        assert!(is_alive && own.users[1] == crate::process::own_user());
        assert!(Credentials::of(i32::MAX).is_none());
        let text =
            b"Name:\tUid:\t1 \xff\nState:\tZ (zombie)\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n\
            CapInh:\t0\nCapPrm:\tff\nCapEff:\t1\nCapBnd:\tfff\nCapAmb:\t0\nNoNewPrivs:\t1\n";
        let (read, is_alive) = parse(text).expect("whole");
        assert!(!is_alive && read.no_new_privileges);
        assert_eq!((read.users, read.groups, &*read.others), ([1, 2, 3, 4], [5, 6, 7, 8], &[9, 10][..]));
        assert_eq!((read.permitted, read.effective, read.bounding), (0xff, 1, 0xfff));
        assert!((0..text.len()).all(|len| parse(&text[..len]).is_none()));
    }

    /// Other tests' threads keep their credentials.
    #[test]
    fn one_thread_takes_the_rights_of_another() {
        if crate::process::own_user() != 0 || crate::is_emulated() {
            return testkit::skip!("root", "not root");
        }
        const SETUID: u64 = 1 << 7;
        let before = prctl(libc::PR_GET_DUMPABLE, 0);
        let (own, _) = Credentials::of(crate::threads::own()).unwrap();
        let wanted = Credentials {
            users: [65534; 4],
            groups: [65533; 4],
            others: vec![65532],
            inheritable: 0,
            permitted: own.permitted & SETUID,
            effective: 0,
            ..own.clone()
        };
        let other = wanted.clone();
        let taken = std::thread::spawn(move || {
            other.take().map(|()| Credentials::of(crate::threads::own()).unwrap().0)
        });
        assert_eq!(taken.join().unwrap().unwrap(), wanted);
        assert_eq!(Credentials::of(crate::threads::own()).unwrap().0, own);
        assert_eq!(prctl(libc::PR_GET_DUMPABLE, 0), before);
        let nothing = Credentials { permitted: 0, ..wanted.clone() };
        let refused = std::thread::spawn(move || {
            nothing.take().unwrap();
            wanted.take().is_err()
        });
        assert!(refused.join().unwrap(), "what was given up is not had again");
    }
}
