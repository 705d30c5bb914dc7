//! An open queue of a real device.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;

use super::error::{map_refusal, of_open, other, write_refusal};
use super::instruction::{enqcmd, movdir64b, Instructions};
use crate::sysfs::QueueMode;
use crate::{Completion, Descriptor, Portal, Refusal, Submission};

/// Tries of one submission to a shared queue before [`Submission::Retry`]: a refusal costs a round
/// trip to the device.
const TRIES: u32 = 4;
/// Time limit of the no-op that probes the `write` path.
const PROBE_NS: u64 = 1_000_000_000;
const PROBE_TRIES: u32 = 1000;

/// The path of descriptors to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Posted to the mapped portal of a dedicated queue.
    Movdir64b,
    /// Offered to the mapped portal of a shared queue.
    Enqcmd,
    /// Through the kernel, if the portal cannot be mapped or the processor lacks the instruction.
    Write,
}

impl Way {
    /// The path in a word.
    pub fn word(self) -> &'static str {
        match self {
            Way::Movdir64b => "movdir64b",
            Way::Enqcmd => "enqcmd",
            Way::Write => "write",
        }
    }
}

/// Distinguishes this process from its forks, whose calls the kernel refuses and which lack the
/// mapping. The word lies in a page of the arena (a paged program must not have it paged out),
/// which the kernel wipes in forks.
static WORD: OnceLock<usize> = OnceLock::new();
/// The last value given. Forks inherit it, so that theirs differ.
static LAST: AtomicU32 = AtomicU32::new(0);

struct Validity {
    word: &'static AtomicU32,
    /// The word's value when the portal was opened.
    own: u32,
    is_revoked: AtomicBool,
}

impl Validity {
    fn new() -> io::Result<Self> {
        let address = match WORD.get() {
            Some(address) => *address,
            None => {
                let page = sys::arena::take(sys::PAGE_SIZE, sys::PAGE_SIZE)?;
                // SAFETY: the page just taken, which is this module's alone.
                let result =
                    unsafe { libc::madvise(page.as_ptr().cast(), sys::PAGE_SIZE, libc::MADV_WIPEONFORK) };
                if result != 0 {
                    return Err(io::Error::last_os_error());
                }
                *WORD.get_or_init(|| page.as_ptr() as usize)
            }
        };
        // SAFETY: a page of the arena, which is never returned; zero or a value of `LAST`.
        let word = unsafe { &*(address as *const AtomicU32) };
        if word.load(Ordering::Acquire) == 0 {
            let next = LAST.fetch_add(1, Ordering::AcqRel) + 1;
            let _ = word.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(Validity { word, own: word.load(Ordering::Acquire), is_revoked: AtomicBool::new(false) })
    }

    #[inline]
    fn is_own_process(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.own
    }

    #[inline]
    fn is_valid(&self) -> bool {
        self.is_own_process() && !self.is_revoked.load(Ordering::Acquire)
    }
}

enum Door {
    /// The portal's page. The mapping alone keeps the queue open, so that programs which close
    /// every file do no harm.
    Mapped(NonNull<u8>),
    /// The file, and a file that refuses writes, to replace it.
    File(ManuallyDrop<OwnedFd>, ManuallyDrop<OwnedFd>),
}

/// A queue of a real device, open for this process. Dropping it closes the queue, which waits for
/// its jobs.
pub struct RealPortal {
    door: Door,
    way: Way,
    validity: Validity,
}

// SAFETY: the page is a device's portal, which any thread may store to; all else is plain or
// atomic.
unsafe impl Send for RealPortal {}
// SAFETY: as above.
unsafe impl Sync for RealPortal {}

impl RealPortal {
    /// Opens the device file `path` of queue `name`. Tries to map its portal, which takes
    /// privileges on some devices, and falls back to `write`.
    ///
    /// # Errors
    /// The reason and the fix.
    pub fn open(path: &Path, name: &str, mode: QueueMode) -> Result<Self, Refusal> {
        Self::open_with(path, name, mode, Instructions::detect())
    }

    /// [`RealPortal::open`] for a processor with these instructions.
    pub(super) fn open_with(
        path: &Path,
        name: &str,
        mode: QueueMode,
        instructions: Instructions,
    ) -> Result<Self, Refusal> {
        let shown = || path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .map_err(|cause| of_open(name, &shown(), &cause))?;
        let other = |cause: io::Error| Refusal(other(&shown(), &cause));
        let validity = Validity::new().map_err(other)?;
        let (way, has_instruction) = match mode {
            QueueMode::Dedicated => (Way::Movdir64b, instructions.movdir64b),
            QueueMode::Shared => (Way::Enqcmd, instructions.enqcmd),
        };
        let refusal = if has_instruction {
            match map(&file) {
                Ok(page) => return Ok(RealPortal { door: Door::Mapped(page), way, validity }),
                Err(cause) => map_refusal(&cause),
            }
        } else {
            format!("this processor has no {}", way.word().to_ascii_uppercase())
        };
        // An epoll instance refuses writes and needs no path. SAFETY: no arguments but a flag; a
        // descriptor of its own is returned.
        let sink = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if sink < 0 {
            return Err(other(io::Error::last_os_error()));
        }
        // SAFETY: just made, with no other owner.
        let sink = unsafe { OwnedFd::from_raw_fd(sink) };
        let portal = RealPortal {
            door: Door::File(ManuallyDrop::new(OwnedFd::from(file)), ManuallyDrop::new(sink)),
            way: Way::Write,
            validity,
        };
        portal.probe(name, &refusal)?;
        Ok(portal)
    }

    /// The path of descriptors to the queue.
    pub fn way(&self) -> Way {
        self.way
    }

    fn probe(&self, queue: &str, map: &str) -> Result<(), Refusal> {
        let record = Completion::new();
        let noop = Descriptor::noop(&record);
        let mut tries = 0;
        let Door::File(file, _) = &self.door else { return Ok(()) };
        while let Err(cause) = write(file, &noop) {
            tries += 1;
            let is_full = matches!(cause.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            if !is_full || tries >= PROBE_TRIES {
                return Err(Refusal(format!(
                    "{queue} takes no descriptors from this process: {map}; and write: {}. Run with CAP_SYS_RAWIO \
                     (setcap cap_sys_rawio+ep, or sudo), or use a kernel whose idxd driver has write (6.9 and the \
                     stable kernels after May 2024)",
                    write_refusal(&cause)
                )));
            }
            std::thread::yield_now();
        }
        let until = sys::now_ns() + PROBE_NS;
        let completion = loop {
            if let Some(completion) = record.poll() {
                break completion;
            }
            if sys::now_ns() >= until {
                // Ends the device's access to the record, whose memory is about to be freed.
                self.revoke();
                return Err(Refusal(format!(
                    "{queue} took a no-op and did not answer within {} ms: check `uzswap iaa list` for errors, and \
                     that its group has engines",
                    PROBE_NS / 1_000_000
                )));
            }
            std::thread::yield_now();
        };
        if completion.is_success() {
            Ok(())
        } else {
            Err(Refusal(format!(
                "{queue} answered a no-op with status {:#04x}, {}: see `uzswap iaa list` and the kernel's log",
                completion.status.0,
                completion.meaning()
            )))
        }
    }
}

/// Maps the portal: one page, regardless of the length.
fn map(file: &File) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            sys::PAGE_SIZE,
            libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(page.cast()).expect("mappings are not at zero"))
}

/// Whether `page` is mapped, or the process has unmapped it.
///
/// The kernel's driver never removes a portal's mapping, even when its queue is disabled or its
/// device unbound (a store then goes to the device's window and is dropped), so requests need not
/// ask. The resident bits of mincore(2) are of no use: it skips mappings of devices.
fn is_mapped(page: NonNull<u8>) -> bool {
    let mut resident = 0u8;
    // SAFETY: a place for one page's byte; the call looks at mappings and touches no memory.
    unsafe { libc::mincore(page.as_ptr().cast(), sys::PAGE_SIZE, &mut resident) == 0 }
}

fn write(file: &OwnedFd, descriptor: &Descriptor) -> io::Result<()> {
    let bytes = descriptor.to_bytes();
    // SAFETY: 64 readable bytes.
    let written = unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    match usize::try_from(written) {
        Ok(64) => Ok(()),
        // A short write submits nothing.
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

impl Portal for RealPortal {
    #[inline]
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submission {
        if !self.validity.is_valid() {
            return Submission::Gone;
        }
        match &self.door {
            Door::Mapped(page) => {
                // Any of the page's 64 lines will do. Neighbouring submissions have records at
                // different addresses and so use different lines, as in QPL.
                let line = (descriptor.completion as usize % sys::PAGE_SIZE) & !63;
                // SAFETY: within the page, which stays mapped until this is dropped (revoking puts
                // plain memory in its place); `open_with` checked that the processor has the
                // instruction.
                unsafe {
                    let target = page.as_ptr().add(line);
                    if self.way == Way::Movdir64b {
                        movdir64b(target, descriptor);
                        return Submission::Accepted;
                    }
                    for _ in 0..TRIES {
                        if enqcmd(target, descriptor) {
                            return Submission::Accepted;
                        }
                        std::hint::spin_loop();
                    }
                }
                Submission::Retry
            }
            Door::File(file, _) => match write(file, descriptor) {
                Ok(()) => Submission::Accepted,
                Err(cause) if matches!(cause.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                    Submission::Retry
                }
                Err(_) => Submission::Gone,
            },
        }
    }

    fn is_there(&self) -> bool {
        self.validity.is_valid()
    }

    fn revoke(&self) {
        self.validity.is_revoked.store(true, Ordering::Release);
        // A fork has nothing to revoke: it lacks the mapping, and the kernel refuses its file.
        if !self.validity.is_own_process() {
            return;
        }
        match &self.door {
            // An unmapped page keeps no queue open, and its address may soon belong to another
            // mapping.
            Door::Mapped(page) if !is_mapped(*page) => {}
            Door::Mapped(page) => {
                // Plain memory replaces the portal: stores of threads that are about to submit go
                // there. With the mapping the queue's last reference goes, and closing waits for
                // its jobs. SAFETY: this portal's own page; nothing else lives there.
                let replaced = unsafe {
                    libc::mmap(
                        page.as_ptr().cast(),
                        sys::PAGE_SIZE,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                        -1,
                        0,
                    )
                };
                assert_ne!(replaced, libc::MAP_FAILED, "a page can be mapped over one that is mapped");
            }
            Door::File(file, sink) => {
                // The number stays taken, so that a late write cannot hit a file opened since.
                // SAFETY: two descriptors that are open and this portal's own.
                let result = unsafe { libc::dup3(sink.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) };
                assert!(result >= 0, "a file can be put in the place of one that is open");
            }
        }
    }
}

impl Drop for RealPortal {
    fn drop(&mut self) {
        // A fork lacks the mapping, and its address and descriptor numbers may belong to others.
        if !self.validity.is_own_process() {
            return;
        }
        match &mut self.door {
            Door::Mapped(page) if is_mapped(*page) => {
                // SAFETY: this portal's page, which is not used any more.
                unsafe { libc::munmap(page.as_ptr().cast(), sys::PAGE_SIZE) };
            }
            Door::Mapped(_) => {}
            Door::File(file, sink) => {
                // SAFETY: dropped here alone, and not used afterwards.
                unsafe {
                    ManuallyDrop::drop(file);
                    ManuallyDrop::drop(sink);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Machine, QueueId};
    use std::fs;
    use std::io::Read;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::thread::JoinHandle;

    const NONE: Instructions = Instructions { movdir64b: false, enqcmd: false };

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("uzswap-portal-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    fn fifo(name: &str) -> PathBuf {
        let path = path(name);
        let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a zero-terminated path.
        assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
        path
    }

    /// Stands in for the kernel and the device behind `write`: takes descriptors from a pipe.
    fn serve(path: &Path, ended: &Arc<AtomicBool>) -> JoinHandle<usize> {
        let mut file = File::options().read(true).write(true).open(path).unwrap();
        let ended = Arc::clone(ended);
        std::thread::spawn(move || {
            let machine = Machine::new(&"mode=shared".parse().unwrap()).unwrap();
            let queue = machine.open(QueueId { device: 0, queue: 0 }).unwrap();
            let mut count = 0;
            let mut bytes = [0u8; 64];
            loop {
                file.read_exact(&mut bytes).unwrap();
                if bytes == [0; 64] {
                    assert!(ended.load(Ordering::Acquire));
                    return count;
                }
                // SAFETY: 64 plain bytes; the submitter keeps the buffers until the record is
                // written.
                let submission = unsafe {
                    let descriptor: Descriptor = std::mem::transmute(bytes);
                    queue.submit(&descriptor)
                };
                assert_eq!(submission, Submission::Accepted);
                count += 1;
            }
        })
    }

    fn end(path: &Path, ended: &AtomicBool) {
        ended.store(true, Ordering::Release);
        fs::write(path, [0u8; 64]).unwrap();
    }

    fn completion_of(record: &Completion) -> crate::Record {
        let until = sys::now_ns() + 20_000_000_000;
        loop {
            if let Some(completion) = record.poll() {
                return completion;
            }
            assert!(sys::now_ns() < until, "no answer");
            std::thread::yield_now();
        }
    }

    /// The `write` path, from the probe to a page's round trip, to an emulated device behind a
    /// pipe.
    #[test]
    fn a_page_through_write() {
        let path = fifo("write");
        let ended = Arc::new(AtomicBool::new(false));
        let device = serve(&path, &ended);
        let portal = RealPortal::open_with(&path, "wq1.0", QueueMode::Shared, NONE).unwrap();
        assert_eq!(portal.way(), Way::Write);
        let page: Vec<u8> = (0..4096u32).map(|index| (index / 7) as u8).collect();
        let (mut packed, mut back) = (vec![0u8; 4096], vec![0u8; 4096]);
        let records = [Completion::new(), Completion::new()];
        let submit = |job: Descriptor| {
            // SAFETY: the buffers live until the record is read below.
            assert_eq!(unsafe { portal.submit(&job) }, Submission::Accepted);
        };
        let packed_at = packed.as_mut_ptr();
        submit(Descriptor::compress_fixed(
            &records[0],
            (page.as_ptr(), 4096),
            (packed_at, 4096),
            &crate::aecs::FIXED,
        ));
        let size = completion_of(&records[0]).output_size;
        assert!(size > 0 && size < 4096);
        submit(Descriptor::decompress(&records[1], (packed_at, size), (back.as_mut_ptr(), 4096)));
        let completed = completion_of(&records[1]);
        assert!(completed.is_success() && completed.output_size == 4096);
        assert_eq!(back, page);
        portal.revoke();
        // SAFETY: a no-op has no buffers; its record outlives the portal.
        assert_eq!(unsafe { portal.submit(&Descriptor::noop(&records[0])) }, Submission::Gone);
        portal.revoke();
        end(&path, &ended);
        assert_eq!(device.join().unwrap(), 3);
        fs::remove_file(&path).unwrap();
    }

    /// Whether a fork here finds wiped pages zero. QEMU's user mode claims it but does not wipe.
    fn forks_are_wiped() -> bool {
        let validity = Validity::new().unwrap();
        // SAFETY: the child only looks, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the process without running the test's destructors.
            unsafe { libc::_exit(i32::from(validity.is_own_process())) };
        }
        let mut status = -1;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status == 0
    }

    /// In a fork the portal is gone, and dropping it there is harmless.
    #[test]
    fn a_fork_has_no_portal() {
        if cfg!(not(target_arch = "x86_64")) && !forks_are_wiped() {
            testkit::skip!(
                "kernel",
                "forks get copies of pages that are to be wiped, as under QEMU's user mode"
            );
            return;
        }
        let path = fifo("fork");
        let ended = Arc::new(AtomicBool::new(false));
        let device = serve(&path, &ended);
        let portal = RealPortal::open_with(&path, "wq1.0", QueueMode::Dedicated, NONE).unwrap();
        let record = Completion::new();
        // SAFETY: the child calls nothing that takes locks of the parent's other threads, and ends
        // at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a no-op has no buffers.
            let submission = unsafe { portal.submit(&Descriptor::noop(&record)) };
            portal.revoke();
            // SAFETY: as above.
            let again = unsafe { portal.submit(&Descriptor::noop(&record)) };
            // A portal opened by the fork is its own, and the parent's stays gone.
            let own = Validity::new().unwrap();
            let is_wrong = submission != Submission::Gone
                || again != Submission::Gone
                || !own.is_valid()
                || portal.validity.is_own_process();
            let status = i32::from(is_wrong);
            // SAFETY: ends the process without running the test's destructors.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        // SAFETY: a no-op has no buffers; its record outlives the portal.
        assert_eq!(unsafe { portal.submit(&Descriptor::noop(&record)) }, Submission::Accepted);
        assert!(completion_of(&record).is_success());
        drop(portal);
        end(&path, &ended);
        device.join().unwrap();
        fs::remove_file(&path).unwrap();
    }

    /// An ordinary file can be mapped, and MOVDIR64B stores the bytes to it.
    #[test]
    fn a_mapped_portal_gets_the_bytes() {
        if !Instructions::detect().movdir64b {
            testkit::skip!("cpu", "this processor has no MOVDIR64B");
            return;
        }
        let path = path("mapped");
        fs::write(&path, vec![0u8; 4096]).unwrap();
        let portal = RealPortal::open(&path, "wq1.0", QueueMode::Dedicated).unwrap();
        assert_eq!(portal.way(), Way::Movdir64b);
        let record = Completion::new();
        let noop = Descriptor::noop(&record);
        let line = &record as *const Completion as usize % 4096;
        // SAFETY: a no-op has no buffers.
        assert_eq!(unsafe { portal.submit(&noop) }, Submission::Accepted);
        assert_eq!(fs::read(&path).unwrap()[line..line + 64], noop.to_bytes());
        portal.revoke();
        // SAFETY: as above.
        assert_eq!(unsafe { portal.submit(&noop) }, Submission::Gone);
        drop(portal);
        fs::remove_file(&path).unwrap();
    }

    /// A portal that the process unmapped: nothing is mapped over the address, which may belong to
    /// another mapping.
    #[test]
    fn nothing_is_mapped_over_an_unmapped_portal() {
        let path = path("unmapped");
        fs::write(&path, vec![0u8; 4096]).unwrap();
        let claimed = Instructions { movdir64b: true, enqcmd: true };
        let portal = RealPortal::open_with(&path, "wq1.0", QueueMode::Shared, claimed).unwrap();
        assert!(portal.is_there());
        let Door::Mapped(page) = &portal.door else { panic!("mapped") };
        let page = *page;
        // SAFETY: the portal's own page, which nothing uses.
        assert_eq!(unsafe { libc::munmap(page.as_ptr().cast(), sys::PAGE_SIZE) }, 0);
        portal.revoke();
        assert!(!portal.is_there() && !is_mapped(page));
        drop(portal);
        fs::remove_file(&path).unwrap();
    }

    /// The mapping is made and removed without the instruction, too.
    #[test]
    fn revoking_a_mapping_closes_the_file() {
        let path = path("revoked");
        fs::write(&path, vec![0u8; 4096]).unwrap();
        // The instruction is claimed, but never executed.
        let claimed = Instructions { movdir64b: true, enqcmd: true };
        let portal = RealPortal::open_with(&path, "wq1.0", QueueMode::Shared, claimed).unwrap();
        assert_eq!(portal.way(), Way::Enqcmd);
        let is_mapped = || fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap());
        assert!(is_mapped());
        portal.revoke();
        assert!(!is_mapped());
        let record = Completion::new();
        // SAFETY: a no-op has no buffers.
        assert_eq!(unsafe { portal.submit(&Descriptor::noop(&record)) }, Submission::Gone);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn refusals_are_told_apart() {
        let missing = RealPortal::open_with(&path("missing"), "wq1.0", QueueMode::Shared, NONE);
        let said = |refused: Result<RealPortal, Refusal>| refused.err().unwrap().to_string();
        assert!(said(missing).contains("has no device file"));
        // The other end of the pipe is never read, and it cannot be mapped.
        let silent = fifo("silent");
        let both = Instructions { movdir64b: true, enqcmd: true };
        let refused = RealPortal::open_with(&silent, "wq1.0", QueueMode::Shared, both);
        assert!(said(refused).contains("did not answer within 1000 ms"));
        fs::remove_file(&silent).unwrap();
        // A file that takes no descriptors: the same error number as a driver without the call.
        let refused =
            RealPortal::open_with(Path::new("/proc/self/clear_refs"), "wq1.0", QueueMode::Shared, NONE);
        assert!(refused.is_err());
    }
}
