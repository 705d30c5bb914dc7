//! The connections of a tree's processes: admission and limits.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ledger::wire::{self, Kind, Packet};
use sys::{packets, process};

use crate::rights;
use crate::run::own_limits;
use crate::run::peers::blocking::Foreign;
use crate::run::peers::{Family, Owner, Peer, Refusal};
use crate::run::report::notes::Notes;
use crate::run::tree::attach::Root;
use crate::stat::Stat;

/// Time limit from connecting to hello, on a busy machine.
pub const HELLO: Duration = Duration::from_secs(2);
/// Connections accepted per round: strangers connect too, and connected processes must not wait.
const ACCEPTED_MAX: usize = 64;
/// Connections of one process, and those among them with a place. A process has two for a moment
/// when it executes another program, until the end of the first is noticed.
const CONNECTIONS_MAX: usize = 48;
const PLACES_MAX: usize = 16;
/// Descriptors that one connection receives, and that are kept for it.
const GIVEN_MAX: u32 = 64;
const KEPT_MAX: usize = 8;
const LINES_MAX: u32 = 16;
/// Descriptors reserved for reading /proc. Numbers are given lowest first: a high one is a warning.
pub const RESERVED: i32 = 16;

pub struct Connection {
    socket: Foreign,
    /// The agent's process.
    pub peer: Peer,
    /// The process whose memory it pages, which is the agent's, too.
    pub program: i32,
    since: Instant,
    /// Its place in the ledgers, and the place's owner.
    pub place: Option<(usize, Owner)>,
    /// Duplicates of its userfaultfds, so that the program's close() zeroes no evicted pages.
    pub kept: Vec<Foreign>,
    /// The agent's own parts of the memory, once all pages are in.
    pub agents_memory: Vec<Range<usize>>,
    /// Its program's end of the next fork's connection, which the program may not take itself.
    offered: Option<Foreign>,
    given: u32,
    lines: u32,
}

impl Connection {
    fn new(socket: Foreign, peer: Peer) -> Self {
        Connection {
            socket,
            program: peer.pid,
            peer,
            since: Instant::now(),
            place: None,
            kept: Vec::new(),
            agents_memory: Vec::new(),
            offered: None,
            given: 0,
            lines: 0,
        }
    }

    pub fn socket(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Notes which process the agent pages. Another user's is not believed.
    pub fn note_program(&mut self, handle: &Foreign) {
        let program = process::number(handle.as_raw_fd());
        if let Some(program) = program.filter(|program| self.peer.is_same_user_as(*program)) {
            self.program = program;
        }
    }

    /// Returns whether it has a place or may still ask for one.
    pub fn counts(&self) -> bool {
        self.place.is_some() || self.since.elapsed() < HELLO
    }

    /// Counts a line; returns whether it is permitted.
    pub fn may_say(&mut self) -> bool {
        self.lines += 1;
        self.lines <= LINES_MAX
    }

    pub fn keep(&mut self, descriptor: Foreign) {
        if kept_is_right(self.kept.len(), &descriptor) {
            self.kept.push(descriptor);
        }
    }

    /// Notes that all pages are in memory, and which memory is the agent's.
    pub fn is_done(&mut self, text: &[u8]) {
        let range = |word: &str| {
            let (start, end) = word.split_once('-')?;
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        };
        let words = std::str::from_utf8(text).unwrap_or_default().split_ascii_whitespace();
        self.agents_memory = words.filter_map(range).collect();
        self.kept.clear();
    }

    /// Keeps a socket for the program, in place of the one before.
    pub fn offer(&mut self, socket: Foreign) {
        self.offered = Some(socket).filter(|socket| packets::is_packet_socket(socket.as_raw_fd()));
    }

    /// Returns the offered socket if it has this cookie.
    pub fn take_offered(&mut self, cookie: u64) -> Option<Foreign> {
        self.offered.take_if(|socket| packets::cookie(socket.as_raw_fd()) == Some(cookie))
    }

    /// Sends a packet and a descriptor within the connection's limit.
    pub fn give(&mut self, packet: &Packet, descriptor: Option<&impl AsRawFd>) -> bool {
        self.given += 1;
        let _ = wire::send(self.socket(), packet, descriptor.map(AsRawFd::as_raw_fd));
        self.given <= GIVEN_MAX
    }
}

/// All connections of a tree, and the listening socket.
pub struct Connections {
    /// Waiting connections may already have sent packets with descriptors.
    listener: Foreign,
    /// Closed when no other descriptor is left for accepting a connection.
    pub spare: Option<OwnedFd>,
    descriptors_max: i32,
    family: Family,
    pub all: Vec<Connection>,
    /// Connections closed at once or for their packets.
    pub refused: u64,
}

impl Connections {
    /// Starts without connections. Admits processes of the tree.
    pub fn new(listener: OwnedFd, root: Root) -> Self {
        Connections {
            listener: listener.into(),
            spare: spare(),
            descriptors_max: own_limits::descriptors(),
            family: Family::new(root),
            all: Vec::new(),
            refused: 0,
        }
    }

    pub fn listener(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    /// Accepts waiting connections, up to a bound; returns whether more may wait.
    pub fn accept_waiting(&mut self, notes: &mut Notes) -> bool {
        self.spare = self.spare.take().or_else(spare);
        for _ in 0..ACCEPTED_MAX {
            match accept(&self.listener) {
                Ok(socket) => self.admit(socket, notes),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // Free the spare: otherwise the connection would wait for ever.
                    self.spare = None;
                    if let Ok(socket) = accept(&self.listener) {
                        turn_away(&socket, notes);
                    }
                    self.spare = spare();
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Takes a connection out of the file table of an agent, which cannot connect from its network
    /// namespace. The process may have put anything there.
    pub fn take_from(&mut self, pid: i32, number: i32, notes: &mut Notes) {
        let taken = process::handle(pid).and_then(|handle| process::descriptor_of(&handle, number));
        let Ok(socket) = taken.map(Foreign::from) else { return };
        if packets::is_packet_socket(socket.as_raw_fd())
            && packets::peer(socket.as_raw_fd()).is_some_and(|(maker, _)| maker == pid)
            && packets::ask_for_senders(socket.as_raw_fd()).is_ok()
        {
            // SAFETY: changes a flag of a socket.
            unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            self.admit(socket, notes);
        }
    }

    fn admit(&mut self, socket: Foreign, notes: &mut Notes) {
        let all = &self.all;
        let is_member =
            |pid| all.iter().any(|one| one.peer.pid == pid && one.place.is_some() && one.peer.is_there());
        match Peer::of(socket.as_raw_fd(), &self.family, is_member) {
            Ok(_) if self.is_short(&socket, RESERVED) => turn_away(&socket, notes),
            Ok(peer) if self.count(peer.pid, |_| true) < CONNECTIONS_MAX => {
                self.all.push(Connection::new(socket, peer));
            }
            Ok(_) | Err(Refusal::Stranger) => self.refused += 1,
            Err(Refusal::Gone) => {}
            Err(Refusal::NoDescriptors) => turn_away(&socket, notes),
        }
    }

    /// Ends agents whose control threads the kernel has ended alone, by a filter of the program's.
    /// The program may have ended before it was noted.
    pub fn end_broken(&self) {
        for one in &self.all {
            if Stat::of(one.peer.pid as u32).is_some_and(|stat| stat.state == b'Z') {
                one.peer.kill();
            }
        }
    }

    /// Returns the program of an agent's process, or the process itself.
    pub fn program_of(&self, pid: i32) -> i32 {
        self.all.iter().find(|one| one.peer.pid == pid && one.place.is_some()).map_or(pid, |one| one.program)
    }

    /// Returns the agents of a program and its owner, by index. Other processes of that owner may
    /// claim to be its agent. The program of an agent may have ended, and its number be another's.
    pub fn agents_of(&self, program: &Peer) -> Vec<usize> {
        let Some(owner) = program.owner() else { return Vec::new() };
        let is_its =
            |one: &Connection| one.program == program.pid && one.place.is_some_and(|(_, own)| own == owner);
        (0..self.all.len()).filter(|index| is_its(&self.all[*index])).collect()
    }

    /// Returns whether fewer than `left` descriptors are left after the newest.
    pub fn is_short(&self, newest: &Foreign, left: i32) -> bool {
        newest.as_raw_fd() >= self.descriptors_max.saturating_sub(left)
    }

    /// Returns whether a connection may get a place: it has none yet (a second would never be
    /// released), and its process has not too many.
    pub fn may_have_place(&self, index: usize) -> bool {
        let one = &self.all[index];
        one.place.is_none() && self.count(one.peer.pid, |one| one.place.is_some()) < PLACES_MAX
    }

    fn count(&self, pid: i32, of: impl Fn(&Connection) -> bool) -> usize {
        self.all.iter().filter(|one| one.peer.pid == pid && of(one)).count()
    }
}

/// Rejects a process for lack of room. It continues unmanaged.
fn turn_away(socket: &Foreign, notes: &mut Notes) {
    notes.note_shortage();
    let _ = wire::send(socket.as_raw_fd(), &Packet::new(Kind::Refused, 0, 0), None);
}

/// Accepts a connection, whose peer may already have sent packets.
fn accept(listener: &Foreign) -> io::Result<Foreign> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let none = std::ptr::null_mut();
    // SAFETY: accepts without an address.
    match unsafe { libc::accept4(listener.as_raw_fd(), none, none.cast(), flags) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: accepted just now.
        raw => Ok(unsafe { OwnedFd::from_raw_fd(raw) }.into()),
    }
}

fn spare() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Returns whether to keep a descriptor, given the number already kept.
fn kept_is_right(kept: usize, descriptor: &Foreign) -> bool {
    kept < KEPT_MAX && rights::is_userfaultfd(descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process may have put anything under the number that its thread's name tells.
    #[test]
    fn nothing_but_a_packet_socket_of_the_maker_s_is_taken() {
        let listener = packets::pair().unwrap();
        let mut connections = Connections::new(listener.into_iter().next().unwrap(), Root::own(Some(1)));
        let own = std::process::id() as i32;
        let mut take = |pid, file: i32| {
            connections.take_from(pid, file, &mut Notes::new());
            connections.all.len() + connections.refused as usize == 1
        };
        let stream = std::os::unix::net::UnixStream::pair().unwrap();
        let pair = packets::pair().unwrap();
        let [stream, packet] = [stream.0.as_raw_fd(), pair[0].as_raw_fd()];
        let zero = File::open("/dev/zero").unwrap();
        assert!(!take(own, zero.as_raw_fd()) && !take(own, stream) && !take(own, 1 << 20));
        // SAFETY: reads a flag of this test's socket.
        let flags = || unsafe { libc::fcntl(packet, libc::F_GETFL) };
        assert_eq!(flags() & libc::O_NONBLOCK, 0, "unchanged");
        assert!(take(own, packet), "judged as a connection");
    }

    #[test]
    fn nothing_but_a_userfaultfd_is_agreed_on() {
        assert!(!rights::agree(File::open("/dev/zero").unwrap().as_raw_fd(), 0));
        assert!(!kept_is_right(0, &OwnedFd::from(File::open("/dev/zero").unwrap()).into()));
    }
}
