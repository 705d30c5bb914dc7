//! Paging without `UFFDIO_MOVE`, for Linux before 6.8: pages leave by mremap() with `MREMAP_DONTUNMAP` (Linux 5.7), and
//! come back by `UFFDIO_COPY`.
//!
//! # Why not write-protect, copy, drop
//!
//! The usual way is to write-protect a page, copy it, and drop it with MADV_DONTNEED. Dropping goes by address alone and
//! destroys what it finds. When one thread of the program unmaps the range and another is given the same addresses by
//! its next mmap(), between the last look at the page and the dropping, the new mapping's bytes are lost; and that time
//! is not short, because the drop raises a REMOVE event of its own and waits until it has been read, somewhere in the
//! middle. Nothing makes MADV_DONTNEED conditional on what is mapped.
//!
//! mremap() destroys nothing: what it finds is at the target afterwards. It takes the pages in one step, so a
//! concurrent write lands before it or faults after it and nothing needs to be protected, compared or registered in
//! another mode. And its event says in one what a drop could not say: that the range was registered with us at that very
//! moment. Without the event it was somebody else's, and goes back.
//!
//! # One eviction, step by step
//!
//! The block's lock and the right to read messages are held throughout, so no fault in the block is served, no page of
//! any block moves in, and no event is read but by the usher in our name.
//!
//! | step | what it makes sure of |
//! |---|---|
//! | every event read has been applied, the block is in no quarantine | no discard of the program's own is on its way |
//! | the kernel is asked to fill a page that is present | the range is registered, no event is unread |
//! | the pages' state says staged | an event that the usher reads from now on finds them, and waits for the lock |
//! | mremap(); the usher reads its event | the pages are in the slot; the range is empty and registered |
//! | the slot is unregistered | reading it raises no faults |
//! | pagemap tells what is in the slot | the rest never was there, and is the kernel's again |
//!
//! # What may happen meanwhile
//!
//! * *A write*: before mremap() it is in the page that moves, after it a fault that waits for the block's lock. The
//!   kernel's own accesses (read(2) into the page) are no different.
//! * *MADV_DONTNEED*: its event makes the kernel refuse the question, or is read by the usher and queued. Applying it
//!   waits for the lock, finds the pages staged and forgets them; its thread's own discarding finds nothing, or takes
//!   the pages before mremap() does. Faults wait for it to be applied, so that zeroes is what is read.
//! * *munmap(), mmap() over it*: mremap() answers EFAULT, or takes pages without an event: they are another mapping's
//!   now. They go back at once. Only a thread that touches them within these few microseconds could see zeroes; the
//!   pages would then be there when they are put back, and the process is ended rather than run on with a wrong byte.
//! * *mremap()*: as for munmap() where the range was; if it comes after ours, its event finds the pages staged and they
//!   follow.
//! * *fork()*: stands evictions still first. A fork past the C library finds the pages in the old place or the new; the
//!   child is given copies of what was staged, after the lock is released.
//! * *mprotect(), a protection key*: the range keeps its rights; the slot gets plain ones.
//! * *mlock()*: locked pages are left alone; the kernel is asked before each move.
//!
//! # What is different from moving
//!
//! * A page that comes back is a copy: the frame it left in is given back to the system, never used for another page.
//!   So a page that a device still reads from (O_DIRECT, zero-copy sockets) keeps its bytes for the device.
//! * A page that a device still *writes* to would come back without what is written later. `UFFDIO_MOVE` refuses such
//!   pages; here nothing does, so processes that may have some are recognised by [`crate::pins`] and left alone.
//! * Pages shared with forked relatives go like others; their frames stay with the relatives.
//! * Each slot becomes a mapping of its own as long as pages are in it, so there are few slots: [`SLOTS_MAX`].

use sys::remap::{self, Refusal};
use sys::userfaultfd::{Progress, Stop, MISSING};
use sys::PAGE_SIZE;

use crate::pager::{drop_slot_if_unused, Pager};
use crate::staging::{Pages, Purse};
use crate::table::{runs, span, Block, PageState, BLOCK_PAGES, COMPRESSING, NO_SLOT, STUBBORN};

/// Most slots: each can become a mapping, of which a process may have 65530 by default.
pub(crate) const SLOTS_MAX: usize = 4096;

/// How pages leave the program and come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `UFFDIO_MOVE` both ways.
    Move,
    /// mremap() out, `UFFDIO_COPY` in.
    Remap,
}

/// How one mremap() ended.
enum Taken {
    /// The pages are in the slot.
    Ours,
    /// The range was not ours; it has its pages back.
    Foreign,
    /// Nothing moved.
    Refused(Refusal),
}

impl Pager {
    /// Whether this kernel, or a test, has the pager do without `UFFDIO_MOVE`.
    pub fn needs_usher(&self) -> bool {
        self.way == Way::Remap
    }

    /// Reads messages for evictions until the pager stops. Where [`Pager::needs_usher`] says so a thread must, best one
    /// on every processor, pinned to it.
    pub fn usher(&self, cpu: usize) {
        self.ushers.of(cpu).serve(&self.uffd, &self.events, &self.stopping);
    }

    /// Takes the pages of `mask` out of a block into `slot`; false when none could be (the slot is still ours).
    pub(crate) fn evict_by_remap(&self, slot: u32, base: usize, mask: u32) -> bool {
        let Ok(block) = self.table.block(base) else { return false };
        if !block.try_lock() {
            return false;
        }
        let Some(epoch) = self.events.epoch() else {
            block.unlock();
            self.apply_events();
            return false;
        };
        let kernel = block.mask(PageState::Kernel);
        let wanted = mask & kernel;
        if wanted == 0 || !self.ushers.any() || block.slot() != NO_SLOT || block.has(COMPRESSING) {
            block.unlock();
            return false;
        }
        let Some(reading) = self.events.reading_since(epoch) else {
            block.unlock();
            return false;
        };
        // Asked when no event can come any more: an earlier answer may be from before one.
        if self.is_quarantined(block, base) {
            block.unlock();
            return false;
        }
        // Nothing is registered meanwhile: a mapping that replaces this one is known by having no event.
        let Ok(mappings) = self.mappings.try_lock() else {
            block.unlock();
            return false;
        };
        block.set_slot(slot);
        let mut moved = 0;
        // From the first wanted page to the last, holes included, as far as the kernel alone knows what is there.
        let last = u32::BITS as usize - wanted.leading_zeros() as usize;
        let first = wanted.trailing_zeros() as usize;
        for (first, count) in runs(kernel & span(first, last - first)) {
            let run = span(first, count);
            if wanted & run != 0 {
                let probe = (wanted & run).trailing_zeros() as usize;
                moved |= self.take_run(block, slot, base, (first, count), probe);
            }
        }
        if moved != 0 {
            self.staging.arrived(slot, moved);
            self.staging.set_owner(slot, base);
        }
        drop_slot_if_unused(block);
        drop(mappings);
        drop(reading);
        block.unlock();
        if moved != 0 {
            self.staging.queue(slot, base);
        }
        moved != 0
    }

    /// Takes adjacent pages, of which `probe` was seen to be present; answers which came.
    fn take_run(
        &self,
        block: &Block,
        slot: u32,
        base: usize,
        (first, count): (usize, usize),
        probe: usize,
    ) -> u32 {
        let (at, target, len) =
            (base + first * PAGE_SIZE, self.staging.address(slot, first), count * PAGE_SIZE);
        if remap::is_locked(at, len) {
            block.set(STUBBORN);
            return 0;
        }
        if !self.is_registered(base + probe * PAGE_SIZE) {
            return 0;
        }
        let run = span(first, count);
        block.change(run, PageState::Kernel, PageState::Staged);
        let came = match self.take(slot, at, target, len) {
            Taken::Ours => (self.pagemap.mapped(target, count) as u32) << first,
            Taken::Foreign => 0,
            Taken::Refused(Refusal::NotOneMapping | Refusal::NoMemory) => 0,
            Taken::Refused(Refusal::Invalid) => {
                block.set(STUBBORN);
                0
            }
        };
        block.change(run & !came, PageState::Staged, PageState::Kernel);
        came
    }

    fn take(&self, slot: u32, at: usize, target: usize, len: usize) -> Taken {
        let usher = self.ushers.near();
        usher.begin(target);
        // SAFETY: the slot is empty and ours. The pages are not lost: their state says where they are before anybody
        // can look, by the block's lock.
        let answer = unsafe { remap::move_out(at, target, len) };
        let is_ours = usher.end();
        match answer {
            Ok(()) if is_ours => {
                if let Err(stop) = self.uffd.unregister(target, len) {
                    self.fatal(format_args!("staging memory stays registered: {stop:?}"));
                }
                // SAFETY: the slot is ours.
                unsafe { remap::make_plain(target, len) };
                Taken::Ours
            }
            Ok(()) => {
                let came = self.pagemap.mapped(target, len / PAGE_SIZE);
                self.say(format_args!("FOREIGN {at:x} {came:x}"));
                self.give_back(at, target, len);
                // SAFETY: the slot is ours and nobody needs what is in it.
                unsafe { remap::make_plain(target, len) };
                self.staging.discard_stray(slot, 0, BLOCK_PAGES);
                Taken::Foreign
            }
            Err(refusal) => {
                // SAFETY: the slot was ours; if the kernel has unmapped it, and somebody was given the address since,
                // that is left alone.
                let is_back = unsafe { remap::occupy(target, len) };
                // A move that finds no memory usually ends before anything is unmapped.
                if !is_back && !self.keeps_target && refusal != Refusal::NoMemory {
                    self.staging.retire(slot);
                }
                Taken::Refused(refusal)
            }
        }
    }

    /// Returns what was taken from a mapping that is not ours: it replaced ours between the question and the move. Only
    /// missing pages are filled, so nothing is lost that was written there since.
    fn give_back(&self, at: usize, target: usize, len: usize) {
        let came = self.pagemap.mapped(target, len / PAGE_SIZE) as u32;
        if came == 0 {
            return;
        }
        // A mapping that is gone again needs nothing.
        match self.staging_uffd.register(at, len, MISSING) {
            Ok(()) => {}
            Err(Stop::Busy) => self.fatal(format_args!("{at:#x} was mapped anew and guarded by the program")),
            Err(_) => return,
        }
        for (first, count) in runs(came) {
            let (at, source) = (at + first * PAGE_SIZE, target + first * PAGE_SIZE);
            // SAFETY: the bytes return to where they were a moment ago; present pages refuse.
            let progress = unsafe { self.staging_uffd.copy(at, source, count * PAGE_SIZE) };
            if progress.stop == Some(Stop::Exists) || progress.done < count * PAGE_SIZE {
                self.fatal(format_args!(
                    "{at:#x} was mapped anew and touched while its pages were being evicted: {progress:?}"
                ));
            }
        }
        let _ = self.staging_uffd.unregister(at, len);
    }

    /// Whether the mapping around a page that was seen present is registered and no event is unread. Asked with a
    /// filling that cannot succeed, or, had the page gone meanwhile, puts there what it reads as.
    fn is_registered(&self, at: usize) -> bool {
        matches!(self.uffd.zero(at, PAGE_SIZE), Progress { stop: None | Some(Stop::Exists), .. })
    }

    /// Copies pages into the program, as many as one mapping takes.
    pub(crate) fn copy_in(&self, at: usize, source: usize, count: usize) -> Progress {
        // SAFETY: the source holds exactly the bytes that belong at `at`; present pages refuse.
        let mut progress = unsafe { self.uffd.copy(at, source, count * PAGE_SIZE) };
        if progress.stop == Some(Stop::Hole) && progress.done == 0 && count > 1 {
            // The run may only have crossed a border between mappings: not a page is copied then.
            // SAFETY: as above.
            progress = unsafe { self.uffd.copy(at, source, PAGE_SIZE) };
        }
        self.note_arrival(at, progress.done / PAGE_SIZE);
        progress
    }

    /// Pages that may be brought in before others have to leave: frames that wait to be moved in, or, where the kernel
    /// makes frames for copies, room under the low water mark.
    pub(crate) fn stock(&self) -> usize {
        match self.way {
            Way::Move => self.staging.ready_pages(),
            Way::Remap => self.low_water().saturating_sub(self.measure()) as usize / PAGE_SIZE,
        }
    }

    /// Gives a slot back whose pages are stored or were brought in.
    pub(crate) fn release_slot(&self, slot: u32) {
        if self.way == Way::Remap {
            self.staging.discard(slot);
        }
        self.staging.give(slot);
    }

    /// Pages to fill with what is brought in. Those that are moved away are replaced; where pages are copied, a purse
    /// keeps a whole slot for as long as it lives.
    pub(crate) fn filling(&self, purse: &mut Purse, wanted: usize) -> Option<Pages> {
        match self.way {
            Way::Move => purse.pages(&self.staging, wanted),
            Way::Remap => {
                let pages = purse.pages(&self.staging, BLOCK_PAGES)?;
                Some(Pages { count: pages.count.min(wanted), ..pages })
            }
        }
    }

    /// Memory of zeroes, as long as a block.
    pub(crate) fn zeroes(&self) -> usize {
        self.staging.hole()
    }
}
