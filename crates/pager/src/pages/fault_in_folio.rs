//! Faulting in a whole huge page with one call.
//!
//! Only for a thread whose window has grown to its limit, at the first page of a folio: a random
//! reader pays for the page that it wants. What lies between two folios is not brought in across
//! their border, so that the next one is still whole when the thread comes to it.

use super::block::{BlockGuard, PageState};
use super::run::{PageRun, RunGuard};
use super::{Pages, GROUP};
use crate::accounts::Counter;
use crate::units::{
    page_at, pages_in, PageNumber, ALL_PAGES, BLOCK_PAGES, FOLIO_BLOCKS, FOLIO_BYTES, FOLIO_PAGES,
};

/// Pages that are decompressed by one call of the pool's.
const PART_PAGES: usize = 64;
const _: () = assert!(FOLIO_PAGES.is_multiple_of(PART_PAGES));

impl Pages {
    /// Whether huge pages go and come as a whole.
    pub fn moves_folios(&self) -> bool {
        self.staging.takes_folios() && self.moves_frames()
    }

    /// A window of `window` pages from `at` on, cut where the next folio begins.
    pub fn up_to_folio(&self, at: usize, window: usize) -> usize {
        match window > 1 && self.moves_folios() {
            true => window.min(pages_in(FOLIO_BYTES - at % FOLIO_BYTES)),
            false => window,
        }
    }

    /// Brings in the whole folio at `at`, all stored since it left as a whole, or never touched.
    /// Returns how many pages, or `None` when it is not brought in that way.
    pub(super) fn fault_in_folio(&self, at: usize, write: bool, reads_disk: bool) -> Option<usize> {
        if !self.recycles() {
            return None;
        }
        let first = self.lock(at);
        let is_stored = first.is_whole();
        let mut run = RunGuard::of(first);
        run.extend(&self.table, FOLIO_BLOCKS);
        if run.count() < FOLIO_BLOCKS {
            return None;
        }
        let is_wanted = |block: &BlockGuard<'_>| match is_stored {
            true => block.is_whole() && block.mask(PageState::Stored) == ALL_PAGES && !block.is_reading(),
            false => write && block.mask(PageState::Kernel) == ALL_PAGES,
        };
        if !run.iter().all(is_wanted) {
            return None;
        }
        match is_stored {
            true if self.has_swap && !reads_disk && self.is_on_disk(at) => return None,
            // Not where something is, nor where something was that has left a page table, as far as
            // that can be known.
            false
                if (0..FOLIO_PAGES)
                    .step_by(64)
                    .any(|page| self.pagemap().mapped(page_at(at, page), 64) != 0) =>
            {
                return None;
            }
            _ => {}
        }
        // The kernel is not asked whether all of it is registered: the question would leave a page
        // table there.
        let (place, is_zeroed) =
            self.staging.filling_folio(self.has_budget_for_folio(), |at| self.mover.is_huge(at))?;
        let source = self.staging.frame(place, 0).address();
        let is_filled = match is_stored {
            // SAFETY: the place was taken for this, and has as many pages.
            true => unsafe { self.decompress_folio(at, source, reads_disk) },
            false => {
                if !is_zeroed {
                    // SAFETY: as above.
                    unsafe { std::ptr::write_bytes(source as *mut u8, 0, FOLIO_BYTES) };
                }
                true
            }
        };
        let moved = match is_filled {
            true => self.move_in_folio(&run, place, is_stored),
            false => [0; FOLIO_BLOCKS],
        };
        if moved[0] == 0 {
            // It is not tried again: as likely a border between mappings as an event.
            run.first().clear_whole();
        }
        drop(run);
        self.staging.give_folio(place);
        let pages: u64 = moved.iter().map(|mask| u64::from(mask.count_ones())).sum();
        if pages == 0 {
            return None;
        }
        let count_as = if is_stored { Counter::ZswpIn } else { Counter::ZeroFilled };
        self.accounts.add(count_as, pages);
        if pages == FOLIO_PAGES as u64 {
            self.accounts.add(Counter::HugeIn, pages);
            return Some(FOLIO_PAGES);
        }
        self.mover.wake(at, FOLIO_PAGES);
        match moved[0].trailing_ones() as usize {
            0 => None,
            done => Some(done),
        }
    }

    /// Whether the budget has room for a huge page, and for another one that was not measured yet.
    fn has_budget_for_folio(&self) -> bool {
        self.accounts.total() + 2 * FOLIO_BYTES as u64 <= self.accounts.budget()
    }

    /// Whether a page of the stored folio at `at` is in the swap file.
    fn is_on_disk(&self, at: usize) -> bool {
        let keys = (0..FOLIO_PAGES).step_by(PART_PAGES).map(|page| PageNumber::of(page_at(at, page)).key());
        keys.into_iter().any(|key| self.store.on_disk(GROUP, key, PART_PAGES) != 0)
    }

    /// Loads all pages of the folio at `at`; false when one of them is in the swap file, from where
    /// they are not to be read.
    ///
    /// # Safety
    /// `target` begins a folio's pages of memory that the caller has to itself.
    unsafe fn decompress_folio(&self, at: usize, target: usize, reads_disk: bool) -> bool {
        (0..FOLIO_PAGES).step_by(PART_PAGES).all(|page| {
            let key = PageNumber::of(page_at(at, page)).key();
            // SAFETY: a part of what the caller has.
            let loaded = unsafe { self.decompress(key, page_at(target, page), PART_PAGES, reads_disk) };
            loaded == PART_PAGES
        })
    }

    /// Moves a filled place in, and notes what came; returns which pages of each block.
    fn move_in_folio(&self, run: &RunGuard<'_>, place: u32, is_stored: bool) -> [u32; FOLIO_BLOCKS] {
        let Some(quiet) = self.quiet(run) else { return [0; FOLIO_BLOCKS] };
        let source = self.staging.frame(place, 0);
        let progress = quiet.move_in(PageRun::new(0, FOLIO_PAGES), source);
        let moved: [u32; FOLIO_BLOCKS] = match progress.stop {
            None => [ALL_PAGES; FOLIO_BLOCKS],
            // Not by what the kernel returned: see `Mover::arrived`.
            Some(_) => std::array::from_fn(|index| {
                let part = PageRun::new(index * BLOCK_PAGES, BLOCK_PAGES);
                quiet.arrived(part, self.staging.frame(place + index as u32, 0)) as u32
            }),
        };
        if progress.stop.is_some() {
            self.staging.spoil_folio(place);
        }
        for ((index, block), mask) in run.iter().enumerate().zip(moved) {
            if mask == 0 {
                continue;
            }
            self.staging.left(place + index as u32, mask);
            if !is_stored {
                self.policy.touched(block.history(), mask);
                block.change_kernels(mask, PageState::Kernel);
                continue;
            }
            block.change(mask, PageState::Stored, PageState::Kernel);
            self.note_returned(block.history(), mask, if index == 0 { 1 } else { 0 }, true);
            for (page, count) in crate::units::runs(mask) {
                self.store.invalidate(GROUP, PageNumber::of(block.base()).plus(page).key(), count as u64);
            }
        }
        moved
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pages::{Compressed, FaultedIn, Inbound};
    use crate::reclaim::{Role, Step};
    use crate::trial::{folio_pager, folios, read, write};
    use crate::units::{bytes_of, BLOCK_BYTES};

    fn out(pages: &Pages, base: usize) -> u32 {
        assert!(pages.evict_folio(base), "a huge page goes as one");
        let slot = pages.lock(base).slot();
        assert!(pages.staging.is_folios(slot) && pages.mover.is_huge(pages.staging.address(slot, 0)));
        slot
    }

    fn compress_all(pages: &Pages) {
        while pages.staging.queued_slots() > 0 {
            assert_eq!(pages.compress_oldest(), Compressed::Stored);
        }
    }

    fn count(pages: &Pages, base: usize, state: PageState) -> usize {
        let blocks = (0..FOLIO_BLOCKS).map(|index| base + index * BLOCK_BYTES);
        blocks.map(|base| pages.lock(base).mask(state).count_ones() as usize).sum()
    }

    fn bring_all(pages: &Pages, inbound: &mut Inbound, base: usize) {
        for at in (0..FOLIO_PAGES).map(|page| page_at(base, page)) {
            while pages.is_out(at) {
                assert!(matches!(pages.fault_in(inbound, at, false, 16), FaultedIn::Done(1..)));
            }
        }
    }

    fn all_numbers(base: usize, pages: std::ops::Range<usize>) {
        for page in pages {
            assert_eq!(read(base, page), page + 1, "page {page}");
        }
    }

    #[test]
    fn a_huge_page_goes_out_is_stored_and_comes_back_as_one() {
        let Some(pager) = folio_pager() else { return };
        let (pages, base) = (pager.pages(), folios(2));
        pager.register(base..base + 2 * FOLIO_BYTES);
        let mut inbound = Inbound::new(pager.own_page());
        for round in 0..3 {
            let slot = out(pages, base);
            assert_eq!(pages.mover.mapped(base, 128), 0);
            assert_eq!((count(pages, base, PageState::Staged), pages.staging.pages() >= 512), (512, true));
            compress_all(pages);
            assert_eq!((count(pages, base, PageState::Stored), pages.store.stored_pages()), (512, 512));
            assert_eq!(pages.staging.present(slot), 0, "given back, or a ready folio: {round}");
            assert_eq!(pages.fault_in(&mut inbound, base, false, 128), FaultedIn::Done(512));
            assert!(pages.mover.is_huge(base), "in one piece");
            assert_eq!((count(pages, base, PageState::Kernel), pages.store.stored_pages()), (512, 0));
            all_numbers(base, 0..512);
            write(base, 7 + round, 8 + round);
            // Frames that are kept while some come in, from now on.
            assert_eq!(pages.staging.give_back_folios(), 0);
        }
        assert!(pages.mover.is_huge(base + FOLIO_BYTES));
        all_numbers(base, 512..1024);
    }

    #[test]
    fn one_page_of_a_folio_comes_in_by_itself() {
        let Some(pager) = folio_pager() else { return };
        let (pages, base) = (pager.pages(), folios(1));
        pager.register(base..base + FOLIO_BYTES);
        let mut inbound = Inbound::new(pager.own_page());
        let slot = out(pages, base);
        // Staged: by a copy, and the huge page stays whole.
        assert_eq!(pages.fault_in(&mut inbound, page_at(base, 100), false, 1), FaultedIn::Done(1));
        assert!(pages.mover.is_huge(pages.staging.address(slot, 0)));
        let mut spare = pages.staging.take_empty();
        assert!(!pages.evict(&mut spare, page_at(base, 96), 1 << 4, false), "not into the folio's place");
        pages.staging.give(spare.expect("it was not used"));
        compress_all(pages);
        assert_eq!((count(pages, base, PageState::Stored), pages.staging.pages()), (511, 0));
        // Stored: one page alone, and then no folio any more.
        assert_eq!(pages.fault_in(&mut inbound, page_at(base, 300), true, 1), FaultedIn::Done(1));
        assert_eq!(count(pages, base, PageState::Stored), 510);
        assert_eq!(pages.fault_in_folio(base, false, true), None);
        let at = page_at(base, 440);
        assert_eq!(pages.fault_in(&mut inbound, at, false, 128), FaultedIn::Done(72), "up to the border");
        bring_all(pages, &mut inbound, base);
        all_numbers(base, 0..512);
        assert!(!pages.evict_folio(base), "it is no huge page any more");
        inbound.frames.empty_out(&pages.staging);
    }

    #[test]
    fn parts_that_are_discarded_read_as_zeroes() {
        let Some(pager) = folio_pager() else { return };
        let (pages, base) = (pager.pages(), folios(1));
        pager.register(base..base + FOLIO_BYTES);
        let mut inbound = Inbound::new(pager.own_page());
        out(pages, base);
        pages.discard(page_at(base, 20), page_at(base, 60));
        compress_all(pages);
        pages.discard(page_at(base, 200), page_at(base, 201));
        assert_eq!((count(pages, base, PageState::Stored), pages.staging.pages()), (512 - 41, 0));
        assert_eq!(pages.fault_in_folio(base, false, true), None);
        bring_all(pages, &mut inbound, base);
        all_numbers(base, 0..20);
        for page in (20..60).chain([200]) {
            assert_eq!(pages.fault_in(&mut inbound, page_at(base, page), false, 1), FaultedIn::Done(1));
            assert_eq!(read(base, page), 0);
        }
        all_numbers(base, 60..200);
        all_numbers(base, 201..512);
        inbound.frames.empty_out(&pages.staging);
    }

    #[test]
    fn what_was_never_touched_comes_as_a_huge_page() {
        let Some(pager) = folio_pager() else { return };
        let (pages, read_only) = (pager.pages(), folios(3));
        let base = read_only + FOLIO_BYTES;
        // SAFETY: this test's mapping.
        unsafe { libc::madvise(read_only as *mut _, 2 * FOLIO_BYTES, libc::MADV_DONTNEED) };
        pager.register(read_only..base + FOLIO_BYTES + bytes_of(100));
        let mut inbound = Inbound::new(pager.own_page());
        assert_eq!(
            pages.fault_in(&mut inbound, read_only, false, 128),
            FaultedIn::Done(1),
            "for writers only"
        );
        assert_eq!(pages.fault_in(&mut inbound, base, true, 128), FaultedIn::Done(512));
        assert!(pages.mover.is_huge(base) && (0..512).all(|page| read(base, page) == 0));
        // Not across the end of what is registered, and not where something is.
        assert_eq!(pages.fault_in_folio(base + FOLIO_BYTES, true, true), None);
        assert_eq!(pages.fault_in_folio(base, true, true), None);
        all_numbers(read_only, 1024..1536);
        inbound.frames.empty_out(&pages.staging);
        pages.staging.give_back_folios();
        assert_eq!(pages.staging.pages() - pages.staging.ready_pages(), 0);
    }

    #[test]
    fn small_pages_and_shared_ones_do_not_go_as_one() {
        let Some(pager) = folio_pager() else { return };
        let (pages, base) = (pager.pages(), folios(2));
        // SAFETY: this test's mapping. Removing a page splits the huge page.
        unsafe { libc::madvise(page_at(base, 9) as *mut _, bytes_of(1), libc::MADV_DONTNEED) };
        pager.register(base..base + 2 * FOLIO_BYTES);
        assert!(!pages.evict_folio(base), "a hole");
        let busy = pages.lock(base + FOLIO_BYTES + 3 * BLOCK_BYTES);
        assert!(!pages.evict_folio(base + FOLIO_BYTES), "a lock is held");
        drop(busy);
        assert_eq!(pages.staging.pages(), 0);
        out(pages, base + FOLIO_BYTES);
        compress_all(pages);
    }

    #[test]
    fn the_clock_offers_huge_pages_as_one_and_makes_room_for_them() {
        let Some(pager) = folio_pager() else { return };
        let (pages, base) = (pager.pages(), folios(6));
        pager.register(base..base + 6 * FOLIO_BYTES);
        let reclaimer = pager.reclaimer();
        let mut went = 0;
        for _ in 0..1000 {
            reclaimer.look_again();
            went += usize::from(reclaimer.evict_neighbours(Role::Handler) == FOLIO_BLOCKS);
            if went == 6 {
                break;
            }
            while !pages.staging.has_room_for_folio() {
                assert!(reclaimer.compress_oldest() == Step::Progress);
            }
        }
        assert_eq!(went, 6);
        compress_all(pages);
        assert_eq!((pages.store.stored_pages(), pages.staging.pages()), (6 * 512, 0));
        let mut inbound = Inbound::new(pager.own_page());
        for at in (0..6).map(|folio| base + folio * FOLIO_BYTES) {
            assert_eq!(pages.fault_in(&mut inbound, at, true, 128), FaultedIn::Done(512));
        }
        all_numbers(base, 0..6 * 512);
    }

    #[test]
    fn what_does_not_compress_comes_back_and_leaves_nothing_behind() {
        let Some(pager) = folio_pager() else { return };
        let (pages, base) = (pager.pages(), folios(1));
        let mut random = 1u64;
        for word in (0..FOLIO_BYTES).step_by(8) {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // SAFETY: this test's mapping.
            unsafe { ((base + word) as *mut u64).write_volatile(random.rotate_left(29)) };
        }
        let sum = || {
            (0..FOLIO_BYTES / 8).fold(0u64, |sum, word| sum.rotate_left(5) ^ read(base + word * 8, 0) as u64)
        };
        let before = sum();
        pager.register(base..base + FOLIO_BYTES);
        out(pages, base);
        while pages.staging.queued_slots() > 0 {
            assert_eq!(pages.compress_oldest(), Compressed::Refused);
        }
        assert_eq!((pages.pages_out(), pages.staging.pages()), (0, 0));
        assert_eq!(sum(), before);
    }
}
