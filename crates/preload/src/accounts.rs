//! This process's place in the ledger of its tree.

use std::os::fd::BorrowedFd;

use ledger::wire::{self, Kind, Packet};
use ledger::{Counter, Ledger, Slot};
use pager::{Accounts, Count};

use crate::broken::{self, Point};
use crate::warden;

/// The ledger, this process's slot in it, and the connection to the supervisor. The connection's number is valid in
/// the file table of the pager's threads only.
pub struct Ledgered {
    ledger: Ledger,
    index: usize,
    socket: i32,
}

/// Why a process has no place in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinError {
    /// The supervisor is gone, or never was.
    NoSupervisor,
    /// The supervisor is in another network namespace, where this process cannot reach it.
    Elsewhere,
    /// Every slot is taken; the supervisor knows and says so.
    Refused,
}

impl Ledgered {
    /// Joins the tree whose supervisor listens at `name`.
    pub fn join(name: &[u8]) -> Result<Self, JoinError> {
        let unreachable =
            if wire::is_elsewhere(name) { JoinError::Elsewhere } else { JoinError::NoSupervisor };
        let socket = wire::connect(name).map_err(|_| unreachable)?;
        // SAFETY: takes nothing.
        let hello = Packet::new(Kind::Hello, unsafe { libc::getpid() } as u32, 0);
        wire::send(socket, &hello, None).map_err(|_| JoinError::NoSupervisor)?;
        match wire::receive(socket) {
            Ok(Some((packet, Some(file)))) if packet.kind() == Some(Kind::Welcome) => {
                // SAFETY: received just now, open until closed below.
                let ledger = Ledger::map(unsafe { BorrowedFd::borrow_raw(file) });
                // SAFETY: the mapping stays without the descriptor.
                unsafe { libc::close(file) };
                let ledger = ledger.map_err(|_| JoinError::NoSupervisor)?;
                Ok(Ledgered { ledger, index: packet.number as usize, socket })
            }
            Ok(Some(_)) => Err(JoinError::Refused),
            _ => Err(JoinError::NoSupervisor),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// This process's slot.
    pub fn slot(&self) -> &'static Slot {
        self.ledger.slot(self.index)
    }

    /// Gives the supervisor a descriptor to hold until this process has ended.
    pub fn keep(&self, descriptor: i32) {
        let _ = wire::send(self.socket, &Packet::new(Kind::Keep, 0, 0), Some(descriptor));
    }

    /// Ends the process when the supervisor is gone: nobody would hold the tree to its budget, or report.
    pub fn end_if_alone(&self) {
        let mut poll = libc::pollfd { fd: self.socket, events: 0, revents: 0 };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
            kill_process();
        }
    }
}

/// Tells the supervisor something over a connection made for it, from any thread of the process.
pub fn tell(kind: Kind, text: &str) -> std::io::Result<()> {
    let socket = wire::connect(warden::socket())?;
    let sent = wire::send(socket, &Packet::with_text(kind, text), None);
    // SAFETY: opened above, used by nobody else.
    unsafe { libc::close(socket) };
    sent
}

/// Ends the process without a word: there is nobody to say it to.
pub fn kill_process() -> ! {
    // SAFETY: plain system calls.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The first process of a namespace is immune to its own signals.
    sys::thread::exit_process(128 + libc::SIGKILL)
}

impl Accounts for Ledgered {
    fn budget(&self) -> u64 {
        self.ledger.budget_bytes()
    }

    fn total(&self) -> u64 {
        self.ledger.total_bytes()
    }

    fn broken(&self, text: &str) {
        broken::tell(text);
    }

    fn publish(&self, resident: u64, pool: u64, staged: u64, stored_pages: u64) {
        broken::here(Point::Publish);
        self.ledger.publish(self.index, resident, pool, staged, stored_pages);
    }

    fn add(&self, count: Count, by: u64) {
        let counter = match count {
            Count::Faults => Counter::Faults,
            Count::FaultNs => Counter::FaultNs,
            Count::Refaults => Counter::Refaults,
            Count::PagesIn => Counter::ZswpIn,
            Count::PagesOut => Counter::ZswpOut,
            Count::Batches => Counter::Batches,
            Count::BatchPages => Counter::BatchPages,
            Count::Poor => Counter::RejectCompressPoor,
            Count::Refused => Counter::RejectAllocFail,
            Count::ZeroFilled => Counter::ZeroFilled,
            Count::OverBudget => Counter::OverBudget,
            Count::BroughtIn => Counter::BroughtIn,
            Count::Forks => Counter::Forks,
        };
        self.slot().add(counter, by);
        if count == Count::PagesOut {
            broken::here(Point::Store);
            broken::here(Point::Memory);
        }
    }

    fn fault(&self, ns: u64) {
        self.slot().faults().record(ns);
        broken::here(Point::Fault);
    }

    fn say(&self, text: &str) {
        let _ = wire::send(self.socket, &Packet::with_text(Kind::Say, text), None);
    }
}
