//! The kernel's rules of access tracking (userfaultfd's RWP, Linux 7.3) on which the pager relies.
//! Skipped on other kernels; `crates/program/machine/x86_64` runs them in an emulated machine.

use std::os::fd::AsRawFd;

use sys::pagemap::{Pagemap, Run};
use sys::userfaultfd::{feature, Stop, Userfaultfd, MISSING, TRACKED, WRITE_PROTECT};
use sys::{memory, PAGE_SIZE};

const PAGES: usize = 64;

/// A userfaultfd with tracking, and the pagemap.
struct Kernel {
    uffd: Userfaultfd,
    pagemap: Pagemap,
}

impl Kernel {
    fn new() -> Option<Self> {
        let has = Userfaultfd::features().is_ok_and(|all| all & feature::TRACKING == feature::TRACKING);
        if !has {
            testkit::skip!("kernel", "no access tracking before Linux 7.3");
            return None;
        }
        // Without events: no call of a test waits for a read.
        let features = feature::TRACKING | feature::MOVING | feature::THREAD_ID;
        let uffd = Userfaultfd::open(features).expect("the kernel has them all");
        Some(Kernel { uffd, pagemap: Pagemap::open().expect("/proc") })
    }

    /// Tracked pages, of which the first `touched` are present.
    fn tracked(&self, touched: usize) -> usize {
        let at = mapping();
        self.uffd.register(at, PAGES * PAGE_SIZE, MISSING | TRACKED).expect("a mapping of its own");
        // This process must fill missing pages.
        let (source, len) = (mapping(), touched * PAGE_SIZE);
        (0..touched).for_each(|page| write(source, page, page + 1));
        if len > 0 {
            // SAFETY: both mappings are the test's.
            let copied = unsafe { self.uffd.copy(at, source, len) };
            assert_eq!((copied.done, copied.stop), (len, None));
        }
        at
    }

    /// Number of used and unused present pages.
    fn uses(&self, at: usize) -> (u64, u64) {
        let mut runs = [Run::default(); PAGES];
        let (count, walked) = self.pagemap.uses(at, at + PAGES * PAGE_SIZE, &mut runs);
        assert_eq!(walked, at + PAGES * PAGE_SIZE);
        let (mut used, mut unused) = (0, 0);
        for run in &runs[..count] {
            let mask = if run.is_used() { &mut used } else { &mut unused };
            for page in (run.start as usize - at) / PAGE_SIZE..(run.end as usize - at) / PAGE_SIZE {
                *mask |= 1u64 << page;
            }
        }
        (used, unused)
    }

    fn arm(&self, at: usize) {
        self.uffd.arm(at, PAGES * PAGE_SIZE).unwrap();
    }

    /// Tracked and armed pages, of which the first eight are present.
    fn armed(&self) -> usize {
        let at = self.tracked(8);
        self.arm(at);
        at
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.pagemap.close();
        self.uffd.close();
    }
}

fn mapping() -> usize {
    // A separate mapping, which the kernel cannot merge with its neighbours.
    let at = memory::map((PAGES + 2) * PAGE_SIZE).unwrap().as_ptr() as usize;
    for guard in [at, at + (PAGES + 1) * PAGE_SIZE] {
        // SAFETY: the first and the last page of this mapping.
        unsafe { libc::munmap(guard as *mut libc::c_void, PAGE_SIZE) };
    }
    at + PAGE_SIZE
}

fn protect(at: usize, rights: i32) {
    // SAFETY: the tests pass their own mappings.
    assert_eq!(unsafe { libc::mprotect(at as *mut libc::c_void, PAGES * PAGE_SIZE, rights) }, 0);
}

fn write(at: usize, page: usize, value: usize) {
    // SAFETY: the tests pass pages of their own mappings.
    unsafe { ((at + page * PAGE_SIZE) as *mut usize).write_volatile(value) };
}

fn read(at: usize, page: usize) -> usize {
    // SAFETY: as above.
    unsafe { ((at + page * PAGE_SIZE) as *const usize).read_volatile() }
}

#[test]
fn pages_count_as_used_until_armed_and_again_once_touched() {
    let Some(kernel) = Kernel::new() else { return };
    let at = kernel.tracked(8);
    assert_eq!(kernel.uses(at), (0xff, 0), "what came by a copy");
    kernel.arm(at);
    assert_eq!(kernel.uses(at), (0, 0xff), "only present pages are armed");
    assert_eq!(read(at, 3), 4);
    write(at, 5, 99);
    assert_eq!(kernel.uses(at), (0x28, 0xd7));
    assert_eq!((0..8).map(|page| read(at, page)).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 99, 7, 8]);
    assert_eq!(kernel.uses(at), (0xff, 0));
}

#[test]
fn pages_that_the_kernel_reads_or_writes_count_as_used() {
    let Some(kernel) = Kernel::new() else { return };
    let at = kernel.armed();
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the calls access mapped pages of the test.
    unsafe {
        assert_eq!(libc::write(writer.as_raw_fd(), at as *const libc::c_void, 8), 8);
        assert_eq!(libc::read(reader.as_raw_fd(), (at + 2 * PAGE_SIZE) as *mut libc::c_void, 8), 8);
    }
    assert_eq!(kernel.uses(at), (0b101, 0xfa));
    assert_eq!(read(at, 2), 1, "the bytes of page 0");
}

#[test]
fn pages_moved_in_are_armed_until_disarmed_or_used() {
    let Some(kernel) = Kernel::new() else { return };
    let (at, staging) = (kernel.tracked(0), mapping());
    (0..8).for_each(|page| write(staging, page, page + 1));
    // SAFETY: both mappings are the test's.
    let moved = unsafe { kernel.uffd.move_pages(at, staging, 8 * PAGE_SIZE, false) };
    assert_eq!((moved.done, moved.stop), (8 * PAGE_SIZE, None));
    assert_eq!(kernel.uses(at), (0, 0xff));
    kernel.uffd.disarm(at + PAGE_SIZE, PAGE_SIZE).unwrap();
    assert_eq!(kernel.uses(at), (2, 0xfd), "the page that a thread waits for");
    assert_eq!(read(at, 7), 8);
    assert_eq!(kernel.uses(at), (0x82, 0x7d));
}

#[test]
fn armed_pages_leave_for_staging_where_they_are_armed_no_more() {
    let Some(kernel) = Kernel::new() else { return };
    // The pager registers staging in this way.
    let (at, staging) = (kernel.tracked(8), mapping());
    kernel.uffd.register(staging, PAGES * PAGE_SIZE, WRITE_PROTECT).unwrap();
    kernel.arm(at);
    // SAFETY: both mappings are the test's.
    let moved = unsafe { kernel.uffd.move_pages(staging, at, 8 * PAGE_SIZE, false) };
    assert_eq!((moved.done, moved.stop), (8 * PAGE_SIZE, None));
    assert_eq!(kernel.uses(at), (0, 0), "nothing is left there");
    // No handler serves faults here: reads and writes of staging must not raise one.
    for page in 0..8 {
        assert_eq!(read(staging, page), page + 1);
        write(staging, page, page + 100);
    }
    assert!(!kernel.uffd.wait(0), "a message about staging");
    // SAFETY: as above.
    let moved = unsafe { kernel.uffd.move_pages(at, staging, 8 * PAGE_SIZE, false) };
    assert_eq!(moved.stop, None);
    assert!((0..8).all(|page| read(at, page) == page + 100));
}

#[test]
fn a_registration_names_its_mode_again_or_is_refused() {
    let Some(kernel) = Kernel::new() else { return };
    let (at, len) = (kernel.armed(), PAGES * PAGE_SIZE);
    assert_eq!(kernel.uffd.register(at, len, MISSING), Err(Stop::Busy), "would drop tracking");
    assert_eq!(kernel.uffd.register(at, len, MISSING | TRACKED), Ok(()));
    assert_eq!(kernel.uses(at), (0, 0xff), "as it was");
    assert_eq!(kernel.uffd.register(mapping(), len, TRACKED | WRITE_PROTECT), Err(Stop::Invalid));
    let plain = mapping();
    kernel.uffd.register(plain, len, MISSING).unwrap();
    assert!(kernel.uffd.arm(plain, len).is_err(), "not registered for it");
}

#[test]
fn armed_pages_stay_so_through_mremap_and_mprotect_and_not_through_madvise() {
    let Some(kernel) = Kernel::new() else { return };
    let at = kernel.armed();
    protect(at, libc::PROT_READ);
    protect(at, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(kernel.uses(at), (0, 0xff));
    write(at, 1, 77);
    assert_eq!(kernel.uses(at), (2, 0xfd));
    // SAFETY: the test's own mapping.
    assert_eq!(unsafe { libc::madvise(at as *mut libc::c_void, PAGE_SIZE, libc::MADV_DONTNEED) }, 0);
    assert_eq!(kernel.uses(at), (2, 0xfc));
    assert_eq!((1..8).map(|page| read(at, page)).collect::<Vec<_>>(), [77, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn pages_stay_usable_when_tracking_ends() {
    let Some(kernel) = Kernel::new() else { return };
    let (at, len) = (kernel.armed(), PAGES * PAGE_SIZE);
    kernel.uffd.unregister(at, len).unwrap();
    assert!((0..8).all(|page| read(at, page) == page + 1));
    let at = kernel.armed();
    drop(kernel);
    assert!((0..8).all(|page| read(at, page) == page + 1));
}

#[test]
fn a_child_without_a_userfaultfd_reads_armed_pages() {
    let Some(kernel) = Kernel::new() else { return };
    let at = kernel.armed();
    // SAFETY: the child reads memory and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = (0..8).all(|page| read(at, page) == page + 1);
        // SAFETY: ends the child, which runs no other code of the test.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = -1;
    // SAFETY: the status is a variable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(kernel.uses(at), (0, 0xff), "the parent's stay armed");
    assert!((0..8).all(|page| read(at, page) == page + 1));
}

#[test]
fn reserved_address_space_is_tracked_only_once_it_is_usable() {
    let Some(kernel) = Kernel::new() else { return };
    let (at, len) = (mapping(), PAGES * PAGE_SIZE);
    protect(at, libc::PROT_NONE);
    assert_eq!(kernel.uffd.register(at, len, MISSING | TRACKED), Err(Stop::Invalid));
    assert_eq!(kernel.uffd.register(at, len, MISSING), Ok(()));
    protect(at, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(kernel.uffd.register(at, len, MISSING | TRACKED), Ok(()), "added to what there is");
    assert_eq!(kernel.uffd.zero(at, PAGE_SIZE).stop, None);
    kernel.arm(at);
}

#[test]
fn a_page_that_cannot_be_read_stays_so() {
    let Some(kernel) = Kernel::new() else { return };
    let (at, len) = (kernel.tracked(8), PAGES * PAGE_SIZE);
    protect(at, libc::PROT_NONE);
    // Allowed, and without effect on permitted accesses.
    assert_eq!(kernel.uffd.arm(at, len), Ok(()));
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the kernel refuses unreadable memory.
    assert_eq!(unsafe { libc::write(writer.as_raw_fd(), at as *const libc::c_void, 8) }, -1);
    protect(at, libc::PROT_READ | libc::PROT_WRITE);
    assert!((0..8).all(|page| read(at, page) == page + 1));
}

#[test]
fn a_page_of_zeroes_is_read_as_zeroes() {
    let Some(kernel) = Kernel::new() else { return };
    let at = kernel.tracked(0);
    let filled = kernel.uffd.zero(at, 8 * PAGE_SIZE);
    assert_eq!(filled.stop, None);
    kernel.arm(at);
    assert!((0..8).all(|page| read(at, page) == 0));
    write(at, 2, 5);
    assert_eq!(read(at, 2), 5);
}
