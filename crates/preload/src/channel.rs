//! A forking thread's end of the connection to its control thread: see `doorway::channel`.

pub use doorway::channel::{BACK, COMPLETE};

use crate::calls::raw_syscall;
use crate::system;

fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the functions below pass valid arguments.
    unsafe { raw_syscall(number, arguments) as isize }
}

/// The two unnamed ends of a new connection.
pub fn pair() -> Option<[i32; 2]> {
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    let mut ends = [-1; 2];
    let arguments = [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr().addr(), 0, 0];
    (call(libc::SYS_socketpair, arguments) == 0).then_some(ends)
}

/// The kernel's identifier of an end, the same in every file table.
pub fn cookie(end: i32) -> u64 {
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
