//! The control thread's end of the connection between a forking process and its child: see
//! `doorway`'s module of the same name.

use std::mem::size_of;
use std::os::fd::IntoRawFd;
use std::os::unix::process::parent_id;

use sys::{packets, process};

pub use doorway::channel::{COMPLETE, INHERITS, ROOT, SWAP, TAKE};

const WORDS: usize = 512;
const _: () = assert!(pager::COPIED_MAX + 1 < WORDS);

/// A message: a word and its arguments.
#[repr(C, align(16))]
pub struct Message {
    words: [u64; WORDS],
    count: usize,
    /// Descriptors that came with it, -1 for none.
    pub descriptors: [i32; 2],
}

impl Message {
    pub fn word(&self) -> u64 {
        self.words[0]
    }

    pub fn rest(&self) -> &[u64] {
        &self.words[1..self.count.max(1)]
    }
}

/// Takes over this side's end of a connection that `thread` made: descriptor `number` in that
/// thread's file table, with socket cookie `cookie`. Before Linux 6.9 the first thread's table is
/// looked at, which is usually the same; the cookie tells.
pub fn take(thread: u32, number: i32, cookie: u64) -> Option<i32> {
    let own = || process::handle(std::process::id() as i32);
    let handle = process::thread_handle(thread as i32).or_else(|_| own()).ok()?;
    let end = process::descriptor_of(&handle, number).ok()?.into_raw_fd();
    if cookie_of(end) == Some(cookie) {
        return Some(end);
    }
    close(end);
    None
}

fn cookie_of(end: i32) -> Option<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let at = std::ptr::from_mut(&mut cookie).cast();
    // SAFETY: `len` bytes are writable.
    let answer = unsafe { libc::getsockopt(end, libc::SOL_SOCKET, libc::SO_COOKIE, at, &mut len) };
    (answer == 0).then_some(cookie)
}

pub fn close(connection: i32) {
    // SAFETY: closing a number is memory-safe.
    unsafe { libc::close(connection) };
}

/// Sends a word, its arguments, and two descriptors or none. Returns false if the peer has ended.
pub fn send(connection: i32, word: u64, rest: &[u64], descriptors: Option<[i32; 2]>) -> bool {
    let descriptors = descriptors.as_ref().map_or(&[][..], |both| &both[..]);
    // SAFETY: plain numbers.
    let rest = unsafe { std::slice::from_raw_parts(rest.as_ptr().cast::<u8>(), size_of_val(rest)) };
    packets::send(connection, &[&word.to_ne_bytes(), rest], descriptors).is_ok()
}

/// Waits for a message. Returns `None` when the peer has ended.
pub fn receive(connection: i32) -> Option<Message> {
    let mut message = Message { words: [0; WORDS], count: 0, descriptors: [-1; 2] };
    // SAFETY: plain numbers, any bytes are valid.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(message.words.as_mut_ptr().cast::<u8>(), size_of::<[u64; WORDS]>())
    };
    let len = loop {
        match packets::receive(connection, bytes) {
            Ok((len, descriptors)) => {
                message.descriptors = descriptors;
                break len;
            }
            // The peer closed its end with unread messages. The kernel reports this once, before
            // the messages that the peer sent.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNRESET | libc::EINTR)) => {}
            Err(_) => return None,
        }
    };
    message.count = len / 8;
    (message.count > 0).then_some(message)
}

/// In a forked child: as [`receive`], and returns `None` when the parent has ended.
pub fn receive_from_parent(connection: i32) -> Option<Message> {
    let before = parent_id();
    // A child of a bare fork may hold the parent's end too, if forked while both ends were open.
    loop {
        // Read before the wait: a message that the parent sent before its end counts.
        let is_orphan = parent_id() != before;
        if wait([connection, -1, -1, -1], 1000)[0] {
            return receive(connection);
        }
        if is_orphan {
            return None;
        }
    }
}

/// Waits until one of `descriptors` is readable, at most `timeout_ms`. Ignores descriptors of -1.
pub fn wait(descriptors: [i32; 4], timeout_ms: i32) -> [bool; 4] {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: four valid entries.
    unsafe { libc::poll(polled.as_mut_ptr(), 4, timeout_ms) };
    polled.map(|entry| entry.revents != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorway::channel::BACK;

    /// The two ends of a connection.
    fn ends() -> [i32; 2] {
        packets::pair().expect("two descriptors").map(IntoRawFd::into_raw_fd)
    }

    /// A connection: this end, and the other, taken from a thread with its own file table.
    fn connection() -> [i32; 2] {
        let ends = ends();
        let taken = take(sys::thread::id() as u32, ends[1], cookie_of(ends[1]).unwrap()).expect("its own");
        close(ends[1]);
        [ends[0], taken]
    }

    /// With a name, strangers could connect to the end, and then no thread of the process could.
    #[test]
    fn an_end_is_taken_out_of_another_file_table_and_has_no_name() {
        let ends = ends();
        let (thread, cookie) = (sys::thread::id() as u32, cookie_of(ends[1]).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sys::thread::leave_file_table().unwrap();
                sys::thread::close_all_files();
                assert_eq!(take(thread, ends[1], cookie + 1), None);
                assert_eq!(take(thread, i32::MAX, cookie), None);
                let own = take(thread, ends[1], cookie).expect("it is there");
                assert!(send(own, TAKE, &[], None));
                let mut address = [0u8; size_of::<libc::sockaddr_un>()];
                let mut len = address.len() as libc::socklen_t;
                // SAFETY: `len` bytes are writable.
                unsafe { libc::getsockname(own, address.as_mut_ptr().cast(), &mut len) };
                assert_eq!(len as usize, size_of::<libc::sa_family_t>());
            });
        });
        assert_eq!(receive(ends[0]).map(|message| message.word()), Some(TAKE));
        ends.into_iter().for_each(close);
    }

    #[test]
    fn words_addresses_and_descriptors_cross_and_ends_are_noticed() {
        let [client, server] = connection();
        assert!(send(client, TAKE, &[], None));
        assert_eq!(receive(server).unwrap().word(), TAKE);
        assert!(send(server, INHERITS, &[5, 6, 7], Some([1, 2])));
        let message = receive_from_parent(client).unwrap();
        assert_eq!((message.word(), message.rest()), (INHERITS, [5, 6, 7].as_slice()));
        assert!(message.descriptors.iter().all(|number| *number > 2), "duplicates in this table");
        message.descriptors.into_iter().for_each(close);
        assert_eq!(wait([-1, server, client, -1], 0), [false; 4]);
        // Closing an end with unread messages keeps the messages that it sent.
        let [hasty, other] = connection();
        assert!(send(hasty, BACK, &[], None) && send(other, COMPLETE, &[], None));
        close(other);
        assert_eq!(receive(hasty).unwrap().word(), COMPLETE);
        assert!(receive_from_parent(hasty).is_none());
        close(hasty);
        close(client);
        assert_eq!(wait([-1, server, -1, -1], 0), [false, true, false, false]);
        assert!(receive(server).is_none() && !send(server, TAKE, &[], None));
        close(server);
    }
}
