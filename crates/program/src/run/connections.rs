//! The connections of a tree's processes: who is let in, and what one of them may take.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ledger::wire::{self, Kind, Packet};

use super::aside::Foreign;
use super::descriptors;
use super::notes::Notes;
use super::peers::{Family, Owner, Peer, Refusal};
use crate::rights;

/// Between connecting and saying hello, on a busy machine.
pub const HELLO: Duration = Duration::from_secs(2);
/// Connections taken at a time: others' are among them, and those who are connected wait.
const ACCEPTED_MAX: usize = 64;
/// Connections of one process at a time, and those among them that have a place: a process has a
/// second one when it becomes another program, for the moment until the end of the first is
/// noticed.
const CONNECTIONS_MAX: usize = 48;
const PLACES_MAX: usize = 16;
/// Descriptors that one connection is given, and that are kept for it.
const GIVEN_MAX: u32 = 64;
const KEPT_MAX: usize = 8;
/// Lines of text from one connection.
const LINES_MAX: u32 = 16;
/// Descriptors that are left for looks at processes: the kernel gives the lowest number that is
/// free, so a high one is a warning.
const RESERVED: i32 = 16;

/// One process's connection.
pub struct Connection {
    socket: Foreign,
    peer: Peer,
    since: Instant,
    /// Its place in the ledgers, and whose it is.
    slot: Option<usize>,
    owner: Option<Owner>,
    /// Duplicates of its userfaultfds: while they are open, no close() of the program turns evicted
    /// pages to zeroes.
    kept: Vec<Foreign>,
    /// Descriptors given, and lines said.
    given: u32,
    lines: u32,
}

impl Connection {
    fn new(socket: Foreign, peer: Peer) -> Self {
        let (since, kept) = (Instant::now(), Vec::new());
        Connection { socket, peer, since, slot: None, owner: None, kept, given: 0, lines: 0 }
    }

    pub fn socket(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn pid(&self) -> i32 {
        self.peer.pid
    }

    /// Its place in the ledgers.
    pub fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// Whose its place is.
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Gives it a place in the ledgers.
    pub fn place(&mut self, slot: usize, owner: Owner) {
        (self.slot, self.owner) = (Some(slot), Some(owner));
    }

    /// Whether it has a place, or may still ask for one.
    pub fn counts(&self) -> bool {
        self.slot.is_some() || self.since.elapsed() < HELLO
    }

    /// Whether it may say one more line.
    pub fn may_say(&mut self) -> bool {
        self.lines += 1;
        self.lines <= LINES_MAX
    }

    /// Keeps a userfaultfd of it.
    pub fn keep(&mut self, descriptor: Foreign) {
        if kept_is_right(self.kept.len(), &descriptor) {
            self.kept.push(descriptor);
        }
    }

    /// What was kept of it.
    pub fn into_kept(self) -> Vec<Foreign> {
        self.kept
    }

    /// Sends a packet, and a descriptor, if that is not too much for one connection.
    pub fn give(&mut self, packet: &Packet, descriptor: Option<&impl AsRawFd>) -> bool {
        self.given += 1;
        let _ = wire::send(self.socket(), packet, descriptor.map(AsRawFd::as_raw_fd));
        self.given <= GIVEN_MAX
    }
}

/// All of a tree's, and where processes connect.
pub struct Connections {
    /// Connections that wait here may have sent something already.
    listener: Foreign,
    /// Given up for a moment when there is no other descriptor left to accept a connection with.
    spare: Option<OwnedFd>,
    descriptors_max: i32,
    family: Family,
    all: Vec<Connection>,
    refused: u64,
}

impl Connections {
    /// None yet; the guardian of the tree is let in.
    pub fn new(listener: OwnedFd, guardian: i32) -> Self {
        Connections {
            listener: listener.into(),
            spare: spare(),
            descriptors_max: descriptors::limit(),
            family: Family::new(Some(guardian)),
            all: Vec::new(),
            refused: 0,
        }
    }

    pub fn listener(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.all.iter()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn at(&mut self, index: usize) -> &mut Connection {
        &mut self.all[index]
    }

    pub fn take(&mut self, index: usize) -> Connection {
        self.all.swap_remove(index)
    }

    /// Connections that were closed at once, or for what came over them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Counts one that is closed for what came over it.
    pub fn count_refused(&mut self) {
        self.refused += 1;
    }

    /// Takes the connections that wait, up to a bound; whether there may be more.
    pub fn accept_waiting(&mut self, notes: &mut Notes) -> bool {
        self.spare = self.spare.take().or_else(spare);
        for _ in 0..ACCEPTED_MAX {
            match accept(&self.listener) {
                Ok(socket) => self.admit(socket, notes),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // It would wait for ever, and this process with it.
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

    /// Makes room for one descriptor more, for a moment.
    pub fn give_up_spare(&mut self) {
        self.spare = None;
    }

    /// Takes a connection, if it is one of the tree.
    fn admit(&mut self, socket: Foreign, notes: &mut Notes) {
        let all = &self.all;
        let is_member =
            |pid| all.iter().any(|one| one.pid() == pid && one.slot.is_some() && one.peer.is_there());
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

    /// Whether there are too few descriptors left to keep one more for a process.
    pub fn is_too_short_to_keep(&self, newest: &Foreign) -> bool {
        self.is_short(newest, RESERVED / 2)
    }

    /// Whether there are fewer than that many descriptors left.
    fn is_short(&self, newest: &Foreign, left: i32) -> bool {
        newest.as_raw_fd() >= self.descriptors_max.saturating_sub(left)
    }

    /// Whether a connection may have a place: it has none, which would be in use for ever, and its
    /// process has not too many.
    pub fn may_have_place(&self, index: usize) -> bool {
        let one = &self.all[index];
        one.slot.is_none() && self.count(one.pid(), |one| one.slot.is_some()) < PLACES_MAX
    }

    /// Connections of a process.
    fn count(&self, pid: i32, of: impl Fn(&Connection) -> bool) -> usize {
        self.all.iter().filter(|one| one.pid() == pid && of(one)).count()
    }
}

/// Tells a process that there is no room: it runs on unmanaged.
fn turn_away(socket: &Foreign, notes: &mut Notes) {
    notes.note_shortage();
    let _ = wire::send(socket.as_raw_fd(), &Packet::new(Kind::Refused, 0, 0), None);
}

/// Accepts a connection. Its other side may have sent something already.
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

/// A descriptor to give up.
fn spare() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Whether to keep a descriptor beside so many.
fn kept_is_right(kept: usize, descriptor: &Foreign) -> bool {
    kept < KEPT_MAX && rights::is_userfaultfd(descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_userfaultfd_is_agreed_on() {
        assert!(!rights::agree(File::open("/dev/zero").unwrap().as_raw_fd(), 0));
        assert!(!kept_is_right(0, &OwnedFd::from(File::open("/dev/zero").unwrap()).into()));
    }
}
