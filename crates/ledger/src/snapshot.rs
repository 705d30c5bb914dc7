//! A snapshot of a tree's ledgers, for observers.
//!
//! The files are read, not mapped: an observer cannot change them, and is not killed if their owner
//! truncates them.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::collections::BTreeMap;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::board::Board;
use crate::memory::{Ledger, Memory};
use crate::tree::Live;
use crate::{Counter, Settings, Slot, Tree, BUCKETS};

/// A copied board whose ledger has not been found yet.
pub struct Sight {
    board: NonNull<Board>,
}

/// A copy of a tree's ledgers. Figures that changed during the copy may be of different moments.
#[derive(Default)]
pub struct Snapshot {
    /// On the snapshot's own memory: no reference to it leaves this type.
    copies: Tree,
}

fn no_ledger() -> io::Error {
    io::Error::from_raw_os_error(libc::EPROTO)
}

/// Zeroed memory. Free it with `release`.
fn allocate<T>() -> NonNull<T> {
    let layout = Layout::new::<T>();
    // SAFETY: boards and ledgers have a size.
    let memory = unsafe { alloc_zeroed(layout) };
    NonNull::new(memory.cast::<T>()).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Frees memory of `allocate`.
///
/// # Safety
/// No reference to it exists.
unsafe fn release<T>(at: NonNull<T>) {
    // SAFETY: allocated with this layout, and the caller's promise.
    unsafe { dealloc(at.as_ptr().cast(), Layout::new::<T>()) };
}

/// Copies `len` bytes from `start` of the file to the same place of `to`.
fn fill<T>(file: BorrowedFd<'_>, to: NonNull<T>, start: usize, len: usize) -> io::Result<()> {
    assert!(start + len <= size_of::<T>());
    let mut done = 0;
    while done < len {
        // SAFETY: within the copy, which is plain atomics without invalid values, and not shared.
        let got = unsafe {
            let to = to.as_ptr().cast::<u8>().add(start + done);
            libc::pread(file.as_raw_fd(), to.cast(), len - done, (start + done) as libc::off_t)
        };
        match got {
            1.. => done += got as usize,
            0 => return Err(no_ledger()),
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

impl Sight {
    /// Copies the board in `file`, which need only be readable.
    ///
    /// # Errors
    /// EPROTO if the file is not a board of this version; errors of read(2).
    pub fn read(file: BorrowedFd<'_>) -> io::Result<Self> {
        if len_of(file)? != size_of::<Board>() {
            return Err(no_ledger());
        }
        let sight = Sight { board: allocate() };
        fill(file, sight.board, 0, size_of::<Board>())?;
        sight.board().has_magic().then_some(sight).ok_or_else(no_ledger)
    }

    fn board(&self) -> &Board {
        // SAFETY: allocated in `read`, and lives as long as this.
        unsafe { self.board.as_ref() }
    }

    /// The tree's unique number.
    pub fn tree(&self) -> u64 {
        self.board().tree.load(Ordering::Relaxed)
    }

    /// The inode of its ledger's file.
    pub fn ledger(&self) -> u64 {
        self.board().ledger.load(Ordering::Relaxed)
    }
}

impl Drop for Sight {
    fn drop(&mut self) {
        // SAFETY: allocated in `read`; no reference outlives `self`.
        unsafe { release(self.board) };
    }
}

impl Snapshot {
    /// Adds a board's ledger, from a file that need only be readable.
    ///
    /// # Errors
    /// EPROTO if the file is not a ledger; errors of read(2).
    pub fn add(&mut self, sight: Sight, file: BorrowedFd<'_>) -> io::Result<()> {
        if len_of(file)? != size_of::<Memory>() {
            return Err(no_ledger());
        }
        // The board was copied first: a process that ends in between is missed once, not counted
        // twice.
        let memory: NonNull<Memory> = allocate();
        let head = offset_of!(Memory, slots);
        let used = sight.board().slots_used();
        let copy = Ledger { board: sight.board, memory };
        if let Err(error) = fill(file, memory, 0, head + used * size_of::<Slot>()) {
            // SAFETY: allocated above, no longer used.
            unsafe { release(memory) };
            return Err(error);
        }
        // `self` frees it.
        std::mem::forget(sight);
        self.copies.add(copy);
        Ok(())
    }

    /// Whether it contains no ledger.
    pub fn is_empty(&self) -> bool {
        self.copies.ledgers().is_empty()
    }

    /// The supervisor's settings.
    pub fn settings(&self) -> Settings {
        self.copies.settings()
    }

    /// The supervisor's process.
    pub fn supervisor(&self) -> u32 {
        self.copies.ledgers().first().map_or(0, |ledger| ledger.board().supervisor())
    }

    /// Sum of the live processes' resident bytes.
    pub fn total_bytes(&self) -> u64 {
        self.live().fold(0, |sum: u64, live| sum.saturating_add(live.slot.resident_bytes()))
    }

    /// The highest total so far.
    pub fn total_peak_bytes(&self) -> u64 {
        let peaks = self.copies.ledgers().iter().map(|one| one.board().total_peak.load(Ordering::Relaxed));
        peaks.max().unwrap_or(0)
    }

    /// A counter's sum over all processes, ended ones included.
    pub fn sum(&self, counter: Counter) -> u64 {
        self.copies.sum(counter)
    }

    /// Pages stored by all processes, ended ones included, by the name of their form.
    pub fn forms(&self) -> BTreeMap<String, u64> {
        self.copies.forms()
    }

    /// Fault latencies of all processes, ended ones included.
    pub fn fault_counts(&self) -> [u64; BUCKETS] {
        self.copies.fault_counts()
    }

    /// Latencies of faults that read from the swap file, of all processes, ended ones included.
    pub fn disk_fault_counts(&self) -> [u64; BUCKETS] {
        self.copies.disk_fault_counts()
    }

    /// The live processes.
    pub fn live(&self) -> impl Iterator<Item = Seen<'_>> {
        self.copies.live().map(|Live { pid, slot, .. }| Seen { pid, slot })
    }
}

/// A process in a snapshot.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// The process, by the supervisor's numbers.
    pub pid: u32,
    /// Its figures.
    pub slot: &'a Slot,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        for ledger in self.copies.ledgers() {
            // SAFETY: allocated by `read` and `add`; no reference outlives `self`.
            unsafe {
                release(ledger.board);
                release(ledger.memory);
            }
        }
    }
}

pub(crate) fn status_of(file: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: all zeroes is a valid structure, and the kernel fills it.
    let (result, status) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(file.as_raw_fd(), &mut status), status)
    };
    match result {
        0 => Ok(status),
        _ => Err(io::Error::last_os_error()),
    }
}

fn len_of(file: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(usize::try_from(status_of(file)?.st_size).unwrap_or(0))
}
