//! Where frames go from staging to be given back to the system.
//!
//! Staging is guarded by the program's own userfaultfd, so that the kernel refuses to move pages
//! out of the program while one of its calls is changing mappings ([`super::evict`]). What is
//! guarded so is not to be discarded by the pager: the kernel would report that, and wait until the
//! report has been read, perhaps by this very thread. So frames are moved to another mapping first,
//! whose userfaultfd has no reports.

use std::io;
use std::ptr::NonNull;

use sys::userfaultfd::{feature, OpenError, Progress, Stop, WRITE_PROTECT};
use sys::{arena, memory, PAGE_SIZE};

use super::extents::EXTENT_PAGES;
use crate::config::StartError;
use crate::sync::{Mutex, Userfaultfd};
use crate::units::bytes_of;

/// Attempts to move a range, each of which may end at any page.
const TRIES: usize = 4 * EXTENT_PAGES;

/// The mapping, and the program's guard over staging.
pub struct DiscardWindow {
    at: usize,
    silent: Userfaultfd,
    program: Userfaultfd,
    turn: Mutex<()>,
}

impl DiscardWindow {
    /// One for staging that is guarded by `program`, and `executable` like it: pages move between
    /// equal protections.
    pub fn new(program: Userfaultfd, executable: bool) -> Result<Self, StartError> {
        let system = |source| StartError::System { what: "staging memory", source };
        let at = arena::take(bytes_of(EXTENT_PAGES), PAGE_SIZE).map_err(system)?;
        if executable {
            // SAFETY: taken just now.
            unsafe { memory::allow_execution(at, bytes_of(EXTENT_PAGES)) }.map_err(system)?;
        }
        let (at, turn) = (at.as_ptr() as usize, Mutex::new(()));
        let window = DiscardWindow { at, silent: Userfaultfd::open(feature::MOVE)?, program, turn };
        window.guard().map_err(|_| OpenError::Features { missing: feature::PAGEFAULT_FLAG_WP })?;
        Ok(window)
    }

    /// The number of the userfaultfd without reports.
    pub fn descriptor(&self) -> i32 {
        self.silent.descriptor()
    }

    /// Has the mapping be one that pages may be moved to: once, and again in a forked child.
    ///
    /// # Errors
    /// What the kernel says of registering it.
    pub fn guard(&self) -> io::Result<()> {
        // Write-protect mode satisfies the kernel's rule that a destination of moves is registered,
        // and leaves first touches to the kernel. No page is ever protected.
        match self.silent.register(self.at, bytes_of(EXTENT_PAGES), WRITE_PROTECT) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Gives the frames of up to [`EXTENT_PAGES`] pages of staging back to the system.
    ///
    /// # Safety
    /// `[at, at + len)` is staging memory whose bytes are not needed and do not change during the
    /// call.
    pub unsafe fn discard(&self, at: usize, len: usize) {
        assert!(len <= bytes_of(EXTENT_PAGES));
        let _turn = self.turn.lock().expect("no panic while held");
        let mut done = 0;
        for _ in 0..TRIES {
            // SAFETY: the caller's word; the window holds nothing that is needed.
            let progress = unsafe { self.silent.move_with_holes(self.at + done, at + done, len - done) };
            done += progress.done;
            match progress {
                Progress { stop: None, .. } => break,
                Progress { stop: Some(Stop::Again), .. } => {}
                // Linux 6.18 tries once more after it has moved (see `Mover::arrived`).
                Progress { stop: Some(Stop::Exists), .. } => self.empty(len),
                // Shared with a forked relative.
                Progress { stop: Some(Stop::Busy), .. } => memory::unshare(at + done, PAGE_SIZE),
                Progress { stop: Some(_), .. } => break,
            }
        }
        self.empty(len);
        if done < len {
            // SAFETY: the caller's word.
            unsafe { self.discard_unguarded(at + done, len - done) };
        }
    }

    fn empty(&self, len: usize) {
        let at = NonNull::new(self.at as *mut u8).expect("in the arena");
        // SAFETY: the window's memory.
        unsafe { memory::discard(at, len) };
    }

    /// The slow way, for what cannot be moved: pinned pages, or locked ones.
    unsafe fn discard_unguarded(&self, at: usize, len: usize) {
        let place = NonNull::new(at as *mut u8).expect("in the arena");
        let is_guarded = self.program.is_registered(at) != Some(false);
        self.program.unregister(at, len).expect("room for two more mappings");
        // SAFETY: the caller's word.
        unsafe { memory::discard(place, len) };
        if is_guarded {
            self.program.register(at, len, WRITE_PROTECT).expect("staging memory was registered before");
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use crate::trial::{blocks, pager};
    use crate::units::{bytes_of, page_at, ALL_PAGES, BLOCK_PAGES};
    use sys::PAGE_SIZE;

    #[test]
    fn frames_of_a_guarded_slot_are_given_back_without_a_report() {
        let Some(pager) = pager() else { return };
        let base = blocks(1);
        pager.register(base..page_at(base, BLOCK_PAGES));
        let staging = pager.pages().staging();
        let slot = staging.take_empty().unwrap();
        let touch = |pages: u32| {
            for page in (0..BLOCK_PAGES).filter(|page| pages >> page & 1 == 1) {
                // SAFETY: the slot was taken; its pages are this test's.
                unsafe { (staging.address(slot, page) as *mut u8).write_volatile(7) };
            }
            staging.arrived(slot, pages);
        };
        let mapped = || pager.pages().mover.mapped(staging.address(slot, 0), BLOCK_PAGES) as u32;
        for pages in [ALL_PAGES, 0x8001, 0x0ff0] {
            touch(pages);
            assert_eq!(mapped(), pages);
            // SAFETY: the slot is this test's.
            assert_eq!(unsafe { staging.discard(slot) }, pages.count_ones() as usize);
            assert_eq!(mapped(), 0);
        }
        // With one call, past all missing pages in between: the way around is for what cannot be
        // moved.
        touch(0x8001);
        let (window, len) = (&staging.discard_window, bytes_of(BLOCK_PAGES));
        // SAFETY: only this test looks at the slot's pages, and the window is empty.
        let progress = unsafe { window.silent.move_with_holes(window.at, staging.address(slot, 0), len) };
        assert_eq!((progress.done, progress.stop, mapped()), (len, None, 0));
        window.empty(len);
        // SAFETY: the slot is this test's.
        assert_eq!(unsafe { staging.discard(slot) }, 2);
        touch(0x00f0);
        // SAFETY: the slot is this test's.
        unsafe { staging.discard_pages(slot, 0x0030) };
        assert_eq!((mapped(), staging.present(slot)), (0x00c0, 0x00c0));
        // A look at a hole leaves the zero page, which is no frame to be moved on older kernels.
        // SAFETY: as above.
        assert_eq!(unsafe { (staging.address(slot, 0) as *const u8).read_volatile() }, 0);
        // SAFETY: the slot is this test's.
        unsafe { staging.discard_stray(slot, 0, 1) };
        // SAFETY: the slot is this test's.
        let discard = || unsafe { staging.discard(slot) };
        assert_eq!((mapped(), discard(), mapped()), (0x00c0, 2, 0));
        // SAFETY: only this test looks at the slot's pages.
        unsafe { window.discard_unguarded(staging.address(slot, 0), PAGE_SIZE) };
        assert!(!pager.pages().mover.is_changing(), "nothing is to be read");
        staging.give(slot);
    }
}
