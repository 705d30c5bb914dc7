//! A forking thread's end of the connection to its control thread: see `doorway::channel`.

use core::sync::atomic::Ordering;

use doorway::channel::supervisor;
pub use doorway::channel::{BACK, COMPLETE};
use doorway::control_page::Forks;

use crate::calls::raw_syscall;
use crate::control_page::CONTROL_PAGE;
use crate::{environment, system};

fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the functions below pass valid arguments.
    unsafe { raw_syscall(number, arguments) as isize }
}

/// Takes the end that the agent offers. `None` if there is none or if that is refused.
pub fn take(forks: &Forks) -> Option<i32> {
    let offered = forks.offered.load(Ordering::Acquire);
    if offered < 0 {
        return None;
    }
    let expected = forks.cookie.load(Ordering::Acquire);
    let end = if forks.is_lent.load(Ordering::Relaxed) == 0 {
        from_agent(offered)
    } else {
        from_supervisor(environment::socket()?, expected)
    };
    if end >= 0 && cookie(end) != expected {
        close(end);
        return None;
    }
    (end >= 0).then_some(end)
}

/// Takes a descriptor out of the agent's file table.
fn from_agent(offered: i32) -> i32 {
    let agent = CONTROL_PAGE.agent.load(Ordering::Acquire) as usize;
    let handle = call(libc::SYS_pidfd_open, [agent, 0, 0, 0, 0, 0]);
    if handle < 0 {
        return -1;
    }
    let end = call(libc::SYS_pidfd_getfd, [handle as usize, offered as usize, 0, 0, 0, 0]) as i32;
    system::close(handle);
    end
}

/// How long the supervisor may take to answer.
const ANSWER_MS: u64 = 2000;

/// Asks the supervisor for the end with that cookie, which the agent gave it. Another listener's
/// answer has another cookie.
fn from_supervisor(name: &[u8], cookie: u64) -> i32 {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket = call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]);
    if socket < 0 {
        return -1;
    }
    // SAFETY: all zeroes is a valid address, whose first byte means an abstract name.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    address.sun_path[1..].iter_mut().zip(name).for_each(|(to, from)| *to = *from as libc::c_char);
    let len = size_of::<libc::sa_family_t>() + 1 + name.len().min(address.sun_path.len() - 1);
    let mut end = -1;
    if call(libc::SYS_connect, [socket as usize, (&raw const address).addr(), len, 0, 0, 0]) == 0 {
        let mut packet = [0u32; supervisor::PACKET_BYTES / 4];
        packet[0] = supervisor::TAKE;
        [packet[supervisor::TOKEN], packet[supervisor::TOKEN + 1]] = [cookie as u32, (cookie >> 32) as u32];
        let flags = libc::MSG_NOSIGNAL as usize;
        let bytes = supervisor::PACKET_BYTES;
        call(libc::SYS_sendto, [socket as usize, packet.as_ptr().addr(), bytes, flags, 0, 0]);
        let mut polled = libc::pollfd { fd: socket as i32, events: libc::POLLIN, revents: 0 };
        let time = [ANSWER_MS / 1000, ANSWER_MS % 1000 * 1_000_000];
        call(libc::SYS_ppoll, [(&raw mut polled).addr(), 1, time.as_ptr().addr(), 0, 0, 0]);
        end = descriptor_from(socket, &mut packet);
    }
    system::close(socket);
    end
}

/// Receives a packet that has come, and returns its descriptor, or -1 without one.
fn descriptor_from(socket: isize, packet: &mut [u32]) -> i32 {
    /// A control message with one descriptor: length, level, kind, descriptor.
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        descriptor: i32,
        padding: i32,
    }
    // SAFETY: numbers and pointers, for which zero is valid.
    let (mut control, mut header): (Control, libc::msghdr) = unsafe { core::mem::zeroed() };
    control.descriptor = -1;
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: size_of_val(packet) };
    (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), size_of::<Control>() as _);
    let flags = libc::MSG_CMSG_CLOEXEC as usize;
    let got = call(libc::SYS_recvmsg, [socket as usize, (&raw mut header).addr(), flags, 0, 0, 0]);
    let is_one = got > 0
        && (control.header.cmsg_level, control.header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    if is_one {
        control.descriptor
    } else {
        -1
    }
}

/// The kernel's identifier of an end, the same in every file table.
fn cookie(end: i32) -> u64 {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let [at, len_at] = [(&raw mut cookie).addr(), (&raw mut len).addr()];
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_COOKIE as usize);
    call(libc::SYS_getsockopt, [end as usize, level, option, at, len_at, 0]);
    cookie
}

pub fn close(connection: i32) {
    system::close(connection as isize);
}

/// Sends a word. Ignores a peer that has ended.
pub fn send(connection: i32, word: u64) {
    let bytes = word.to_ne_bytes();
    let flags = libc::MSG_NOSIGNAL as usize;
    call(libc::SYS_sendto, [connection as usize, bytes.as_ptr().addr(), bytes.len(), flags, 0, 0]);
}

/// Waits for a word. Returns `None` when the peer has ended.
pub fn receive(connection: i32) -> Option<u64> {
    let mut bytes = [0; 8];
    loop {
        let arguments = [connection as usize, bytes.as_mut_ptr().addr(), bytes.len(), 0, 0, 0];
        match call(libc::SYS_recvfrom, arguments) as i32 {
            8 => return Some(u64::from_ne_bytes(bytes)),
            // The peer closed its end with unread words. The kernel reports this once, before the
            // peer's words.
            error if error == -libc::ECONNRESET || error == -libc::EINTR => {}
            _ => return None,
        }
    }
}
