//! A userfaultfd over the memory of one process, with reliable results.
//!
//! While a call changes mappings, the kernel refuses to move, copy or zero with EAGAIN. But since
//! Linux 6.9 it looks up the mapping first: after mremap() has moved it away and before the report
//! is read, the kernel returns ENOENT. Trusting that loses the page when the report is applied (a
//! growing `bytearray` of incompressible data came out different). So ENOENT counts only if no call
//! is under way afterwards: an earlier one would still be, because its report is not read in
//! between.

use sys::userfaultfd::{Message, Progress, Stop, MESSAGES_MAX};
use sys::PAGE_SIZE;

use crate::sync::Userfaultfd;

/// What the kernel knows of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// Registered with the userfaultfd.
    Registered,
    /// Not registered, or nothing is mapped.
    Unregistered,
    /// Unknown: a call that changes mappings is under way.
    Changing,
}

/// A userfaultfd without the calls that fill, move or empty a page: registration, reports and
/// wakes. Callers without a proof get only this.
#[derive(Debug, Clone, Copy)]
pub struct Reports(Userfaultfd);

impl Reports {
    /// Its number.
    pub fn descriptor(&self) -> i32 {
        self.0.descriptor()
    }

    /// Registers a range.
    pub fn register(&self, start: usize, len: usize, mode: u64) -> Result<(), Stop> {
        self.0.register(start, len, mode)
    }

    /// Unregisters a range.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Stop> {
        self.0.unregister(start, len)
    }

    /// Wakes the threads that wait for pages of a range.
    pub fn wake(&self, start: usize, len: usize) {
        self.0.wake(start, len);
    }

    /// Waits for a message. Returns whether there is one.
    pub fn wait(&self, timeout_ms: i32) -> bool {
        self.0.wait(timeout_ms)
    }

    /// Reads up to `limit` messages. Returns their number.
    pub fn read(&self, messages: &mut [Message; MESSAGES_MAX], limit: usize) -> usize {
        self.0.read(messages, limit)
    }

    /// Closes the descriptor.
    pub fn close(self) {
        self.0.close();
    }
}

/// A userfaultfd, and a present page registered with it as a probe.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    uffd: Userfaultfd,
    pub(crate) probe: usize,
}

impl Guard {
    /// Guards the process of `uffd`: this one, or a child that has the same probe.
    pub fn new(uffd: Userfaultfd, probe: usize) -> Self {
        Guard { uffd, probe }
    }

    /// The reporting side.
    pub fn reports(&self) -> Reports {
        Reports(self.uffd)
    }

    /// The guard of a child, by its userfaultfd.
    pub fn of_child(&self, descriptor: i32) -> Self {
        Guard::new(Userfaultfd::from_descriptor(descriptor), self.probe)
    }

    /// Whether a mapping change is under way: its event is unread, or its thread has not run.
    pub fn is_changing(&self) -> bool {
        self.uffd.zero(self.probe, PAGE_SIZE).stop == Some(Stop::Again)
    }

    fn believed(&self, progress: Progress) -> Progress {
        match progress.stop {
            Some(Stop::Hole | Stop::Invalid) if self.is_changing() => {
                Progress { stop: Some(Stop::Again), ..progress }
            }
            _ => progress,
        }
    }

    /// # Safety
    /// As for [`sys::userfaultfd::Userfaultfd::move_pages`].
    pub(crate) unsafe fn move_pages(&self, to: usize, from: usize, len: usize, wake: bool) -> Progress {
        // SAFETY: the caller vouches for both ranges.
        self.believed(unsafe { self.uffd.move_pages(to, from, len, wake) })
    }

    /// # Safety
    /// As for [`sys::userfaultfd::Userfaultfd::copy`].
    pub unsafe fn copy(&self, at: usize, source: usize, len: usize) -> Progress {
        // SAFETY: the caller vouches for both ranges.
        self.believed(unsafe { self.uffd.copy(at, source, len) })
    }

    /// Maps the zero page at missing pages.
    pub fn zero(&self, at: usize, len: usize) -> Progress {
        self.believed(self.uffd.zero(at, len))
    }

    /// Whether the mapping at `at` is registered.
    pub fn registration(&self, at: usize) -> Registration {
        match self.uffd.is_registered(at) {
            Some(true) => Registration::Registered,
            Some(false) if !self.is_changing() => Registration::Unregistered,
            Some(false) | None => Registration::Changing,
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use sys::userfaultfd::{feature, Message, Userfaultfd, MESSAGES_MAX, MISSING};

    use super::Registration::{Changing, Registered, Unregistered};
    use super::*;
    use crate::units::bytes_of;

    fn map(pages: usize) -> usize {
        sys::memory::map(bytes_of(pages)).unwrap().as_ptr() as usize
    }

    /// Maps a page at an address that the kernel does not reuse for other tests' threads.
    fn map_apart() -> usize {
        let (at, protection) = (0x2000_0000 as *mut libc::c_void, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces no mapping.
        let mapped = unsafe { libc::mmap(at, PAGE_SIZE, protection, flags, -1, 0) };
        assert_eq!(mapped, at);
        at as usize
    }

    #[test]
    fn a_mapping_that_is_moving_is_not_taken_for_gone() {
        let Ok(uffd) = Userfaultfd::open(feature::EVENT_REMAP | feature::EVENT_UNMAP) else {
            testkit::skip!("userfaultfd", "no userfaultfd");
            return;
        };
        let (probe, from, to, page) = (map(1), map_apart(), map(1), map(1));
        // SAFETY: this test's mapping.
        unsafe { (probe as *mut u64).write_volatile(1) };
        uffd.register(probe, PAGE_SIZE, MISSING).unwrap();
        uffd.register(from, PAGE_SIZE, MISSING).unwrap();
        let guard = Guard::new(uffd, probe);
        assert_eq!((guard.registration(from), guard.registration(to)), (Registered, Unregistered));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (from, to) = (from as *mut libc::c_void, to as *mut libc::c_void);
                // SAFETY: both mappings are this test's.
                assert_eq!(unsafe { libc::mremap(from, PAGE_SIZE, PAGE_SIZE, flags, to) }, to);
            });
            assert!(uffd.wait(10_000));
            // The mapping is gone, and its report is unread.
            // SAFETY: fills a missing page of this test's.
            let copied = unsafe { guard.copy(from, page, PAGE_SIZE) };
            assert_eq!((copied.done, copied.stop), (0, Some(Stop::Again)));
            assert_eq!(guard.zero(from, PAGE_SIZE).stop, Some(Stop::Again));
            assert_eq!(guard.registration(from), Changing);
            let mut messages = [Message::Unmap { start: 0, end: 0 }; MESSAGES_MAX];
            // mremap() reports a REMAP and an UNMAP.
            for _ in 0..2 {
                assert!(uffd.wait(10_000));
                assert_eq!(uffd.read(&mut messages, 1), 1);
            }
        });
        // SAFETY: as above.
        assert_eq!(unsafe { guard.copy(from, page, PAGE_SIZE) }.stop, Some(Stop::Hole));
        assert_eq!((guard.registration(from), guard.registration(to)), (Unregistered, Registered));
        uffd.close();
    }
}
