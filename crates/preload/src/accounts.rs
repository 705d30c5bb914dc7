//! This process's place in the ledger of its tree.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use ledger::wire::{self, Kind, Packet};
use ledger::{Counter, Ledger, Slot};
use pager::{Accounts, Count};

use crate::broken::{self, Point};
use crate::control;

/// The ledger, this process's slot in it, and the connection to the supervisor. The connection's number is valid in
/// the file table of the pager's threads only.
pub struct Ledgered {
    ledger: Ledger,
    /// [`NOWHERE`] in a forked child that has not joined yet.
    index: AtomicUsize,
    socket: AtomicI32,
}

const NOWHERE: usize = usize::MAX;

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
        let (ledger, index, socket) = Self::ask(name)?;
        Ok(Ledgered { ledger, index: AtomicUsize::new(index), socket: AtomicI32::new(socket) })
    }

    /// In a forked child: forgets the parent's place. Nothing is counted until [`Ledgered::rejoin`].
    pub fn leave(&self) {
        self.index.store(NOWHERE, Ordering::Release);
        self.socket.store(-1, Ordering::Release);
    }

    /// Joins the same tree with a place of this process's own.
    pub fn rejoin(&self, name: &[u8]) -> Result<(), JoinError> {
        // The parent's mapping of the ledger is here too; the second one costs address space alone.
        let (_, index, socket) = Self::ask(name)?;
        self.socket.store(socket, Ordering::Release);
        self.index.store(index, Ordering::Release);
        Ok(())
    }

    fn ask(name: &[u8]) -> Result<(Ledger, usize, i32), JoinError> {
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
                Ok((ledger, packet.number as usize, socket))
            }
            Ok(Some(_)) => Err(JoinError::Refused),
            _ => Err(JoinError::NoSupervisor),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// This process's slot, once it has one.
    pub fn slot(&self) -> Option<&'static Slot> {
        self.index().map(|index| self.ledger.slot(index))
    }

    /// The slot's number.
    pub fn index(&self) -> Option<usize> {
        let index = self.index.load(Ordering::Acquire);
        (index != NOWHERE).then_some(index)
    }

    /// A number that changes when processes of the tree come or go.
    pub fn relatives(&self) -> u64 {
        let pids = self.ledger.live().map(|(index, slot)| u64::from(slot.pid()) * (index as u64 * 2 + 1));
        pids.fold(0, u64::wrapping_add)
    }

    /// The connection to the supervisor.
    pub fn socket(&self) -> i32 {
        self.socket.load(Ordering::Acquire)
    }

    /// Gives the supervisor a descriptor to hold until this process has ended.
    pub fn keep(&self, descriptor: i32) {
        let _ = wire::send(self.socket(), &Packet::new(Kind::Keep, 0, 0), Some(descriptor));
    }

    /// Ends the process when the supervisor is gone: nobody would hold the tree to its budget, or report.
    pub fn end_if_alone(&self) {
        let mut poll = libc::pollfd { fd: self.socket(), events: 0, revents: 0 };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
            kill_process();
        }
    }
}

/// Tells the supervisor something over a connection made for it, from any thread of the process.
pub fn tell(kind: Kind, text: &str) -> std::io::Result<()> {
    let socket = wire::connect(control::socket())?;
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
        let index = self.index.load(Ordering::Acquire);
        if index != NOWHERE {
            self.ledger.publish(index, resident, pool, staged, stored_pages);
        }
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
            Count::Promoted => Counter::Promoted,
            Count::PagesWritten => Counter::ZswpWb,
            Count::DiskFaults => Counter::DiskFaults,
            Count::DiskPagesIn => Counter::DiskPagesIn,
            Count::DiskReadNs => Counter::DiskReadNs,
            Count::DiskReads => Counter::DiskReads,
            Count::SwapBytesWritten => Counter::SwapBytesWritten,
            Count::SwapBytesRead => Counter::SwapBytesRead,
            Count::SwapObjectBytes => Counter::SwapObjectBytes,
            Count::SwapWriteNs => Counter::SwapWriteNs,
            Count::SwapBytesCleaned => Counter::SwapBytesCleaned,
            Count::SwapSegmentsCleaned => Counter::SwapSegmentsCleaned,
            Count::SwapCleanNs => Counter::SwapCleanNs,
            Count::SwapNoSpace => Counter::SwapNoSpace,
            Count::SwapWritesFailed => Counter::SwapWritesFailed,
            Count::SwapReadsFailed => Counter::SwapReadsFailed,
            Count::SwapWaitNs => Counter::SwapWaitNs,
        };
        if let Some(slot) = self.slot() {
            slot.add(counter, by);
        }
        if count == Count::PagesOut {
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
        }
    }

    fn publish_disk(&self, pages: u64, bytes: u64) {
        if let Some(index) = self.index() {
            self.ledger.publish_disk(index, pages, bytes);
        }
    }

    fn say(&self, text: &str) {
        let _ = wire::send(self.socket(), &Packet::with_text(Kind::Say, text), None);
    }
}
