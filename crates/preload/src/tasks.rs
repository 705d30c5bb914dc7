//! The threads of this process: the program's and the agent's.

use core::sync::atomic::AtomicU32;

use crate::desk::is_alive;
use crate::line::Line;
use crate::system;

/// What the names of the agent's threads begin with.
const PREFIX: &[u8] = b"uzswap";
/// How long a thread is given to make a call where /proc does not tell.
const UNSEEN_NS: u64 = 2_000_000;

/// How many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The agent's.
    pub agents: u64,
    /// All of them.
    pub all: u64,
}

/// Counts them; `None` where /proc does not tell.
pub fn count() -> Option<Count> {
    let directory = system::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY);
    if directory < 0 {
        return None;
    }
    let own = system::process_id() as u32;
    let mut count = Count { agents: 0, all: 0 };
    let mut entries = [0u8; 256];
    loop {
        let entries = match system::read_directory(directory, &mut entries) {
            0 => break,
            len => &entries[..len],
        };
        for_each_number(entries, |thread| {
            count.all += 1;
            // The first is the program's, whatever its name.
            count.agents += u64::from(thread != own && is_agents(thread));
        });
    }
    system::close(directory);
    (count.all > 0).then_some(count)
}

/// Waits until a thread has ended.
pub fn wait_for_end(thread: u32) {
    while let file @ 0.. = open(thread, "comm") {
        system::close(file);
        system::yield_now();
    }
}

/// Waits until a thread of the agent's, which is about to make a call, is blocked in it; not if the agent has ended.
pub fn wait_for_call(thread: u32) {
    let file = open(thread, "syscall");
    if file < 0 {
        // Nothing tells. It is a few instructions.
        system::wait(&AtomicU32::new(0), 0, UNSEEN_NS);
        return;
    }
    let mut call = [0u8; 1];
    // "running", or the number of a call.
    while is_alive() && system::read_at(file, &mut call, 0) == 1 && !call[0].is_ascii_digit() {
        system::yield_now();
    }
    system::close(file);
}

fn is_agents(thread: u32) -> bool {
    let file = open(thread, "comm");
    if file < 0 {
        return false;
    }
    let mut name = [0u8; 16];
    let len = system::read_at(file, &mut name, 0);
    system::close(file);
    name[..len.min(name.len())].starts_with(PREFIX)
}

/// Opens a file about a thread of this process; negative when there is none.
fn open(thread: u32, file: &str) -> isize {
    system::open(Line::new(format_args!("/proc/self/task/{thread}/{file}")).as_c_str(), libc::O_RDONLY)
}

/// Calls `each` with the entries of a directory (`struct linux_dirent64` of getdents64(2)) that are numbers.
fn for_each_number(mut entries: &[u8], mut each: impl FnMut(u32)) {
    /// Number and offset, then this length, the type, and the name.
    const LEN: usize = 16;
    const NAME: usize = 19;
    while entries.len() > NAME {
        let len = usize::from(u16::from_ne_bytes([entries[LEN], entries[LEN + 1]]));
        let Some((entry, rest)) = entries.split_at_checked(len.max(NAME)) else { return };
        let name = entry[NAME..].split(|byte| *byte == 0).next().unwrap_or(&[]);
        if let Some(number) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
            each(number);
        }
        entries = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_and_ours_are_told_by_their_names() {
        let before = count().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let named = std::thread::Builder::new().name("uzswap-trial".to_owned());
        let thread = named
            .spawn(move || {
                tell.send(system::thread_id()).unwrap();
                let _ = ends.recv();
            })
            .unwrap();
        let number = told.recv().unwrap();
        assert!(is_agents(number));
        let now = count().unwrap();
        // Other tests' threads come and go.
        assert!(now.agents > before.agents && now.all > now.agents, "{before:?} {now:?}");
        drop(end);
        thread.join().unwrap();
        wait_for_end(number);
        assert!(!is_agents(number));
    }
}
