//! What the supervisor alone writes and the processes of one user read: settings, who they are,
//! what others use.
//!
//! The file is sealed against every new way to write it (`F_SEAL_FUTURE_WRITE`, Linux 5.1) before
//! another process has it: the supervisor's own mapping, made before, stays the only one.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::file::{self, Access};
use crate::slot::FORMS_MAX;
use crate::text::Text;
use crate::{Slot, SLOTS};

/// The memory file's name, by which onlookers find it among a supervisor's descriptors.
pub const BOARD_NAME: &CStr = c"uzswap-board";
const MAGIC: u64 = u64::from_le_bytes(*b"uzboard\x01");

/// What goes to the swap file gets checksums and no encryption.
pub const WITHOUT_ENCRYPTION: u32 = 1;
/// Do without access tracking (userfaultfd's RWP).
pub const WITHOUT_TRACKING: u32 = 2;

/// A path, with room for a compressor's name and its other parameters.
type CompressorText = Text<{ (4096 + 256) / 8 }>;
type FormsText = Text<64>;
/// Most bytes of a compressor's name, parameters included.
pub const COMPRESSOR_LEN_MAX: usize = CompressorText::LEN_MAX;

/// What the supervisor decides for the whole tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that all processes together may use.
    pub budget_bytes: u64,
    /// Units that one request to the compressor holds; 0: as the compressor wishes.
    pub batch: u32,
    /// Compressor by name, at most [`COMPRESSOR_LEN_MAX`] bytes.
    pub compressor: String,
    /// Names of the forms in which it stores pages, at most [`FORMS_MAX`], without commas. A name
    /// may come twice.
    pub forms: Vec<String>,
    /// Check a checksum on every load.
    pub verify: bool,
    /// Bytes that the swap file of each user may take; 0 without one.
    pub swap_bytes: u64,
    /// What pagers do without: [`WITHOUT_ENCRYPTION`], [`WITHOUT_TRACKING`].
    pub without: u32,
    /// Whether the supervisor opens for its processes, and agrees for them on, what they may not
    /// themselves.
    pub lends: bool,
    /// The process by which users know the tree: the supervisor's front while the program runs.
    pub supervisor: u32,
    /// Whether references are recorded: the supervisor gives a process the pipe that they go to.
    pub records: bool,
}

#[repr(C)]
pub(crate) struct Board {
    magic: AtomicU64,
    tree: AtomicU64,
    ledger: AtomicU64,
    budget_bytes: AtomicU64,
    swap_bytes: AtomicU64,
    batch: AtomicU32,
    verify: AtomicU32,
    without: AtomicU32,
    lends: AtomicU32,
    records: AtomicU32,
    supervisor: AtomicU32,
    compressor: CompressorText,
    forms: FormsText,
    /// What changes: bytes and pagers of the tree's other ledgers.
    pub(crate) others: AtomicU64,
    pub(crate) other_pagers: AtomicU64,
    /// Counts processes of the tree that came or went.
    pub(crate) changes: AtomicU64,
    /// The tree's highest total so far.
    pub(crate) total_peak: AtomicU64,
    /// Slots that have ever been in use.
    pub(crate) slots_used: AtomicU64,
    /// The process in each slot, 0 for none.
    pub(crate) pids: [AtomicU32; SLOTS],
    /// Figures of processes that have ended.
    pub(crate) departed: Slot,
}

impl Board {
    /// Makes a board for the ledger whose file has that inode; returns it mapped and as a
    /// descriptor for others.
    pub(crate) fn create(
        settings: &Settings,
        tree: u64,
        ledger: u64,
    ) -> io::Result<(NonNull<Board>, OwnedFd)> {
        let file = file::create(BOARD_NAME, size_of::<Board>())?;
        let at = file::map::<Board>(&file, Access::Write)?;
        // SAFETY: mapped for ever, all atomics.
        let fits = unsafe { at.as_ref() }.set(settings, tree, ledger);
        if !fits {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        file::seal(&file, file::SEALS | libc::F_SEAL_FUTURE_WRITE)?;
        Ok((at, file))
    }

    fn set(&self, settings: &Settings, tree: u64, ledger: u64) -> bool {
        let fits = settings.forms.len() <= FORMS_MAX
            && self.compressor.set(&settings.compressor)
            && self.forms.set(&settings.forms.join(","));
        self.tree.store(tree, Ordering::Relaxed);
        self.ledger.store(ledger, Ordering::Relaxed);
        self.budget_bytes.store(settings.budget_bytes, Ordering::Relaxed);
        self.swap_bytes.store(settings.swap_bytes, Ordering::Relaxed);
        self.batch.store(settings.batch, Ordering::Relaxed);
        self.verify.store(settings.verify.into(), Ordering::Relaxed);
        self.without.store(settings.without, Ordering::Relaxed);
        self.lends.store(settings.lends.into(), Ordering::Relaxed);
        self.records.store(settings.records.into(), Ordering::Relaxed);
        self.set_supervisor(settings.supervisor);
        self.magic.store(MAGIC, Ordering::Release);
        fits
    }

    /// Names the process by which users know the tree.
    pub(crate) fn set_supervisor(&self, pid: u32) {
        self.supervisor.store(pid, Ordering::Relaxed);
    }

    /// Whether it is a board of this version, and complete.
    pub(crate) fn has_magic(&self) -> bool {
        self.magic.load(Ordering::Acquire) == MAGIC
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            budget_bytes: self.budget_bytes(),
            batch: self.batch.load(Ordering::Relaxed),
            compressor: self.compressor.get(),
            forms: self.forms.get().split_terminator(',').map(str::to_owned).collect(),
            verify: self.verify.load(Ordering::Relaxed) != 0,
            swap_bytes: self.swap_bytes.load(Ordering::Relaxed),
            without: self.without.load(Ordering::Relaxed),
            lends: self.lends.load(Ordering::Relaxed) != 0,
            records: self.records.load(Ordering::Relaxed) != 0,
            supervisor: self.supervisor(),
        }
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// The tree's number, which no other tree has.
    pub(crate) fn tree(&self) -> u64 {
        self.tree.load(Ordering::Relaxed)
    }

    /// The inode of its ledger's file.
    pub(crate) fn ledger(&self) -> u64 {
        self.ledger.load(Ordering::Relaxed)
    }

    /// The process that made it.
    pub(crate) fn supervisor(&self) -> u32 {
        self.supervisor.load(Ordering::Relaxed)
    }

    /// Slots that may be in use, of a board that may not be a supervisor's.
    pub(crate) fn slots_used(&self) -> usize {
        usize::try_from(self.slots_used.load(Ordering::Relaxed)).map_or(SLOTS, |used| used.min(SLOTS))
    }
}
