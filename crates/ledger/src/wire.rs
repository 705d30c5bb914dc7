//! Packets between a process and its supervisor, over a SOCK_SEQPACKET unix socket with an abstract
//! address.
//!
//! | kind | from | meaning | descriptors |
//! |---|---|---|---|
//! | hello | process | it is there; which one, the kernel says | the process that it pages (a pidfd) |
//! | welcome | supervisor | `number` is its slot in its user's ledger, `token` its name in that user's swap file | board, ledger |
//! | refused | supervisor | there is no place: run unmanaged | - |
//! | say | process | text for the user | - |
//! | broken | process | text for the user: why it is ended by its own pager | - |
//! | unmanaged | process | why it runs without a pager | - |
//! | keep | process | hold this until the process has ended | a userfaultfd |
//! | done | process | all its pages are in memory: nothing need be held for it. Text: its own memory, as START-END in hex | - |
//! | swap | process | part `number` of its user's swap file, please: 0 the file, 1 its table | - |
//! | swapped | supervisor | here it is, or there is none | the part |
//! | open | process | file `number`, that it may not open itself: a [`sys::privileged::PrivilegedFile`] | - |
//! | opened | supervisor | here it is, or the supervisor may not either | the file |
//! | agree | process | features `token` for this, please | a userfaultfd just made |
//! | agreed | supervisor | it has them, unless `number` is not 0 | - |
//! | record | process | the pipe that references are recorded in, please | - |
//! | recorded | supervisor | here it is, or there is none | the pipe |
//! | offer | process | hold this for the program, which may not take it from its agent | its end of a fork's connection |
//! | take | program | what its agent offered, the socket with the cookie `token`, please | - |
//! | taken | supervisor | here it is, or there is none | that end |
//!
//! Every process of the network namespace knows the address, and a process of another one offers
//! the supervisor a connection of its own making ([`WAITING_NAME`]), so the kernel's credentials
//! prove a process's identity. The supervisor accepts only its tree, and checks again at each
//! packet that requests something. A process accepts only a supervisor of root or of its own user.
//!
//! All calls are plain blocking system calls without allocation, because pager threads make them
//! too. The end of a connection means the end of the process.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use sys::packets;
pub use sys::packets::drop_next;

/// Most bytes of text in a packet.
pub const TEXT_MAX: usize = 480;

/// The meaning of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // the table above
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    Refused = 3,
    Say = 4,
    Keep = 5,
    Broken = 6,
    Unmanaged = 7,
    Swap = 8,
    Swapped = 9,
    Open = 10,
    Opened = 11,
    Agree = 12,
    Agreed = 13,
    Record = 14,
    Recorded = 15,
    Offer = 16,
    Take = 17,
    Taken = 18,
    Done = 19,
}

/// Every kind.
pub const KINDS: [Kind; 19] = {
    use Kind::*;
    [
        Hello, Welcome, Refused, Say, Keep, Broken, Unmanaged, Swap, Swapped, Open, Opened, Agree, Agreed,
        Record, Recorded, Offer, Take, Taken, Done,
    ]
};

/// A packet, without its descriptor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    kind: u32,
    /// The meaning depends on the kind, as that of `token`.
    pub number: u32,
    /// See `number`.
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

    /// Its kind, or `None` for a packet of another version.
    pub fn kind(&self) -> Option<Kind> {
        KINDS.into_iter().find(|kind| *kind as u32 == self.kind)
    }

    /// Its text.
    pub fn text(&self) -> &[u8] {
        &self.text[..(self.text_len as usize).min(TEXT_MAX)]
    }
}

/// A name for this process to listen at, `uzswap-RUN-LISTENER-RANDOM-NAMESPACE`: the run's process
/// number, this process's, a random number in hex, and the number of this network namespace in hex.
/// Abstract addresses exist in one namespace only, see [`is_elsewhere`].
pub fn new_name(run: u32, random: u32) -> String {
    let (listener, namespace) = (std::process::id(), network_namespace().unwrap_or(0));
    format!("uzswap-{run}-{listener}-{random:08x}-{namespace:x}")
}

/// Returns the process numbers of the run and of the listener that an address names.
pub fn run_and_listener(name: &[u8]) -> Option<(u32, u32)> {
    let mut words = std::str::from_utf8(name).ok()?.split('-').skip(1).map(|word| word.parse().ok());
    Some((words.next()??, words.next()??))
}

/// Whether the supervisor with this name is known to be in another network namespace than the
/// calling thread. A refused connection then does not mean that it has ended.
pub fn is_elsewhere(name: &[u8]) -> bool {
    let number = name.rsplit(|byte| *byte == b'-').next().and_then(|text| std::str::from_utf8(text).ok());
    let number = number.and_then(|text| u64::from_str_radix(text, 16).ok()).filter(|number| *number != 0);
    matches!((number, network_namespace()), (Some(theirs), Some(own)) if theirs != own)
}

/// The name of a process's thread that waits for a supervisor [elsewhere](is_elsewhere), up to the
/// number of the descriptor that the supervisor is to take.
pub const WAITING_NAME: &str = "uzswap-at-";

/// The namespace's number, unique while the machine runs (Linux 5.14).
fn network_namespace() -> Option<u64> {
    let socket = socket().ok()?;
    let (mut number, mut len) = (0u64, 8);
    let target = std::ptr::from_mut(&mut number).cast();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    // SAFETY: room for the 8 bytes.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, target, &mut len) };
    (result == 0).then_some(number)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: just opened, owned by nothing else.
    packets::socket().map(|socket| unsafe { OwnedFd::from_raw_fd(socket) })
}

fn address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero: an abstract name, which leaves nothing in any file system.
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::size_of::<libc::sa_family_t>() + 1 + name.len().min(address.sun_path.len() - 1);
    (address, len as libc::socklen_t)
}

/// Connects to the supervisor at the abstract address `name`.
///
/// # Errors
/// ECONNREFUSED if it has ended, EPERM if another process listens there.
pub fn connect(name: &[u8]) -> io::Result<i32> {
    let (socket, (address, len)) = (socket()?, address(name));
    let descriptor = socket.as_raw_fd();
    // SAFETY: the address is valid for `len` bytes.
    if unsafe { libc::connect(descriptor, std::ptr::from_ref(&address).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if !packets::peer(descriptor).is_some_and(|(pid, user)| may_supervise(user) && is_named(pid, name)) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    Ok(socket.into_raw_fd())
}

/// A user namespace shows foreign users as this one.
const OVERFLOW_USER: u32 = 65534;

/// Whether a process of this user may be this process's supervisor. When a supervisor has been
/// killed, its name is free for a moment while its processes still run.
fn may_supervise(user: u32) -> bool {
    // SAFETY: take nothing.
    let own = unsafe { [libc::getuid(), libc::geteuid()] };
    matches!(user, 0 | OVERFLOW_USER) || own.contains(&user)
}

/// Whether `pid` is the process that the address names. After a supervisor was killed, another
/// process of the same user can take the address. A process of an outer PID namespace has number 0
/// here.
fn is_named(pid: i32, name: &[u8]) -> bool {
    pid == 0 || run_and_listener(name).is_some_and(|(_, listener)| Ok(listener) == u32::try_from(pid))
}

/// Length of the queue of connections to accept. Foreign connections are closed at once, but those
/// of the tree wait behind them.
const BACKLOG: i32 = 1024;

/// Listens at the abstract address `name`.
///
/// # Errors
/// EADDRINUSE if a process already listens there.
pub fn listen(name: &[u8]) -> io::Result<i32> {
    let (socket, (address, len)) = (socket()?, address(name));
    let descriptor = socket.as_raw_fd();
    // SAFETY: the address is valid for `len` bytes.
    let bound = unsafe { libc::bind(descriptor, std::ptr::from_ref(&address).cast(), len) } == 0;
    // SAFETY: takes no pointers.
    if !bound || unsafe { libc::listen(descriptor, BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket.into_raw_fd())
}

/// Sends a packet, with a descriptor if one is given. Never raises SIGPIPE.
///
/// # Errors
/// EPIPE or ECONNRESET if the peer has ended.
pub fn send(socket: i32, packet: &Packet, descriptor: Option<i32>) -> io::Result<()> {
    send_with(socket, packet, descriptor.as_slice())
}

/// Sends a packet with up to two descriptors.
///
/// # Errors
/// As [`send`].
pub fn send_with(socket: i32, packet: &Packet, descriptors: &[i32]) -> io::Result<()> {
    // SAFETY: a packet is plain numbers without padding.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(packet).cast::<u8>(), std::mem::size_of::<Packet>())
    };
    packets::send(socket, &[bytes], descriptors)
}

/// Requests item `number`. The reply must be of `kind` and carry a descriptor.
///
/// # Errors
/// ENOENT if it carries none.
pub fn ask(socket: i32, question: Kind, number: u32, kind: Kind) -> io::Result<i32> {
    send(socket, &Packet::new(question, number, 0), None)?;
    match receive(socket)? {
        Some((packet, Some(descriptor))) if packet.kind() == Some(kind) => Ok(descriptor),
        _ => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    }
}

/// A received packet.
#[derive(Debug)]
pub struct Received {
    /// The packet.
    pub packet: Packet,
    /// Its descriptors; more than two are closed.
    pub descriptors: [Option<OwnedFd>; 2],
    /// The sending process, on the supervisor's side.
    pub sender: Option<i32>,
    /// This process has no room for the descriptors.
    pub lacks_descriptors: bool,
    /// Some of its descriptors were lost, for that reason or because there were too many.
    pub is_cut: bool,
}

/// Receives a packet with all the kernel's information on it, or `None` at the end of the
/// connection.
///
/// # Errors
/// EAGAIN on a non-blocking socket without packets; EPROTO for data that is not a packet.
pub fn receive_all(socket: i32) -> io::Result<Option<Received>> {
    match receive_by(socket, packets::receive_all)? {
        Some(Received { packet: Packet { kind: 0, .. }, .. }) => {
            Err(io::Error::from_raw_os_error(libc::EPROTO))
        }
        received => Ok(received),
    }
}

/// Reads the next packet and leaves it in the queue: see [`packets::peek`]. Invalid data is
/// returned as a packet without a kind.
///
/// # Errors
/// EAGAIN on a non-blocking socket without packets.
pub fn peek(socket: i32) -> io::Result<Option<Received>> {
    receive_by(socket, packets::peek)
}

fn receive_by(
    socket: i32,
    receive: fn(i32, &mut [u8]) -> io::Result<packets::Received>,
) -> io::Result<Option<Received>> {
    let mut packet = Packet::new(Kind::Hello, 0, 0);
    // SAFETY: a packet is plain numbers without padding and without invalid values.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(
            std::ptr::from_mut(&mut packet).cast::<u8>(),
            std::mem::size_of::<Packet>(),
        )
    };
    let received = receive(socket, bytes)?;
    // SAFETY: just received, without another owner.
    let descriptors =
        received.descriptors.map(|raw| (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw) }));
    let packets::Received { len, sender, lacks_descriptors, is_cut, .. } = received;
    if len != std::mem::size_of::<Packet>() {
        packet.kind = 0;
    }
    let is_end = len == 0 && descriptors.iter().all(Option::is_none);
    Ok((!is_end).then_some(Received { packet, descriptors, sender, lacks_descriptors, is_cut }))
}

/// Receives a packet and its descriptor, or `None` at the end of the connection.
///
/// # Errors
/// As [`receive_all`].
pub fn receive(socket: i32) -> io::Result<Option<(Packet, Option<i32>)>> {
    let received = receive_all(socket)?;
    Ok(received
        .map(|Received { packet, descriptors: [first, _], .. }| (packet, first.map(OwnedFd::into_raw_fd))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_network_namespace() {
        let name = new_name(std::process::id(), 7);
        assert!(name.starts_with(&format!("uzswap-{0}-{0}-00000007-", std::process::id())));
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
        let name = new_name(std::process::id(), 8);
        let listener = listen(name.as_bytes()).unwrap();
        assert!(listen(name.as_bytes()).is_err(), "the name is taken");
        let client = connect(name.as_bytes()).unwrap();
        // SAFETY: accepts without an address.
        let server = unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
        assert!(server >= 0);
        assert_eq!(packets::peer(server).map(|(pid, _)| pid), Some(std::process::id() as i32));
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
        assert!(connect(b"uzswap-no-listener-here").is_err());
    }

    #[test]
    fn a_listener_that_is_not_the_named_process_is_refused() {
        let own = std::process::id();
        let name = |listener: u32| format!("uzswap-{own}-{listener}-00000009-0");
        for (name, is_right) in [(name(own), true), (name(own + 1), false), (format!("uzswap-{own}"), false)]
        {
            // SAFETY: opened by this test, closed with the owner.
            let _listener = unsafe { OwnedFd::from_raw_fd(listen(name.as_bytes()).unwrap()) };
            match connect(name.as_bytes()) {
                // SAFETY: opened by this test.
                Ok(descriptor) => unsafe {
                    libc::close(descriptor);
                    assert!(is_right, "{name}");
                },
                Err(error) => {
                    assert!(!is_right && error.raw_os_error() == Some(libc::EPERM), "{name}: {error}")
                }
            }
        }
        assert!(is_named(0, b"uzswap-1-2-3-4"), "the supervisor is in a process namespace above");
    }
}
