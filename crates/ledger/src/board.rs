//! The board: the supervisor alone writes it, the processes of one user read it. It holds settings,
//! process numbers, and the use of other users' processes.
//!
//! The supervisor maps the file, then seals it against new ways to write it (`F_SEAL_FUTURE_WRITE`,
//! Linux 5.1) before another process has it. So the supervisor's mapping stays the only writable
//! one.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::file::{self, Access};
use crate::slot::FORMS_MAX;
use crate::text::Text;
use crate::{Slot, SLOTS};

/// The memory file's name, by which observers find it among a supervisor's descriptors.
pub const BOARD_NAME: &CStr = c"uzswap-board";
const MAGIC: u64 = u64::from_le_bytes(*b"uzboard\x03");

/// Swapped-out data gets checksums and no encryption.
pub const WITHOUT_ENCRYPTION: u32 = 1;
/// Pagers do not use access tracking (userfaultfd's RWP).
pub const WITHOUT_TRACKING: u32 = 2;

/// A path, with room for a compressor's name and its other parameters.
type CompressorText = Text<{ (4096 + 256) / 8 }>;
type FormsText = Text<64>;
/// Most bytes of a compressor's name, parameters included.
pub const COMPRESSOR_LEN_MAX: usize = CompressorText::LEN_MAX;

/// The supervisor's settings for the whole tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that all processes together may use.
    pub budget_bytes: u64,
    /// Units in one request to the compressor; 0 leaves the choice to the compressor.
    pub batch: u32,
    /// The compressor's name, at most [`COMPRESSOR_LEN_MAX`] bytes.
    pub compressor: String,
    /// Names of its page formats, at most [`FORMS_MAX`], without commas, possibly repeated.
    pub forms: Vec<String>,
    /// Verify a checksum on every load.
    pub verify: bool,
    /// Maximum size of each user's swap file in bytes; 0 without swap files.
    pub swap_bytes: u64,
    /// Features that pagers do not use: [`WITHOUT_ENCRYPTION`], [`WITHOUT_TRACKING`].
    pub without: u32,
    /// Whether the supervisor opens files and agrees on features for processes that may not do so.
    pub lends: bool,
    /// The process by which users know the tree: the supervisor's front while the program runs.
    pub supervisor: u32,
    /// Whether references are recorded, through a pipe that the supervisor gives to each process.
    pub records: bool,
    /// Whether the compressor works on emulated devices in the supervisor. A process tells itself
    /// if it does so against this.
    pub is_emulated: bool,
}

#[repr(C)]
pub(crate) struct Board {
    magic: AtomicU64,
    /// The tree's unique number.
    pub(crate) tree: AtomicU64,
    /// The inode of its ledger's file.
    pub(crate) ledger: AtomicU64,
    budget_bytes: AtomicU64,
    swap_bytes: AtomicU64,
    batch: AtomicU32,
    verify: AtomicU32,
    without: AtomicU32,
    lends: AtomicU32,
    records: AtomicU32,
    is_emulated: AtomicU32,
    supervisor: AtomicU32,
    compressor: CompressorText,
    forms: FormsText,
    /// Bytes and pagers of the tree's other ledgers. This and the fields below change.
    pub(crate) others: AtomicU64,
    pub(crate) other_pagers: AtomicU64,
    pub(crate) total_peak: AtomicU64,
    /// Slots that have ever been in use.
    pub(crate) slots_used: AtomicU64,
    /// The process in each slot, 0 for none.
    pub(crate) pids: [AtomicU32; SLOTS],
    /// Its [`crate::Share`], as a word.
    pub(crate) shares: [AtomicU64; SLOTS],
    /// Figures of processes that have ended.
    pub(crate) departed: Slot,
}

impl Board {
    /// Makes a board for the ledger whose file has this inode. Returns the mapped board, and a
    /// descriptor for other processes.
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
        self.is_emulated.store(settings.is_emulated.into(), Ordering::Relaxed);
        self.set_supervisor(settings.supervisor);
        self.magic.store(MAGIC, Ordering::Release);
        fits
    }

    pub(crate) fn set_supervisor(&self, pid: u32) {
        self.supervisor.store(pid, Ordering::Relaxed);
    }

    /// Whether this is a complete board of this version.
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
            is_emulated: self.is_emulated.load(Ordering::Relaxed) != 0,
            supervisor: self.supervisor(),
        }
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn supervisor(&self) -> u32 {
        self.supervisor.load(Ordering::Relaxed)
    }

    /// Slots that may be in use, clamped: the board may not be a supervisor's.
    pub(crate) fn slots_used(&self) -> usize {
        usize::try_from(self.slots_used.load(Ordering::Relaxed)).map_or(SLOTS, |used| used.min(SLOTS))
    }
}
