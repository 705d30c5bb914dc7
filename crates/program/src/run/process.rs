//! Starting the program.

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::signals::Signals;

/// Starts the program with the preload object; answers its process id. It keeps uzswap's terminal, process group,
/// standard descriptors and environment.
///
/// # Errors
/// What exec answered.
pub fn spawn(
    file: &Path,
    argv: &[OsString],
    socket: &str,
    object: RawFd,
    signals: &Signals,
) -> io::Result<i32> {
    let path = format!("/proc/{}/fd/{object}", std::process::id());
    let preload = match std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty()) {
        Some(list) => {
            let mut own = OsString::from(path);
            own.push(":");
            own.push(list);
            own
        }
        None => path.into(),
    };
    let mask = signals.mask_before();
    let supervisor = std::process::id() as i32;
    let mut command = Command::new(file);
    command.arg0(&argv[0]).args(&argv[1..]).env("LD_PRELOAD", preload).env("UZSWAP_SOCKET", socket);
    // SAFETY: only async-signal-safe system calls.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            // Rust ignores SIGPIPE for itself; the program shall not.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
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
