//! A ledger as it was at one moment, for onlookers.
//!
//! The file is read, not mapped: an onlooker cannot change it, and is not killed when its owner cuts it short.

use std::alloc::{alloc_zeroed, handle_alloc_error, Layout};
use std::collections::BTreeMap;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::memory::{Ledger, Memory, SLOTS};
use crate::{Counter, Settings, Slot, BUCKETS};

/// A copy of a ledger. Figures that changed while it was made may be of different moments.
pub struct Snapshot {
    /// On memory of the snapshot's own: nothing that is borrowed from it leaves this type.
    copy: Ledger,
}

impl Snapshot {
    /// Copies the ledger in `file`, which need only be readable.
    ///
    /// # Errors
    /// EPROTO when the file is no ledger of this version; what reading it answers.
    pub fn read(file: BorrowedFd<'_>) -> io::Result<Self> {
        let not_a_ledger = || io::Error::from_raw_os_error(libc::EPROTO);
        if len_of(file)? != size_of::<Memory>() {
            return Err(not_a_ledger());
        }
        let layout = Layout::new::<Memory>();
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(memory.cast::<Memory>()) else { handle_alloc_error(layout) };
        let snapshot = Snapshot { copy: Ledger::at(at) };
        // Those who have ended first: a process that ends meanwhile is missed for once, not counted twice.
        let head = offset_of!(Memory, slots);
        snapshot.fill(file, at, 0, head)?;
        if !snapshot.copy.has_magic() {
            return Err(not_a_ledger());
        }
        let used = snapshot.copy.slots_used().min(SLOTS);
        snapshot.fill(file, at, head, used * size_of::<Slot>())?;
        Ok(snapshot)
    }

    fn fill(&self, file: BorrowedFd<'_>, at: NonNull<Memory>, start: usize, len: usize) -> io::Result<()> {
        assert!(start + len <= size_of::<Memory>());
        let mut done = 0;
        while done < len {
            // SAFETY: within the copy, which is plain atomics of which any bytes are valid, and shared with nobody.
            let got = unsafe {
                let to = at.as_ptr().cast::<u8>().add(start + done);
                libc::pread(file.as_raw_fd(), to.cast(), len - done, (start + done) as libc::off_t)
            };
            match got {
                1.. => done += got as usize,
                0 => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// What the supervisor decided.
    pub fn settings(&self) -> Settings {
        self.copy.settings()
    }

    /// The supervisor's process.
    pub fn supervisor(&self) -> u32 {
        self.copy.supervisor()
    }

    /// Sum of the live processes' resident bytes.
    pub fn total_bytes(&self) -> u64 {
        self.copy.total_bytes()
    }

    /// The highest total so far.
    pub fn total_peak_bytes(&self) -> u64 {
        self.copy.total_peak_bytes()
    }

    /// A counter's sum over all processes, ended ones included.
    pub fn sum(&self, counter: Counter) -> u64 {
        self.copy.sum(counter)
    }

    /// Pages stored by all processes, ended ones included, by the name of their form.
    pub fn forms(&self) -> BTreeMap<String, u64> {
        self.copy.forms()
    }

    /// Fault latencies of all processes, ended ones included.
    pub fn fault_counts(&self) -> [u64; BUCKETS] {
        self.copy.fault_counts()
    }

    /// Latencies of faults that had to read from the swap file, of all processes, ended ones included.
    pub fn disk_fault_counts(&self) -> [u64; BUCKETS] {
        self.copy.disk_fault_counts()
    }

    /// The live processes.
    pub fn live(&self) -> impl Iterator<Item = &Slot> {
        self.copy.live().map(|(_, slot)| slot)
    }
}

/// Bytes of a file.
pub(crate) fn len_of(file: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: all zeroes is a valid structure, and the kernel fills it.
    let (answer, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(file.as_raw_fd(), &mut stat), stat)
    };
    match answer {
        0 => Ok(usize::try_from(stat.st_size).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // SAFETY: allocated in `read` with this layout; no reference outlives `self`.
        unsafe { std::alloc::dealloc(self.copy.address().as_ptr().cast(), Layout::new::<Memory>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    fn ledger() -> (Ledger, OwnedFd) {
        let settings = Settings {
            budget_bytes: 1 << 30,
            folio_bytes: 65536,
            compressor: "lz4".into(),
            forms: vec!["lz4".into()],
            verify: false,
            swap_bytes: 0,
        };
        Ledger::create(&settings).unwrap()
    }

    #[test]
    fn an_onlooker_sees_the_figures_of_one_moment() {
        let (ledger, file) = ledger();
        let gone = ledger.claim(7).unwrap();
        ledger.slot(gone).add(Counter::ZswpIn, 3);
        ledger.slot(gone).faults().record(1000);
        ledger.slot(gone).add_form(0, 4);
        ledger.release(gone);
        for pid in [8, 9] {
            let index = ledger.claim(pid).unwrap();
            ledger.publish(index, 4096, 100, 200, 5);
            ledger.slot(index).add(Counter::ZswpIn, 10);
        }
        ledger.note_peaks();
        // Opened again for reading alone, as an onlooker has it.
        let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let snapshot = Snapshot::read(readable.as_fd()).unwrap();
        ledger.publish(0, 0, 0, 0, 0);
        assert_eq!(snapshot.settings(), ledger.settings());
        assert_eq!(snapshot.supervisor(), std::process::id());
        assert_eq!((snapshot.total_bytes(), snapshot.total_peak_bytes()), (8192, 8192));
        assert_eq!(snapshot.sum(Counter::ZswpIn), 23);
        assert_eq!(snapshot.forms()["lz4"], 4);
        assert_eq!(snapshot.fault_counts().iter().sum::<u64>(), 1);
        let live: Vec<_> = snapshot.live().map(|slot| (slot.pid(), slot.stored_pages())).collect();
        assert_eq!(live, [(8, 5), (9, 5)]);
    }

    #[test]
    fn other_files_and_other_versions_are_refused() {
        let (ledger, file) = ledger();
        let code = |file: BorrowedFd<'_>| Snapshot::read(file).err().and_then(|error| error.raw_os_error());
        let null = File::open("/dev/null").unwrap();
        assert_eq!(code(null.as_fd()), Some(libc::EPROTO));
        // SAFETY: the first word of the ledger, which is its magic number.
        unsafe { ledger.address().as_ptr().cast::<u64>().write_volatile(1) };
        assert_eq!(code(file.as_fd()), Some(libc::EPROTO));
        // SAFETY: a terminated name.
        let raw = unsafe { libc::memfd_create(c"short".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: just opened, owned by nobody else.
        let short = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a file of this test.
        assert_eq!(unsafe { libc::ftruncate(raw, 4096) }, 0);
        assert_eq!(code(short.as_fd()), Some(libc::EPROTO));
    }
}
