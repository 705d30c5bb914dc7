//! The threads of this process, the program's and the agent's, from /proc.

use core::sync::atomic::AtomicU32;

use crate::control_page::is_alive;
use crate::line::Line;
use crate::system;

/// The time allowed for a thread to make a call, if /proc does not show it.
const UNSEEN_NS: u64 = 2_000_000;

/// The number of threads, `None` if /proc does not show it.
pub fn count() -> Option<u64> {
    let directory = system::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY);
    if directory < 0 {
        return None;
    }
    let mut count = 0;
    let mut entries = [0u8; 256];
    loop {
        let entries = match system::read_directory(directory, &mut entries) {
            0 => break,
            len => &entries[..len],
        };
        for_each_number(entries, |_| count += 1);
    }
    system::close(directory);
    (count > 0).then_some(count)
}

pub fn wait_for_end(thread: u32) {
    // Landlock forbids no such open.
    while let file @ 0.. = open(thread, "comm", libc::O_PATH) {
        system::close(file);
        system::yield_now();
    }
}

/// Waits until an agent's thread is blocked in the call that it is about to make, or has ended.
pub fn wait_for_call(thread: u32) {
    let file = open(thread, "syscall", libc::O_RDONLY);
    if file < 0 {
        // Without /proc: the call is a few instructions away.
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

/// Opens a file about a thread of this process. Negative if there is none.
fn open(thread: u32, file: &str, flags: i32) -> isize {
    system::open(Line::new(format_args!("/proc/self/task/{thread}/{file}")).as_c_str(), flags)
}

/// Calls `each` with the numeric entries of a directory (`struct linux_dirent64` of getdents64(2)).
fn for_each_number(mut entries: &[u8], mut each: impl FnMut(u32)) {
    /// Offset of the record's length, after number and offset; then come the type and the name.
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
    fn threads_are_counted_and_their_ends_awaited() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(system::thread_id()).unwrap();
            let _ = ends.recv();
        });
        let number = told.recv().unwrap();
        assert!(count().unwrap() >= 2);
        drop(end);
        wait_for_end(number);
        assert!(open(number, "comm", libc::O_RDONLY) < 0);
        thread.join().unwrap();
    }
}
