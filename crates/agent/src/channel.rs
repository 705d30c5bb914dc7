//! The control thread's end of the connection between a forking process and its child: see
//! `doorway`'s module of the same name.

use std::mem::size_of;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use ledger::wire::{self, Kind, Packet};
use sys::packets;

use crate::control_page::control_page;
use crate::paging;
use crate::state::AGENT;

const _: () = {
    use doorway::channel::supervisor;
    assert!(supervisor::PACKET_BYTES == size_of::<Packet>() && supervisor::TAKE == Kind::Take as u32);
};

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

/// The control thread's ends of the connection that it offers, -1 for none.
pub(crate) struct Offer {
    own: AtomicI32,
    /// The one that a forking thread takes.
    other: AtomicI32,
}

impl Offer {
    pub(crate) const fn new() -> Self {
        Offer { own: AtomicI32::new(-1), other: AtomicI32::new(-1) }
    }
}

/// Offers a connection to the next fork.
pub fn offer() {
    let Ok(ends) = packets::pair() else { return };
    let [own, other] = ends.map(IntoRawFd::into_raw_fd);
    AGENT.offer.own.store(own, Ordering::Relaxed);
    AGENT.offer.other.store(other, Ordering::Relaxed);
    let forks = &control_page().forks;
    forks.cookie.store(packets::cookie(other).unwrap_or(0), Ordering::Relaxed);
    forks.offered.store(other, Ordering::Release);
    lend();
}

/// Gives the supervisor the offered end if the program may not take it: then forks can keep pages
/// out. That needs this process's connection to the supervisor.
pub fn lend() {
    const INSPECTED: i32 = 1;
    let forks = &control_page().forks;
    // SAFETY: asks for an attribute of the memory, which is the program's, too.
    let may_take = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } == INSPECTED;
    let is_lent = !may_take && {
        let (end, packet) = (AGENT.offer.other.load(Ordering::Relaxed), Packet::new(Kind::Offer, 0, 0));
        paging::accounts().is_some_and(|accounts| wire::send(accounts.socket(), &packet, Some(end)).is_ok())
    };
    forks.is_lent.store(is_lent.into(), Ordering::Relaxed);
    forks.can_keep.store((may_take || is_lent).into(), Ordering::Release);
}

/// The control thread's end of the connection whose other end a forking thread has taken, and
/// offers another one.
pub fn taken() -> Option<i32> {
    let [own, other] = [&AGENT.offer.own, &AGENT.offer.other].map(|end| end.swap(-1, Ordering::AcqRel));
    if other >= 0 {
        close(other);
    }
    offer();
    (own >= 0).then_some(own)
}

/// In a process with other descriptors: nothing is offered.
pub fn forget() {
    control_page().forks.offered.store(-1, Ordering::Release);
    [&AGENT.offer.own, &AGENT.offer.other].iter().for_each(|end| end.store(-1, Ordering::Relaxed));
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

/// In a forked child: as [`receive`], and returns `None` when the parent's agent has ended. (A
/// child of a bare fork may hold the parent's end too, if forked while both ends were open.)
pub fn receive_from_parent(connection: i32, agent: Option<&OwnedFd>) -> Option<Message> {
    loop {
        let ready = wait([connection, agent.map_or(-1, AsRawFd::as_raw_fd), -1, -1], 1000);
        // A message that the parent sent before its end counts.
        if ready[0] || ready[1] && wait([connection, -1, -1, -1], 0)[0] {
            return receive(connection);
        }
        if ready[1] {
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

    /// With a name, strangers could connect to the end.
    #[test]
    fn one_connection_at_a_time_is_offered_and_has_no_name() {
        offer();
        let forks = &control_page().forks;
        let theirs = forks.offered.load(Ordering::Relaxed);
        assert_eq!(packets::cookie(theirs), Some(forks.cookie.load(Ordering::Relaxed)));
        let mut address = [0u8; size_of::<libc::sockaddr_un>()];
        let mut len = address.len() as libc::socklen_t;
        // SAFETY: `len` bytes are writable; then duplicates the end, as pidfd_getfd(2) does.
        let kept = unsafe {
            libc::getsockname(theirs, address.as_mut_ptr().cast(), &mut len);
            libc::dup(theirs)
        };
        assert_eq!(len as usize, size_of::<libc::sa_family_t>());
        let own = taken().expect("offered");
        assert!(forks.offered.load(Ordering::Relaxed) >= 0, "the next one");
        assert!(send(kept, TAKE, &[], None));
        assert_eq!(receive(own).map(|message| message.word()), Some(TAKE));
        close(kept);
        assert!(receive(own).is_none(), "this process has closed the other end");
        close(own);
        forget();
        assert!(taken().is_none());
        forget();
    }

    #[test]
    fn words_addresses_and_descriptors_cross_and_ends_are_noticed() {
        let [client, server] = ends();
        assert!(send(client, TAKE, &[], None));
        assert_eq!(receive(server).unwrap().word(), TAKE);
        assert!(send(server, INHERITS, &[5, 6, 7], Some([1, 2])));
        let message = receive_from_parent(client, None).unwrap();
        assert_eq!((message.word(), message.rest()), (INHERITS, [5, 6, 7].as_slice()));
        assert!(message.descriptors.iter().all(|number| *number > 2), "duplicates in this table");
        message.descriptors.into_iter().for_each(close);
        assert_eq!(wait([-1, server, client, -1], 0), [false; 4]);
        // Closing an end with unread messages keeps the messages that it sent.
        let [hasty, other] = ends();
        assert!(send(hasty, BACK, &[], None) && send(other, COMPLETE, &[], None));
        close(other);
        assert_eq!(receive(hasty).unwrap().word(), COMPLETE);
        assert!(receive_from_parent(hasty, None).is_none());
        close(hasty);
        close(client);
        assert_eq!(wait([-1, server, -1, -1], 0), [false, true, false, false]);
        assert!(receive(server).is_none() && !send(server, TAKE, &[], None));
        close(server);
    }
}
