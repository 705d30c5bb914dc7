//! getppid(2): an orphan sees the parent that it would have without uzswap.
//!
//! The supervisor adopts the tree's orphans, because it must know when the tree ends. A program
//! that checks whether its parent has ended (the parent is then process 1, or another than before)
//! sees the reaper that would adopt the supervisor itself. The program that `run` started is
//! a child of the supervisor and sees it.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::calls::raw_syscall;
use crate::system;

/// The supervisor's number, the reaper's, its process namespace, and the program's number.
const VARIABLE: &CStr = c"UZSWAP_PARENT";

static SUPERVISOR: AtomicU32 = AtomicU32::new(0);
static REAPER: AtomicU32 = AtomicU32::new(0);
static NAMESPACE: AtomicU64 = AtomicU64::new(0);
static PROGRAM: AtomicU32 = AtomicU32::new(0);

/// Reads the supervisor's values. The object's constructor calls this.
pub fn prepare() {
    // SAFETY: no other thread changes the environment while constructors run.
    let Some(words) = (unsafe { system::variable(VARIABLE) }).and_then(words_of) else { return };
    SUPERVISOR.store(words[0] as u32, Ordering::Relaxed);
    REAPER.store(words[1] as u32, Ordering::Relaxed);
    NAMESPACE.store(words[2], Ordering::Relaxed);
    PROGRAM.store(words[3] as u32, Ordering::Relaxed);
}

fn words_of(text: &CStr) -> Option<[u64; 4]> {
    let mut words = text.to_str().ok()?.split(' ').map(|word| word.parse().ok());
    Some([words.next()??, words.next()??, words.next()??, words.next()??])
}

/// The parent to show.
pub fn shown() -> i32 {
    // SAFETY: takes nothing.
    let parent = unsafe { raw_syscall(libc::SYS_getppid, [0; 6]) } as i32;
    let is_supervisor = parent != 0 && parent as u32 == SUPERVISOR.load(Ordering::Relaxed);
    let is_program = || system::process_id() as u32 == PROGRAM.load(Ordering::Relaxed);
    if is_supervisor && !is_program() && is_namespace() {
        return REAPER.load(Ordering::Relaxed) as i32;
    }
    parent
}

/// Whether process numbers here are the supervisor's. Assumed without /proc.
fn is_namespace() -> bool {
    system::status(c"/proc/self/ns/pid").is_none_or(|file| file.st_ino == NAMESPACE.load(Ordering::Relaxed))
}

#[no_mangle]
pub extern "C" fn getppid() -> libc::pid_t {
    shown()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_numbers_are_read() {
        assert_eq!(words_of(c"17 1 4026531836 0000000018"), Some([17, 1, 4026531836, 18]));
        assert!([c"17 1 4026531836", c"", c"a b c d"].iter().all(|text| words_of(text).is_none()));
    }
}
