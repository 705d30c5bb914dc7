//! Identifies the process at the other end of a connection.
//!
//! Every process of the machine can find the supervisor's address. The kernel tells which belong to
//! the tree: a connection names its process by a pidfd, and each process has a parent. For a
//! process of the tree the chain of parents ends at this process, because orphans become its
//! children. Since Linux 6.13 a pidfd reports its process's parent, users and groups
//! (PIDFD_GET_INFO). Before, /proc does; its number belongs to the pidfd's process if that has not
//! been waited for afterwards.

pub mod blocking;
pub mod connections;
pub mod lending;
pub mod looks;

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use sys::{packets, process};

use crate::run::tree::attach::{program_of, runs_setuid_program, FileId, Root};
use crate::stat::Stat;

/// Maximum length of the chain of parents.
pub const DEPTH_MAX: usize = 4096;
/// Retries when a parent changes.
const TRIES: usize = 16;
const NAME: &CStr = c"uzswap-serve";

/// Why a connection is closed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its process does not belong to this tree.
    Stranger,
    /// Its process has ended and cannot be identified.
    Gone,
    /// This process may not have more descriptors.
    NoDescriptors,
}

/// The process that made a connection.
#[derive(Debug)]
pub struct Peer {
    /// Its process id here; it may be in another process namespace.
    pub pid: i32,
    handle: OwnedFd,
    /// The effective user of the connecting thread at that time.
    user: u32,
}

/// Real, effective and saved users and groups of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub users: [u32; 3],
    groups: [u32; 3],
}

impl Ids {
    /// Returns whether there is one user and one group, as without setuid programs.
    pub fn agree(&self) -> bool {
        [self.users, self.groups].iter().all(|[real, effective, saved]| real == effective && real == saved)
    }

    /// The ids of an ordinary process of that user.
    #[cfg(test)]
    pub fn of_user(user: u32) -> Ids {
        Ids { users: [user; 3], groups: [user; 3] }
    }

    /// Parses the text of /proc/PID/status.
    pub fn of(status: &str) -> Option<Ids> {
        let three = |name: &str| -> Option<[u32; 3]> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let mut words = line.split_ascii_whitespace().map(|word| word.parse().ok());
            Some([words.next()??, words.next()??, words.next()??])
        };
        Some(Ids { users: three("Uid:")?, groups: three("Gid:")? })
    }
}

/// Owner of a ledger and a swap file: the users of a process. One that may be root belongs to root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner([u32; 3]);

impl Owner {
    pub fn of(ids: &Ids) -> Owner {
        let mut users = ids.users;
        users.sort_unstable();
        if users[0] == 0 {
            return Owner([0; 3]);
        }
        // The order of two users does not matter.
        if users[1] == users[2] {
            users[1] = users[0];
        }
        Owner(users)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, second, third] = self.0;
        write!(formatter, "user {first}")?;
        for other in [second, third].into_iter().filter(|other| *other != first) {
            write!(formatter, " and {other}")?;
        }
        Ok(())
    }
}

impl Peer {
    /// Identifies the process that made this connection, if it belongs to the tree.
    pub fn of(socket: i32, family: &Family, is_member: impl Fn(i32) -> bool) -> Result<Peer, Refusal> {
        let (pid, user) = packets::peer(socket).filter(|(pid, _)| *pid > 0).ok_or(Refusal::Stranger)?;
        let handle = packets::peer_handle(socket, pid).map_err(|error| refusal(&error))?;
        let peer = Peer { pid, handle, user };
        match family.has(pid, &peer.handle, is_member)? {
            true => Ok(peer),
            false if peer.is_there() => Err(Refusal::Stranger),
            false => Err(Refusal::Gone),
        }
    }

    /// Returns whether the process was not waited for, so that reads of /proc were about it.
    pub fn is_there(&self) -> bool {
        process::is_there(&self.handle)
    }

    /// Ends the process.
    pub fn kill(&self) {
        let _ = process::signal(&self.handle, libc::SIGKILL);
    }

    /// Returns its present ids; `None` if it has ended or has more rights than when it connected.
    pub fn ids(&self) -> Option<Ids> {
        let ids = match process::info(&self.handle) {
            Ok(info) => Ids { users: info.users, groups: info.groups },
            Err(error) if is_unknown(&error) => {
                let status = read(&format!("/proc/{}/status", self.pid))?;
                Ids::of(&status).filter(|_| self.is_there())?
            }
            Err(_) => return None,
        };
        // The pager's threads keep rights that the program has dropped since.
        (self.user == 0 || self.user == ids.users[1]).then_some(ids)
    }

    /// Returns whether a process has the same ids.
    pub fn is_same_user_as(&self, pid: i32) -> bool {
        let other = read(&format!("/proc/{pid}/status")).and_then(|status| Ids::of(&status));
        other.is_some() && self.ids() == other
    }

    /// Returns the owner of its ledger and swap file. `None` without [`ids`](Self::ids), or if only
    /// a setuid program, maybe executed after it shared its connection, makes it root.
    pub fn owner(&self) -> Option<Owner> {
        let ids = self.ids()?;
        let is_right = self.user == 0
            || !ids.users.contains(&0)
            // The second read detects an exec in between.
            || !runs_setuid_program(self.pid) && self.ids() == Some(ids);
        is_right.then(|| Owner::of(&ids))
    }
}

fn refusal(error: &io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Refusal::NoDescriptors,
        Some(libc::ESRCH) => Refusal::Gone,
        _ => Refusal::Stranger,
    }
}

pub struct Family {
    root: Root,
    /// The file of this program: other supervisors run it too, and have their own trees.
    program: Option<FileId>,
}

impl Family {
    pub fn new(root: Root) -> Family {
        Family { root, program: program_of("self") }
    }

    /// Returns whether a process descends from the root or an `is_member`, whose number is its own.
    fn has(&self, pid: i32, handle: &OwnedFd, is_member: impl Fn(i32) -> bool) -> Result<bool, Refusal> {
        for _ in 0..TRIES {
            if let Some(has) = self.walk(pid, handle, &is_member)? {
                return Ok(has);
            }
        }
        Ok(false)
    }

    /// As [`has`](Self::has). `None` if an ancestor ended during the walk: its children then have
    /// another parent.
    fn walk(
        &self,
        pid: i32,
        handle: &OwnedFd,
        is_member: &impl Fn(i32) -> bool,
    ) -> Result<Option<bool>, Refusal> {
        let (mut pid, mut held) = (pid, None);
        for _ in 0..DEPTH_MAX {
            if Some(pid) == self.root.except() || pid == self.root.pid() {
                break;
            }
            let parent = self.parent(pid, held.as_ref().unwrap_or(handle))?;
            match parent {
                None if held.is_some_and(|held| !process::is_there(&held)) => return Ok(None),
                None => break,
                Some((parent, None)) => return Ok(Some(parent == self.root.pid() && self.root.is_there())),
                Some((parent, _)) if self.is_supervisor(parent) => break,
                Some((parent, _)) if is_member(parent) => return Ok(Some(true)),
                Some((parent, handle)) => (pid, held) = (parent, handle),
            }
        }
        Ok(Some(false))
    }

    /// Returns the parent of process `pid` with its handle; no handle for the root.
    fn parent(&self, pid: i32, handle: &OwnedFd) -> Result<Option<(i32, Option<OwnedFd>)>, Refusal> {
        for _ in 0..TRIES {
            let parent = parent_of(pid, handle).filter(|parent| *parent > 0);
            let Some(parent) = parent else { return Ok(None) };
            if parent == self.root.pid() {
                return Ok(process::is_there(handle).then_some((parent, None)));
            }
            match process::handle(parent) {
                // It is still the parent, so the number was its own when the handle was opened.
                Ok(opened) if parent_of(pid, handle) == Some(parent) => {
                    return Ok(process::is_there(handle).then_some((parent, Some(opened))));
                }
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(refusal(&error)),
            }
        }
        Ok(None)
    }

    /// Returns whether a process supervises its own run. Other commands may be members.
    fn is_supervisor(&self, pid: i32) -> bool {
        self.program.is_some() && program_of(&pid.to_string()) == self.program && has_supervisor_name(pid)
    }
}

pub fn take_name() {
    // SAFETY: a NUL-terminated string of fewer than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
}

/// Returns whether a process has the name of supervisors, which any program may take.
pub fn has_supervisor_name(pid: i32) -> bool {
    let name = fs::read(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.strip_suffix(b"\n") == Some(NAME.to_bytes()))
}

/// Returns whether the kernel lacks the request.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL))
}

/// Returns the parent of process `pid`. /proc counts only if the process exists afterwards.
fn parent_of(pid: i32, handle: &OwnedFd) -> Option<i32> {
    match process::info(handle) {
        Ok(info) => Some(info.parent),
        Err(error) if is_unknown(&error) => Stat::of(pid as u32).map(|stat| stat.parent as i32),
        Err(_) => None,
    }
}

fn read(path: &str) -> Option<String> {
    let mut buffer = [0; 4096];
    let got = File::open(path).ok()?.read(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..got]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    use crate::run::testing::{shell_with_child, stop};

    fn child(program: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn is_ours(family: &Family, pid: i32) -> bool {
        let handle = process::handle(pid).unwrap();
        family.has(pid, &handle, |_| false).unwrap()
    }

    #[test]
    fn descendants_are_told_from_others() {
        let family = Family::new(Root::own(None));
        let (sleeping, (shell, grandchild)) = (child("sleep", &["60"]), shell_with_child());
        let grandchild = grandchild as i32;
        assert!(is_ours(&family, sleeping.id() as i32) && is_ours(&family, grandchild));
        let guarded = Family::new(Root::own(Some(sleeping.id() as i32)));
        assert!(!is_ours(&guarded, sleeping.id() as i32), "the guardian is none of the tree");
        // Process 1, this process's parent and this process do not belong to the tree.
        // SAFETY: takes nothing.
        for other in [1, unsafe { libc::getppid() }, std::process::id() as i32] {
            assert!(!is_ours(&family, other), "{other}");
        }
        // A descendant of a member, for a supervisor that is no longer an ancestor.
        let elsewhere = Family::new(Root::below(i32::MAX));
        let handle = process::handle(grandchild).unwrap();
        let parent = shell.id() as i32;
        assert!(!elsewhere.has(grandchild, &handle, |_| false).unwrap());
        assert!(elsewhere.has(grandchild, &handle, |pid| pid == parent).unwrap());
        // The parent ends while its own parent is looked for; the next one counts.
        let shell = std::cell::Cell::new(Some(shell));
        let has = elsewhere.has(grandchild, &handle, |_| shell.take().map(stop).is_none());
        assert!(has.unwrap());
        // SAFETY: a process of this test, whose parent has not waited for it.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };
        stop(sleeping);
    }

    #[test]
    fn a_supervisor_is_told_from_other_commands_of_its_program() {
        let folder = std::env::temp_dir().join(format!("uzswap-peers-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let link = folder.join(NAME.to_str().unwrap());
        std::os::unix::fs::symlink("/bin/cat", &link).unwrap();
        // Processes are named after the executed path. They wait for input.
        let (named, other) = (child(link.to_str().unwrap(), &[]), child("/bin/cat", &[]));
        let family = Family { program: program_of(&named.id().to_string()), ..Family::new(Root::own(None)) };
        assert!(family.is_supervisor(named.id() as i32) && !family.is_supervisor(other.id() as i32));
        assert!(!Family::new(Root::own(None)).is_supervisor(named.id() as i32), "it runs another program");
        [named, other].into_iter().for_each(stop);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_dead_process_s_number_proves_nothing() {
        let family = Family::new(Root::own(None));
        let mut gone = child("true", &[]);
        let handle = process::handle(gone.id() as i32).unwrap();
        gone.wait().unwrap();
        // The next process with this number would be a child, too.
        let next = child("sleep", &["60"]);
        assert!(!family.has(next.id() as i32, &handle, |_| false).unwrap());
        stop(next);
    }

    #[test]
    fn a_connection_is_one_of_the_tree_or_not() {
        let [one, _other] = packets::pair().unwrap();
        let socket = std::os::fd::AsRawFd::as_raw_fd(&one);
        let own = std::process::id() as i32;
        assert_eq!(Peer::of(socket, &Family::new(Root::own(None)), |_| false).err(), Some(Refusal::Stranger));
        // SAFETY: takes nothing.
        let above = Family { root: Root::below(unsafe { libc::getppid() }), program: None };
        let peer = Peer::of(socket, &above, |_| false).unwrap();
        assert_eq!(peer.pid, own);
        // SAFETY: takes nothing.
        assert_eq!(peer.ids().unwrap().users[1], unsafe { libc::geteuid() });
        let another = Peer { user: 77, ..peer };
        assert_eq!(another.ids(), None, "who connected as another user has gained rights since");
    }

    /// A process that can become root again connects as another user.
    #[test]
    fn root_s_ledger_is_for_those_that_were_root_when_they_connected() {
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 {
            testkit::skip!("root", "only root can run a program as another user");
            return;
        }
        let folder = std::env::temp_dir().join(format!("uzswap-owner-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let program = folder.join("cat");
        testkit::copy_program("/bin/cat", &program);
        let became = |user: u32| {
            let mut command = Command::new(&program);
            // SAFETY: a call that is permitted between fork and exec. After setting another user, a
            // program that is not setuid has that user as its saved one.
            unsafe {
                use std::os::unix::process::CommandExt;
                command.pre_exec(move || match libc::setresuid(0, user, user) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                })
            };
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let pid = child.id() as i32;
            (child, Peer { pid, handle: process::handle(pid).unwrap(), user })
        };
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        // A process that can regain root belongs to root.
        let (child, peer) = became(65534);
        assert_eq!(peer.ids().unwrap().users, [0, 65534, 65534]);
        assert_eq!(peer.owner(), Some(Owner::of(&Ids::of_user(0))));
        stop(child);
        // Only its program can make it root: no owner, unless root made its connection.
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o2755)).unwrap();
        let (child, peer) = became(65534);
        assert_eq!(peer.ids().unwrap().users, [0, 65534, 65534]);
        assert_eq!(peer.owner(), None);
        assert_eq!(Peer { user: 0, ..peer }.owner(), Some(Owner::of(&Ids::of_user(0))));
        stop(child);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Both sources, for newer and older kernels.
    #[test]
    fn proc_agrees_with_the_handle() {
        let child = child("sleep", &["60"]);
        let pid = child.id() as i32;
        let handle = process::handle(pid).unwrap();
        let status = read(&format!("/proc/{pid}/status")).unwrap();
        match process::info(&handle) {
            Ok(info) => {
                assert_eq!(info.parent as u32, Stat::of(pid as u32).unwrap().parent);
                assert_eq!(Ids::of(&status), Some(Ids { users: info.users, groups: info.groups }));
            }
            Err(error) => assert!(is_unknown(&error), "{error}"),
        }
        stop(child);
    }

    #[test]
    fn owners_are_the_users_a_process_may_act_as() {
        let owner = |users| Owner::of(&Ids { users, groups: [0; 3] });
        assert_eq!(owner([5, 5, 5]), owner([5, 5, 5]));
        assert_ne!(owner([5, 5, 5]), owner([6, 6, 6]));
        for users in [[0, 0, 0], [5, 0, 0], [0, 5, 0], [0, 5, 5], [5, 5, 0]] {
            assert_eq!(owner(users), owner([0; 3]), "{users:?} may become root");
        }
        assert_eq!(owner([5, 6, 6]), owner([6, 5, 5]));
        assert_eq!(owner([5, 6, 6]), owner([5, 5, 6]));
        assert_ne!(owner([5, 6, 6]), owner([6, 6, 6]));
        assert_eq!(owner([7, 5, 6]).to_string(), "user 5 and 6 and 7");
        assert_eq!(owner([5, 5, 5]).to_string(), "user 5");
    }

    #[test]
    fn ids_are_found_behind_any_name() {
        let text = "Name:\tUid:\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n";
        let ids = Ids::of(text).unwrap();
        assert_eq!((ids.users, ids.groups, ids.agree()), ([1, 2, 3], [5, 6, 7], false));
        assert!(Ids::of("Uid:\t1\t1\t1\t1\nGid:\t2\t2\t2\t2\n").unwrap().agree());
        assert_eq!(Ids::of(""), None);
    }
}
