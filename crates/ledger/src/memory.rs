//! One user's ledger: its processes' use and counters, in memory that they all may write.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::board::{Board, Settings};
use crate::file::{self, Access};
use crate::{Share, Slot};

/// Most managed processes of one user of a tree. Further ones run unmanaged.
pub const SLOTS: usize = 1024;
/// The memory file's name, by which observers find it among a supervisor's descriptors.
pub const LEDGER_NAME: &CStr = c"uzswap-ledger";

/// More than any machine has; larger figures are clamped to this.
const BYTES_MAX: u64 = 1 << 52;
/// Consecutive looks before a wrong sum is corrected: a process may be stopped while it changes it.
const LOOKS: u32 = 4;
/// A wrong sum above this is corrected at once.
const ABSURD_BYTES: u64 = 1 << 46;

#[repr(C)]
pub(crate) struct Memory {
    /// Sum of the live slots' resident bytes.
    total: AtomicU64,
    pub(crate) slots: [Slot; SLOTS],
}

/// A ledger and its board. They are never unmapped: detached threads may use them until the process
/// ends.
///
/// The ledger may hold anything, since each of its processes may write all of it. The board tells
/// which slots are in use.
#[derive(Clone, Copy)]
pub struct Ledger {
    pub(crate) board: NonNull<Board>,
    pub(crate) memory: NonNull<Memory>,
}

// SAFETY: everything in the memory is atomic, and it stays mapped.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// Maps a board read-only, and its ledger.
    ///
    /// # Errors
    /// EPROTO if the files are not sealed, or the board, whose version counts for both, has another
    /// version; errors of mmap(2).
    pub fn map(board: BorrowedFd<'_>, ledger: BorrowedFd<'_>) -> io::Result<Self> {
        let board = file::map_sealed(&board, Access::Read, file::SEALS | libc::F_SEAL_FUTURE_WRITE)?;
        let memory = file::map_sealed(&ledger, Access::Write, file::SEALS)?;
        let ledger = Ledger { board, memory };
        ledger.board().has_magic().then_some(ledger).ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTO))
    }

    fn memory(&self) -> &'static Memory {
        // SAFETY: mapped for ever, all atomics, any bit pattern is valid.
        unsafe { &*self.memory.as_ptr() }
    }

    pub(crate) fn board(&self) -> &'static Board {
        // SAFETY: as above.
        unsafe { &*self.board.as_ptr() }
    }

    /// The supervisor's settings.
    pub fn settings(&self) -> Settings {
        self.board().settings()
    }

    /// The budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.board().budget_bytes()
    }

    /// Use of the tree: this ledger's sum, plus the supervisor's last sum of the other ledgers.
    pub fn total_bytes(&self) -> u64 {
        let own = self.memory().total.load(Ordering::Relaxed).min(BYTES_MAX);
        own.saturating_add(self.board().others.load(Ordering::Relaxed).min(BYTES_MAX))
    }

    /// Addresses of both parts of the total, for readers in this process that have no ledger.
    pub fn total_addresses(&self) -> [usize; 2] {
        [&self.memory().total, &self.board().others].map(|word| word.as_ptr().addr())
    }

    /// The relatives' share in the memory of the process in a slot, as the supervisor last knew.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn share(&self, index: usize) -> Share {
        Share::from_word(self.board().shares[index].load(Ordering::Relaxed))
    }

    /// Processes of the tree that have a pager.
    pub fn pagers(&self) -> usize {
        let others = self.board().other_pagers.load(Ordering::Relaxed);
        self.own_pagers() + usize::try_from(others).unwrap_or(0).min(1 << 20)
    }

    fn own_pagers(&self) -> usize {
        self.live().filter(|(_, _, slot)| slot.is_managed()).count()
    }

    /// A slot by number.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn slot(&self, index: usize) -> &'static Slot {
        &self.memory().slots[index]
    }

    /// The process in a slot, 0 for none.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn pid(&self, index: usize) -> u32 {
        self.board().pids[index].load(Ordering::Acquire)
    }

    /// Publishes a process's use.
    pub fn publish(&self, index: usize, resident: u64, pool: u64, staged: u64, stored_pages: u64) {
        let before = self.slot(index).publish(resident, pool, staged, stored_pages);
        // Wraps by design: the difference may be negative.
        self.memory().total.fetch_add(resident.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Publishes a process's pages in the swap file, and the bytes of their objects.
    pub fn publish_disk(&self, index: usize, pages: u64, bytes: u64) {
        self.slot(index).publish_disk(pages, bytes);
    }

    /// The slots in use, by number, and the process in each.
    pub fn live(&self) -> impl Iterator<Item = (usize, u32, &'static Slot)> {
        let pids = self.board().pids[..self.board().slots_used()].iter().zip(&self.memory().slots);
        let all = pids.enumerate().map(|(index, (pid, slot))| (index, pid.load(Ordering::Acquire), slot));
        all.filter(|(_, pid, _)| *pid != 0)
    }
}

/// The supervisor's ledger, with a writable board.
pub struct Keeper {
    ledger: Ledger,
    board_file: OwnedFd,
    ledger_file: OwnedFd,
    /// The use that slots count with if their own figure is known to be wrong.
    known: Vec<Option<u64>>,
    looks: u32,
    corrections: u64,
    /// Memory of this machine, the most that a process can use.
    machine_bytes: u64,
}

impl Keeper {
    /// Makes the memory files of one user of tree number `tree`.
    ///
    /// # Errors
    /// If the kernel refuses sparse memory files of some MiB or their seals; EINVAL for long
    /// settings.
    pub fn create(settings: &Settings, tree: u64) -> io::Result<Self> {
        let ledger_file = file::create(LEDGER_NAME, size_of::<Memory>())?;
        file::seal(&ledger_file, file::SEALS)?;
        let memory = file::map::<Memory>(&ledger_file, Access::Write)?;
        let inode = crate::snapshot::status_of(ledger_file.as_fd())?.st_ino;
        let (board, board_file) = Board::create(settings, tree, inode)?;
        let ledger = Ledger { board, memory };
        Ok(Keeper {
            ledger,
            board_file,
            ledger_file,
            known: Vec::new(),
            looks: 0,
            corrections: 0,
            machine_bytes: machine_bytes(),
        })
    }

    /// The ledger.
    pub fn ledger(&self) -> Ledger {
        self.ledger
    }

    /// Descriptors of board and ledger, for the user's processes.
    pub fn files(&self) -> [i32; 2] {
        [self.board_file.as_raw_fd(), self.ledger_file.as_raw_fd()]
    }

    /// The board's file.
    pub fn board_file(&self) -> BorrowedFd<'_> {
        self.board_file.as_fd()
    }

    /// The ledger's file.
    pub fn ledger_file(&self) -> BorrowedFd<'_> {
        self.ledger_file.as_fd()
    }

    /// Names the process by which users know the tree.
    pub fn set_supervisor(&self, pid: u32) {
        self.ledger.board().set_supervisor(pid);
    }

    /// Gives a free slot to `pid`. Returns `None` if all are taken.
    pub fn claim(&mut self, pid: u32) -> Option<usize> {
        assert_ne!(pid, 0);
        let board = self.ledger.board();
        let index = board.pids.iter().position(|other| other.load(Ordering::Relaxed) == 0)?;
        board.pids[index].store(pid, Ordering::Release);
        board.slots_used.fetch_max(index as u64 + 1, Ordering::Release);
        Some(index)
    }

    /// Frees the slot of a process that has ended, and adds its figures to the departed.
    pub fn release(&mut self, index: usize) {
        let (board, slot) = (self.ledger.board(), self.ledger.slot(index));
        board.pids[index].store(0, Ordering::Release);
        self.set_share(index, Share::default());
        let resident = slot.resident.swap(0, Ordering::Relaxed);
        self.ledger.memory().total.fetch_sub(resident, Ordering::Relaxed);
        slot.settle(&board.departed);
        self.know(index, None);
    }

    /// Sets the relatives' share in the memory of the process in a slot.
    pub fn set_share(&self, index: usize, share: Share) {
        self.ledger.board().shares[index].store(share.to_word(), Ordering::Relaxed);
    }

    /// Overrides the use that the process in a slot reports; `None` restores its own figure.
    pub fn know(&mut self, index: usize, bytes: Option<u64>) {
        if self.known.len() <= index {
            self.known.resize(index + 1, None);
        }
        self.known[index] = bytes;
    }

    /// The sum of all slots.
    pub fn sum(&self) -> u64 {
        let known = |index: usize| self.known.get(index).copied().flatten();
        total(self.ledger.live().map(|(index, _, slot)| {
            known(index).unwrap_or_else(|| slot.resident_bytes()).min(self.machine_bytes)
        }))
    }

    /// Number of live processes.
    pub fn processes(&self) -> usize {
        self.ledger.live().count()
    }

    /// Sums up the slots. Corrects the shared sum if it differs in several consecutive looks, or at
    /// once if it exceeds every machine's memory: a process may have been killed while it changed
    /// the sum, or have overwritten it.
    pub fn audit(&mut self) -> u64 {
        let sum = self.sum();
        let shared = &self.ledger.memory().total;
        let found = shared.load(Ordering::Relaxed);
        let difference = found.wrapping_sub(sum);
        self.looks = if difference == 0 { 0 } else { self.looks + 1 };
        if self.looks >= LOOKS || (difference != 0 && found > ABSURD_BYTES) {
            shared.fetch_sub(difference, Ordering::Relaxed);
            self.corrections += 1;
            self.looks = 0;
        }
        sum
    }

    /// Number of corrections of the sum.
    pub fn corrections(&self) -> u64 {
        self.corrections
    }

    /// Number of processes with a pager.
    pub fn pagers(&self) -> u64 {
        self.ledger.own_pagers() as u64
    }

    /// Publishes the figures of the tree's other ledgers to the processes.
    pub fn set_others(&self, bytes: u64, pagers: u64, total_peak: u64) {
        let board = self.ledger.board();
        board.others.store(bytes, Ordering::Relaxed);
        board.other_pagers.store(pagers, Ordering::Relaxed);
        board.total_peak.store(total_peak, Ordering::Relaxed);
    }
}

fn machine_bytes() -> u64 {
    // SAFETY: take and return numbers.
    let [pages, bytes] =
        [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    match u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(bytes).unwrap_or(0)) {
        0 => BYTES_MAX,
        all => all.min(BYTES_MAX),
    }
}

/// Bound of all sums: readers can add 255 of them without an overflow.
const SUM_MAX: u64 = 1 << 56;

/// A sum of figures that other processes may have falsified.
pub(crate) fn total(figures: impl Iterator<Item = u64>) -> u64 {
    figures.fold(0, u64::saturating_add).min(SUM_MAX)
}
