//! The supervisor's own limits. It holds several descriptors for each process of the tree, and the
//! limit of file sizes holds for memory files, too.

use std::sync::OnceLock;

use anyhow::{bail, Result};

/// Room for the largest memory file: the ledger, the agent's program.
const FILE_BYTES: u64 = 16 << 20;

static BEFORE: OnceLock<Before> = OnceLock::new();

/// What the program gets back.
struct Before {
    descriptors: libc::rlimit,
    file_size: libc::rlimit,
    too_large: libc::sighandler_t,
}

fn limit_of(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(resource, &mut limit) };
    limit
}

fn set(resource: libc::__rlimit_resource_t, limit: &libc::rlimit) -> bool {
    // SAFETY: the structure is whole.
    unsafe { libc::setrlimit(resource, limit) == 0 }
}

/// Raises the limits as far as permitted; a write past the limit of file sizes fails and kills no
/// more. [`restore`] gives the program the old ones. Fails if memory files cannot be made.
pub fn raise() -> Result<()> {
    let before = BEFORE.get_or_init(|| Before {
        descriptors: limit_of(libc::RLIMIT_NOFILE),
        file_size: limit_of(libc::RLIMIT_FSIZE),
        // SAFETY: ignores a signal.
        too_large: unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) },
    });
    let to_hard = |limit: libc::rlimit| libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    set(libc::RLIMIT_NOFILE, &to_hard(before.descriptors));
    let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    if !set(libc::RLIMIT_FSIZE, &none) {
        set(libc::RLIMIT_FSIZE, &to_hard(before.file_size));
    }
    let limit = limit_of(libc::RLIMIT_FSIZE).rlim_cur;
    if limit < FILE_BYTES {
        bail!(
            "files may have {} KiB (ulimit -f), and the pager's memory files need {}: raise the limit, or \
             set it inside of the run, as in `uzswap run … -- sh -c 'ulimit -f 100; exec program'`",
            limit >> 10,
            FILE_BYTES >> 10
        );
    }
    Ok(())
}

pub fn descriptors() -> i32 {
    i32::try_from(limit_of(libc::RLIMIT_NOFILE).rlim_cur).unwrap_or(i32::MAX)
}

/// Restores the old limits in the child that becomes the program. Async-signal-safe.
pub fn restore() {
    let Some(before) = BEFORE.get() else { return };
    set(libc::RLIMIT_NOFILE, &before.descriptors);
    set(libc::RLIMIT_FSIZE, &before.file_size);
    // SAFETY: SIG_DFL or SIG_IGN, as the supervisor inherited it.
    unsafe { libc::signal(libc::SIGXFSZ, before.too_large) };
}
