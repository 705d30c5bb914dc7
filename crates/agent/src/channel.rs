//! The control thread's end of the connection between a forking process and its child: see
//! `doorway`'s module of this name.

use std::mem::size_of;

use sys::packets;

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

/// Listens; returns the descriptor and the name that the kernel chose, five characters.
pub fn listen() -> Option<(i32, u64)> {
    let listener = packets::socket().ok()?;
    // SAFETY: all zeroes is a valid address; the lengths are those of the structure and its family.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let family = size_of::<libc::sa_family_t>();
        let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let at = std::ptr::from_mut(&mut address).cast();
        let is_bound = libc::bind(listener, at, family as libc::socklen_t) == 0
            && libc::listen(listener, 8) == 0
            && libc::getsockname(listener, at, &mut len) == 0
            && len as usize == family + 6
            && libc::fcntl(listener, libc::F_SETFL, libc::O_NONBLOCK) == 0;
        if !is_bound {
            libc::close(listener);
            return None;
        }
        let name = address.sun_path[1..6].iter().fold(0, |name, byte| name << 8 | *byte as u8 as u64);
        Some((listener, name))
    }
}

/// Accepts the connection of a thread of this process, if there is one; others' are closed.
pub fn accept(listener: i32) -> Option<i32> {
    loop {
        // SAFETY: accepts without an address.
        let connection = unsafe {
            libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        if connection < 0 {
            return None;
        }
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the structure is as long as said.
        let own = unsafe {
            let at = std::ptr::from_mut(&mut peer).cast();
            libc::getsockopt(connection, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len) == 0
                && peer.pid == libc::getpid()
        };
        if own {
            return Some(connection);
        }
        close(connection);
    }
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

    /// Connects to a control thread of this process; -1 when that is not possible.
    fn connect(name: u64) -> i32 {
        let Ok(connection) = packets::socket() else { return -1 };
        // SAFETY: all zeroes is a valid address, whose length is given.
        unsafe {
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            for (at, byte) in address.sun_path[1..6].iter_mut().enumerate() {
                *byte = (name >> (8 * (4 - at))) as u8 as libc::c_char;
            }
            let len = (size_of::<libc::sa_family_t>() + 6) as libc::socklen_t;
            if libc::connect(connection, std::ptr::from_ref(&address).cast(), len) != 0 {
                libc::close(connection);
                return -1;
            }
        }
        connection
    }

    #[test]
    fn words_addresses_and_descriptors_cross_and_ends_are_noticed() {
        let (listener, name) = listen().unwrap();
        assert_eq!(accept(listener), None);
        let client = connect(name);
        assert!(client >= 0);
        let server = accept(listener).expect("this process's own");
        assert!(send(client, TAKE, &[], None));
        assert_eq!(receive(server).unwrap().word(), TAKE);
        assert!(send(server, INHERITS, &[5, 6, 7], Some([1, 2])));
        let message = receive(client).unwrap();
        assert_eq!((message.word(), message.rest()), (INHERITS, [5, 6, 7].as_slice()));
        assert!(message.descriptors.iter().all(|number| *number > 2), "duplicates in this table");
        message.descriptors.into_iter().for_each(close);
        assert_eq!(wait([-1, server, client, -1], 0), [false; 4]);
        // An end that is closed before everything was read does not take along what it sent.
        let hasty = connect(name);
        let other = accept(listener).expect("this process's own");
        assert!(send(hasty, BACK, &[], None) && send(other, COMPLETE, &[], None));
        close(other);
        assert_eq!(receive(hasty).unwrap().word(), COMPLETE);
        assert!(receive(hasty).is_none());
        close(hasty);
        close(client);
        assert_eq!(wait([-1, server, -1, -1], 0), [false, true, false, false]);
        assert!(receive(server).is_none() && !send(server, TAKE, &[], None));
        close(server);
        close(listener);
        assert_eq!(connect(name), -1);
    }
}
