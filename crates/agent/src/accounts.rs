//! This process's place in the ledger of its tree.

use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ledger::wire::{self, Kind, Packet, Received};
use ledger::{Counter, Ledger, Share, Slot};
use pager::{Accounts, PageNumber};
use replacement::trace::Reference;
use sys::privileged::{PrivilegedFile, PrivilegedHelper};
use sys::{packets, process, PAGE_SIZE};

use crate::broken::{self, Point};
use crate::channel::{self, close};
use crate::control_page::control_page;
use crate::{control, fork, segments, start};

/// The ledger, this process's slot in it, and the connection to the supervisor. The connection's
/// descriptor is valid only in the file table of the pager's threads.
pub struct Ledgered {
    /// A leaked box: a forked child may switch to another user's ledger.
    ledger: AtomicPtr<Ledger>,
    /// [`NOWHERE`] in a forked child that has not joined yet.
    index: AtomicUsize,
    owner: AtomicU32,
    socket: AtomicI32,
    /// The recorder's pipe, in the file table of the pager's threads; -1 without one.
    recorder: AtomicI32,
    /// Stored pages that are copies of the parent's: a place joined later has them, too.
    inherited: AtomicU64,
}

const NOWHERE: usize = usize::MAX;

/// The supervisor's guardian stops a tree whose supervisor was killed within this time.
const GUARDIAN_NS: u64 = 2_000_000_000;

/// Why a process has no place in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinError {
    /// The supervisor has ended, or never existed.
    NoSupervisor,
    /// The program has given up rights, before the supervisor was reached.
    Interrupted,
    /// Every slot is taken. The supervisor reports it.
    Refused,
    /// The limit on descriptors (RLIMIT_NOFILE) leaves none for the connection, or for the ledger.
    NoDescriptor,
}

struct Membership {
    ledger: Ledger,
    index: usize,
    owner: u32,
    socket: i32,
}

impl Ledgered {
    /// Joins the tree whose supervisor listens at `name`.
    pub fn join(name: &[u8]) -> Result<Self, JoinError> {
        let Membership { ledger, index, owner, socket } = Self::ask(name)?;
        Ok(Ledgered {
            ledger: AtomicPtr::new(Box::leak(Box::new(ledger))),
            index: AtomicUsize::new(index),
            owner: AtomicU32::new(owner),
            socket: AtomicI32::new(socket),
            recorder: AtomicI32::new(-1),
            inherited: AtomicU64::new(0),
        })
    }

    /// In a forked child: forgets the parent's place; counts nothing until [`Ledgered::rejoin`].
    pub fn leave(&self) {
        self.index.store(NOWHERE, Ordering::Release);
        self.recorder.store(-1, Ordering::Release);
        self.socket.store(-1, Ordering::Release);
    }

    /// Joins the same tree with a place of its own.
    pub fn rejoin(&self, name: &[u8]) -> Result<(), JoinError> {
        // The parent's ledger stays mapped: handlers may be reading it, and it costs only address
        // space.
        let Membership { ledger, index, owner, socket } = Self::ask(name)?;
        self.ledger.store(Box::leak(Box::new(ledger)), Ordering::Release);
        self.owner.store(owner, Ordering::Release);
        self.socket.store(socket, Ordering::Release);
        self.index.store(index, Ordering::Release);
        pager::Accounts::publish_inherited(self, self.inherited.load(Ordering::Relaxed));
        self.open_recorder();
        Ok(())
    }

    fn ask(name: &[u8]) -> Result<Membership, JoinError> {
        let hello = Packet::new(Kind::Hello, fork::has_forked().into(), 0);
        let (socket, reply) = match connect(name) {
            Ok(socket) => {
                let sent = hello_of_program(socket, &hello);
                (socket, sent.and_then(|()| wire::receive_all(socket)))
            }
            Err(None) => await_supervisor(&hello)?,
            Err(Some(error)) => return Err(error),
        };
        let refused = match reply {
            Ok(Some(received)) if received.packet.kind() == Some(Kind::Welcome) => {
                if let [Some(board), Some(ledger)] = received.descriptors {
                    if let Ok(ledger) = Ledger::map(board.as_fd(), ledger.as_fd()) {
                        let (index, owner) = (received.packet.number as usize, received.packet.token as u32);
                        ledger.slot(index).set_lineage(control_page().lineage.load(Ordering::Relaxed));
                        return Ok(Membership { ledger, index, owner, socket });
                    }
                }
                let why = too_few_descriptors().unwrap_or_else(|| "no descriptor is left".into());
                tell_unmanaged(socket, &why);
                JoinError::NoDescriptor
            }
            Ok(Some(_)) => JoinError::Refused,
            // The supervisor does not count this process in its tree, or has ended.
            _ => match connect(name) {
                Ok(again) => {
                    close(again);
                    JoinError::Refused
                }
                Err(error) => error.unwrap_or(JoinError::Refused),
            },
        };
        close(socket);
        Err(refused)
    }

    pub fn ledger(&self) -> &'static Ledger {
        // SAFETY: a leaked box.
        unsafe { &*self.ledger.load(Ordering::Acquire) }
    }

    /// This process's name in its user's swap file.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::Acquire)
    }

    pub fn slot(&self) -> Option<&'static Slot> {
        self.index().map(|index| self.ledger().slot(index))
    }

    pub fn index(&self) -> Option<usize> {
        let index = self.index.load(Ordering::Acquire);
        (index != NOWHERE).then_some(index)
    }

    /// Requests the recorder's pipe from the supervisor, if there is a recorder.
    pub fn open_recorder(&self) {
        if !self.ledger().settings().records {
            return;
        }
        let opened = wire::ask(self.socket(), Kind::Record, 0, Kind::Recorded).unwrap_or(-1);
        self.recorder.store(opened, Ordering::Release);
        if opened < 0 {
            self.say("its references are not recorded: the supervisor did not give it the recorder's pipe");
        }
    }

    pub fn records(&self) -> bool {
        self.recorder.load(Ordering::Acquire) >= 0
    }

    fn record(&self, page: u64, discarded: u64) {
        let raw = Reference { process: control::program(), page, discarded }.to_raw();
        // SAFETY: `len` bytes of `raw`. So short a write is atomic, or fails without a recorder.
        unsafe { libc::write(self.recorder.load(Ordering::Acquire), raw.as_ptr().cast(), raw.len()) };
    }

    pub fn socket(&self) -> i32 {
        self.socket.load(Ordering::Acquire)
    }

    /// Tells the supervisor why this process is not managed. Needs no further descriptor.
    pub fn unmanaged(&self, why: &str) {
        tell_unmanaged(self.socket(), why);
    }

    /// Gives the supervisor a descriptor to hold until this process has ended.
    pub fn keep(&self, descriptor: i32) {
        let _ = wire::send(self.socket(), &Packet::new(Kind::Keep, 0, 0), Some(descriptor));
    }

    /// Tells the supervisor that it need hold nothing for this process, and which memory is the
    /// agent's own.
    pub fn done(&self) {
        let mut text = String::new();
        for range in start::own_ranges() {
            text += &format!("{:x}-{:x} ", range.start, range.end);
        }
        let _ = wire::send(self.socket(), &Packet::with_text(Kind::Done, &text), None);
    }

    /// Ends the process if the supervisor has ended: the budget is no longer enforced. A process to
    /// which it was attached keeps its pager, within the last known budget.
    pub fn end_if_alone(&self) {
        if control::is_attached() {
            return;
        }
        let mut poll = libc::pollfd { fd: self.socket(), events: 0, revents: 0 };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
            // The guardian finds children without an agent through their parents.
            sys::thread::sleep_ns(GUARDIAN_NS);
            kill_process();
        }
    }
}

/// A pager holds ten descriptors, and every look at the process takes one or two for a moment.
const DESCRIPTORS_MIN: u64 = 16;

/// Why this process has too few descriptors for a pager, if it has.
pub fn too_few_descriptors() -> Option<String> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let most = limit.rlim_cur;
    (most < DESCRIPTORS_MIN).then(|| {
        format!("RLIMIT_NOFILE is {most}, and the pager needs {DESCRIPTORS_MIN} descriptors of its own (ulimit -n)")
    })
}

fn tell_unmanaged(socket: i32, why: &str) {
    let _ = wire::send(socket, &Packet::with_text(Kind::Unmanaged, why), None);
}

/// Sends the hello, with a handle of the program: the supervisor may number processes differently.
fn hello_of_program(socket: i32, hello: &Packet) -> std::io::Result<()> {
    let program = process::handle(control::program() as i32)?;
    wire::send(socket, hello, Some(program.as_raw_fd()))
}

/// Connects to the supervisor. The error is `None` if it is in another network namespace.
fn connect(name: &[u8]) -> Result<i32, Option<JoinError>> {
    wire::connect(name).map_err(|error| match error.raw_os_error() {
        // The supervisor is foreign, or has another user: this process sends it nothing.
        Some(libc::EPERM) => Some(JoinError::Refused),
        Some(libc::EMFILE | libc::ENFILE) => Some(JoinError::NoDescriptor),
        _ if wire::is_elsewhere(name) => None,
        _ => Some(JoinError::NoSupervisor),
    })
}

/// Interval at which a thread that waits for the supervisor serves the program.
const AWAIT_MS: i32 = 20;

/// Reaches a supervisor in another network namespace: makes a connection and waits until the
/// supervisor, which looks at its tree's processes once they have grown, takes the other end out of
/// this thread's file table. This thread's name tells the number. Returns the reply to `hello`.
fn await_supervisor(hello: &Packet) -> Result<(i32, std::io::Result<Option<Received>>), JoinError> {
    let Ok([own, theirs]) = packets::pair() else { return Err(JoinError::NoDescriptor) };
    let sent =
        packets::ask_for_senders(theirs.as_raw_fd()).and_then(|()| hello_of_program(own.as_raw_fd(), hello));
    if sent.is_err() {
        return Err(JoinError::Refused);
    }
    let name = format!("{}{}\0", wire::WAITING_NAME, theirs.as_raw_fd());
    sys::thread::name(std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).expect("one NUL, at the end"));
    while !channel::wait([own.as_raw_fd(), -1, -1, -1], AWAIT_MS)[0] {
        control::end_if_program_ended();
        crate::fork::serve_request();
        if crate::credentials::are_wanted() || crate::fork::has_stopped() {
            return Err(JoinError::Interrupted);
        }
    }
    sys::thread::name(c"uzswap");
    let socket = own.into_raw_fd();
    Ok((socket, wire::receive_all(socket)))
}

/// How long an ending process waits for the supervisor to receive the reason, in milliseconds.
const HEARD_MS: i32 = 2000;

/// Sends the supervisor a text over a new connection, from any thread of the process. Returns when
/// the supervisor has received it: it accepts nothing from a process that has ended.
pub fn tell(kind: Kind, text: &str) -> std::io::Result<()> {
    let socket = wire::connect(control::socket())?;
    let sent = wire::send(socket, &Packet::with_text(kind, text), None);
    if sent.is_ok() {
        // SAFETY: takes numbers.
        unsafe { libc::shutdown(socket, libc::SHUT_WR) };
        channel::wait([socket, -1, -1, -1], HEARD_MS);
    }
    close(socket);
    sent
}

/// Requests to the supervisor over new connections, at any time, from any thread of the pager.
pub struct Rights;

impl Rights {
    fn ask<T>(question: impl FnOnce(i32) -> std::io::Result<T>) -> Option<T> {
        let socket = wire::connect(control::socket()).ok()?;
        let reply = question(socket);
        close(socket);
        reply.ok()
    }
}

impl PrivilegedHelper for Rights {
    fn open(&self, what: PrivilegedFile) -> Option<i32> {
        Self::ask(|socket| wire::ask(socket, Kind::Open, what as u32, Kind::Opened))
    }

    fn agree(&self, userfaultfd: i32, features: u64) -> bool {
        let agreed = Self::ask(|socket| {
            wire::send(socket, &Packet::new(Kind::Agree, 0, features), Some(userfaultfd))?;
            let reply = wire::receive(socket)?;
            Ok(reply.is_some_and(|(packet, _)| packet.kind() == Some(Kind::Agreed) && packet.number == 0))
        });
        agreed == Some(true)
    }
}

/// Ends the program and its agent without a message: no reader is left.
pub fn kill_process() -> ! {
    // SAFETY: a plain system call.
    unsafe { libc::kill(control::program() as i32, libc::SIGKILL) };
    sys::thread::exit_process(128 + libc::SIGKILL)
}

impl Accounts for Ledgered {
    fn budget(&self) -> u64 {
        self.ledger().budget_bytes()
    }

    fn total(&self) -> u64 {
        self.ledger().total_bytes()
    }

    fn broken(&self, text: &str) {
        broken::tell(text);
    }

    fn share(&self) -> Share {
        self.index().map_or_else(Share::default, |index| self.ledger().share(index))
    }

    fn shares_segments(&self) -> bool {
        segments::are_exchanged()
    }

    fn note_segment(&self, rank: u32, maps: bool) -> u32 {
        self.slot().into_iter().for_each(|slot| slot.set_maps(rank, maps));
        self.ledger().live().filter(|(_, _, slot)| slot.maps(rank)).count() as u32
    }

    fn show_segment(&self, file: OwnedFd) {
        if let Some(index) = self.index() {
            segments::show(self.ledger(), index, file);
        }
    }

    fn take_segment(&self) -> Option<OwnedFd> {
        self.index().and_then(|index| segments::take(self.ledger(), index))
    }

    fn publish(&self, resident: u64, pool: u64, staged: u64, stored_pages: u64) {
        broken::here(Point::Publish);
        let index = self.index.load(Ordering::Acquire);
        if index != NOWHERE {
            self.ledger().publish(index, resident, pool, staged, stored_pages);
        }
    }

    fn add(&self, counter: Counter, by: u64) {
        if let Some(slot) = self.slot() {
            slot.add(counter, by);
        }
        if counter == Counter::ZswpOut {
            broken::here(Point::Store);
            broken::here(Point::Memory);
        }
    }

    fn fault(&self, ns: u64) {
        if let Some(slot) = self.slot() {
            slot.faults().record(ns);
        }
        broken::here(Point::Fault);
    }

    fn disk_fault(&self, ns: u64) {
        if let Some(slot) = self.slot() {
            slot.disk_faults().record(ns);
            slot.add(Counter::DiskFaultNs, ns);
        }
    }

    fn pagers(&self) -> usize {
        self.ledger().pagers()
    }

    fn publish_inherited(&self, pages: u64) {
        self.inherited.store(pages, Ordering::Relaxed);
        self.slot().into_iter().for_each(|slot| slot.publish_inherited(pages));
    }

    fn publish_disk(&self, pages: u64, bytes: u64) {
        if let Some(index) = self.index() {
            self.ledger().publish_disk(index, pages, bytes);
        }
    }

    fn reference(&self, page: PageNumber) {
        self.record(page.key(), 0);
    }

    fn forgotten(&self, start: usize, end: usize) {
        if self.records() && end > start {
            self.record((start / PAGE_SIZE) as u64, ((end - start) / PAGE_SIZE) as u64);
        }
    }

    fn say(&self, text: &str) {
        let _ = wire::send(self.socket(), &Packet::with_text(Kind::Say, text), None);
    }
}
