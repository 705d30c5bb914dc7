//! Capabilities that the file of this program gives an ordinary user (setcap(8)).
//!
//! The kernel reports forks by a userfaultfd only if the process that agrees on its features has
//! CAP_SYS_PTRACE. That capability also opens every process of the machine, so it stays in a helper
//! process that can do nothing else. The helper has one descriptor (a socket), runs under a seccomp
//! filter of seven system calls, and is not dumpable. It takes a userfaultfd and a set of features,
//! and returns the kernel's result. This process gives up all capabilities before it reads an
//! argument and is an ordinary process of its user from then on. It restores the environment it was
//! started with, from which the loader removed the variables that matter to a privileged program.

use std::ffi::OsStr;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sys::capabilities;
use sys::packets;
use sys::privileged::{PrivilegedFile, PrivilegedHelper};
use sys::userfaultfd::{feature, Userfaultfd, UFFDIO_API};

const LINK: &[u8] = b"anon_inode:[userfaultfd]";
/// Timeout of a request, which is one system call. The helper is not asked again afterwards.
const PATIENCE: Duration = Duration::from_secs(2);

/// The helper, as seen by this process and its forked copies.
#[derive(Debug)]
struct Helper {
    socket: Mutex<UnixStream>,
    pid: i32,
}

static HELPER: OnceLock<Helper> = OnceLock::new();
static BY_REQUEST: &dyn PrivilegedHelper = &Asked;

/// Gives up the capabilities of this program's file, and starts the helper if they include
/// CAP_SYS_PTRACE. Must be called first, while the process has one thread.
pub fn give_up() -> std::io::Result<()> {
    if !capabilities::are_of_file() {
        return Ok(());
    }
    if capabilities::has(capabilities::SYS_PTRACE) {
        if let Ok(helper) = start() {
            let _ = HELPER.set(helper);
            sys::privileged::set(&BY_REQUEST);
        }
    }
    // This process maps accelerator portals to measure; under `run` the program's file decides.
    let is_run = std::env::args_os().nth(1).is_some_and(|verb| verb == "run" || verb == "attach");
    capabilities::keep_only(if is_run { &[] } else { &[capabilities::SYS_RAWIO] })?;
    // Programs open files by way of this process's descriptors.
    // SAFETY: changes an attribute of this process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    restore_environment();
    Ok(())
}

pub fn helper() -> Option<i32> {
    HELPER.get().map(|helper| helper.pid)
}

/// Ends the helper, of which a program executed by this process knows nothing.
pub fn end_helper() {
    if let Some(helper) = HELPER.get() {
        let socket = helper.socket.lock().unwrap_or_else(PoisonError::into_inner);
        // It ends when its socket does.
        let _ = socket.shutdown(Shutdown::Both);
        // SAFETY: waits for a child of this process.
        unsafe { libc::waitpid(helper.pid, std::ptr::null_mut(), 0) };
    }
}

/// Returns whether the kernel reports forks of programs: this process or its helper may request it.
pub fn reports_forks() -> bool {
    helper().is_some() || capabilities::has(capabilities::SYS_PTRACE)
}

/// Agrees on features for another process, which sent the descriptor, possibly of another kind.
pub fn agree(descriptor: i32, features: u64) -> bool {
    // The helper closes the received descriptor, and this thread waits for it.
    if !is_userfaultfd(descriptor) {
        return false;
    }
    match HELPER.get() {
        Some(helper) => helper.agree(descriptor, features),
        None => Userfaultfd::from_descriptor(descriptor).agree(features).is_ok(),
    }
}

/// Restores the variables that the loader removes from a program with more rights than its user.
fn restore_environment() {
    for entry in std::fs::read("/proc/self/environ").unwrap_or_default().split(|byte| *byte == 0) {
        let Some(at) = entry.iter().position(|byte| *byte == b'=').filter(|at| *at > 0) else { continue };
        let (name, value) = (OsStr::from_bytes(&entry[..at]), OsStr::from_bytes(&entry[at + 1..]));
        if std::env::var_os(name).is_none() {
            std::env::set_var(name, value);
        }
    }
}

struct Asked;

impl PrivilegedHelper for Asked {
    fn open(&self, _what: PrivilegedFile) -> Option<i32> {
        None
    }

    fn agree(&self, userfaultfd: i32, features: u64) -> bool {
        agree(userfaultfd, features)
    }
}

impl Helper {
    fn agree(&self, descriptor: i32, features: u64) -> bool {
        let Ok(socket) = self.socket.lock() else { return false };
        let mut answer = [0; 4];
        let answered = packets::send(socket.as_raw_fd(), &[&features.to_le_bytes()], &[descriptor])
            .and_then(|()| packets::receive(socket.as_raw_fd(), &mut answer));
        match answered {
            Ok((4, _)) => answer == [0; 4],
            Ok(_) => false,
            // Stop using the socket: a late reply would be taken for the next one.
            Err(_) => {
                let _ = socket.shutdown(Shutdown::Both);
                false
            }
        }
    }
}

fn start() -> std::io::Result<Helper> {
    let [ours, its] = packets::pair()?;
    let ours = UnixStream::from(ours);
    ours.set_read_timeout(Some(PATIENCE))?;
    // SAFETY: this process has one thread, so the copy is whole.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            if confine(its.as_raw_fd()).is_ok() {
                help();
            }
            // SAFETY: ends without running this program's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(Helper { socket: Mutex::new(ours), pid }),
    }
}

/// Reduces the helper to its socket, as descriptor 0, and CAP_SYS_PTRACE.
fn confine(socket: i32) -> std::io::Result<()> {
    capabilities::keep_only(&[capabilities::SYS_PTRACE])?;
    // SAFETY: changes attributes and descriptors of this process only, and this copy of the program
    // uses none of those descriptors any more.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::prctl(libc::PR_SET_NAME, c"uzswap-lender".as_ptr());
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        if libc::dup2(socket, 0) < 0 || libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    filter()
}

/// Allows only the system calls of [`help`]. Any other ends the process.
fn filter() -> std::io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Offsets in `struct seccomp_data`: call number, architecture, low half of argument 2.
    const NUMBER_AT: u32 = 0;
    const MACHINE_AT: u32 = 4;
    const SECOND_AT: u32 = 24;
    /// AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 (linux/audit.h).
    const MACHINE: u32 = if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e };
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let calls = [
        libc::SYS_recvmsg,
        libc::SYS_sendmsg,
        libc::SYS_readlinkat,
        libc::SYS_close,
        libc::SYS_exit_group,
        libc::SYS_restart_syscall,
    ];
    let mut program = vec![
        step(LOAD, MACHINE_AT, 0, 0),
        step(IS, MACHINE, 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        step(LOAD, NUMBER_AT, 0, 0),
    ];
    for call in calls {
        program.push(step(IS, call as u32, 0, 1));
        program.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    program.extend([
        step(IS, libc::SYS_ioctl as u32, 0, 3),
        step(LOAD, SECOND_AT, 0, 0),
        step(IS, UFFDIO_API as u32, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
    ]);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program has the given length; the kernel copies it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) == 0
    };
    installed.then_some(()).ok_or_else(std::io::Error::last_os_error)
}

/// The helper's loop, until all other ends of its socket are closed. Allocates nothing.
fn help() {
    let known = feature::NAMES.iter().fold(0, |all, (bit, _)| all | bit);
    let mut word = [0; 8];
    while let Ok((len, descriptors)) = packets::receive(0, &mut word) {
        if len == 0 {
            return;
        }
        let features = u64::from_le_bytes(word);
        let [sent, more] = descriptors;
        let is_fit = len == word.len() && features & !known == 0 && more < 0 && is_userfaultfd(sent);
        let error = match is_fit.then(|| Userfaultfd::from_descriptor(sent).agree(features)) {
            Some(Ok(())) => 0,
            Some(Err(error)) => error.raw_os_error().unwrap_or(libc::EINVAL),
            None => libc::EINVAL,
        };
        for descriptor in descriptors.into_iter().filter(|descriptor| *descriptor >= 0) {
            // SAFETY: received just now.
            unsafe { libc::close(descriptor) };
        }
        if packets::send(0, &[&error.to_le_bytes()], &[]).is_err() {
            return;
        }
    }
}

/// Returns whether a descriptor of this process is a userfaultfd, without touching it.
pub fn is_userfaultfd(descriptor: i32) -> bool {
    let (mut path, mut link) = ([0u8; 32], [0u8; 32]);
    if descriptor < 0 || write!(&mut path[..], "/proc/self/fd/{descriptor}\0").is_err() {
        return false;
    }
    let (from, to) = (path.as_ptr(), link.as_mut_ptr());
    // SAFETY: a NUL-terminated path, and a buffer of the given length.
    let len = unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, from, to, link.len()) };
    usize::try_from(len).is_ok_and(|len| &link[..len] == LINK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{FromRawFd, OwnedFd};

    /// Runs in a process of its own: a live fork would share pages that other tests move.
    #[test]
    fn the_helper_agrees_on_userfaultfds_alone() {
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", "rights::tests::agrees_on_userfaultfds_alone", "--ignored", "--nocapture"]);
        assert!(own.status().unwrap().success());
    }

    #[test]
    #[ignore = "run by the test above, in a process of its own"]
    fn agrees_on_userfaultfds_alone() {
        if !capabilities::has(capabilities::SYS_PTRACE) {
            testkit::skip!("capability", "CAP_SYS_PTRACE is not there");
            return;
        }
        // A copy of a process with several threads. Its filter allocates once.
        let helper = start().unwrap();
        let zero = File::open("/dev/zero").unwrap();
        assert!(!helper.agree(zero.as_raw_fd(), feature::EVENT_FORK));
        // SAFETY: takes numbers.
        let raw = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
        if raw < 0 {
            testkit::skip!("userfaultfd", "no userfaultfd here");
            return;
        }
        // SAFETY: opened just now.
        let userfaultfd = unsafe { OwnedFd::from_raw_fd(raw) };
        assert!(is_userfaultfd(raw) && !is_userfaultfd(zero.as_raw_fd()) && !is_userfaultfd(-1));
        assert!(!helper.agree(raw, 1 << 63), "a feature that is not known");
        assert!(helper.agree(raw, feature::EVENT_FORK));
        assert!(!helper.agree(raw, feature::EVENT_FORK), "once");
        let status = std::fs::read_to_string(format!("/proc/{}/status", helper.pid)).unwrap();
        let word = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        assert_eq!((word("CapPrm:"), word("CapEff:")), ("0000000000080000", "0000000000080000"));
        assert_eq!((word("Seccomp:"), word("NoNewPrivs:")), ("2", "1"));
        let pid = helper.pid;
        drop((helper, userfaultfd));
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "it ends with its socket");
    }
}
