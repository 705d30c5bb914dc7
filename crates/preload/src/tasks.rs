//! The number of this process's threads, from /proc.

use crate::system;

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
    #[test]
    fn threads_are_counted() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || _ = ends.recv());
        assert!(super::count().unwrap() >= 2);
        drop(end);
        thread.join().unwrap();
    }
}
