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
//! The block's lock, the right to read messages and the list of mappings are held throughout, so no fault in the block
//! is served, no page of any block moves in, no event is read but by the usher in our name, and nothing is registered.
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
//!   now, since nothing is registered meanwhile (the list of mappings is locked). They go back at once, and only into
//!   pages that are still missing. A page that its thread has touched again within these microseconds may have been seen
//!   as zeroes: then the process is ended, with a message, rather than run on with a wrong byte.
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

    /// Reads messages for evictions, for ever. Where [`Pager::needs_usher`] says so a thread must, best one
    /// on every processor, pinned to it.
    pub fn usher(&self, cpu: usize) {
        self.ushers.of(cpu).serve(&self.uffd, &self.events);
    }

    /// Takes the pages of `mask` out of a block into `spare`, which is taken then; false when none could be.
    pub(crate) fn evict_by_remap(&self, spare: &mut Option<u32>, base: usize, mask: u32) -> bool {
        let Some(slot) = spare.filter(|_| !self.may_have_pins()) else { return false };
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
            *spare = None;
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
                self.give_back(at, target, len);
                // What came along is of a kind that nobody knows.
                // SAFETY: the range is ours, and nobody needs what is in it any more.
                if !unsafe { remap::renew(target, len) } {
                    self.fatal(format_args!("staging memory cannot be mapped again"));
                }
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
        if let Err(stop) = self.staging_uffd.register(at, len, MISSING) {
            self.fatal(format_args!("{at:#x} was mapped anew and cannot have its pages back: {stop:?}"));
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::table::{ALL_PAGES, BLOCK_BYTES};
    use crate::trial::{blocks, pager, read, write};

    /// Evicts what it can of a block; whether it could.
    fn evict(pager: &Pager, base: usize) -> bool {
        let mut spare = pager.staging.take_empty();
        assert!(spare.is_some());
        let done = pager.evict_by_remap(&mut spare, base, ALL_PAGES);
        assert_eq!(done, spare.is_none());
        if let Some(slot) = spare {
            pager.staging.give(slot);
        }
        done
    }

    #[test]
    fn pages_go_out_and_come_back() {
        let Some(pager) = pager(true) else { return };
        let base = blocks(2);
        pager.register(base..base + 2 * BLOCK_BYTES);
        assert!(evict(pager, base));
        assert_eq!(pager.pagemap.mapped(base, 32), 0xffff_0000, "one block has gone");
        assert_eq!(pager.staging.pages(), 16);
        let block = pager.table.find(base).unwrap();
        assert_eq!(block.mask(PageState::Staged), ALL_PAGES);
        assert_eq!(read(pager.staging.address(block.slot(), 7), 0), 8);
        assert_eq!((0..32).map(|page| read(base, page)).collect::<Vec<_>>(), (1..=32).collect::<Vec<_>>());
        // The thread goes on a moment before the handler has noted it.
        block.lock();
        assert!(block.is_idle());
        block.unlock();
        // Holes stay holes, and what was discarded reads as zeroes.
        write(base, 3, 77);
        assert!(evict(pager, base));
        // SAFETY: this test's mapping.
        unsafe { libc::madvise((base + 3 * PAGE_SIZE) as *mut _, 2 * PAGE_SIZE, libc::MADV_DONTNEED) };
        assert_eq!((2..6).map(|page| read(base, page)).collect::<Vec<_>>(), [3, 0, 0, 6]);
    }

    #[test]
    fn a_mapping_that_is_not_ours_has_its_pages_back() {
        let Some(pager) = pager(true) else { return };
        let base = blocks(1);
        let slot = pager.staging.take_empty().unwrap();
        let target = pager.staging.address(slot, 0);
        assert!(!pager.is_registered(base));
        // As if it had replaced ours after the question.
        assert!(matches!(pager.take(slot, base, target, BLOCK_BYTES), Taken::Foreign));
        assert_eq!((0..16).map(|page| read(base, page)).collect::<Vec<_>>(), (1..=16).collect::<Vec<_>>());
        assert_eq!(pager.pagemap.mapped(target, 16), 0);
        // It is the program's alone again.
        write(base, 5, 500);
        assert_eq!(read(base, 5), 500);
        assert!(!pager.is_registered(base));
    }

    #[test]
    fn a_mapping_that_is_gone_costs_nothing() {
        let Some(pager) = pager(true) else { return };
        let base = blocks(1);
        // SAFETY: this test's mapping, not used any more.
        unsafe { libc::munmap(base as *mut _, BLOCK_BYTES) };
        let slot = pager.staging.take_empty().unwrap();
        let target = pager.staging.address(slot, 0);
        let taken = pager.take(slot, base, target, BLOCK_BYTES);
        assert!(matches!(taken, Taken::Refused(Refusal::NotOneMapping)));
        // The slot is still memory.
        write(target, 3, 9);
        assert_eq!(read(target, 3), 9);
    }

    #[test]
    fn locked_pages_stay() {
        let Some(pager) = pager(true) else { return };
        let base = blocks(1);
        // SAFETY: this test's mapping.
        if unsafe { libc::mlock(base as *const _, BLOCK_BYTES) } != 0 {
            println!("skipped: mlock is not permitted");
            return;
        }
        pager.register(base..base + BLOCK_BYTES);
        assert!(!evict(pager, base));
        assert_eq!(pager.pagemap.mapped(base, 16), 0xffff);
    }

    /// Other threads fault, discard, map and unmap all the time, so that the usher reads far more than the events that
    /// it reads for.
    #[test]
    fn evictions_among_events_and_faults() {
        const ROUNDS: usize = 500;
        let Some(pager) = pager(true) else { return };
        let (base, other) = (blocks(4), blocks(4));
        pager.register(base..base + 4 * BLOCK_BYTES);
        pager.register(other..other + 4 * BLOCK_BYTES);
        // Events would put the whole gigabyte into quarantine as long as its part of the table does not exist.
        assert!(pager.table.block(base).is_ok() && pager.table.block(other).is_ok());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0.. {
                    let page = round % 64;
                    write(other, page, round);
                    assert_eq!(read(other, page), round);
                    // SAFETY: this test's mapping.
                    unsafe {
                        libc::madvise((other + page * PAGE_SIZE) as *mut _, PAGE_SIZE, libc::MADV_DONTNEED)
                    };
                    assert_eq!(read(other, page), 0);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let at = sys::memory::map(BLOCK_BYTES).unwrap().as_ptr() as usize;
                    pager.uffd.register(at, BLOCK_BYTES, MISSING).unwrap();
                    write(at, 1, 5);
                    assert_eq!((read(at, 0), read(at, 1)), (0, 5));
                    // SAFETY: mapped above.
                    unsafe { libc::munmap(at as *mut _, BLOCK_BYTES) };
                }
            });
            for round in 0..ROUNDS {
                let block = base + round % 4 * BLOCK_BYTES;
                // Whenever an event is on its way eviction gives up.
                while !evict(pager, block) {
                    std::thread::yield_now();
                }
                for page in 0..64 {
                    assert_eq!(read(base, page), page + 1, "page {page} in round {round}");
                }
                // Slots are given back as reclaim does it.
                while let Some(slot) = pager.staging.oldest() {
                    let block = pager.table.find(pager.staging.owner(slot)).unwrap();
                    block.lock();
                    pager.release_slot(slot);
                    block.unlock();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
