//! The activity of a program's threads, from /proc: those of the calling process, or of another
//! with the same memory.

use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::directory;
use crate::procfs::{self, behind_name};

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Running, ready to run, or in a sleep that no signal ends: in user mode or in any call.
    Running {
        /// Its time in user mode so far.
        user_ticks: u64,
    },
    /// In a sleep that a signal ends, or stopped: in no call that removes memory.
    Elsewhere,
}

/// The process whose threads this module looks at, if it is not the calling one: its process id,
/// and its number in /proc.
static PROGRAM: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

/// Looks from now on at the threads of another process, which has this one's memory and ends with
/// it: its process id, and its number in /proc.
pub fn look_at(process: i32, number: i32) {
    PROGRAM[0].store(process, Ordering::Release);
    PROGRAM[1].store(number, Ordering::Release);
}

/// The number in /proc of the process whose threads this module looks at, if it is another one.
pub fn program() -> Option<i32> {
    Some(PROGRAM[1].load(Ordering::Acquire)).filter(|process| *process != 0)
}

/// The process id of the process whose threads this module looks at.
pub(crate) fn process() -> i32 {
    match PROGRAM[0].load(Ordering::Acquire) {
        0 => std::process::id() as i32,
        process => process,
    }
}

/// Ends the process whose threads this module looks at, if it is another one.
pub(crate) fn end_program() {
    match PROGRAM[0].load(Ordering::Acquire) {
        0 => {}
        // SAFETY: takes numbers.
        process => _ = unsafe { libc::kill(process, libc::SIGKILL) },
    }
}

/// The ids of the program's threads; none once it has ended.
///
/// # Errors
/// If they cannot be listed, for want of a descriptor.
fn all() -> io::Result<Vec<i32>> {
    let path = program().map_or("/proc/self/task".into(), |process| format!("/proc/{process}/task"));
    match directory::names(Path::new(&path)) {
        Ok(names) => Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Calls `each` with the id of every thread of the program. Returns false without a descriptor.
#[must_use]
pub fn for_each(each: impl FnMut(i32)) -> bool {
    all().map(|threads| threads.into_iter().for_each(each)).is_ok()
}

/// Whether a thread of the program satisfies `is_wanted`; true if they cannot be listed.
pub fn any(is_wanted: impl Fn(i32) -> bool) -> bool {
    all().map_or(true, |threads| threads.into_iter().any(is_wanted))
}

/// Address of a thread's list of robust mutexes, in its control block; `None` without one.
pub fn robust_list(thread: i32) -> Option<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: both are writable.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &mut head, &mut len) };
    (result == 0 && head != 0).then_some(head)
}

/// Number of threads of the program.
pub fn count() -> Option<u32> {
    let mut buffer = [0; 1024];
    let stat = match program() {
        Some(process) => procfs::read_of(process, "stat", &mut buffer),
        None => procfs::read(c"/proc/self/stat", &mut buffer),
    };
    let count = behind_name(stat.ok()?)?.nth(17).and_then(number);
    count
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

/// The calling thread's number, as [`for_each`] reports it.
pub fn own() -> i32 {
    let path = std::fs::read_link("/proc/thread-self").ok();
    let name = path.as_ref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    name.and_then(|name| name.parse().ok()).unwrap_or_else(crate::thread::id)
}

/// The state of thread `thread` of the program, or `None` if it has ended or is a zombie. A thread
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
    see(stat).unwrap_or(Some(Sight::Running { user_ticks: 0 }))
}

/// The outer `None` means unexpected text.
fn see(stat: &[u8]) -> Option<Option<Sight>> {
    // State is the first field, utime the twelfth.
    let mut fields = behind_name(stat)?;
    let state = fields.next()?;
    let user_ticks = number(fields.nth(10)?)?;
    Some(match state {
        b"Z" | b"X" => None,
        // The calls that remove memory wait for locks and for userfaultfds without regard to
        // signals, and a thread stops on its way to user mode.
        b"S" | b"T" | b"t" => Some(Sight::Elsewhere),
        _ => Some(Sight::Running { user_ticks }),
    })
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

/// The mremap() that blocks a thread of the program, if it enlarges a mapping.
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
