//! The threads of this process: the program's and the agent's.

use crate::line::Line;
use crate::system;

/// What the names of the agent's threads begin with.
const NAME: &[u8] = b"uzswap";

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
    let mut entries = [0u8; 2048];
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

/// Whether a thread has not ended.
pub fn is_there(thread: u32) -> bool {
    let file =
        system::open(Line::new(format_args!("/proc/self/task/{thread}/comm")).as_c_str(), libc::O_RDONLY);
    if file >= 0 {
        system::close(file);
    }
    file >= 0
}

fn is_agents(thread: u32) -> bool {
    let file =
        system::open(Line::new(format_args!("/proc/self/task/{thread}/comm")).as_c_str(), libc::O_RDONLY);
    if file < 0 {
        return false;
    }
    let mut name = [0u8; 16];
    let len = system::read_at(file, &mut name, 0);
    system::close(file);
    name[..len.min(name.len())].starts_with(NAME)
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
        assert!(is_there(number));
        let now = count().unwrap();
        // Other tests' threads come and go.
        assert!(now.agents > before.agents && now.all > now.agents, "{before:?} {now:?}");
        drop(end);
        thread.join().unwrap();
        while is_there(number) {
            std::thread::yield_now();
        }
    }
}
