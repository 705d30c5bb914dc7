//! The supervisor: waits for the program, keeps the ledger, serves its processes.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use ledger::wire::{self, Kind, Packet, Received};

use sys::privileged::PrivilegedFile;

use super::attach::{self, Attacher};
use super::books::Books;
use super::claims::Claims;
use super::descriptors;
use super::front::Front;
use super::guardian::Guardian;
use super::history::History;
use super::lending;
use super::orphans::Orphans;
use super::over_limit::OverLimit;
use super::peers::{Family, Owner, Peer, Refusal};
use super::signals::Signals;
use super::strangers::Strangers;
use super::swap::{self, Swap};
use crate::plain::plain;
use crate::rights;
use crate::top::find::name_of;

/// Between looks at the figures for peaks.
const SAMPLE: Duration = Duration::from_millis(10);
/// The same while the tree is far from its budget.
const SAMPLE_IDLE: Duration = Duration::from_millis(50);
/// Between looks at what the users of a tree use, while there are several.
const SAMPLE_USERS: Duration = Duration::from_millis(2);
/// Between looks for processes that never said hello.
const STRANGERS: Duration = Duration::from_millis(500);

/// Most lines of each kind in the report.
const NOTES_MAX: usize = 1000;

/// Between connecting and saying hello, on a busy machine.
const HELLO: Duration = Duration::from_secs(2);
/// Connections taken at a time: others' are among them, and those who are connected wait.
const ACCEPTED_MAX: usize = 64;
/// Connections of one process at a time, and those among them that have a place: a process has a
/// second one when it becomes another program, for the moment until the end of the first is
/// noticed.
const CONNECTIONS_MAX: usize = 48;
const PLACES_MAX: usize = 16;
/// Packets read from one connection at a time.
const PACKETS_MAX: usize = 32;
/// Descriptors that one connection is given, and that are kept for it.
const GIVEN_MAX: u32 = 64;
const KEPT_MAX: usize = 8;
/// Lines of text from one connection; from the tree, so many at once, and then one for each pause.
const LINES_MAX: u32 = 16;
const LINES_AT_ONCE: u32 = 100;
const LINE_PAUSE: Duration = Duration::from_millis(200);

/// Descriptors that are left for looks at processes: the kernel gives the lowest number that is
/// free, so a high one is a warning.
const RESERVED: i32 = 16;
const NO_DESCRIPTORS: &str = "some processes: uzswap is out of descriptors: raise `ulimit -n`";

struct Connection {
    socket: OwnedFd,
    peer: Peer,
    since: Instant,
    /// Its place in the ledgers, and whose it is.
    slot: Option<usize>,
    owner: Option<Owner>,
    /// Duplicates of its userfaultfds: while they are open, no close() of the program turns evicted
    /// pages to zeroes.
    kept: Vec<OwnedFd>,
    /// Descriptors given, and lines said.
    given: u32,
    lines: u32,
}

/// Serves one process tree.
pub struct Supervisor {
    books: Books,
    /// Where references are recorded.
    recorder: Option<OwnedFd>,
    listener: OwnedFd,
    /// Given up for a moment when there is no other descriptor left to accept a connection with.
    spare: Option<OwnedFd>,
    descriptors_max: i32,
    family: Family,
    signals: Signals,
    guardian: Option<Guardian>,
    attacher: Attacher,
    front: Front,
    child: i32,
    /// The program has left a core dump.
    has_dumped: bool,
    connections: Vec<Connection>,
    /// Address spaces that outlive the processes that paged them.
    orphans: Orphans,
    /// Processes whose connections have ended, and when: those that changed their user join again.
    rejoining: Vec<(i32, Instant)>,
    claims: Claims,
    /// Lines that processes may still say, and when there is one more.
    lines: u32,
    line_at: Instant,
    unmanaged: Vec<String>,
    /// What broke in uzswap itself.
    failures: Vec<String>,
    broken: Vec<u32>,
    /// Lines for the report, when there is no terminal any more.
    said_after_end: Option<Vec<String>>,
    strangers: Strangers,
    pub(super) figures: Peaks,
    /// Taken down when there is to be a report.
    pub(super) history: Option<History>,
}

/// The largest figures seen.
#[derive(Debug, Default, Clone)]
pub struct Peaks {
    /// What the tree would have used without uzswap, at most.
    pub wanted_bytes: u64,
    /// Connections that were closed at once, or for what came over them.
    pub refused_connections: u64,
    /// Looks at which a process used what it had not said.
    pub wrong_figures: u64,
    /// Pages stored when they were most, and the pool's bytes then.
    pub stored_pages_peak: u64,
    /// See above.
    pub pool_bytes_at_peak: u64,
    /// Pages stored at the last look with a live process.
    pub stored_pages: u64,
    /// The pool's bytes then.
    pub pool_bytes: u64,
    /// The largest excess over the budget.
    pub over_limit: OverLimit,
    /// Most resident shared memory of one process, which is not paged.
    pub shared_bytes: u64,
    /// Pages in the swap file when they were most.
    pub disk_pages_peak: u64,
    /// Pages there, the bytes of their objects, and all bytes in use, at the last look with a live
    /// process that had some.
    pub disk_pages: u64,
    /// See above.
    pub disk_live_bytes: u64,
    /// See above.
    pub disk_used_bytes: u64,
    /// The most bytes in use.
    pub disk_used_peak_bytes: u64,
}

/// What was opened for a tree.
pub struct Opened {
    /// What processes share.
    pub books: Books,
    /// Where references are recorded, if they are.
    pub recorder: Option<OwnedFd>,
    /// Where processes connect.
    pub listener: OwnedFd,
}

impl Supervisor {
    /// Takes over what was opened for the tree.
    pub fn new(
        opened: Opened,
        signals: Signals,
        guardian: Guardian,
        attacher: Attacher,
        front: Front,
        child: i32,
    ) -> Result<Self> {
        // Orphans of the tree come to us, so that the tree's end can be seen.
        // SAFETY: changes an attribute of this process.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        let Opened { books, recorder, listener } = opened;
        Ok(Supervisor {
            books,
            recorder,
            listener,
            spare: spare(),
            descriptors_max: descriptors::limit(),
            family: Family::new(Some(guardian.pid())),
            signals,
            guardian: Some(guardian),
            attacher,
            front,
            child,
            connections: Vec::new(),
            orphans: Orphans::default(),
            rejoining: Vec::new(),
            claims: Claims::default(),
            lines: LINES_AT_ONCE,
            line_at: Instant::now(),
            unmanaged: Vec::new(),
            failures: Vec::new(),
            broken: Vec::new(),
            said_after_end: None,
            strangers: Strangers::new(),
            has_dumped: false,
            figures: Peaks::default(),
            history: None,
        })
    }

    /// Notes a program that runs without uzswap.
    pub fn note_unmanaged(&mut self, what: &str) {
        let what = plain(what);
        if self.unmanaged.len() < NOTES_MAX && !self.unmanaged.contains(&what) {
            self.unmanaged.push(what);
        }
    }

    /// Programs that ran without uzswap.
    pub fn unmanaged(&self) -> &[String] {
        &self.unmanaged
    }

    /// What processes share.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// A swap file, if one was asked for.
    pub fn swap(&self) -> Option<&Swap> {
        self.books.swap()
    }

    /// What broke in uzswap itself, and ended a process.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// What was to be said after the program's end.
    pub fn said_after_end(&self) -> &[String] {
        self.said_after_end.as_deref().unwrap_or_default()
    }

    /// Serves until the program has ended; returns its exit status, or that of a failure when its
    /// own pager ended it.
    pub fn serve(&mut self) -> i32 {
        let mut strangers_at = Instant::now() + STRANGERS;
        let mut sampled: Option<Instant> = None;
        loop {
            self.poll();
            if sampled.is_none_or(|at| at.elapsed() >= SAMPLE) {
                self.sample();
                sampled = Some(Instant::now());
            } else {
                self.books.relay();
            }
            self.attach();
            if let Some(status) = self.take_signals() {
                // What processes said at their end is still in their sockets.
                self.drain();
                return if self.broken.contains(&(self.child as u32)) {
                    crate::command_line::EXIT_FAILED
                } else {
                    status
                };
            }
            if Instant::now() >= strangers_at {
                self.look_for_strangers();
                self.look_for_shared_memory();
                self.look_for_wrong_figures();
                strangers_at = Instant::now() + STRANGERS;
            }
        }
    }

    /// Brings the agent to processes that have grown without one.
    fn attach(&mut self) {
        if Instant::now() < self.attacher.next() {
            return;
        }
        // A process that connects says hello, or it is not managed.
        let counts = |one: &&Connection| one.slot.is_some() || one.since.elapsed() < HELLO;
        self.rejoining.retain(|(_, since)| since.elapsed() < HELLO);
        // One that has begun another program has no agent any more, and may need one.
        let rejoining = self.rejoining.iter().map(|(pid, _)| *pid).filter(|pid| attach::has_agent(*pid));
        let connected = self.connections.iter().filter(counts).map(|one| one.peer.pid);
        let managed: Vec<i32> = connected.chain(rejoining).collect();
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        for note in self.attacher.look(guardian, &managed) {
            self.note_unmanaged(&note);
        }
        if let Some(guardian) = &self.guardian {
            guardian.note_members(self.attacher.members());
        }
    }

    fn poll(&mut self) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = vec![entry(self.signals.descriptor()), entry(self.listener.as_raw_fd())];
        polled.extend(self.connections.iter().map(|connection| entry(connection.socket.as_raw_fd())));
        let near = self.books.total_bytes() > self.books.settings().budget_bytes / 2;
        let timeout = match (self.books.has_several_users(), near) {
            (true, _) => SAMPLE_USERS,
            (false, true) => SAMPLE,
            (false, false) => SAMPLE_IDLE,
        };
        let timeout = timeout.min(self.attacher.next().saturating_duration_since(Instant::now()));
        // SAFETY: as many entries as said.
        unsafe {
            libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout.as_millis() as i32 + 1)
        };
        for index in (0..self.connections.len()).rev() {
            if polled[index + 2].revents != 0 && !self.answer(index) {
                self.end(index);
            }
        }
        if polled[1].revents != 0 {
            self.accept_waiting();
        }
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        for failure in self.orphans.look(|| attach::descendants(guardian)) {
            self.note_failure(failure);
        }
    }

    /// Says a line on the terminal; after the program's end, in the report.
    fn tell(&mut self, line: &str) {
        match &mut self.said_after_end {
            None => eprintln!("uzswap: {line}"),
            Some(said) if said.len() < NOTES_MAX => said.push(line.to_owned()),
            Some(_) => {}
        }
    }

    /// Says and notes what broke in uzswap itself.
    fn note_failure(&mut self, failure: String) {
        self.tell(&failure);
        if self.failures.len() < NOTES_MAX {
            self.failures.push(failure);
        }
    }

    /// Takes the connections that wait, up to a bound; whether there may be more.
    fn accept_waiting(&mut self) -> bool {
        for _ in 0..ACCEPTED_MAX {
            match accept(&self.listener) {
                Ok(socket) => self.admit(socket),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // It would wait for ever, and this process with it.
                    self.spare = None;
                    if let Ok(socket) = accept(&self.listener) {
                        self.turn_away(&socket);
                    }
                    self.spare = spare();
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Takes a connection, if it is one of the tree.
    fn admit(&mut self, socket: OwnedFd) {
        let connections = &self.connections;
        let is_member = |pid| {
            connections.iter().any(|one| one.peer.pid == pid && one.slot.is_some() && one.peer.is_there())
        };
        match Peer::of(socket.as_raw_fd(), &self.family, is_member) {
            Ok(_) if self.is_short(&socket, RESERVED) => self.turn_away(&socket),
            Ok(peer) if self.count(peer.pid, |_| true) < CONNECTIONS_MAX => {
                self.connections.push(Connection {
                    socket,
                    peer,
                    since: Instant::now(),
                    slot: None,
                    owner: None,
                    kept: Vec::new(),
                    given: 0,
                    lines: 0,
                })
            }
            Ok(_) | Err(Refusal::Stranger) => self.figures.refused_connections += 1,
            Err(Refusal::Gone) => {}
            Err(Refusal::NoDescriptors) => self.turn_away(&socket),
        }
    }

    /// Whether there are fewer than that many descriptors left.
    fn is_short(&self, newest: &OwnedFd, left: i32) -> bool {
        newest.as_raw_fd() >= self.descriptors_max.saturating_sub(left)
    }

    /// Tells a process that there is no room: it runs on unmanaged.
    fn turn_away(&mut self, socket: &OwnedFd) {
        self.note_unmanaged(NO_DESCRIPTORS);
        let _ = wire::send(socket.as_raw_fd(), &Packet::new(Kind::Refused, 0, 0), None);
    }

    /// Connections of a process.
    fn count(&self, pid: i32, of: impl Fn(&Connection) -> bool) -> usize {
        self.connections.iter().filter(|one| one.peer.pid == pid && of(one)).count()
    }

    /// Reads what one process sent; false when its connection has ended, or is to end.
    fn answer(&mut self, index: usize) -> bool {
        for _ in 0..PACKETS_MAX {
            let connection = &self.connections[index];
            let received = match wire::receive_all(connection.socket.as_raw_fd()) {
                Ok(Some(received)) => received,
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // Said once, before what came first.
                Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => continue,
                Err(_) => return self.refuse(),
            };
            if received.lacks_descriptors {
                self.note_unmanaged(NO_DESCRIPTORS);
            }
            let is_its_own = received.sender == Some(self.connections[index].peer.pid);
            if !is_its_own || !self.heard(index, received) {
                return self.refuse();
            }
        }
        true
    }

    /// Counts a connection that is closed for what came over it.
    fn refuse(&mut self) -> bool {
        self.figures.refused_connections += 1;
        false
    }

    /// Does what a packet asks for; false when it is none that a process sends.
    fn heard(&mut self, index: usize, received: Received) -> bool {
        let Received { packet, descriptors: [descriptor, _], .. } = received;
        match packet.kind() {
            Some(Kind::Hello) => return self.hello(index),
            Some(Kind::Say) => self.say(index, packet.text()),
            Some(Kind::Broken) => {
                let pid = self.connections[index].peer.pid as u32;
                if self.failures.len() < NOTES_MAX {
                    let failure =
                        format!("process {pid}: {}", plain(&String::from_utf8_lossy(packet.text())));
                    self.failures.push(failure);
                    self.broken.push(pid);
                }
                self.say(index, packet.text());
            }
            Some(Kind::Unmanaged) => {
                let pid = self.connections[index].peer.pid;
                let text = String::from_utf8_lossy(packet.text());
                self.note_unmanaged(&format!("{}: {text}", name_of(pid as u32)));
                self.attacher.note_refusal(pid);
            }
            Some(Kind::Keep) => {
                let is_short = descriptor.as_ref().is_some_and(|one| self.is_short(one, RESERVED / 2));
                if is_short {
                    self.note_unmanaged(NO_DESCRIPTORS);
                }
                let kept = &mut self.connections[index].kept;
                kept.extend(descriptor.filter(|one| !is_short && kept_is_right(kept.len(), one)));
            }
            Some(Kind::Swap) => return self.give_swap(index, packet.number),
            Some(Kind::Open) => {
                let peer = &self.connections[index].peer;
                let opened =
                    PrivilegedFile::from_number(packet.number).and_then(|what| lending::lend(peer, what));
                return self.give(index, &Packet::new(Kind::Opened, packet.number, 0), opened.as_ref());
            }
            Some(Kind::Agree) => {
                let agreed = descriptor.is_some_and(|userfaultfd| {
                    lending::entitled(&self.connections[index].peer).is_some()
                        && rights::agree(userfaultfd.as_raw_fd(), packet.token)
                });
                return self.give(index, &Packet::new(Kind::Agreed, (!agreed).into(), 0), None::<&OwnedFd>);
            }
            Some(Kind::Record) => {
                let recorder = self.recorder.as_ref().and_then(|pipe| pipe.try_clone().ok());
                let recorder =
                    recorder.filter(|_| lending::entitled(&self.connections[index].peer).is_some());
                return self.give(index, &Packet::new(Kind::Recorded, 0, 0), recorder.as_ref());
            }
            Some(
                Kind::Welcome | Kind::Refused | Kind::Swapped | Kind::Opened | Kind::Agreed | Kind::Recorded,
            )
            | None => return false,
        }
        true
    }

    /// Sends a packet, and a descriptor, if that is not too much for one connection.
    fn give(&mut self, index: usize, packet: &Packet, descriptor: Option<&impl AsRawFd>) -> bool {
        let connection = &mut self.connections[index];
        connection.given += 1;
        let _ = wire::send(connection.socket.as_raw_fd(), packet, descriptor.map(AsRawFd::as_raw_fd));
        connection.given <= GIVEN_MAX
    }

    /// Gives a process its place; false when it has one by this connection, which would be in use
    /// for ever.
    fn hello(&mut self, index: usize) -> bool {
        let Connection { socket, peer, slot, .. } = &self.connections[index];
        let (socket, pid) = (socket.as_raw_fd(), peer.pid);
        if slot.is_some() || self.count(pid, |one| one.slot.is_some()) >= PLACES_MAX {
            return false;
        }
        let Some(ids) = peer.ids() else { return false };
        let owner = Owner::of(&ids);
        match self.books.join(owner, pid as u32) {
            Ok(place) => {
                let connection = &mut self.connections[index];
                (connection.slot, connection.owner) = (Some(place), Some(owner));
                if let Some(history) = &mut self.history {
                    history.joined(pid as u32, place);
                }
                let (_, number) = ledger::Tree::at(place);
                let welcome = Packet::new(Kind::Welcome, number as u32, swap::owner_of(place).into());
                let _ = wire::send_with(socket, &welcome, &self.books.files(place));
            }
            Err(why) => {
                self.note_unmanaged(&why);
                let _ = wire::send(socket, &Packet::new(Kind::Refused, 0, 0), None);
            }
        }
        true
    }

    /// Gives a process a part of the swap file that is its user's, as long as it is that user's.
    fn give_swap(&mut self, index: usize, number: u32) -> bool {
        let Connection { slot, owner, peer, .. } = &self.connections[index];
        let is_still = peer.ids().map(|ids| Owner::of(&ids)) == *owner;
        let part = match *slot {
            Some(place) if is_still => self.books.swap_part(place, number).unwrap_or_else(|why| {
                self.note_unmanaged(&why);
                None
            }),
            _ => None,
        };
        self.give(index, &Packet::new(Kind::Swapped, number, 0), part.as_ref())
    }

    /// Shows a process's line, unless there were too many.
    fn say(&mut self, index: usize, text: &[u8]) {
        let connection = &mut self.connections[index];
        connection.lines += 1;
        let refill = self.line_at.elapsed().as_millis() / LINE_PAUSE.as_millis();
        if refill > 0 {
            self.lines = LINES_AT_ONCE.min(self.lines.saturating_add(refill.min(1000) as u32));
            self.line_at = Instant::now();
        }
        if connection.lines <= LINES_MAX && self.lines > 0 {
            self.lines -= 1;
            let text = plain(&String::from_utf8_lossy(text));
            let line = format!("process {}: {text}", connection.peer.pid);
            self.tell(&line);
        }
    }

    fn end(&mut self, index: usize) {
        let connection = self.connections.swap_remove(index);
        if let Some(place) = connection.slot {
            if let Some(history) = &mut self.history {
                history.left(place, self.books.tree());
            }
            self.books.leave(place);
            self.claims.forget(place);
        }
        if connection.slot.is_some() {
            self.rejoining.push((connection.peer.pid, Instant::now()));
        }
        self.orphans.adopt(connection.kept, Some(connection.peer.pid as u32));
    }

    fn drain(&mut self) {
        // Also from connections that were made for a last word, behind as many others' as can wait.
        for _ in 0..32 {
            if !self.accept_waiting() {
                break;
            }
        }
        for index in (0..self.connections.len()).rev() {
            if !self.answer(index) {
                self.end(index);
            }
        }
    }

    fn sample(&mut self) {
        self.books.audit();
        let tree = self.books.tree();
        let total_bytes = self.books.total_bytes();
        if let Some(history) = &mut self.history {
            history.sample(tree, total_bytes);
        }
        let (mut pages, mut bytes, mut disk_pages, mut disk_bytes, mut wanted) =
            (0u64, 0u64, 0u64, 0u64, 0u64);
        for live in tree.live() {
            pages = pages.saturating_add(live.slot.stored_pages());
            bytes = bytes.saturating_add(live.slot.pool_bytes());
            disk_pages = disk_pages.saturating_add(live.slot.disk_pages());
            disk_bytes = disk_bytes.saturating_add(live.slot.disk_bytes());
            wanted = wanted.saturating_add(live.slot.wanted_bytes());
        }
        let figures = &mut self.figures;
        figures.wanted_bytes = figures.wanted_bytes.max(wanted);
        if disk_pages > 0 {
            figures.disk_pages_peak = figures.disk_pages_peak.max(disk_pages);
            (figures.disk_pages, figures.disk_live_bytes) = (disk_pages, disk_bytes);
            figures.disk_used_bytes = self.books.swap_used_bytes();
            figures.disk_used_peak_bytes = figures.disk_used_peak_bytes.max(figures.disk_used_bytes);
        }
        if pages > 0 {
            (figures.stored_pages, figures.pool_bytes) = (pages, bytes);
        }
        if pages > figures.stored_pages_peak {
            (figures.stored_pages_peak, figures.pool_bytes_at_peak) = (pages, bytes);
        }
        figures.over_limit.note(tree, total_bytes, self.books.settings().budget_bytes);
    }

    /// Compares what processes say they use with what the kernel says.
    fn look_for_wrong_figures(&mut self) {
        let live: Vec<_> = self.books.tree().live().collect();
        let (count, budget) = (live.len() as u64, self.books.settings().budget_bytes);
        for one in live {
            let kernel = attach::anonymous_bytes(one.pid as i32);
            let judged = kernel
                .map(|kernel| self.claims.judge(one.place, one.slot.resident_bytes(), kernel, count, budget));
            let known = judged.flatten();
            self.figures.wrong_figures += u64::from(known.is_some());
            self.books.know(one.place, known);
        }
    }

    /// Handles signals; returns the program's exit status once it has ended.
    fn take_signals(&mut self) -> Option<i32> {
        while let Some(signal) = self.signals.next() {
            match signal.number {
                libc::SIGCHLD => {}
                libc::SIGTSTP if !signal.from_process => self.front.stop(),
                number if signal.from_process => {
                    // SAFETY: a signal to our own child.
                    unsafe { libc::kill(self.child, number) };
                }
                _ => {}
            }
        }
        self.reap()
    }

    /// Whether the program's core dump lacks pages: what is out when a process dumps its memory is
    /// left out of it.
    pub fn has_partial_dump(&self) -> bool {
        self.has_dumped && self.figures.stored_pages_peak > 0
    }

    fn reap(&mut self) -> Option<i32> {
        // A process that has been waited for cannot be told from others any more.
        self.accept_waiting();
        loop {
            let mut status = 0;
            // SAFETY: the status is writable.
            let pid = unsafe {
                // Not threads that other threads of this process trace.
                libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED | libc::__WNOTHREAD)
            };
            if pid <= 0 {
                return None;
            }
            if pid != self.child {
                continue;
            }
            if libc::WIFSTOPPED(status) {
                // The shell must see its job stop, and continues both. A sender who stops the
                // program alone, by SIGSTOP, continues it alone, and this process would not hear of
                // it.
                if !matches!(libc::WSTOPSIG(status), libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                    continue;
                }
                self.front.stop();
                // SAFETY: a signal to our own child.
                unsafe { libc::kill(self.child, libc::SIGCONT) };
            } else if libc::WIFEXITED(status) {
                return Some(libc::WEXITSTATUS(status));
            } else if libc::WIFSIGNALED(status) {
                self.has_dumped = libc::WCOREDUMP(status);
                return Some(128 + libc::WTERMSIG(status));
            }
        }
    }

    /// Notes descendants that have the object and no connection: they cannot reach this process.
    fn look_for_strangers(&mut self) {
        let managed: Vec<i32> = self.books.tree().live().map(|live| live.pid as i32).collect();
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        for name in self.strangers.look(&attach::descendants(guardian), &managed) {
            self.note_unmanaged(&format!("{name}: its pager does not reach this process"));
        }
    }

    /// Shared memory is not paged, nor in the budget. Of several processes that have the same, one
    /// counts.
    fn look_for_shared_memory(&mut self) {
        let resident = self.books.tree().live().filter_map(|live| shared_bytes(live.pid));
        self.figures.shared_bytes = resident.fold(self.figures.shared_bytes, u64::max);
    }

    /// Ends the front with the program's status and serves the processes of the tree that outlive
    /// the program (daemons), until the last one has ended. A child that has not said hello is one
    /// of them.
    pub fn serve_remainder(&mut self, status: i32) {
        self.drain();
        self.reap();
        if self.has_no_tree() {
            return;
        }
        // SAFETY: gives up the terminal, so that nothing waits for this process on a pipe.
        unsafe {
            libc::setsid();
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            for standard in 0..3 {
                libc::dup2(null, standard);
            }
        }
        self.said_after_end = Some(Vec::new());
        self.books.set_supervisor(std::process::id());
        self.front.dismiss(status);
        while !self.has_no_tree() {
            self.poll();
            self.sample();
            self.attach();
            while self.signals.next().is_some() {}
            self.reap();
        }
        self.drain();
    }

    /// Whether no process of the tree lives.
    fn has_no_tree(&self) -> bool {
        !attach::has_children(self.guardian.as_ref().map(Guardian::pid))
    }
}

/// Resident pages of a process's shared mappings, memory files and System V segments.
fn shared_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(sys::procfs::path_of(pid as i32, "status")?).ok()?;
    sys::procfs::kilobytes_field(text.as_bytes(), b"RssShmem:")
}

/// Accepts a connection.
fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let none = std::ptr::null_mut();
    // SAFETY: accepts without an address.
    match unsafe { libc::accept4(listener.as_raw_fd(), none, none.cast(), flags) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: accepted just now.
        raw => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
    }
}

/// A descriptor to give up.
fn spare() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Whether a descriptor is a userfaultfd: nothing else that a process sends is touched, as this
/// process may do more with it.
fn is_userfaultfd(descriptor: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Whether to keep a descriptor beside so many.
fn kept_is_right(kept: usize, descriptor: &OwnedFd) -> bool {
    kept < KEPT_MAX && is_userfaultfd(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_userfaultfd_is_agreed_on() {
        assert!(!rights::agree(File::open("/dev/zero").unwrap().as_raw_fd(), 0));
        assert!(!kept_is_right(0, &File::open("/dev/zero").unwrap().into()));
    }
}
