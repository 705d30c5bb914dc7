//! Packets over SOCK_SEQPACKET unix sockets, with descriptors. Plain system calls without allocation.

use std::io;
use std::mem::size_of;

/// Most descriptors that a packet brings.
pub const DESCRIPTORS_MAX: usize = 2;
const PARTS_MAX: usize = 2;

/// Room for more descriptors than are expected: what a sender adds is closed, not lost.
#[repr(C, align(8))]
struct Control([u8; 64]);
const _: () = assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());

/// A new socket, closed on exec.
///
/// # Errors
/// When there is no descriptor left.
pub fn socket() -> io::Result<i32> {
    // SAFETY: takes no pointers.
    match unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        descriptor => Ok(descriptor),
    }
}

/// Sends the parts, at most two, as one packet, with up to [`DESCRIPTORS_MAX`] descriptors. Never raises SIGPIPE.
///
/// # Errors
/// EPIPE or ECONNRESET when the other side is gone.
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
    let mut control = Control([0; 64]);
    if !descriptors.is_empty() {
        let bytes = size_of_val(descriptors);
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the control buffer is aligned and has room for the descriptors.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(bytes as u32) as _;
            let message = libc::CMSG_FIRSTHDR(&header);
            (*message).cmsg_level = libc::SOL_SOCKET;
            (*message).cmsg_type = libc::SCM_RIGHTS;
            (*message).cmsg_len = libc::CMSG_LEN(bytes as u32) as _;
            libc::CMSG_DATA(message).copy_from_nonoverlapping(descriptors.as_ptr().cast(), bytes);
        }
    }
    // SAFETY: the header names valid buffers, which are only read.
    match unsafe { libc::sendmsg(socket, &header, libc::MSG_NOSIGNAL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Receives a packet into `buffer`; answers its length, 0 at the end of the connection, and the descriptors that came
/// with it, -1 for none. They are the caller's, closed on exec.
///
/// # Errors
/// EAGAIN on a non-blocking socket without packets; ECONNRESET, once, when the other side closed its end before it had
/// read everything.
pub fn receive(socket: i32, buffer: &mut [u8]) -> io::Result<(usize, [i32; DESCRIPTORS_MAX])> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; 64]);
    // SAFETY: all zeroes is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    // SAFETY: the header names valid buffers.
    let got = unsafe { libc::recvmsg(socket, &mut header, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut descriptors = [-1; DESCRIPTORS_MAX];
    // SAFETY: the kernel filled the control buffer as far as msg_controllen says; one message of descriptors is all that
    // it can bring, since nothing else is asked for.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(&header);
        if !message.is_null()
            && (*message).cmsg_level == libc::SOL_SOCKET
            && (*message).cmsg_type == libc::SCM_RIGHTS
        {
            let count = ((*message).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<i32>();
            let first = libc::CMSG_DATA(message).cast::<i32>();
            for number in 0..count {
                let descriptor = first.add(number).read_unaligned();
                match descriptors.get_mut(number) {
                    Some(place) => *place = descriptor,
                    None => {
                        libc::close(descriptor);
                    }
                }
            }
        }
    }
    Ok((got as usize, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [i32; 2] {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
        ends
    }

    fn close(descriptors: &[i32]) {
        for descriptor in descriptors {
            // SAFETY: descriptors of this test.
            assert_eq!(unsafe { libc::close(*descriptor) }, 0);
        }
    }

    #[test]
    fn parts_arrive_as_one_packet_with_their_descriptors() {
        let [here, there] = pair();
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
}
