//! Starting the program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::signals::Signals;
use crate::standard;

/// What /proc shows as the target of a descriptor of the preload object.
const OBJECT_LINK: &[u8] = b"/memfd:libuzswap.so";

/// What tells the object of the limit to show.
const LIMIT_VARIABLE: &str = "UZSWAP_CGROUP_LIMIT";

/// Starts the program with the preload object at the path `object`, which finds the agent at the path `agent`; answers its process id. It keeps uzswap's terminal, process group,
/// standard descriptors and environment. It reads of `cgroup_limit_bytes` in its control group.
///
/// # Errors
/// What exec answered.
pub fn spawn(
    file: &Path,
    argv: &[OsString],
    socket: &str,
    object: &str,
    agent: &str,
    signals: &Signals,
    cgroup_limit_bytes: Option<u64>,
) -> io::Result<i32> {
    let mut preload = OsString::from(object);
    for other in other_preloads(&std::env::var_os("LD_PRELOAD").unwrap_or_default()) {
        preload.push(":");
        preload.push(other);
    }
    let mask = signals.mask_before();
    let supervisor = std::process::id() as i32;
    let mut command = Command::new(file);
    command
        .arg0(&argv[0])
        .args(&argv[1..])
        .env("LD_PRELOAD", preload)
        .env("UZSWAP_SOCKET", socket)
        .env("UZSWAP_AGENT", agent)
        // Of a uzswap that this one runs under.
        .env_remove(LIMIT_VARIABLE);
    if let Some(bytes) = cgroup_limit_bytes {
        command.env(LIMIT_VARIABLE, bytes.to_string());
    }
    // SAFETY: only async-signal-safe system calls.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            // Rust ignores SIGPIPE for itself; the program shall not.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            for descriptor in standard::closed() {
                libc::close(descriptor);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The supervisor may have died before the line above took effect.
            if libc::getppid() != supervisor {
                libc::_exit(125);
            }
            Ok(())
        });
    }
    command.spawn().map(|child| child.id() as i32)
}

/// The names in LD_PRELOAD, without the object of a uzswap that this one runs under: a program has one pager.
fn other_preloads(list: &OsStr) -> impl Iterator<Item = &OsStr> {
    let names = list.as_bytes().split(|byte| matches!(byte, b':' | b' ')).filter(|name| !name.is_empty());
    let is_object = |name: &OsStr| {
        std::fs::read_link(name).is_ok_and(|file| file.as_os_str().as_bytes().starts_with(OBJECT_LINK))
    };
    names.map(OsStr::from_bytes).filter(move |name| !is_object(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_in_ld_preload_stay() {
        // SAFETY: a terminated name.
        let object = unsafe { libc::memfd_create(super::super::OBJECT_NAME.as_ptr(), libc::MFD_CLOEXEC) };
        assert!(object >= 0);
        let list = format!("/proc/self/fd/{object}:libm.so.6 /lib/x.so:");
        let others: Vec<&OsStr> = other_preloads(OsStr::new(&list)).collect();
        assert_eq!(others, ["libm.so.6", "/lib/x.so"]);
        assert_eq!(other_preloads(OsStr::new("")).count(), 0);
        // SAFETY: opened above.
        unsafe { libc::close(object) };
    }
}
