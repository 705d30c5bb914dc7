//! The shared memory itself.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::text::Text;
use crate::Histogram;

/// Processes of one tree that can be managed at a time. Further ones run unmanaged.
pub const SLOTS: usize = 1024;
/// The memory file's name, by which onlookers find it among a supervisor's descriptors.
pub const MEMORY_NAME: &CStr = c"uzswap-ledger";
const MAGIC: u64 = u64::from_le_bytes(*b"uzswap\x00\x04");

/// Forms of stored pages that are counted apart.
pub const FORMS_MAX: usize = 16;
/// A path, with room for a compressor's name and its other parameters.
type CompressorText = Text<{ (4096 + 256) / 8 }>;
type FormsText = Text<64>;
/// Most bytes of a compressor's name, parameters included.
pub const COMPRESSOR_LEN_MAX: usize = CompressorText::LEN_MAX;

/// Do without `UFFDIO_MOVE`: see [`Ledger::without`].
pub const WITHOUT_MOVE: u32 = 1;
/// Do without `PAGEMAP_SCAN`.
pub const WITHOUT_SCAN: u32 = 2;
/// What goes to the swap file gets checksums and no encryption.
pub const WITHOUT_ENCRYPTION: u32 = 4;

/// What is counted for each process. The names in reports are the kernel's where the meaning matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)] // named by COUNTERS below, one to one
pub enum Counter {
    ZswpOut,
    ZswpIn,
    ZswpWb,
    StoredIncompressiblePages,
    RejectCompressPoor,
    RejectCompressFail,
    RejectAllocFail,
    PoolLimitHit,
    Faults,
    FaultNs,
    Refaults,
    ZeroFilled,
    Batches,
    Stored4k,
    Stored8k,
    Stored16k,
    Stored32k,
    Stored64k,
    OverBudget,
    BroughtIn,
    Forks,
    Promoted,
    DiskFaults,
    DiskFaultNs,
    DiskPagesIn,
    DiskReadNs,
    DiskReads,
    SwapBytesWritten,
    SwapBytesRead,
    SwapObjectBytes,
    SwapWriteNs,
    SwapBytesCleaned,
    SwapSegmentsCleaned,
    SwapCleanNs,
    SwapNoSpace,
    SwapWritesFailed,
    SwapReadsFailed,
    SwapWaitNs,
    Returned,
    ReturnDistance,
    LookedAt,
    Spared,
    Tried,
    ReadAhead,
    ReadAheadWasted,
}

/// Every counter's name in the report, in the order of [`Counter`].
pub const COUNTERS: [&str; 45] = [
    "zswpout",
    "zswpin",
    "zswpwb",
    "stored_incompressible_pages",
    "reject_compress_poor",
    "reject_compress_fail",
    "reject_alloc_fail",
    "pool_limit_hit",
    "faults",
    "fault_ns",
    "refaults",
    "zero_filled",
    "batches",
    "stored_4k",
    "stored_8k",
    "stored_16k",
    "stored_32k",
    "stored_64k",
    "over_budget",
    "brought_in",
    "forks",
    "promoted",
    "disk_faults",
    "disk_fault_ns",
    "disk_pages_in",
    "disk_read_ns",
    "disk_reads",
    "swap_bytes_written",
    "swap_bytes_read",
    "swap_object_bytes",
    "swap_write_ns",
    "swap_bytes_cleaned",
    "swap_segments_cleaned",
    "swap_clean_ns",
    "swap_no_space",
    "swap_writes_failed",
    "swap_reads_failed",
    "swap_wait_ns",
    "returned",
    "return_distance",
    "looked_at",
    "spared",
    "tried",
    "read_ahead",
    "read_ahead_wasted",
];

/// What the supervisor decides for the whole tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that all processes together may use.
    pub budget_bytes: u64,
    /// Bytes evicted together.
    pub folio_bytes: u32,
    /// Compressor by name, at most [`COMPRESSOR_LEN_MAX`] bytes.
    pub compressor: String,
    /// Names of the forms in which it stores pages, at most [`FORMS_MAX`], without commas. A name may come twice.
    pub forms: Vec<String>,
    /// Check a checksum on every load.
    pub verify: bool,
    /// Bytes that the swap file may take; 0 without one.
    pub swap_bytes: u64,
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    budget_bytes: AtomicU64,
    folio_bytes: AtomicU32,
    verify: AtomicU32,
    supervisor: AtomicU32,
    slots_used: AtomicU32,
    without: AtomicU32,
    /// The supervisor's descriptor of the recorder's pipe, and one; 0 without a recorder.
    recorder: AtomicU32,
    swap_bytes: AtomicU64,
    /// Whether the supervisor does what processes may not: see [`Ledger::lends`].
    lends: AtomicU32,
    compressor: CompressorText,
    forms: FormsText,
    /// Sum of the live slots' resident bytes.
    total: AtomicU64,
    total_peak: AtomicU64,
    wanted_peak: AtomicU64,
}

/// The figures of one process.
#[repr(C, align(64))]
pub struct Slot {
    /// 0 when free.
    pid: AtomicU32,
    managed: AtomicU32,
    /// Somebody wants to look inside: paging is to pause.
    pause_wanted: AtomicU32,
    paused: AtomicU32,
    resident: AtomicU64,
    pool: AtomicU64,
    staged: AtomicU64,
    stored_pages: AtomicU64,
    /// Pages in the swap file, and the bytes of their objects there.
    disk_pages: AtomicU64,
    disk_bytes: AtomicU64,
    counters: [AtomicU64; COUNTERS.len()],
    forms: [AtomicU64; FORMS_MAX],
    faults: Histogram,
    disk_faults: Histogram,
}

#[repr(C)]
pub(crate) struct Memory {
    header: Header,
    /// Figures of processes that have ended.
    departed: Slot,
    pub(crate) slots: [Slot; SLOTS],
}

/// A mapped ledger. Unmapped never: threads that nobody joins may use it until the process ends.
#[derive(Clone, Copy)]
pub struct Ledger {
    memory: NonNull<Memory>,
}

// SAFETY: everything in the memory is atomic, and it stays mapped.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// Makes the memory file of a new tree; answers it mapped and as a descriptor for others.
    ///
    /// # Errors
    /// When the kernel refuses a memory file of a few MiB (sparse); EINVAL when the settings are longer than there is
    /// room for.
    pub fn create(settings: &Settings) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: a terminated name.
        let raw =
            unsafe { libc::memfd_create(MEMORY_NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, owned by nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        // A process that cut the file short would end all others that have it mapped.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: sizes and seals a file of our own.
        let is_sealed = unsafe {
            libc::ftruncate(raw, std::mem::size_of::<Memory>() as libc::off_t) == 0
                && libc::fcntl(raw, libc::F_ADD_SEALS, seals) == 0
        };
        if !is_sealed {
            return Err(io::Error::last_os_error());
        }
        let ledger = Self::map_unchecked(raw)?;
        let header = ledger.header();
        header.budget_bytes.store(settings.budget_bytes, Ordering::Relaxed);
        header.folio_bytes.store(settings.folio_bytes, Ordering::Relaxed);
        header.verify.store(settings.verify.into(), Ordering::Relaxed);
        header.swap_bytes.store(settings.swap_bytes, Ordering::Relaxed);
        header.supervisor.store(std::process::id(), Ordering::Relaxed);
        let fits = settings.forms.len() <= FORMS_MAX
            && header.compressor.set(&settings.compressor)
            && header.forms.set(&settings.forms.join(","));
        if !fits {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        header.magic.store(MAGIC, Ordering::Release);
        Ok((ledger, file))
    }

    /// Maps a ledger made elsewhere.
    ///
    /// # Errors
    /// When the file is no ledger of this version, or cannot be mapped.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let not_a_ledger = || io::Error::from_raw_os_error(libc::EPROTO);
        // A shorter file would be mapped too, and end this process where it has no pages.
        if crate::snapshot::len_of(file)? != std::mem::size_of::<Memory>() {
            return Err(not_a_ledger());
        }
        let ledger = Self::map_unchecked(file.as_raw_fd())?;
        if !ledger.has_magic() {
            return Err(not_a_ledger());
        }
        Ok(ledger)
    }

    fn map_unchecked(file: i32) -> io::Result<Self> {
        let (len, protection) = (std::mem::size_of::<Memory>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ledger { memory: NonNull::new(at.cast()).expect("not page zero") })
    }

    /// A ledger on memory that the caller keeps as long as it is used.
    pub(crate) fn at(memory: NonNull<Memory>) -> Self {
        Ledger { memory }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> NonNull<Memory> {
        self.memory
    }

    /// Whether it is a ledger of this version, and complete.
    pub(crate) fn has_magic(&self) -> bool {
        self.header().magic.load(Ordering::Acquire) == MAGIC
    }

    /// Slots that have ever been in use.
    pub(crate) fn slots_used(&self) -> usize {
        self.header().slots_used.load(Ordering::Relaxed) as usize
    }

    fn memory(&self) -> &'static Memory {
        // SAFETY: mapped for ever, all atomics, any bit pattern is valid.
        unsafe { &*self.memory.as_ptr() }
    }

    fn header(&self) -> &'static Header {
        &self.memory().header
    }

    /// What the supervisor decided.
    pub fn settings(&self) -> Settings {
        let header = self.header();
        Settings {
            budget_bytes: self.budget_bytes(),
            folio_bytes: header.folio_bytes.load(Ordering::Relaxed),
            compressor: header.compressor.get(),
            forms: header.forms.get().split_terminator(',').map(str::to_owned).collect(),
            verify: header.verify.load(Ordering::Relaxed) != 0,
            swap_bytes: header.swap_bytes.load(Ordering::Relaxed),
        }
    }

    /// The budget.
    pub fn budget_bytes(&self) -> u64 {
        self.header().budget_bytes.load(Ordering::Relaxed)
    }

    /// What pagers do without: [`WITHOUT_ENCRYPTION`], and parts of the kernel, for tests: [`WITHOUT_MOVE`], [`WITHOUT_SCAN`].
    pub fn without(&self) -> u32 {
        self.header().without.load(Ordering::Relaxed)
    }

    /// Says what pagers are to do without. For the supervisor alone, before there are processes.
    pub fn set_without(&self, parts: u32) {
        self.header().without.store(parts, Ordering::Relaxed);
    }

    /// Whether the supervisor opens for its processes, and agrees for them on, what they may not themselves.
    pub fn lends(&self) -> bool {
        self.header().lends.load(Ordering::Relaxed) != 0
    }

    /// Says whether it does. For the supervisor alone, before there are processes.
    pub fn set_lends(&self, lends: bool) {
        self.header().lends.store(lends.into(), Ordering::Relaxed);
    }

    /// The number that the recorder's pipe has in the supervisor, when references are recorded.
    pub fn recorder(&self) -> Option<i32> {
        (self.header().recorder.load(Ordering::Relaxed) as i32).checked_sub(1).filter(|number| *number >= 0)
    }

    /// Has processes record every reference they see into that pipe of the supervisor's. For the supervisor alone, before there
    /// are processes.
    pub fn set_recorder(&self, descriptor: i32) {
        self.header().recorder.store(descriptor as u32 + 1, Ordering::Relaxed);
    }

    /// Names the process by which users know the tree. For the supervisor alone, before there are processes.
    pub fn set_supervisor(&self, pid: u32) {
        self.header().supervisor.store(pid, Ordering::Relaxed);
    }

    /// The process by which users know the tree: the supervisor's front while the program runs.
    pub fn supervisor(&self) -> u32 {
        self.header().supervisor.load(Ordering::Relaxed)
    }

    /// Sum of the resident bytes that live processes have published.
    pub fn total_bytes(&self) -> u64 {
        self.header().total.load(Ordering::Relaxed)
    }

    /// Where that sum is, for readers in this process that have no ledger.
    pub fn total_address(&self) -> usize {
        self.header().total.as_ptr().addr()
    }

    /// The highest total so far.
    pub fn total_peak_bytes(&self) -> u64 {
        self.header().total_peak.load(Ordering::Relaxed)
    }

    /// The most that live processes would have used at one time without uzswap.
    pub fn wanted_peak_bytes(&self) -> u64 {
        self.header().wanted_peak.load(Ordering::Relaxed)
    }

    /// Takes the present figures into the peaks. The supervisor calls this every few milliseconds.
    pub fn note_peaks(&self) {
        let wanted = total(self.live().map(|(_, slot)| slot.wanted_bytes()));
        self.header().wanted_peak.fetch_max(wanted, Ordering::Relaxed);
        self.header().total_peak.fetch_max(self.total_bytes(), Ordering::Relaxed);
    }

    /// Gives a free slot to `pid`; `None` when all are taken. For the supervisor alone.
    pub fn claim(&self, pid: u32) -> Option<usize> {
        assert_ne!(pid, 0);
        let index = self.memory().slots.iter().position(|slot| slot.pid.load(Ordering::Relaxed) == 0)?;
        self.memory().slots[index].pid.store(pid, Ordering::Release);
        self.header().slots_used.fetch_max(index as u32 + 1, Ordering::Relaxed);
        Some(index)
    }

    /// Frees a slot whose process has ended and keeps its figures among the departed. For the supervisor alone.
    pub fn release(&self, index: usize) {
        let slot = self.slot(index);
        self.header().total.fetch_sub(slot.resident.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        let departed = &self.memory().departed;
        for (sum, counter) in departed.counters.iter().zip(&slot.counters) {
            sum.fetch_add(counter.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for (sum, form) in departed.forms.iter().zip(&slot.forms) {
            sum.fetch_add(form.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        departed.faults.add(&slot.faults);
        slot.faults.clear();
        departed.disk_faults.add(&slot.disk_faults);
        slot.disk_faults.clear();
        for figure in [&slot.pool, &slot.staged, &slot.stored_pages, &slot.disk_pages, &slot.disk_bytes] {
            figure.store(0, Ordering::Relaxed);
        }
        for flag in [&slot.managed, &slot.pause_wanted, &slot.paused] {
            flag.store(0, Ordering::Relaxed);
        }
        slot.pid.store(0, Ordering::Release);
    }

    /// A slot by number.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn slot(&self, index: usize) -> &'static Slot {
        &self.memory().slots[index]
    }

    /// Publishes what a process uses.
    pub fn publish(&self, index: usize, resident: u64, pool: u64, staged: u64, stored_pages: u64) {
        let slot = self.slot(index);
        let before = slot.resident.swap(resident, Ordering::Relaxed);
        // Wraps by design: the difference may be negative.
        self.header().total.fetch_add(resident.wrapping_sub(before), Ordering::Relaxed);
        slot.pool.store(pool, Ordering::Relaxed);
        slot.staged.store(staged, Ordering::Relaxed);
        slot.stored_pages.store(stored_pages, Ordering::Relaxed);
    }

    /// Publishes what a process has in the swap file: pages, and the bytes of their objects.
    pub fn publish_disk(&self, index: usize, pages: u64, bytes: u64) {
        let slot = self.slot(index);
        slot.disk_pages.store(pages, Ordering::Relaxed);
        slot.disk_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The slots in use.
    pub fn live(&self) -> impl Iterator<Item = (usize, &'static Slot)> {
        let slots = self.memory().slots[..self.slots_used().min(SLOTS)].iter().enumerate();
        slots.filter(|(_, slot)| slot.pid.load(Ordering::Acquire) != 0)
    }

    /// A counter's sum over all processes, ended ones included.
    pub fn sum(&self, counter: Counter) -> u64 {
        let departed = self.memory().departed.counter(counter);
        total(self.live().map(|(_, slot)| slot.counter(counter)).chain([departed]))
    }

    /// Pages stored by all processes, ended ones included, by the name of their form.
    pub fn forms(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        let slots = || self.live().map(|(_, slot)| slot).chain([&self.memory().departed]);
        for (number, name) in self.settings().forms.into_iter().enumerate().take(FORMS_MAX) {
            let pages = slots().map(|slot| slot.forms[number].load(Ordering::Relaxed));
            let sum: &mut u64 = sums.entry(name).or_default();
            *sum = total(pages.chain([*sum]));
        }
        sums
    }

    /// Fault latencies of all processes, ended ones included.
    pub fn fault_counts(&self) -> [u64; crate::BUCKETS] {
        self.counts_of(Slot::faults)
    }

    /// Latencies of faults that had to read from the swap file, of all processes, ended ones included.
    pub fn disk_fault_counts(&self) -> [u64; crate::BUCKETS] {
        self.counts_of(Slot::disk_faults)
    }

    fn counts_of(&self, histogram: fn(&Slot) -> &Histogram) -> [u64; crate::BUCKETS] {
        let mut sum = histogram(&self.memory().departed).counts();
        for (_, slot) in self.live() {
            for (sum, count) in sum.iter_mut().zip(histogram(slot).counts()) {
                *sum = count.saturating_add(*sum);
            }
        }
        sum
    }
}

/// A sum of figures that anybody may have written.
fn total(figures: impl Iterator<Item = u64>) -> u64 {
    figures.fold(0, u64::saturating_add)
}

impl Slot {
    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Whether the process has a pager by now.
    pub fn is_managed(&self) -> bool {
        self.managed.load(Ordering::Relaxed) != 0
    }

    /// Notes that the process has a pager.
    pub fn set_managed(&self) {
        self.managed.store(1, Ordering::Relaxed);
    }

    /// Asks for a pause of paging, or its end.
    pub fn want_pause(&self, wanted: bool) {
        self.pause_wanted.store(wanted.into(), Ordering::Release);
    }

    /// Whether a pause is asked for.
    pub fn is_pause_wanted(&self) -> bool {
        self.pause_wanted.load(Ordering::Acquire) != 0
    }

    /// Notes that everything is in and nothing is paged, or that paging goes on.
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused.into(), Ordering::Release);
    }

    /// Whether paging pauses.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire) != 0
    }

    /// Anonymous resident bytes, pool and staging included.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Bytes of the pool.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.load(Ordering::Relaxed)
    }

    /// Bytes of staging.
    pub fn staged_bytes(&self) -> u64 {
        self.staged.load(Ordering::Relaxed)
    }

    /// Pages in the pool.
    pub fn stored_pages(&self) -> u64 {
        self.stored_pages.load(Ordering::Relaxed)
    }

    /// Pages in the swap file.
    pub fn disk_pages(&self) -> u64 {
        self.disk_pages.load(Ordering::Relaxed)
    }

    /// Bytes of their objects there.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// What the process would use without uzswap.
    pub fn wanted_bytes(&self) -> u64 {
        let held = self.resident_bytes().saturating_sub(self.pool_bytes());
        let pages = self.stored_pages().saturating_add(self.disk_pages());
        held.saturating_add(pages.saturating_mul(4096))
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, by: u64) {
        self.counters[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// A counter's value.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Adds pages stored in a form, by its number in [`Settings::forms`].
    pub fn add_form(&self, number: usize, pages: u64) {
        self.forms[number].fetch_add(pages, Ordering::Relaxed);
    }

    /// The latencies of its faults.
    pub fn faults(&self) -> &Histogram {
        &self.faults
    }

    /// The latencies of those among them that had to read from the swap file.
    pub fn disk_faults(&self) -> &Histogram {
        &self.disk_faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn settings() -> Settings {
        Settings {
            budget_bytes: 1 << 30,
            folio_bytes: 65536,
            compressor: format!("zstd:3,dict=/{}", "d".repeat(4094)),
            forms: ["same", "raw", "zstd", "same"].map(String::from).into(),
            verify: true,
            swap_bytes: 16 << 30,
        }
    }

    #[test]
    fn settings_that_do_not_fit_are_refused() {
        let compressor = "z".repeat(COMPRESSOR_LEN_MAX + 1);
        for settings in [
            Settings { compressor, ..settings() },
            Settings { forms: vec![String::new(); FORMS_MAX + 1], ..settings() },
        ] {
            let error = Ledger::create(&settings).err().and_then(|error| error.raw_os_error());
            assert_eq!(error, Some(libc::EINVAL));
        }
        let settings = Settings { forms: Vec::new(), ..settings() };
        assert_eq!(Ledger::create(&settings).unwrap().0.settings(), settings);
    }

    #[test]
    fn forms_are_summed_by_name_over_live_and_ended_processes() {
        let (ledger, _file) = Ledger::create(&settings()).unwrap();
        let [gone, there] = [7, 8].map(|pid| ledger.claim(pid).unwrap());
        ledger.slot(gone).add_form(0, 5);
        ledger.slot(gone).add_form(2, 100);
        ledger.slot(there).add_form(3, 1);
        let names = ["raw", "same", "zstd"].map(String::from);
        assert_eq!(ledger.forms(), BTreeMap::from_iter(names.clone().into_iter().zip([0, 6, 100])));
        ledger.release(gone);
        let again = ledger.claim(9).unwrap();
        ledger.slot(again).add_form(2, 1);
        assert_eq!(ledger.forms(), BTreeMap::from_iter(names.into_iter().zip([0, 6, 101])));
    }

    #[test]
    fn two_mappings_see_the_same_figures() {
        let (ledger, file) = Ledger::create(&settings()).unwrap();
        let other = Ledger::map(file.as_fd()).unwrap();
        assert_eq!(other.settings(), settings());
        let index = ledger.claim(77).unwrap();
        assert_eq!(other.without(), 0);
        ledger.set_without(WITHOUT_SCAN);
        assert_eq!(other.without(), WITHOUT_SCAN);
        other.publish(index, 5000, 100, 200, 3);
        other.publish(index, 4000, 100, 200, 3);
        other.slot(index).add(Counter::ZswpOut, 9);
        other.slot(index).faults().record(4000);
        ledger.note_peaks();
        assert_eq!((ledger.total_bytes(), ledger.total_peak_bytes()), (4000, 4000));
        assert_eq!(ledger.wanted_peak_bytes(), 4000 - 100 + 3 * 4096);
        assert_eq!(ledger.sum(Counter::ZswpOut), 9);
        ledger.release(index);
        assert_eq!((ledger.total_bytes(), ledger.sum(Counter::ZswpOut)), (0, 9));
        assert_eq!(ledger.fault_counts().iter().sum::<u64>(), 1);
        assert_eq!(ledger.live().count(), 0);
        assert_eq!(ledger.claim(78), Some(index), "slots are used again");
        assert_eq!(ledger.slot(index).counter(Counter::ZswpOut), 0);
    }

    #[test]
    fn slots_run_out() {
        let (ledger, _file) = Ledger::create(&settings()).unwrap();
        for pid in 1..=SLOTS as u32 {
            assert!(ledger.claim(pid).is_some());
        }
        assert_eq!(ledger.claim(9999), None);
    }

    #[test]
    fn another_file_is_refused() {
        // SAFETY: a terminated name.
        let raw = unsafe { libc::memfd_create(c"other".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: just opened.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a file of our own.
        assert_eq!(unsafe { libc::ftruncate(raw, std::mem::size_of::<Memory>() as libc::off_t) }, 0);
        assert!(Ledger::map(file.as_fd()).is_err());
        // SAFETY: a file of our own, mapped by nobody who looks at it again.
        assert_eq!(unsafe { libc::ftruncate(raw, 4096) }, 0);
        assert!(Ledger::map(file.as_fd()).is_err(), "shorter than a ledger");
    }

    #[test]
    fn nobody_can_cut_it_short() {
        let (ledger, file) = Ledger::create(&settings()).unwrap();
        for len in [0, 4096, 1 << 30] {
            // SAFETY: a file of this test.
            assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), len) }, -1, "{len}");
        }
        assert_eq!(Ledger::map(file.as_fd()).unwrap().settings(), ledger.settings());
    }
}
