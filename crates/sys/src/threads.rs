//! The activity of the calling process's threads, from /proc.

use std::path::Path;
use std::str::FromStr;

use crate::directory;
use crate::procfs::{self, behind_name};

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Ready to run or running: in user mode or in any call.
    Running {
        /// Its time in user mode so far.
        user_ticks: u64,
    },
    /// Blocked inside madvise(), munmap() or another call that removes memory.
    Discarding {
        /// Its time in user mode so far.
        user_ticks: u64,
    },
    /// Blocked in another call, or in a page fault.
    Elsewhere,
}

/// System calls that, while blocked, may be about to discard memory.
const DISCARDING: [i64; 2] = [libc::SYS_madvise, libc::SYS_process_madvise];

/// Calls `each` with the id of every thread of this process. Returns false without a descriptor.
#[must_use]
pub fn for_each(mut each: impl FnMut(i32)) -> bool {
    let Ok(names) = directory::names(Path::new("/proc/self/task")) else { return false };
    names.iter().filter_map(|name| name.to_str()?.parse().ok()).for_each(&mut each);
    true
}

/// Address of a thread's list of robust mutexes, in its control block; `None` without one.
pub fn robust_list(thread: i32) -> Option<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: both are writable.
    let answer = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &mut head, &mut len) };
    (answer == 0 && head != 0).then_some(head)
}

/// Number of threads of this process.
pub fn count() -> Option<u32> {
    number(behind_name(procfs::read(c"/proc/self/stat", &mut [0; 1024]).ok()?)?.nth(17)?)
}

/// Whether the first thread of this process has ended while others run: its status as wait(2) would
/// return it.
///
/// Reads /proc/self, which is also right where /proc numbers processes differently from getpid().
pub fn first_has_ended() -> Option<i32> {
    let mut buffer = [0; 1024];
    let mut fields = behind_name(procfs::read(c"/proc/self/stat", &mut buffer).ok()?)?;
    (fields.next()? == b"Z").then(|| fields.last().and_then(number).unwrap_or(0))
}

/// Whether another process has the calling thread's memory; true if the kernel cannot tell.
pub fn is_memory_shared() -> bool {
    /// `KCMP_VM` of the kernel's kcmp.h.
    const MEMORY: i32 = 1;
    // The first thread may have ended, and then has no memory.
    let own = crate::thread::id();
    // SAFETY: takes no pointers.
    let compare = |pid: i32| unsafe { libc::syscall(libc::SYS_kcmp, own, pid, MEMORY, 0, 0) };
    if compare(own) != 0 {
        return true;
    }
    // SAFETY: takes nothing.
    let process = unsafe { libc::getpid() };
    let processes = directory::names(Path::new("/proc")).unwrap_or_default();
    let mut pids = processes.iter().filter_map(|name| name.to_str()?.parse().ok());
    pids.any(|pid: i32| pid != process && compare(pid) == 0)
}

/// The calling thread's number, as [`for_each`] reports it.
pub fn own() -> i32 {
    let path = std::fs::read_link("/proc/thread-self").ok();
    let name = path.as_ref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    name.and_then(|name| name.parse().ok()).unwrap_or_else(crate::thread::id)
}

/// The state of thread `thread` of this process, or `None` if it has ended or is a zombie. A thread
/// that cannot be inspected counts as running without end.
pub fn look(thread: i32) -> Option<Sight> {
    let mut buffer = [0; 1024];
    let stat = match procfs::read_of(thread, "stat", &mut buffer) {
        Ok(stat) => stat,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => return None,
        Err(_) => return Some(Sight::Running { user_ticks: 0 }),
    };
    if stat.is_empty() {
        return None;
    }
    see(thread, stat).unwrap_or(Some(Sight::Running { user_ticks: 0 }))
}

/// The outer `None` means unexpected text.
fn see(thread: i32, stat: &[u8]) -> Option<Option<Sight>> {
    // State is the first field, utime the twelfth.
    let mut fields = behind_name(stat)?;
    let state = fields.next()?;
    let user_ticks = number(fields.nth(10)?)?;
    if matches!(state, b"Z" | b"X") {
        return Some(None);
    }
    let mut buffer = [0; 256];
    let call = procfs::read_of(thread, "syscall", &mut buffer).unwrap_or(b"running");
    Some(Some(match call.split(|byte| *byte == b' ').next().and_then(number::<i64>) {
        None => Sight::Running { user_ticks },
        Some(number) if DISCARDING.contains(&number) => Sight::Discarding { user_ticks },
        Some(_) => Sight::Elsewhere,
    }))
}

/// Whether a thread of this process is blocked in a system call or has ended; `None` if unknown.
pub fn is_blocked(thread: i32) -> Option<bool> {
    let mut buffer = [0; 256];
    match procfs::read_of(thread, "syscall", &mut buffer) {
        // "running", or a call's number and arguments; -1 outside of calls.
        Ok(call) => Some(call.first().is_none_or(u8::is_ascii_digit)),
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)).then_some(true),
    }
}

/// The mremap() that blocks a thread of this process, if it enlarges a mapping.
pub fn growth(thread: i32) -> Option<Growth> {
    growth_told(procfs::read_of(thread, "syscall", &mut [0; 256]).ok()?)
}

/// Arguments of a blocked mremap(). Lengths are whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Current bytes of the mapping.
    pub old_len: usize,
    /// Requested bytes.
    pub new_len: usize,
    /// Requested address, if any.
    pub target: Option<usize>,
}

fn growth_told(call: &[u8]) -> Option<Growth> {
    let mut words = std::str::from_utf8(call).ok()?.split_ascii_whitespace();
    if words.next()?.parse() != Ok(libc::SYS_mremap) {
        return None;
    }
    let mut arguments = [0; 5];
    for argument in &mut arguments {
        *argument = usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    let [_, old_len, new_len, flags, target] = arguments;
    let whole = |len: usize| len.checked_next_multiple_of(crate::PAGE_SIZE);
    let (old_len, new_len) = (whole(old_len)?, whole(new_len)?);
    let target = (flags as i32 & libc::MREMAP_FIXED != 0).then_some(target);
    (new_len > old_len).then_some(Growth { old_len, new_len, target })
}

fn number<T: FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.trim_ascii_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    #[test]
    fn a_call_that_grows_is_told_from_others() {
        let call = |text: &str| growth_told(text.replace("mremap", &libc::SYS_mremap.to_string()).as_bytes());
        let grown = |target| Some(Growth { old_len: 0x2000, new_len: 0x5000, target });
        assert_eq!(call("mremap 0x7f0000 0x2000 0x4001 0x1 0x0 0x7ffe 0x7f11\n"), grown(None));
        assert_eq!(call("mremap 0x7f0000 0x1fff 0x5000 0x3 0x90000 0x7ffe 0x7f11\n"), grown(Some(0x90000)));
        for other in [
            "mremap 0x7f0000 0x2000 0x2000 0x3 0x90000 0x7ffe 0x7f11\n",
            "mremap 0x7f0000 0x2000 0xffffffffffffffff 0x1 0x0 0x7ffe 0x7f11\n",
            "mremap 0x7f0000 0x2000\n",
            "0 0x7f0000 0x2000 0x5000 0x1 0x0 0x7ffe 0x7f11\n",
            "running\n",
            "-1 0x7ffe 0x7f11\n",
            "",
        ] {
            assert_eq!(call(other), None, "{other}");
        }
        assert_eq!(growth_told(&[0xff, 0xfe]), None);
    }

    #[test]
    fn the_state_of_threads_is_seen() {
        if crate::is_emulated() {
            return;
        }
        let (ids, over) = ([const { AtomicI32::new(0) }; 2], AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ids[0].store(crate::thread::id(), Ordering::Release);
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            });
            scope.spawn(|| {
                ids[1].store(crate::thread::id(), Ordering::Release);
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let id = |index: usize| loop {
                match ids[index].load(Ordering::Acquire) {
                    0 => std::thread::yield_now(),
                    id => break id,
                }
            };
            let mut all = Vec::new();
            assert!(for_each(|thread| all.push(thread)));
            let stack = 0u8;
            assert!(robust_list(crate::thread::id())
                .is_some_and(|at| at.abs_diff(&raw const stack as usize) < 64 << 20));
            assert_eq!((own(), first_has_ended()), (crate::thread::id(), None));
            assert!(count().unwrap() as usize >= all.len().min(3));
            assert!(all.contains(&id(0)) && all.contains(&id(1)) && all.contains(&crate::thread::id()));
            while look(id(0)) != Some(Sight::Elsewhere) || is_blocked(id(0)) != Some(true) {
                std::thread::yield_now();
            }
            assert_eq!((is_blocked(id(1)), is_blocked(i32::MAX)), (Some(false), Some(true)));
            let Some(Sight::Running { user_ticks: before }) = look(id(1)) else { panic!("it spins") };
            loop {
                match look(id(1)) {
                    Some(Sight::Running { user_ticks }) if user_ticks > before => break,
                    Some(Sight::Running { .. }) => std::thread::yield_now(),
                    other => panic!("{other:?}"),
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(look(i32::MAX), None);
    }
}
