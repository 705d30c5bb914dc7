//! The guardian: a small process that outlives a killed supervisor and ends the rest of its tree.
//!
//! A process with an agent notices that its connection ends, and ends itself. Small static programs
//! and processes between fork and exec cannot. The guardian serves both:
//!
//! * It holds the preload object and the agent open, and LD_PRELOAD names its descriptors: a
//!   program that starts after the death still loads the object, which finds no supervisor and ends
//!   the process. The paths also stay valid when a forked copy of the supervisor continues to
//!   serve.
//! * At each of its looks the supervisor writes the tree's processes into shared memory. When the
//!   supervisor has been killed, the guardian stops those processes and all their descendants, and
//!   kills them when it finds no more. Agents wait a moment before they end their processes, so
//!   that parents are still there to be followed from.
//!
//! The guardian reads no process's memory, since that could block. It identifies processes by
//! pidfds, so it never touches a process with a reused number. It misses only a process without an
//! agent that lost its parent between the supervisor's last look and its death.
//!
//! It sleeps while the supervisor lives, and belongs neither to the terminal nor to the tree.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{fence, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::stat::Stat;

/// Maximum time of an exec until the loader has opened the object, on a busy machine.
const SEARCH: Duration = Duration::from_secs(2);
/// Maximum rounds of searching for descendants of a tree that forks all the time.
const ROUNDS_MAX: usize = 200;
/// Time limit for processes to stop. A process in a fork that waits for its own agent never stops.
const REST: Duration = Duration::from_millis(500);
/// The supervisor's message that its tree has ended, or may continue alone.
const GOODBYE: u8 = b'.';

/// The supervisor's side. Dropping it ends the guardian.
#[derive(Debug)]
pub struct Guardian {
    pipe: File,
    pub pid: i32,
    members: Members,
}

impl Guardian {
    /// Starts the guardian, which holds `files` open under the same numbers. Needs a single thread.
    pub fn start(files: &[RawFd]) -> io::Result<Self> {
        let members = Members::new()?;
        let (reading, writing) = io::pipe()?;
        // SAFETY: this process has one thread, so the copy is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(writing);
                guard(reading.into(), files, &members);
                // SAFETY: ends without running the supervisor's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Guardian { pipe: OwnedFd::from(writing).into(), pid, members }),
        }
    }

    /// Returns the path of a file that it holds.
    pub fn path(&self, file: RawFd) -> String {
        format!("/proc/{}/fd/{file}", self.pid)
    }

    pub fn note_members(&self, pids: &[i32]) {
        self.members.write(pids, ticks_now());
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // A supervisor that panics leaves a tree without a budget: the guardian must end it.
        if std::thread::panicking() {
            return;
        }
        let _ = self.pipe.write_all(&[GOODBYE]);
        // SAFETY: waits for a child.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// The tree's processes in shared memory: two lists. The supervisor writes the invalid one.
#[derive(Debug)]
struct Members(&'static [AtomicU32]);

impl Members {
    const MAX: usize = 1 << 16;
    /// Words of a list: the time (two words), the count, the process ids.
    const LIST: usize = 3 + Self::MAX;

    fn new() -> io::Result<Self> {
        let words = 1 + 2 * Self::LIST;
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new zeroed memory, never unmapped; its words are shared only as atomics.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), words * 4, rights, kind, -1, 0);
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            Ok(Members(std::slice::from_raw_parts(at.cast(), words)))
        }
    }

    fn list(&self, number: u32) -> &[AtomicU32] {
        &self.0[1 + (number & 1) as usize * Self::LIST..][..Self::LIST]
    }

    /// Writes the processes that existed at `ticks` since boot.
    fn write(&self, pids: &[i32], ticks: u64) {
        let next = self.0[0].load(Ordering::Relaxed) ^ 1;
        let list = self.list(next);
        let pids = &pids[..pids.len().min(Self::MAX)];
        let head = [ticks as u32, (ticks >> 32) as u32, pids.len() as u32];
        let words = head.into_iter().chain(pids.iter().map(|pid| *pid as u32));
        list.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.0[0].store(next, Ordering::Release);
    }

    fn read(&self) -> (Vec<i32>, u64) {
        let list = self.list(self.0[0].load(Ordering::Acquire));
        fence(Ordering::Acquire);
        let word = |at: usize| list[at].load(Ordering::Relaxed);
        let count = (word(2) as usize).min(Self::MAX);
        ((0..count).map(|at| word(3 + at) as i32).collect(), u64::from(word(0)) | u64::from(word(1)) << 32)
    }
}

/// The current time in the unit of process starts in /proc/PID/stat.
fn ticks_now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time; asks for a constant.
    let per_second = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now);
        libc::sysconf(libc::_SC_CLK_TCK).max(1) as u64
    };
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

fn guard(pipe: OwnedFd, files: &[RawFd], members: &Members) {
    withdraw(&pipe, files);
    let mut word = [0];
    let mut pipe = File::from(pipe);
    match pipe.read(&mut word) {
        Ok(0) => {}
        _ => return,
    }
    let begin = Instant::now();
    let (pids, ticks) = members.read();
    end(&pids, ticks);
    // Programs that start during this time load the object.
    std::thread::sleep(SEARCH.saturating_sub(begin.elapsed()));
}

/// Releases everything but the pipe and `files`: terminal, standard streams, directory, signals.
fn withdraw(pipe: &OwnedFd, files: &[RawFd]) {
    let mut kept: Vec<u32> = files.iter().chain([&pipe.as_raw_fd()]).map(|file| *file as u32).collect();
    kept.sort_unstable();
    // SAFETY: changes attributes of this process. The closed descriptors belong to structures that
    // are never used or dropped here; the standard ones are replaced first.
    unsafe {
        libc::setsid();
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"uzswap-guardian".as_ptr());
        libc::chdir(c"/".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            if !kept.contains(&standard) {
                libc::dup2(null, standard as i32);
            }
        }
        let mut from = 3;
        for file in kept.into_iter().filter(|file| *file >= 3).chain([u32::MAX]) {
            if file > from {
                libc::syscall(libc::SYS_close_range, from, file - 1, 0u32);
            }
            from = file.saturating_add(1);
        }
    }
}

/// A process by its pidfd, which stays valid when the number is reused.
struct Process(OwnedFd);

impl Process {
    fn open(pid: i32) -> Option<Self> {
        sys::process::handle(pid).ok().map(Process)
    }

    /// Sends a signal, 0 for none; returns whether the process existed.
    fn signal(&self, signal: i32) -> bool {
        sys::process::signal(&self.0, signal).is_ok()
    }
}

/// Ends the processes that existed at `ticks`, and all their descendants.
fn end(pids: &[i32], ticks: u64) {
    let mut held = HashMap::new();
    for pid in pids {
        let Some(process) = Process::open(*pid) else { continue };
        if Stat::of(*pid as u32).is_some_and(|stat| stat.started <= ticks) && process.signal(libc::SIGSTOP) {
            held.insert(*pid, process);
        }
    }
    // Wait until they have stopped and make no more children. A stopping process may be in a fork
    // whose child this would miss. When the parent is killed, the child's faults are no longer
    // served, so a child that continues reads zeroes. A fork whose report is not read, because the
    // reader has stopped, blocks until it is killed, and then has no child.
    let until = Instant::now() + REST;
    for _ in 0..ROUNDS_MAX {
        let rest = held.keys().all(|pid| is_at_rest(*pid)) || Instant::now() >= until;
        if !stop_children(&mut held) && rest {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // Kill children first: a parent may serve their faults.
    let mut held: Vec<(i32, Process)> = held.into_iter().collect();
    held.sort_by_key(|(pid, _)| std::cmp::Reverse(Stat::of(*pid as u32).map(|stat| stat.started)));
    for (_, process) in &held {
        process.signal(libc::SIGKILL);
    }
}

/// Returns whether no thread of a stopping process runs, or will before it is killed.
fn is_at_rest(pid: i32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let mut states =
        tasks.flatten().filter_map(|task| Stat::parse(&std::fs::read(task.path().join("stat")).ok()?));
    states.all(|stat| matches!(stat.state, b'T' | b't' | b'Z' | b'X'))
}

/// Stops and holds children of held processes; returns whether there were any.
fn stop_children(held: &mut HashMap<i32, Process>) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found = false;
    for pid in numbers {
        let has_held = |stat: &Stat| held.contains_key(&(stat.parent as i32));
        if held.contains_key(&(pid as i32)) || !Stat::of(pid).as_ref().is_some_and(has_held) {
            continue;
        }
        let Some(process) = Process::open(pid as i32) else { continue };
        // Re-read through the open pidfd: the parent must still be the held process.
        let Some(stat) = Stat::of(pid) else { continue };
        let parent = held.get(&(stat.parent as i32));
        if parent.is_some_and(|parent| parent.signal(0)) && process.signal(libc::SIGSTOP) {
            held.insert(pid as i32, process);
            found = true;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use crate::run::testing::{shell_with_child, stop};

    #[test]
    fn lists_are_read_whole() {
        let members = Members::new().unwrap();
        assert_eq!(members.read(), (Vec::new(), 0));
        members.write(&[7, 8], 1 << 40);
        assert_eq!(members.read(), (vec![7, 8], 1 << 40));
        members.write(&[9], 5);
        assert_eq!(members.read(), (vec![9], 5));
        let many: Vec<i32> = (0..Members::MAX as i32 + 5).collect();
        members.write(&many, 6);
        assert_eq!(members.read().0, many[..Members::MAX]);
    }

    #[test]
    fn time_is_as_starts_of_processes() {
        assert!(Stat::of(std::process::id()).unwrap().started <= ticks_now());
    }

    #[test]
    fn members_and_their_descendants_are_ended_and_no_other_process() {
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let (mut shell, grandchild) = shell_with_child();
        let (mut member, mut innocent, mut younger) = (sleep(), sleep(), sleep());
        let pids = [&shell, &member].map(|child| child.id() as i32);
        // A number that belonged to another process at that time.
        let start = Stat::of(younger.id()).unwrap().started;
        end(&[younger.id() as i32], start - 1);
        end(&pids, ticks_now());
        for child in [&mut shell, &mut member] {
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        let state = || std::fs::read_to_string(format!("/proc/{grandchild}/stat"));
        while state().is_ok_and(|text| !text.contains(") Z ")) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!([&mut innocent, &mut younger].into_iter().all(|child| child.try_wait().unwrap().is_none()));
        [innocent, younger].into_iter().for_each(stop);
    }
}
