//! A forking thread's end of the connection to its control thread: see `doorway::channel`.

use core::sync::atomic::Ordering;

pub use doorway::channel::{BACK, COMPLETE};
use doorway::control_page::Forks;

use crate::calls::raw_syscall;
use crate::control_page::CONTROL_PAGE;
use crate::system;

fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the functions below pass valid arguments.
    unsafe { raw_syscall(number, arguments) as isize }
}

/// Takes the end that the agent offers out of its file table. `None` if there is none, or if
/// pidfd_getfd(2) is refused.
pub fn take(forks: &Forks) -> Option<i32> {
    let offered = forks.offered.load(Ordering::Acquire);
    let agent = CONTROL_PAGE.agent.load(Ordering::Acquire) as usize;
    let handle = call(libc::SYS_pidfd_open, [agent, 0, 0, 0, 0, 0]);
    if offered < 0 || handle < 0 {
        return None;
    }
    let end = call(libc::SYS_pidfd_getfd, [handle as usize, offered as usize, 0, 0, 0, 0]) as i32;
    system::close(handle);
    if end >= 0 && cookie(end) != forks.cookie.load(Ordering::Acquire) {
        close(end);
        return None;
    }
    (end >= 0).then_some(end)
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
