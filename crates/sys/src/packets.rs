//! Packets with descriptors over SOCK_SEQPACKET unix sockets, without allocation.

use std::io;
use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::{checked, done};

/// Most descriptors in a packet.
pub const DESCRIPTORS_MAX: usize = 2;
const PARTS_MAX: usize = 2;

/// Room for descriptors in a received packet; the kernel closes further ones.
const DESCRIPTORS_TAKEN: usize = 8;
/// Bytes of two control messages: the sender, and descriptors.
const fn control_bytes(descriptors: usize) -> usize {
    (16 + 16) + (16 + descriptors * 4)
}
const CONTROL_BYTES: usize = control_bytes(DESCRIPTORS_TAKEN);

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);
const _: () = assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());

/// A new socket, closed on exec.
///
/// # Errors
/// If no descriptor is left.
pub fn socket() -> io::Result<i32> {
    // SAFETY: takes no pointers.
    checked(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })
}

/// Two new connected sockets, closed on exec.
///
/// # Errors
/// If no descriptors are left.
pub fn pair() -> io::Result<[OwnedFd; 2]> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    done(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: both were just opened.
    Ok(ends.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }))
}

/// Sends at most two parts as one packet, with up to [`DESCRIPTORS_MAX`] descriptors. Never raises
/// SIGPIPE.
///
/// # Errors
/// EPIPE or ECONNRESET if the peer has ended.
pub fn send(socket: i32, parts: &[&[u8]], descriptors: &[i32]) -> io::Result<()> {
    assert!(parts.len() <= PARTS_MAX && descriptors.len() <= DESCRIPTORS_MAX);
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
    for (vector, part) in vectors.iter_mut().zip(parts) {
        *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    }
    // SAFETY: all zeroes is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = parts.len() as _;
    let mut control = Control([0; CONTROL_BYTES]);
    if !descriptors.is_empty() {
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the control buffer is aligned and has room for the descriptors.
        unsafe { attach(&mut header, descriptors) };
    }
    // SAFETY: the header names valid buffers, which are only read.
    checked(unsafe { libc::sendmsg(socket, &header, libc::MSG_NOSIGNAL) }).map(|_| ())
}

/// Fills a header's control buffer with descriptors.
///
/// # Safety
/// The buffer is aligned and has room for them.
unsafe fn attach(header: &mut libc::msghdr, descriptors: &[i32]) {
    let bytes = size_of_val(descriptors);
    // SAFETY: the caller's promise.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(bytes as u32) as _;
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
        libc::CMSG_DATA(message).copy_from_nonoverlapping(descriptors.as_ptr().cast(), bytes);
    }
}

/// A received packet's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The packet's bytes, 0 at the end of the connection.
    pub len: usize,
    /// The first descriptors, the caller's, closed on exec; -1 for none. Further ones are closed.
    pub descriptors: [i32; DESCRIPTORS_MAX],
    /// The sending process, on a socket that asks for senders (see [`ask_for_senders`]).
    pub sender: Option<i32>,
    /// Descriptors were lost because of this process's limit.
    pub lacks_descriptors: bool,
    /// Descriptors were lost, for that reason or because there were too many.
    pub is_cut: bool,
}

/// Receives a packet into `buffer`.
///
/// # Errors
/// EAGAIN if a non-blocking socket has none; ECONNRESET, once, if the peer left packets unread.
pub fn receive_all(socket: i32, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, buffer, DESCRIPTORS_TAKEN, 0)
}

/// Reads the next packet and leaves it in the queue, to be [dropped](drop_next). The descriptors
/// are duplicates: when the kernel closes those without room, it does not close the last reference,
/// which could take as long as the sender likes. For a socket that asks for senders.
///
/// # Errors
/// As [`receive_all`].
pub fn peek(socket: i32, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, buffer, DESCRIPTORS_MAX, libc::MSG_PEEK)
}

/// Drops the packet that was [read](peek).
///
/// # Errors
/// As [`receive_all`].
pub fn drop_next(socket: i32) -> io::Result<()> {
    // SAFETY: receives no byte.
    checked(unsafe { libc::recv(socket, std::ptr::null_mut(), 0, 0) }).map(|_| ())
}

fn receive_with(socket: i32, buffer: &mut [u8], room: usize, flags: i32) -> io::Result<Received> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all zeroes is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    let control = &mut control.0[..control_bytes(room)];
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len() as _;
    // SAFETY: the header names valid buffers.
    let got = checked(unsafe { libc::recvmsg(socket, &mut header, libc::MSG_CMSG_CLOEXEC | flags) })?;
    let mut received = Received {
        len: got as usize,
        descriptors: [-1; DESCRIPTORS_MAX],
        sender: None,
        lacks_descriptors: false,
        is_cut: false,
    };
    let mut count = 0;
    // SAFETY: the kernel filled the control buffer with whole messages up to msg_controllen.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&header);
        while !message.is_null() {
            let data = libc::CMSG_DATA(message);
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    count = ((*message).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<i32>();
                    for number in 0..count {
                        let descriptor = data.cast::<i32>().add(number).read_unaligned();
                        match received.descriptors.get_mut(number) {
                            Some(place) => *place = descriptor,
                            None => {
                                libc::close(descriptor);
                            }
                        }
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    let sender = data.cast::<libc::ucred>().read_unaligned();
                    received.sender = Some(sender.pid).filter(|pid| *pid > 0);
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(&header, message);
        }
    }
    // The kernel stops at the first descriptor without room in the buffer or this process's table.
    received.is_cut = header.msg_flags & libc::MSG_CTRUNC != 0;
    received.lacks_descriptors = received.is_cut && count < room;
    Ok(received)
}

/// Receives a packet into `buffer`. Returns its length, 0 at the end of the connection, and its
/// descriptors, -1 for none. The caller owns them; they are closed on exec.
///
/// # Errors
/// As [`receive_all`].
pub fn receive(socket: i32, buffer: &mut [u8]) -> io::Result<(usize, [i32; DESCRIPTORS_MAX])> {
    receive_all(socket, buffer).map(|received| (received.len, received.descriptors))
}

/// Makes the kernel name the sender of each packet that `socket`, or a socket accepted from it,
/// receives.
///
/// # Errors
/// If `socket` is not a unix socket.
pub fn ask_for_senders(socket: i32) -> io::Result<()> {
    let on = 1i32;
    let (value, len) = (std::ptr::from_ref(&on).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: `value` has `len` bytes.
    done(unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, value, len) })
}

/// Whether a descriptor is a SOCK_SEQPACKET unix socket.
pub fn is_packet_socket(descriptor: i32) -> bool {
    let is = |option, expected| {
        let (mut found, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
        let value = std::ptr::from_mut(&mut found).cast();
        // SAFETY: `value` has `len` bytes.
        unsafe {
            libc::getsockopt(descriptor, libc::SOL_SOCKET, option, value, &mut len) == 0 && found == expected
        }
    };
    is(libc::SO_DOMAIN, libc::AF_UNIX) && is(libc::SO_TYPE, libc::SOCK_SEQPACKET)
}

/// The kernel's identifier of a socket, the same in every file table.
pub fn cookie(socket: i32) -> Option<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let at = std::ptr::from_mut(&mut cookie).cast();
    // SAFETY: `len` bytes are writable.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_COOKIE, at, &mut len) };
    (result == 0).then_some(cookie)
}

/// The process that connected to this socket, or the one that listened where it connected, and its
/// effective user, in the caller's numbers. `None` if the process is not in the caller's process
/// namespace or one below.
pub fn peer(socket: i32) -> Option<(i32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    let target = std::ptr::from_mut(&mut peer).cast();
    // SAFETY: room for the structure.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, target, &mut len) };
    (result == 0).then_some((peer.pid, peer.uid))
}

/// `SO_PEERPIDFD` (Linux 6.5), missing in libc.
const SO_PEERPIDFD: i32 = 77;

/// A pidfd of the process that connected to this socket, whose number was `pid`.
///
/// # Errors
/// ESRCH if the process has ended, EMFILE if no descriptor is left.
pub fn peer_handle(socket: i32, pid: i32) -> io::Result<OwnedFd> {
    let mut raw = -1i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    let target = std::ptr::from_mut(&mut raw).cast();
    // SAFETY: room for the number.
    match done(unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, target, &mut len) }) {
        // SAFETY: just opened by the kernel.
        Ok(()) => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => crate::process::handle(pid),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw_pair() -> [i32; 2] {
        pair().unwrap().map(std::os::fd::IntoRawFd::into_raw_fd)
    }

    fn close(descriptors: &[i32]) {
        for descriptor in descriptors {
            // SAFETY: descriptors of this test.
            assert_eq!(unsafe { libc::close(*descriptor) }, 0);
        }
    }

    /// Sends a byte with more descriptors than [`send`] does.
    fn send_many(socket: i32, descriptors: &[i32; 20]) {
        let mut byte = 0u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut control = [0u64; 16];
        // SAFETY: the header names valid buffers; the aligned control buffer holds 20 numbers.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            header.msg_control = control.as_mut_ptr().cast();
            attach(&mut header, descriptors);
            assert_eq!(libc::sendmsg(socket, &header, 0), 1);
        }
    }

    #[test]
    fn parts_arrive_as_one_packet_with_their_descriptors() {
        let [here, there] = raw_pair();
        let mut buffer = [0; 16];
        send(here, &[b"one ", b"two"], &[]).unwrap();
        send(here, &[b"x"], &[1]).unwrap();
        send(here, &[b"yz"], &[0, 2]).unwrap();
        assert_eq!(receive(there, &mut buffer).unwrap(), (7, [-1, -1]));
        assert_eq!(&buffer[..7], b"one two");
        let (len, one) = receive(there, &mut buffer).unwrap();
        assert!(len == 1 && one[0] > 2 && one[1] == -1, "{one:?}");
        let (len, two) = receive(there, &mut buffer).unwrap();
        assert!(len == 2 && two.iter().all(|number| *number > 2), "{two:?}");
        // SAFETY: takes no pointers.
        assert_eq!(unsafe { libc::fcntl(two[1], libc::F_GETFD) }, libc::FD_CLOEXEC);
        close(&[one[0], two[0], two[1], here]);
        assert_eq!(receive(there, &mut buffer).unwrap().0, 0, "the end");
        assert_eq!(send(there, &[b"x"], &[]).unwrap_err().raw_os_error(), Some(libc::EPIPE));
        close(&[there]);
    }

    #[test]
    fn senders_and_lost_descriptors_are_told() {
        let [here, there] = raw_pair();
        ask_for_senders(there).unwrap();
        let mut buffer = [0; 16];
        send(here, &[b"x"], &[0, 1]).unwrap();
        let received = receive_all(there, &mut buffer).unwrap();
        assert_eq!(received.sender, Some(std::process::id() as i32));
        assert!(!received.lacks_descriptors && received.descriptors.iter().all(|number| *number > 2));
        close(&received.descriptors);
        // More than fit: the caller gets some, none leaks.
        let count = std::fs::read_dir("/proc/self/fd").unwrap().count();
        send_many(here, &[0; 20]);
        let received = receive_all(there, &mut buffer).unwrap();
        assert!(received.sender.is_some(), "{received:?}");
        close(&received.descriptors);
        let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
        // Other tests open and close descriptors at the same time.
        assert!(after < count + 8, "{count} and {after} descriptors");
        close(&[here, there]);
    }

    #[test]
    fn a_packet_is_looked_at_and_dropped() {
        let [here, there] = raw_pair();
        ask_for_senders(there).unwrap();
        let mut buffer = [0; 16];
        for sent in [&[][..], &[1], &[0, 1]] {
            send(here, &[b"abc"], sent).unwrap();
            // Repeatable; each time the descriptors are new.
            for _ in 0..2 {
                let peeked = peek(there, &mut buffer).unwrap();
                assert_eq!((peeked.len, peeked.sender), (3, Some(std::process::id() as i32)));
                assert!(!peeked.is_cut && !peeked.lacks_descriptors);
                let got: Vec<i32> = peeked.descriptors.into_iter().filter(|number| *number >= 0).collect();
                assert_eq!(got.len(), sent.len());
                close(&got);
            }
            drop_next(there).unwrap();
        }
        // More than fit: the caller gets two, and is told.
        send_many(here, &[0; 20]);
        let peeked = peek(there, &mut buffer).unwrap();
        assert!(peeked.is_cut && !peeked.lacks_descriptors && peeked.sender.is_some(), "{peeked:?}");
        close(&peeked.descriptors);
        drop_next(there).unwrap();
        close(&[here]);
        assert_eq!(peek(there, &mut buffer).unwrap().len, 0, "the end");
        close(&[there]);
    }

    #[test]
    fn a_peer_is_known_by_number_and_handle() {
        let [here, there] = raw_pair();
        let own = std::process::id() as i32;
        assert_eq!(peer(here), Some((own, crate::process::own_user())));
        let handle = peer_handle(here, own).unwrap();
        assert!(crate::process::is_there(&handle));
        close(&[here, there]);
    }
}
