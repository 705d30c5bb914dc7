//! The control thread's end of the connection between a forking process and its child: see
//! `doorway`'s module of this name.

use std::mem::size_of;

use sys::{packets, process};

pub use doorway::channel::{COMPLETE, INHERITS, ROOT, SWAP, TAKE};

const WORDS: usize = 512;
const _: () = assert!(pager::COPIED_MAX + 1 < WORDS);

/// A message: a word and what follows it.
#[repr(C, align(16))]
pub struct Message {
    words: [u64; WORDS],
    count: usize,
    /// Descriptors that came with it, -1 for none.
    pub descriptors: [i32; 2],
}

impl Message {
    /// The word.
    pub fn word(&self) -> u64 {
        self.words[0]
    }

    /// What follows it.
    pub fn rest(&self) -> &[u64] {
        &self.words[1..self.count.max(1)]
    }
}

/// Takes this side's end of a connection that thread `thread` made: it has this number in that
/// thread's file table, and the kernel calls it `cookie`.
pub fn take(thread: u32, number: i32, cookie: u64) -> Option<i32> {
    let end = process::descriptor_of(thread, number).ok()?;
    let (mut found, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let at = std::ptr::from_mut(&mut found).cast();
    // SAFETY: the number is as long as said.
    let answer = unsafe { libc::getsockopt(end, libc::SOL_SOCKET, libc::SO_COOKIE, at, &mut len) };
    if answer == 0 && found == cookie {
        return Some(end);
    }
    close(end);
    None
}

/// Closes an end.
pub fn close(connection: i32) {
    // SAFETY: closing a number is memory-safe.
    unsafe { libc::close(connection) };
}

/// Sends a word, what follows it, and two descriptors or none. Returns false if the peer is gone.
pub fn send(connection: i32, word: u64, rest: &[u64], descriptors: Option<[i32; 2]>) -> bool {
    let descriptors = descriptors.as_ref().map_or(&[][..], |both| &both[..]);
    // SAFETY: plain numbers.
    let rest = unsafe { std::slice::from_raw_parts(rest.as_ptr().cast::<u8>(), size_of_val(rest)) };
    packets::send(connection, &[&word.to_ne_bytes(), rest], descriptors).is_ok()
}

/// Waits for a message; `None` when the other side is gone.
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
            // The other side closed its end before it read everything: said once, before what it
            // sent itself.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNRESET | libc::EINTR)) => {}
            Err(_) => return None,
        }
    };
    message.count = len / 8;
    (message.count > 0).then_some(message)
}

/// In a forked child: waits for a message of its parent's; `None` when that has ended.
pub fn receive_from_parent(connection: i32) -> Option<Message> {
    // SAFETY: takes nothing.
    let parent = || unsafe { libc::getppid() };
    let before = parent();
    // Another child may have the parent's end, by a bare fork in the moment when there were two.
    while !wait([connection, -1, -1, -1], 1000)[0] {
        if parent() != before {
            return None;
        }
    }
    receive(connection)
}

/// Waits until one of `descriptors` has something to say, at most `timeout_ms`. Those that are -1
/// are ignored.
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

    /// A connection: the end that is here, and the one that a thread with a file table of its own
    /// took.
    fn connection() -> [i32; 2] {
        let mut ends = [-1; 2];
        // SAFETY: two numbers are written.
        let answer = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) };
        assert_eq!(answer, 0);
        let taken = take(sys::thread::id() as u32, ends[1], cookie(ends[1])).expect("this thread's own");
        close(ends[1]);
        [ends[0], taken]
    }

    fn cookie(end: i32) -> u64 {
        let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
        let at = std::ptr::from_mut(&mut cookie).cast();
        // SAFETY: the number is as long as said.
        unsafe { libc::getsockopt(end, libc::SOL_SOCKET, libc::SO_COOKIE, at, &mut len) };
        cookie
    }

    /// Strangers could connect to the name that it had, and then no thread could.
    #[test]
    fn an_end_is_taken_out_of_another_file_table_and_has_no_name() {
        let mut ends = [-1; 2];
        // SAFETY: two numbers are written.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) }, 0);
        let (thread, cookie) = (sys::thread::id() as u32, cookie(ends[1]));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sys::thread::close_all_files();
                assert_eq!(take(thread, ends[1], cookie + 1), None);
                assert_eq!(take(thread, i32::MAX, cookie), None);
                let own = take(thread, ends[1], cookie).expect("it is there");
                assert!(send(own, TAKE, &[], None));
                let mut address = [0u8; size_of::<libc::sockaddr_un>()];
                let mut len = address.len() as libc::socklen_t;
                // SAFETY: as many bytes as there are.
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
        // An end that is closed before everything was read does not take along what it sent.
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
