//! Files that the supervisor opens for processes of the tree that may not open them.

use std::fs::{File, OpenOptions};

use sys::capabilities;
use sys::privileged::PrivilegedFile;

use crate::run::peers::{Ids, Peer};
use crate::run::tree::attach;

/// Returns a process's users if it has no rights that this process lacks.
pub fn entitled(peer: &Peer) -> Option<Ids> {
    peer.ids().filter(|_| !attach::is_above_us(peer.pid) && peer.is_there())
}

/// Opens a file for a process that may not open it itself, if this process may.
pub fn lend(peer: &Peer, what: PrivilegedFile) -> Option<File> {
    lend_by(peer, what, || opened(what, peer.pid))
}

/// Checks the process's rights before and after: it may execute a setuid program at any moment.
fn lend_by(peer: &Peer, what: PrivilegedFile, open: impl FnOnce() -> Option<File>) -> Option<File> {
    let before = entitled(peer)?;
    if what == PrivilegedFile::Pagemap && !before.agree() {
        return None;
    }
    let opened = open()?;
    (entitled(peer)? == before).then_some(opened)
}

fn opened(what: PrivilegedFile, pid: i32) -> Option<File> {
    match what {
        PrivilegedFile::DeviceNode => OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok(),
        // A file opened with CAP_SYS_ADMIN shows physical addresses.
        PrivilegedFile::Pagemap => {
            let path = sys::procfs::path_of(pid, "pagemap")?;
            capabilities::without(capabilities::SYS_ADMIN, || File::open(path).ok()).ok()?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::peers::Family;
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    const OTHER_USER: u32 = 65534;

    #[test]
    fn a_pagemap_is_lent() {
        assert!(opened(PrivilegedFile::Pagemap, std::process::id() as i32).is_some());
    }

    /// The process executes the program between the first check and the opening.
    #[test]
    fn a_process_that_becomes_setuid_on_the_way_is_lent_nothing() {
        // SAFETY: takes nothing.
        if unsafe { libc::geteuid() } != 0 {
            testkit::skip!("root", "only root can make a setuid program");
            return;
        }
        let folder = std::env::temp_dir().join(format!("uzswap-lending-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = folder.join("cat");
        std::fs::copy("/bin/cat", &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();

        let name = ledger::wire::new_name(std::process::id(), 11);
        // SAFETY: opened for this test.
        let listener = unsafe { OwnedFd::from_raw_fd(ledger::wire::listen(name.as_bytes()).unwrap()) };
        let (go, mut may_go) = std::io::pipe().unwrap();
        let mut command = Command::new(&program);
        command.uid(OTHER_USER).gid(OTHER_USER).stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: the calls are permitted between fork and exec. The exec closes the connection.
        unsafe {
            command.pre_exec(move || {
                ledger::wire::connect(name.as_bytes())?;
                let mut byte = 0u8;
                libc::read(go.as_raw_fd(), std::ptr::from_mut(&mut byte).cast(), 1);
                Ok(())
            })
        };
        // Returns after the exec.
        let spawning = std::thread::spawn(move || command.spawn());
        let none = std::ptr::null_mut();
        // SAFETY: accepts without an address; the descriptor is new.
        let socket = unsafe { OwnedFd::from_raw_fd(libc::accept(listener.as_raw_fd(), none, none.cast())) };
        let peer = Peer::of(socket.as_raw_fd(), &Family::new(attach::Root::own(None)), |_| false).unwrap();
        assert_eq!(entitled(&peer).map(|ids| ids.users), Some([OTHER_USER; 3]));
        let open = || opened(PrivilegedFile::Pagemap, peer.pid);
        assert!(lend_by(&peer, PrivilegedFile::Pagemap, open).is_some(), "it is an ordinary process so far");
        let mut child = None;
        let lent = lend_by(&peer, PrivilegedFile::Pagemap, || {
            may_go.write_all(b"g").unwrap();
            // The program runs until its input ends.
            child = Some(spawning.join().unwrap().unwrap());
            let opened = opened(PrivilegedFile::Pagemap, peer.pid);
            let status = std::fs::read_to_string(format!("/proc/{}/status", peer.pid)).unwrap();
            if !status.contains(&format!("Uid:\t{OTHER_USER}\t0\t")) {
                testkit::skip!("root", "no setuid programs in {}", folder.display());
                return None;
            }
            assert!(opened.is_some(), "this process may open it");
            opened
        });
        assert!(lent.is_none());
        crate::run::testing::stop(child.expect("the program was executed"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
