//! What the calling thread may do beyond what its user may: capabilities(7).

use std::io;

/// Looks at any process and changes it; has forks reported by a userfaultfd.
pub const SYS_PTRACE: u32 = 19;
/// Among much else, sees physical addresses.
pub const SYS_ADMIN: u32 = 21;

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// Bits 0 to 31, and those above.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn get() -> io::Result<[Sets; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both are as the kernel has them in this version.
    match unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) } {
        0 => Ok(sets),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(sets: &[Sets; 2]) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: as above.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the calling thread has a capability in effect.
pub fn has(capability: u32) -> bool {
    get().is_ok_and(|sets| sets[capability as usize / 32].effective >> (capability % 32) & 1 == 1)
}

/// Does something while the calling thread is without a capability.
///
/// # Errors
/// When that cannot be had; nothing was done then.
pub fn without<T>(capability: u32, work: impl FnOnce() -> T) -> io::Result<T> {
    let before = get()?;
    let mut less = before;
    less[capability as usize / 32].effective &= !(1 << (capability % 32));
    set(&less)?;
    let done = work();
    set(&before).map(|()| done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_away_for_a_while() {
        // SAFETY: asks for a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        if !has(SYS_ADMIN) {
            println!("skipped: {}", if is_root { "CAP_SYS_ADMIN is not there" } else { "not root" });
            return;
        }
        assert!(!without(SYS_ADMIN, || has(SYS_ADMIN)).unwrap());
        assert!(has(SYS_ADMIN));
        assert_eq!(without(SYS_ADMIN, || has(SYS_PTRACE)).unwrap(), has(SYS_PTRACE));
    }
}
