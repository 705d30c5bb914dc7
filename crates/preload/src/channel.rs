//! A forking thread's end of the connection to its control thread: see `doorway`'s module of this
//! name.

pub use doorway::channel::{BACK, COMPLETE};

use crate::calls::raw_syscall;
use crate::system;

fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the functions below pass what the calls take.
    unsafe { raw_syscall(number, arguments) as isize }
}

/// Connects to the control thread that listens at a name that the kernel chose, five characters; -1
/// when that is not possible.
pub fn connect(name: u64) -> i32 {
    const ADDRESS_BYTES: usize = 8;
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
    let connection = call(libc::SYS_socket, [libc::AF_UNIX as usize, kind, 0, 0, 0, 0]);
    if connection < 0 {
        return -1;
    }
    // The family, a zero byte, and the name.
    let mut address = [0u8; ADDRESS_BYTES];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    address[3..].copy_from_slice(&name.to_be_bytes()[3..]);
    let arguments = [connection as usize, address.as_ptr().addr(), ADDRESS_BYTES, 0, 0, 0];
    if call(libc::SYS_connect, arguments) != 0 {
        system::close(connection);
        return -1;
    }
    connection as i32
}

/// Closes an end.
pub fn close(connection: i32) {
    system::close(connection as isize);
}

/// Sends a word. A peer that has ended needs none.
pub fn send(connection: i32, word: u64) {
    let bytes = word.to_ne_bytes();
    let flags = libc::MSG_NOSIGNAL as usize;
    call(libc::SYS_sendto, [connection as usize, bytes.as_ptr().addr(), bytes.len(), flags, 0, 0]);
}

/// Waits for a word; `None` when the other side is gone.
pub fn receive(connection: i32) -> Option<u64> {
    let mut bytes = [0; 8];
    loop {
        let arguments = [connection as usize, bytes.as_mut_ptr().addr(), bytes.len(), 0, 0, 0];
        match call(libc::SYS_recvfrom, arguments) as i32 {
            8 => return Some(u64::from_ne_bytes(bytes)),
            // The other side closed its end before it read everything: said once, before what it
            // sent itself.
            error if error == -libc::ECONNRESET || error == -libc::EINTR => {}
            _ => return None,
        }
    }
}
