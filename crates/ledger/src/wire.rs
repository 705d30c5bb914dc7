//! Packets between a process and its supervisor, over a SOCK_SEQPACKET unix socket with an abstract address.
//!
//! | kind | from | meaning | descriptor |
//! |---|---|---|---|
//! | hello | process | it is there; which one, the kernel says | - |
//! | welcome | supervisor | its slot in the ledger | the ledger's memory file |
//! | refused | supervisor | no slot is free: run unmanaged | - |
//! | say | process | text for the user | - |
//! | broken | process | text for the user: why it is ended by its own pager | - |
//! | unmanaged | process | why it runs without a pager | - |
//! | keep | process | hold this until the process has ended | a userfaultfd |
//! | child | parent | `token`'s child will want this | the child's userfaultfd |
//! | fetch | child | the descriptor of `token`, please | - |
//! | fetched | supervisor | here it is, or none came | the child's userfaultfd |
//! | swap | process | part `number` of the swap file, please: 0 the file, 1 its table | - |
//! | swapped | supervisor | here it is, or there is none | the part |
//! | open | process | file `number`, please, which it may not open itself: a [`sys::lender::Lent`] | - |
//! | opened | supervisor | here it is, or the supervisor may not either | the file |
//! | agree | process | features `token` for this, please | a userfaultfd just made |
//! | agreed | supervisor | it has them, unless `number` is not 0 | - |
//! | query | `top` | the ledger, please | - |
//! | ledger | supervisor | here it is | the ledger's memory file |
//!
//! All calls are plain blocking system calls without allocation: they are made by pager threads too. The end of a
//! connection means the end of the process.

use std::io;

use sys::packets;

/// Most bytes of text in a packet.
pub const TEXT_MAX: usize = 480;

/// What a packet means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // the table above
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    Refused = 3,
    Say = 4,
    Keep = 5,
    Child = 6,
    Fetch = 7,
    Fetched = 8,
    Query = 9,
    Ledger = 10,
    Broken = 11,
    Unmanaged = 12,
    Swap = 13,
    Swapped = 14,
    Open = 15,
    Opened = 16,
    Agree = 17,
    Agreed = 18,
}

/// A packet, without its descriptor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    kind: u32,
    /// A process or slot number.
    pub number: u32,
    /// Names a fork.
    pub token: u64,
    text_len: u32,
    padding: u32,
    text: [u8; TEXT_MAX],
}
const _: () = assert!(std::mem::size_of::<Packet>() == 24 + TEXT_MAX);

impl Packet {
    /// A packet without text.
    pub fn new(kind: Kind, number: u32, token: u64) -> Self {
        Packet { kind: kind as u32, number, token, text_len: 0, padding: 0, text: [0; TEXT_MAX] }
    }

    /// A packet with text, cut if too long.
    pub fn with_text(kind: Kind, text: &str) -> Self {
        let mut packet = Packet::new(kind, 0, 0);
        let len = text.len().min(TEXT_MAX);
        packet.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        packet.text_len = len as u32;
        packet
    }

    /// What it means; `None` for a packet of another version.
    pub fn kind(&self) -> Option<Kind> {
        use Kind::*;
        [
            Hello, Welcome, Refused, Say, Keep, Child, Fetch, Fetched, Query, Ledger, Broken, Unmanaged,
            Swap, Swapped, Open, Opened, Agree, Agreed,
        ]
        .into_iter()
        .find(|kind| *kind as u32 == self.kind)
    }

    /// Its text.
    pub fn text(&self) -> &[u8] {
        &self.text[..(self.text_len as usize).min(TEXT_MAX)]
    }
}

/// A name to listen at that nobody else has. It ends with the number of this process's network namespace, in hex:
/// abstract addresses are known in one namespace only, see [`is_elsewhere`].
pub fn new_name(random: u32) -> String {
    format!("uzswap-{}-{random:08x}-{:x}", std::process::id(), network_namespace().unwrap_or(0))
}

/// Whether the supervisor with this name is known to be in another network namespace than the calling thread, so that a
/// refused connection does not mean that it is gone.
pub fn is_elsewhere(name: &[u8]) -> bool {
    let number = name.rsplit(|byte| *byte == b'-').next().and_then(|text| std::str::from_utf8(text).ok());
    let number = number.and_then(|text| u64::from_str_radix(text, 16).ok()).filter(|number| *number != 0);
    matches!((number, network_namespace()), (Some(theirs), Some(own)) if theirs != own)
}

/// Numbers that are never used twice while the machine runs (Linux 5.14).
fn network_namespace() -> Option<u64> {
    let descriptor = packets::socket().ok()?;
    let (mut number, mut len) = (0u64, 8);
    let target = std::ptr::from_mut(&mut number).cast();
    // SAFETY: room for the 8 bytes that are asked for; the descriptor was opened just now and is closed once.
    let answer = unsafe {
        let answer = libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, target, &mut len);
        libc::close(descriptor);
        answer
    };
    (answer == 0).then_some(number)
}

/// The process that connected to this socket, as its number is in the calling process's namespace.
pub fn peer(socket: i32) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = std::mem::size_of_val(&peer) as libc::socklen_t;
    let target = std::ptr::from_mut(&mut peer).cast();
    // SAFETY: room for the structure that is asked for.
    let answer = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, target, &mut len) };
    (answer == 0 && peer.pid > 0).then_some(peer.pid as u32)
}

fn address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero: an abstract name, which leaves nothing behind in any file system.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::size_of::<libc::sa_family_t>() + 1 + name.len().min(address.sun_path.len() - 1);
    (address, len as libc::socklen_t)
}

/// Connects to the supervisor at the abstract address `name`.
///
/// # Errors
/// ECONNREFUSED when it is gone.
pub fn connect(name: &[u8]) -> io::Result<i32> {
    let descriptor = packets::socket()?;
    let (address, len) = address(name);
    // SAFETY: the address is valid for `len` bytes.
    if unsafe { libc::connect(descriptor, std::ptr::from_ref(&address).cast(), len) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: opened above.
        unsafe { libc::close(descriptor) };
        return Err(error);
    }
    Ok(descriptor)
}

/// Listens at the abstract address `name`.
///
/// # Errors
/// EADDRINUSE when somebody does already.
pub fn listen(name: &[u8]) -> io::Result<i32> {
    let descriptor = packets::socket()?;
    let (address, len) = address(name);
    // SAFETY: the address is valid for `len` bytes.
    let bound = unsafe { libc::bind(descriptor, std::ptr::from_ref(&address).cast(), len) } == 0;
    // SAFETY: takes no pointers.
    if !bound || unsafe { libc::listen(descriptor, 128) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: opened above.
        unsafe { libc::close(descriptor) };
        return Err(error);
    }
    Ok(descriptor)
}

/// Sends a packet, with a descriptor if one is given. Never raises SIGPIPE.
///
/// # Errors
/// EPIPE or ECONNRESET when the other side is gone.
pub fn send(socket: i32, packet: &Packet, descriptor: Option<i32>) -> io::Result<()> {
    // SAFETY: a packet is plain numbers without padding between them.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(packet).cast::<u8>(), std::mem::size_of::<Packet>())
    };
    packets::send(socket, &[bytes], descriptor.as_slice())
}

/// Asks for something by its number; the answer is to be of `kind` and to have a descriptor.
///
/// # Errors
/// ENOENT when it has none.
pub fn ask(socket: i32, question: Kind, number: u32, kind: Kind) -> io::Result<i32> {
    send(socket, &Packet::new(question, number, 0), None)?;
    match receive(socket)? {
        Some((packet, Some(descriptor))) if packet.kind() == Some(kind) => Ok(descriptor),
        _ => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    }
}

/// Receives a packet and the descriptor that came with it; `None` at the end of the connection.
///
/// # Errors
/// EAGAIN on a non-blocking socket without packets; EPROTO for something that is no packet.
pub fn receive(socket: i32) -> io::Result<Option<(Packet, Option<i32>)>> {
    let mut packet = Packet::new(Kind::Hello, 0, 0);
    // SAFETY: a packet is plain numbers without padding between them, and any of them are valid.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(
            std::ptr::from_mut(&mut packet).cast::<u8>(),
            std::mem::size_of::<Packet>(),
        )
    };
    let (len, [first, second]) = packets::receive(socket, bytes)?;
    let is_whole = len == std::mem::size_of::<Packet>();
    for unwanted in [(!is_whole).then_some(first), Some(second)].into_iter().flatten() {
        if unwanted >= 0 {
            // SAFETY: received just now.
            unsafe { libc::close(unwanted) };
        }
    }
    match len {
        0 => Ok(None),
        _ if is_whole => Ok(Some((packet, (first >= 0).then_some(first)))),
        _ => Err(io::Error::from_raw_os_error(libc::EPROTO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_network_namespace() {
        let name = new_name(7);
        assert!(name.starts_with(&format!("uzswap-{}-00000007-", std::process::id())));
        assert!(!is_elsewhere(name.as_bytes()));
        if network_namespace().is_some() {
            assert!(is_elsewhere(format!("{name}0").as_bytes()));
        }
        for unknown in ["", "uzswap-1-2-0", "uzswap-1-2-x"] {
            assert!(!is_elsewhere(unknown.as_bytes()), "{unknown}");
        }
    }

    #[test]
    fn packets_and_descriptors_cross_a_connection() {
        let name = format!("uzswap-test-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        assert!(listen(name.as_bytes()).is_err(), "the name is taken");
        let client = connect(name.as_bytes()).unwrap();
        // SAFETY: accepts without an address.
        let server = unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
        assert!(server >= 0);
        assert_eq!(peer(server), Some(std::process::id()));
        send(client, &Packet::new(Kind::Hello, 5, 6), None).unwrap();
        send(client, &Packet::with_text(Kind::Say, "hello there"), Some(2)).unwrap();
        let (packet, none) = receive(server).unwrap().unwrap();
        assert_eq!((packet.kind(), packet.number, packet.token, none), (Some(Kind::Hello), 5, 6, None));
        let (packet, some) = receive(server).unwrap().unwrap();
        assert_eq!((packet.kind(), packet.text()), (Some(Kind::Say), b"hello there".as_slice()));
        assert!(some.unwrap() > 2, "a duplicate in this table");
        // SAFETY: descriptors of this test.
        unsafe { libc::close(client) };
        assert!(receive(server).unwrap().is_none(), "the end is noticed");
        assert!(connect(b"uzswap-nobody-listens-here").is_err());
    }
}
