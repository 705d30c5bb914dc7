//! Rights of the calling thread beyond its user's: capabilities(7).

use std::io;

use crate::checked;

/// Inspects and changes any process; lets a userfaultfd report forks.
pub const SYS_PTRACE: u32 = 19;
/// Among other things, maps the portals of first-generation accelerators.
pub const SYS_RAWIO: u32 = 17;
/// Among other things, shows physical addresses.
pub const SYS_ADMIN: u32 = 21;

/// `_LINUX_CAPABILITY_VERSION_3`.
pub(crate) const VERSION: u32 = 0x2008_0522;

/// Bits 0 to 31, and bits 32 to 63.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn get() -> io::Result<[Sets; 2]> {
    let (mut header, mut sets) = ([VERSION, 0], [Sets::default(); 2]);
    // SAFETY: both have this version's layout: version and thread, then the sets.
    checked(unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) }).map(|_| sets)
}

fn set(sets: &[Sets; 2]) -> io::Result<()> {
    let mut header = [VERSION, 0];
    // SAFETY: as above.
    checked(unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) }).map(|_| ())
}

/// Whether the calling thread has a capability in effect.
pub fn has(capability: u32) -> bool {
    get().is_ok_and(|sets| sets[capability as usize / 32].effective >> (capability % 32) & 1 == 1)
}

/// Whether this program's file gave capabilities to a process of an ordinary user (setcap(8)).
/// Ambient capabilities are the user's own: every program of that user has them.
pub fn are_of_file() -> bool {
    let is_root = crate::process::own_user() == 0;
    let is_ambient = |capability: u32| {
        let (ask, capability) = (libc::PR_CAP_AMBIENT_IS_SET as usize, capability as usize);
        // SAFETY: takes numbers.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, ask, capability, 0usize, 0usize) == 1 }
    };
    !is_root && get().is_ok_and(|sets| each(&sets).any(|capability| !is_ambient(capability)))
}

fn each(sets: &[Sets; 2]) -> impl Iterator<Item = u32> + '_ {
    (0..64).filter(|capability| sets[*capability as usize / 32].permitted >> (capability % 32) & 1 == 1)
}

/// Gives up all capabilities of the calling thread except `kept`, for good. The inheritable set,
/// which it may pass on to programs that request it, belongs to its user and stays.
///
/// # Errors
/// If the kernel refuses; nothing has changed then.
pub fn keep_only(kept: &[u32]) -> io::Result<()> {
    let mut sets = get()?;
    for (index, half) in sets.iter_mut().enumerate() {
        let bits = kept.iter().filter(|capability| **capability as usize / 32 == index);
        let bits = bits.fold(0, |bits, capability| bits | 1 << (capability % 32));
        half.permitted &= bits;
        half.effective = half.permitted;
    }
    set(&sets)
}

/// Runs `work` while the calling thread lacks a capability.
///
/// # Errors
/// If the capability cannot be dropped; `work` has not run then.
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
        let is_root = crate::process::own_user() == 0;
        if !has(SYS_ADMIN) {
            testkit::skip!(
                "capability",
                "{}",
                if is_root { "CAP_SYS_ADMIN is not there" } else { "not root" }
            );
            return;
        }
        assert!(!without(SYS_ADMIN, || has(SYS_ADMIN)).unwrap());
        assert!(has(SYS_ADMIN));
        assert_eq!(without(SYS_ADMIN, || has(SYS_PTRACE)).unwrap(), has(SYS_PTRACE));
    }

    #[test]
    fn rights_given_up_do_not_come_back() {
        if !has(SYS_PTRACE) {
            return testkit::skip!("capability", "CAP_SYS_PTRACE is not there");
        }
        // Capabilities belong to a thread.
        let thread = std::thread::spawn(|| {
            let before = get().unwrap();
            keep_only(&[SYS_PTRACE]).unwrap();
            let after = get().unwrap();
            assert_eq!(each(&after).collect::<Vec<_>>(), [SYS_PTRACE]);
            assert!(has(SYS_PTRACE) && !has(SYS_ADMIN));
            assert_eq!(before[0].inheritable, after[0].inheritable);
            assert!(set(&before).is_err() || each(&before).eq([SYS_PTRACE]));
            keep_only(&[]).unwrap();
            assert_eq!(each(&get().unwrap()).count(), 0);
        });
        thread.join().unwrap();
        assert!(has(SYS_PTRACE));
    }
}
