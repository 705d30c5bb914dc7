//! The window through which frames of staging return to the system.
//!
//! Staging is guarded by the program's own userfaultfd, so that the kernel refuses to move pages
//! out while a call changes mappings ([`crate::transition::evict`]). The pager must not discard
//! guarded memory: the kernel would report it and wait until the report is read, perhaps by this
//! very thread. So frames move first to another mapping, whose userfaultfd reports no events.

use std::io;
use std::ptr::NonNull;

use sys::userfaultfd::{feature, Progress, Stop, WRITE_PROTECT};
use sys::{arena, memory, PAGE_SIZE};

use crate::errors::StartError;
use crate::sync::{Mutex, Userfaultfd};
use crate::units::bytes_of;
use crate::units::EXTENT_PAGES;

/// Attempts to move a range. Each may end at any page.
const TRIES: usize = 4 * EXTENT_PAGES;

/// The window's mapping, and the program's guard over staging.
pub struct DiscardWindow {
    at: usize,
    silent: Userfaultfd,
    program: Userfaultfd,
    turn: Mutex<()>,
}

impl DiscardWindow {
    /// A window for staging guarded by `program`. `executable` must be equal, because pages move
    /// only between mappings of equal protection.
    pub fn new(program: Userfaultfd, executable: bool) -> Result<Self, StartError> {
        let system = |source| StartError::System { what: "staging memory", source };
        let at = arena::take(bytes_of(EXTENT_PAGES), PAGE_SIZE).map_err(system)?;
        if executable {
            // SAFETY: just taken.
            unsafe { memory::allow_execution(at, bytes_of(EXTENT_PAGES)) }.map_err(system)?;
        }
        let (at, turn) = (at.as_ptr() as usize, Mutex::new(()));
        let window = DiscardWindow { at, silent: Userfaultfd::open(feature::MOVE)?, program, turn };
        window.guard().map_err(system)?;
        Ok(window)
    }

    pub fn descriptor(&self) -> i32 {
        self.silent.descriptor()
    }

    /// Registers the window as a destination of moves: once, and again in a forked child.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn guard(&self) -> io::Result<()> {
        // Write-protect mode fulfills the kernel's rule that the destination of a move is
        // registered, but leaves first touches to the kernel. No page is ever protected.
        match self.silent.register(self.at, bytes_of(EXTENT_PAGES), WRITE_PROTECT) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the frames of up to [`EXTENT_PAGES`] pages of staging to the system.
    ///
    /// # Safety
    /// `[at, at + len)` is staging memory whose bytes are not needed and do not change.
    pub unsafe fn discard(&self, at: usize, len: usize) {
        assert!(len <= bytes_of(EXTENT_PAGES));
        let _turn = self.turn.lock().expect("no panic while held");
        let mut done = 0;
        for _ in 0..TRIES {
            // SAFETY: by this function's contract. The window's content is not needed.
            let progress = unsafe { self.silent.move_with_holes(self.at + done, at + done, len - done) };
            done += progress.done;
            match progress {
                Progress { stop: None, .. } => break,
                Progress { stop: Some(Stop::Again), .. } => {}
                // Linux 6.18 retries after it has moved pages (see `Mover::arrived`).
                Progress { stop: Some(Stop::Exists), .. } => self.empty(len),
                // Shared with a forked relative.
                Progress { stop: Some(Stop::Busy), .. } => memory::unshare(at + done, PAGE_SIZE),
                Progress { stop: Some(_), .. } => break,
            }
        }
        self.empty(len);
        if done < len {
            // SAFETY: by this function's contract.
            unsafe { self.discard_unguarded(at + done, len - done) };
        }
    }

    fn empty(&self, len: usize) {
        let at = NonNull::new(self.at as *mut u8).expect("in the arena");
        // SAFETY: the window's own memory.
        unsafe { memory::discard(at, len) };
    }

    /// Discards pages that cannot be moved (pinned or locked). Slower.
    unsafe fn discard_unguarded(&self, at: usize, len: usize) {
        let place = NonNull::new(at as *mut u8).expect("in the arena");
        let is_guarded = self.program.is_registered(at) != Some(false);
        self.program.unregister(at, len).expect("room for two more mappings");
        // SAFETY: by the caller's contract.
        unsafe { memory::discard(place, len) };
        if is_guarded {
            self.program.register(at, len, WRITE_PROTECT).expect("staging memory was registered before");
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use crate::address_space::AddressSpace;
    use crate::space::Space;
    use crate::testing::pages_with;
    use crate::units::{bytes_of, PageMask, BLOCK_PAGES};
    use sys::PAGE_SIZE;

    #[test]
    fn frames_of_a_guarded_slot_are_given_back_without_a_report() {
        let Some((AddressSpace { staging, space: Space { mover, .. }, .. }, _)) = pages_with(1) else {
            return;
        };
        let taken = staging.take_empty().unwrap().with_frames();
        let slot = taken.number();
        let touch = |pages: u32| {
            let pages = PageMask::from_bits(pages);
            for page in pages.pages() {
                // SAFETY: this test took the slot.
                unsafe { (staging.address(slot, page) as *mut u8).write_volatile(7) };
            }
            staging.arrived(slot, pages);
        };
        let mapped = || mover.mapped(staging.address(slot, 0), BLOCK_PAGES).of_block(0).bits();
        for pages in [0xffff, 0x8001, 0x0ff0] {
            touch(pages);
            assert_eq!(mapped(), pages);
            assert_eq!(staging.discard(&taken), pages.count_ones() as usize);
            assert_eq!(mapped(), 0);
        }
        // One call moves past all missing pages. The slow path is only for immovable pages.
        touch(0x8001);
        let (window, len) = (&staging.discard_window, bytes_of(BLOCK_PAGES));
        // SAFETY: only this test uses the slot, and the window is empty.
        let progress = unsafe { window.silent.move_with_holes(window.at, staging.address(slot, 0), len) };
        assert_eq!((progress.done, progress.stop, mapped()), (len, None, 0));
        window.empty(len);
        assert_eq!(staging.discard(&taken), 2);
        touch(0x00f0);
        // SAFETY: the slot is this test's.
        unsafe { staging.discard_pages(slot, PageMask::span(4, 2)) };
        assert_eq!((mapped(), staging.present(slot)), (0x00c0, PageMask::span(6, 2)));
        // Reading a hole maps the zero page, which older kernels cannot move.
        // SAFETY: as above.
        assert_eq!(unsafe { (staging.address(slot, 0) as *const u8).read_volatile() }, 0);
        // SAFETY: the slot is this test's.
        unsafe { staging.discard_stray(slot, 0, 1) };
        assert_eq!((mapped(), staging.discard(&taken), mapped()), (0x00c0, 2, 0));
        // SAFETY: only this test uses the slot.
        unsafe { window.discard_unguarded(staging.address(slot, 0), PAGE_SIZE) };
        assert!(!mover.guard.is_changing(), "nothing is to be read");
        staging.give(taken);
    }
}
