//! Paging without `UFFDIO_MOVE`, for Linux before 6.8: pages leave by mremap() with
//! `MREMAP_DONTUNMAP` (Linux 5.7), and come back by `UFFDIO_COPY`.
//!
//! # Why not write-protect, copy, drop
//!
//! The usual way is to write-protect a page, copy it, and drop it with MADV_DONTNEED. Dropping goes
//! by address alone and destroys what it finds. When one thread of the program unmaps the range and
//! another is given the same addresses by its next mmap(), between the last look at the page and
//! the dropping, the new mapping's bytes are lost; and that time is not short, because the drop
//! raises a REMOVE event of its own and waits until it has been read, somewhere in the middle.
//! Nothing makes MADV_DONTNEED conditional on what is mapped.
//!
//! mremap() destroys nothing: what it finds is at the target afterwards. It takes the pages in one
//! step, so a concurrent write lands before it or faults after it and nothing needs to be
//! protected, compared or registered in another mode. And its event says in one what a drop could
//! not say: that the range was registered with us at that very moment. Without the event it was
//! another's, and goes back.
//!
//! # One eviction, step by step
//!
//! The block's lock, the right to read messages and the list of mappings are held throughout, so no
//! fault in the block is served, no page of any block moves in, no event is read but by the drainer
//! in our name, and nothing is registered.
//!
//! | step | what it makes sure of |
//! |---|---|
//! | every event read has been applied, the block is in no quarantine | no discard of the program's own is on its way |
//! | the kernel is asked to fill a page that is present | the range is registered, no event is unread |
//! | the pages' state says staged | an event that the drainer reads from now on finds them, and waits for the lock |
//! | mremap(); the drainer reads its event | the pages are in the slot; the range is empty and registered |
//! | the slot is unregistered | reading it raises no faults |
//! | pagemap tells what is in the slot | the rest never was there, and is the kernel's again |
//!
//! # What may happen during the call
//!
//! * *A write*: before mremap() it is in the page that moves, after it a fault that waits for the
//!   block's lock. The kernel's own accesses (read(2) into the page) are no different.
//! * *MADV_DONTNEED*: its event makes the kernel refuse the question, or is read by the drainer and
//!   queued. Applying it waits for the lock, finds the pages staged and forgets them; its thread's
//!   own discarding finds nothing, or takes the pages before mremap() does. Faults wait for it to
//!   be applied, so that zeroes is what is read.
//! * *munmap(), mmap() over it*: mremap() fails with EFAULT, or takes pages without an event: they
//!   are another mapping's now, since nothing is registered during the call (the list of mappings
//!   is locked). They go back at once, and only into pages that are still missing. A page that its
//!   thread has touched again within these microseconds may have been seen as zeroes: then the
//!   process is ended, with a message, rather than run on with a wrong byte.
//! * *mremap()*: as for munmap() where the range was; if it comes after ours, its event finds the
//!   pages staged and they follow.
//! * *fork()*: stands evictions still first. A fork past the C library finds the pages in the old
//!   place or the new; the child is given copies of what was staged, after the lock is released.
//! * *mprotect(), a protection key*: the range keeps its rights; the slot gets plain ones.
//! * *mlock()*: locked pages are left alone; the kernel is asked before each move.
//!
//! # What is different from moving
//!
//! * A page that comes back is a copy: the frame it left in is given back to the system, never used
//!   for another page. So a page that a device still reads from (O_DIRECT, zero-copy sockets) keeps
//!   its bytes for the device.
//! * A page that a device still *writes* to would come back without what is written later.
//!   `UFFDIO_MOVE` refuses such pages; here nothing does, so processes that may have some are
//!   recognised by [`super::pins`] and left alone. Where such a process is recognised only after a
//!   page has left, the frame stays in the slot, uncompressed: a page that comes back then has what
//!   was written until then.
//! * Pages shared with forked relatives go like others; their frames stay with the relatives.
//! * Each slot becomes a mapping of its own as long as pages are in it, so there are few slots:
//!   [`SLOTS_MAX`].

use sys::procfs::ProcFile;
use sys::remap::{self, Refusal};
use sys::userfaultfd::{Progress, Stop};

use super::drainer::Drainers;
use super::pins::Pins;
use super::{copy_in, place_copies, EvictBackend, Placed};
use crate::accounts::Counter;
use crate::config::{Config, StartError};
use crate::pages::block::{BlockGuard, PageState, NO_SLOT};
use crate::pages::events::EventQueue;
use crate::pages::guard::Reports;
use crate::pages::inbound::Inbound;
use crate::pages::mover::{Quiet, QuietAlone};
use crate::pages::run::PageRun;
use crate::pages::staging::{self, Frame, Staging};
use crate::pages::{now_ms, Pages};
use crate::sync::Userfaultfd;
use crate::units::{bytes_of, page_at, pages_in, runs, span, BLOCK_PAGES};

/// Most slots: each can become a mapping, of which a process may have 65530 by default.
const SLOTS_MAX: usize = 4096;

/// How one mremap() ended.
enum Taken {
    /// The pages are in the slot.
    Ours,
    /// The range was not ours; it has its pages back.
    Foreign,
    /// Nothing moved.
    Refused(Refusal),
}

/// The back end.
pub(in crate::pages) struct ByRemap {
    /// Returns what was taken by mistake: has no event features.
    foreign: Userfaultfd,
    /// Whether the kernel leaves the target of an mremap() alone that it refuses.
    keeps_target: bool,
    drainers: Drainers,
    pins: Pins,
}

impl EvictBackend for ByRemap {
    fn moves_frames(&self) -> bool {
        false
    }

    /// Slots are registered with their pages' mappings, and unregistered at once.
    fn protect(&self, _reports: Reports, _staging: &Staging, _on: bool) -> bool {
        true
    }

    fn fault_in(&self, quiet: &Quiet<'_>, run: PageRun, source: Frame) -> Placed {
        place_copies(quiet, run, source.address())
    }

    fn fill(
        &self,
        staging: &Staging,
        quiet: &Quiet<'_>,
        _inbound: &mut Inbound,
        run: PageRun,
    ) -> (usize, Option<Stop>) {
        // Memory of zeroes, as long as a block.
        let progress = copy_in(quiet, run, staging.hole());
        (pages_in(progress.done), progress.stop)
    }

    /// Frames are copied from, and a cache keeps a whole slot for as long as it lives; for a single
    /// page the handler's own is the warmer one.
    fn frames(
        &self,
        staging: &Staging,
        inbound: &mut Inbound,
        run: usize,
        wanted: usize,
    ) -> Option<staging::Pages> {
        if run == 1 {
            return None;
        }
        let pages = inbound.frames.pages(staging, BLOCK_PAGES)?;
        Some(staging::Pages { count: pages.count.min(wanted), ..pages })
    }

    unsafe fn came_as_copies(&self, staging: &Staging, slot: u32, mask: u32) {
        // SAFETY: by the caller's promise.
        unsafe { staging.discard_pages(slot, mask) };
    }

    fn is_held(&self, pages: &Pages, maps: &ProcFile) -> bool {
        self.pins.may_be(pages, maps)
    }

    fn settled_ns(&self, pages: &Pages, maps: &ProcFile) -> u64 {
        self.pins.were_none_ns(pages, maps)
    }

    /// A mapping that replaces one of ours is known by having no event.
    fn keeps_mappings(&self) -> bool {
        true
    }

    fn needs_drainer(&self) -> bool {
        true
    }

    fn drain(&self, cpu: usize, reports: Reports, events: &EventQueue) {
        self.drainers.of(cpu).serve(reports, events);
    }

    fn end(&self) {
        self.drainers.end();
    }

    #[cfg(all(test, not(feature = "shuttle")))]
    fn as_remap(&self) -> Option<&ByRemap> {
        Some(self)
    }

    fn move_out(
        &self,
        pages: &Pages,
        spare: &mut Option<u32>,
        base: usize,
        mask: u32,
        _may_wait: bool,
    ) -> bool {
        let (Some(slot), true) = (*spare, self.drainers.any()) else { return false };
        let Some(block) = pages.table.try_lock(base) else { return false };
        let kernel = block.mask(PageState::Kernel);
        let wanted = mask & kernel;
        if wanted == 0 || block.slot() != NO_SLOT || block.is_compressing() {
            return false;
        }
        let Some(quiet) = pages.mover.quiet_alone(&pages.events, &block) else {
            drop(block);
            pages.apply_events();
            return false;
        };
        block.set_slot(slot);
        let mut moved = 0;
        // From the first wanted page to the last, holes included, as far as the kernel alone knows
        // what is there. What is no page stays: a guard region would leave the program and be in
        // the slot. So does what is there and was not asked for: threads that are ending need it.
        let last = u32::BITS as usize - wanted.leading_zeros() as usize;
        let first = wanted.trailing_zeros() as usize;
        let elsewhere = (pages.mover.pagemap.elsewhere(page_at(base, first), last - first) as u32) << first;
        let unwanted = pages.mover.mapped(base, BLOCK_PAGES) as u32 & !wanted;
        for (first, count) in runs(kernel & span(first, last - first) & !elsewhere & !unwanted) {
            let (mut rest, end) = (wanted & span(first, count), first + count);
            while rest != 0 {
                // From a page that was seen to be present, and in one mapping: Linux 6.17 moves the
                // first of several, and then refuses.
                let first = rest.trailing_zeros() as usize;
                let count = match is_registered(&quiet, PageRun::new(first, end - first)) {
                    true => end - first,
                    false => 1,
                };
                moved |= self.take_run(pages, &quiet, &block, slot, first, count);
                rest &= !span(first, count);
            }
        }
        if moved != 0 {
            pages.staging.arrived(slot, moved);
            pages.staging.set_owner(slot, base);
        }
        block.drop_slot_if_unused();
        drop(quiet);
        drop(block);
        if moved != 0 {
            pages.staging.note_moved(slot);
            pages.staging.queue(slot, base);
            *spare = None;
        }
        moved != 0
    }
}

impl ByRemap {
    /// With staging of few slots, each of which becomes a mapping of its own.
    pub fn new(config: &Config) -> Result<(Self, Staging), StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let slots = config.staging_pages.min(SLOTS_MAX);
        let staging =
            Staging::with_slots(config.staging_pages, slots, 0).map_err(system("staging memory"))?;
        let keeps_target = sys::remap::probe().map_err(system("mremap with MREMAP_DONTUNMAP"))?;
        let foreign = Userfaultfd::open(0)?;
        let backend = ByRemap { foreign, keeps_target, drainers: Drainers::new(), pins: Pins::default() };
        Ok((backend, staging))
    }

    /// Whether evictions can begin.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub fn drainers_run(&self) -> bool {
        self.drainers.any()
    }

    /// Takes adjacent pages, of which the first was seen to be present; returns which came.
    fn take_run(
        &self,
        pages: &Pages,
        quiet: &QuietAlone<'_>,
        block: &BlockGuard<'_>,
        slot: u32,
        first: usize,
        count: usize,
    ) -> u32 {
        let base = block.base();
        let (at, target, len) = (page_at(base, first), pages.staging.address(slot, first), bytes_of(count));
        let run = span(first, count);
        if remap::is_locked(at, len) {
            pages.accounts.add(Counter::Immovable, count as u64);
            block.refuse(run, now_ms());
            return 0;
        }
        let places = PageRun::new(first, count);
        if !is_registered(quiet, places) {
            return 0;
        }
        block.change(run, PageState::Kernel, PageState::Staged);
        pages.policy.evicted(block.history(), run);
        let came = match self.take(pages, quiet, slot, places) {
            Taken::Ours => (pages.mover.mapped(target, count) as u32) << first,
            Taken::Foreign => 0,
            Taken::Refused(Refusal::NotOneMapping | Refusal::NoMemory) => 0,
            Taken::Refused(Refusal::Invalid) => {
                pages.accounts.add(Counter::Immovable, count as u64);
                block.refuse(run, now_ms());
                0
            }
        };
        block.change(run & !came, PageState::Staged, PageState::Kernel);
        came
    }

    /// Takes pages of a block to their places in an empty slot.
    fn take(&self, pages: &Pages, quiet: &QuietAlone<'_>, slot: u32, run: PageRun) -> Taken {
        let frame = pages.staging.frame(slot, run.first);
        let (target, len) = (frame.address(), bytes_of(run.count));
        let drainer = self.drainers.near();
        drainer.begin(target);
        let answer = quiet.take_out(run, frame);
        let is_ours = drainer.end();
        match answer {
            Ok(()) if is_ours => {
                if let Err(stop) = pages.mover.guard.reports().unregister(target, len) {
                    pages.fatal(format_args!("staging memory stays registered: {stop:?}"));
                }
                // SAFETY: the slot is ours.
                unsafe { remap::make_plain(target, len) };
                Taken::Ours
            }
            Ok(()) => {
                self.give_back(pages, quiet, run, target);
                renew(pages, target, len);
                Taken::Foreign
            }
            Err(refusal) => {
                // Linux 6.17 and later may have moved a first mapping before they refused a second.
                let has_some = refusal == Refusal::NotOneMapping && self.keeps_target;
                if has_some && pages.mover.mapped(target, pages_in(len)) != 0 {
                    self.give_back(pages, quiet, run, target);
                    renew(pages, target, len);
                    return Taken::Foreign;
                }
                // SAFETY: the slot was ours; if the kernel has unmapped it, and another mapping got
                // the address since, that is left alone.
                let is_back = unsafe { remap::occupy(target, len) };
                // A move that finds no memory usually ends before anything is unmapped.
                if !is_back && !self.keeps_target && refusal != Refusal::NoMemory {
                    pages.staging.retire(slot);
                }
                Taken::Refused(refusal)
            }
        }
    }

    /// Returns what was taken from a mapping that is not ours: it replaced ours between the
    /// question and the move. Only missing pages are filled, so nothing is lost that was written
    /// there since.
    fn give_back(&self, pages: &Pages, quiet: &QuietAlone<'_>, run: PageRun, target: usize) {
        let came = pages.mover.mapped(target, run.count) as u32;
        if came == 0 {
            return;
        }
        if !quiet.guard_foreign(&self.foreign, run, true) {
            let at = quiet.address(run.first);
            pages.fatal(format_args!("{at:#x} was mapped again and cannot have its pages back"));
        }
        for (first, count) in runs(came) {
            let place = PageRun::new(run.first + first, count);
            let progress = quiet.copy_to_foreign(&self.foreign, place, page_at(target, first));
            if progress.stop == Some(Stop::Exists) || progress.done < bytes_of(count) {
                pages.fatal(format_args!(
                    "{:#x} was mapped again and touched while its pages were being evicted: {progress:?}",
                    quiet.address(place.first)
                ));
            }
        }
        quiet.guard_foreign(&self.foreign, run, false);
    }
}

/// Maps a part of a slot again: what came along is of an unknown kind.
fn renew(pages: &Pages, target: usize, len: usize) {
    // SAFETY: the range is ours, and its content is not needed any more.
    if !unsafe { remap::renew(target, len) } {
        pages.fatal(format_args!("staging memory cannot be mapped again"));
    }
}

/// Whether pages, of which the first was seen present, are in one mapping that is registered, and
/// no event is unread. Asked with a filling that cannot succeed, or, if the page is gone, puts
/// there what it reads as.
fn is_registered(quiet: &QuietAlone<'_>, run: PageRun) -> bool {
    matches!(quiet.zero(run), Progress { stop: None | Some(Stop::Exists), .. })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use sys::PAGE_SIZE;

    use super::*;
    use crate::pager::Pager;
    use crate::trial::{blocks, pager, read, write};
    use crate::units::{ALL_PAGES, BLOCK_BYTES};

    /// Evicts what it can of a block; whether it could.
    fn evict(pager: &Pager, base: usize) -> bool {
        let pages = pager.pages();
        let mut spare = pages.staging.take_empty();
        assert!(spare.is_some());
        let done = pages.evict(&mut spare, base, ALL_PAGES, false);
        assert_eq!(done, spare.is_none());
        if let Some(slot) = spare {
            pages.staging.give(slot);
        }
        done
    }

    /// The story: pages that were to stay went along when they lay between others, and a thread
    /// that ended found its control block missing.
    #[test]
    fn pages_that_are_to_stay_do_so_between_others() {
        let Some(pager) = pager(true) else { return };
        let (base, pages) = (blocks(1), pager.pages());
        pager.register(base..base + BLOCK_BYTES);
        let mut spare = pages.staging.take_empty();
        assert!(pages.evict(&mut spare, base, ALL_PAGES & !(1 << 3 | 1 << 7), false));
        assert_eq!(pages.mover.pagemap.mapped(base, 16), 1 << 3 | 1 << 7);
        assert_eq!((0..16).map(|page| read(base, page)).collect::<Vec<_>>(), (1..=16).collect::<Vec<_>>());
    }

    #[test]
    fn pages_go_out_and_come_back() {
        let Some(pager) = pager(true) else { return };
        let base = blocks(2);
        pager.register(base..base + 2 * BLOCK_BYTES);
        assert!(evict(pager, base));
        assert_eq!(pager.pages().mover.pagemap.mapped(base, 32), 0xffff_0000, "one block has gone");
        assert_eq!(pager.pages().staging.pages(), 16);
        let block = pager.pages().lock(base);
        assert_eq!(block.mask(PageState::Staged), ALL_PAGES);
        assert_eq!(read(pager.pages().staging.address(block.slot(), 7), 0), 8);
        drop(block);
        assert_eq!((0..32).map(|page| read(base, page)).collect::<Vec<_>>(), (1..=32).collect::<Vec<_>>());
        // The thread continues a moment before the handler has noted it.
        assert_eq!(pager.pages().lock(base).mask_of(PageState::is_kernels), ALL_PAGES);
        // Holes stay holes, and what was discarded reads as zeroes.
        write(base, 3, 77);
        assert!(evict(pager, base));
        // SAFETY: this test's mapping.
        unsafe { libc::madvise(page_at(base, 3) as *mut _, bytes_of(2), libc::MADV_DONTNEED) };
        assert_eq!((2..6).map(|page| read(base, page)).collect::<Vec<_>>(), [3, 0, 0, 6]);
    }

    #[test]
    fn a_mapping_that_is_not_ours_has_its_pages_back() {
        let Some(pager) = pager(true) else { return };
        let base = blocks(1);
        let remap = pager.pages().backend.as_remap().unwrap();
        let slot = pager.pages().staging.take_empty().unwrap();
        let target = pager.pages().staging.address(slot, 0);
        let block = pager.pages().lock(base);
        let quiet = pager.pages().mover.quiet_alone(&pager.pages().events, &block).unwrap();
        assert!(!is_registered(&quiet, PageRun::new(0, 1)));
        // As if it had replaced ours after the question.
        assert!(matches!(
            remap.take(pager.pages(), &quiet, slot, PageRun::new(0, BLOCK_PAGES)),
            Taken::Foreign
        ));
        assert_eq!((0..16).map(|page| read(base, page)).collect::<Vec<_>>(), (1..=16).collect::<Vec<_>>());
        assert_eq!(pager.pages().mover.pagemap.mapped(target, 16), 0);
        // It is the program's alone again.
        write(base, 5, 500);
        assert_eq!(read(base, 5), 500);
        assert!(!is_registered(&quiet, PageRun::new(0, 1)));
    }

    #[test]
    fn a_mapping_that_is_gone_costs_nothing() {
        let Some(pager) = pager(true) else { return };
        // Not where a mapping has just been: the next one of another test would be put there. The
        // kernel chooses places from the top of the address space downwards and comes nowhere near
        // this one.
        let base = 0x1000_0000;
        let remap = pager.pages().backend.as_remap().unwrap();
        let slot = pager.pages().staging.take_empty().unwrap();
        let target = pager.pages().staging.address(slot, 0);
        let block = pager.pages().lock(base);
        let quiet = pager.pages().mover.quiet_alone(&pager.pages().events, &block).unwrap();
        let taken = remap.take(pager.pages(), &quiet, slot, PageRun::new(0, BLOCK_PAGES));
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
            testkit::skip!("mlock", "mlock is not permitted");
            return;
        }
        pager.register(base..base + BLOCK_BYTES);
        assert!(!evict(pager, base));
        assert_eq!(pager.pages().mover.pagemap.mapped(base, 16), 0xffff);
    }

    /// Other threads fault, discard, map and unmap all the time, so that the drainer reads far more
    /// than the events that it reads for.
    #[test]
    fn evictions_among_events_and_faults() {
        const ROUNDS: usize = 500;
        let Some(pager) = pager(true) else { return };
        let (base, other) = (blocks(4), blocks(4));
        pager.register(base..base + 4 * BLOCK_BYTES);
        pager.register(other..other + 4 * BLOCK_BYTES);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0.. {
                    let page = round % 64;
                    write(other, page, round);
                    assert_eq!(read(other, page), round);
                    // SAFETY: this test's mapping.
                    unsafe { libc::madvise(page_at(other, page) as *mut _, PAGE_SIZE, libc::MADV_DONTNEED) };
                    assert_eq!(read(other, page), 0);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let at = sys::memory::map(BLOCK_BYTES).unwrap().as_ptr() as usize;
                    pager.pages().reports().register(at, BLOCK_BYTES, sys::userfaultfd::MISSING).unwrap();
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
                while let Some(slot) = pager.pages().staging.oldest() {
                    let _block = pager.pages().lock(pager.pages().staging.owner(slot));
                    // SAFETY: the slot is this test's.
                    unsafe { pager.pages().release_slot(slot) };
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
