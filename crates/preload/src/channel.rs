//! A forking thread's end of the connection to its control thread: see `doorway`'s module of this name.

use std::mem::size_of;

pub use doorway::channel::{BACK, COMPLETE};
use sys::packets;

/// Connects to the control thread that listens at a name that the kernel chose, five characters; -1 when that is not
/// possible.
pub fn connect(name: u64) -> i32 {
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

/// Closes an end.
pub fn close(connection: i32) {
    // SAFETY: closing a number is memory-safe.
    unsafe { libc::close(connection) };
}

/// Sends a word.
pub fn send(connection: i32, word: u64) {
    // Whoever is not there any more needs no word.
    let _ = packets::send(connection, &[&word.to_ne_bytes()], &[]);
}

/// Waits for a word; `None` when the other side is gone.
pub fn receive(connection: i32) -> Option<u64> {
    let mut bytes = [0; 8];
    loop {
        match packets::receive(connection, &mut bytes) {
            Ok((len, _)) => return (len >= 8).then(|| u64::from_ne_bytes(bytes)),
            // The other side closed its end before it read everything: said once, before what it sent itself.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ECONNRESET | libc::EINTR)) => {}
            Err(_) => return None,
        }
    }
}
