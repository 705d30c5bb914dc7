//! Bringing in: zeroes for what was never touched, pages back from staging, pages out of the pool.

use sys::userfaultfd::Stop;
use sys::PAGE_SIZE;
use zswap::Keep;

use super::evict::{fill_shared, place_copies, Placed};
use super::extents::{EXTENT_PAGES, EXTENT_SLOTS};
use super::inbound::Inbound;
use super::mover::Quiet;
use super::refs::PageRefs;
use super::staging::Frame;
use super::table::{part, runs, span, BlockGuard, PageRun, PageState, RunGuard, BLOCK_BYTES, BLOCK_PAGES};
use super::{Pages, GROUP};
use crate::accounts::Counter;

/// Shorter runs are brought in block by block.
const LONG_MIN: usize = 2 * BLOCK_PAGES;
/// Windows from which a whole run is brought in with one call.
const LONG_WINDOW_MIN: usize = 4 * BLOCK_PAGES;

/// How an attempt to bring a page in ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brought {
    /// That many pages from the one asked for on are in place, or gone with their mapping.
    Done(usize),
    /// An event is unread or not applied: read messages and try again.
    Again,
    /// The kernel has no memory.
    NoMemory,
    /// The page is in the swap file, and the caller does not read from there.
    OnDisk,
}

impl Pages {
    /// Brings in the page at `at`, and those behind it that are where it is, up to `window` in all.
    pub fn bring(&self, inbound: &mut Inbound, at: usize, write: bool, window: usize) -> Brought {
        if window >= LONG_WINDOW_MIN && self.moves_frames() {
            if let Some(pages) = self.bring_long(at, write, window, inbound.reads_disk) {
                return Brought::Done(pages);
            }
        }
        let block = self.lock(at);
        let index = at % BLOCK_BYTES / PAGE_SIZE;
        let was_kernels = block.state(index).is_kernels();
        let brought = self.bring_within(&block, inbound, index, write, window.min(BLOCK_PAGES - index));
        if let Brought::Done(pages) = brought {
            match was_kernels {
                true => self.policy.touched(block.history(), span(index, pages)),
                false => self.note_returned(block.history(), span(index, pages), span(index, 1), false),
            }
        }
        brought
    }

    /// The same inside one block. The caller has its lock.
    pub fn bring_within(
        &self,
        block: &BlockGuard<'_>,
        inbound: &mut Inbound,
        index: usize,
        write: bool,
        window: usize,
    ) -> Brought {
        let alike = |mask: u32| (mask >> index).trailing_ones().min(window as u32) as usize;
        match block.state(index) {
            PageState::Staged => self.unstage(block, index, alike(block.mask(PageState::Staged))),
            PageState::Stored => self.load(block, inbound, index, alike(block.mask(PageState::Stored))),
            _ => self.fill(block, inbound, index, alike(block.mask_of(PageState::is_kernels)), write),
        }
    }

    /// Brings in stored pages from the start of the block at `base` on, as far as they lie side by
    /// side; returns how many. For readahead: what is in the way ends it.
    pub fn bring_ahead(&self, inbound: &mut Inbound, base: usize, window: usize) -> usize {
        let Some(block) = self.table.find(base).and_then(|_| self.table.try_lock(base)) else { return 0 };
        let wanted = block.mask(PageState::Stored) & span(0, window.min(BLOCK_PAGES));
        match wanted.trailing_ones() as usize {
            0 => 0,
            run => match self.load(&block, inbound, 0, run) {
                Brought::Done(pages) => {
                    self.note_returned(block.history(), span(0, pages), 0, false);
                    pages
                }
                _ => 0,
            },
        }
    }

    /// Brings in everything that is out of a block; returns how many pages, and whether some are
    /// left because an event is in the way.
    pub fn bring_all(&self, inbound: &mut Inbound, base: usize) -> (usize, bool) {
        let block = self.lock_settled(base);
        let mut brought = 0;
        for index in 0..BLOCK_PAGES {
            if block.state(index).is_kernels() {
                continue;
            }
            match self.bring_within(&block, inbound, index, false, BLOCK_PAGES - index) {
                Brought::Done(pages) => brought += pages,
                Brought::Again | Brought::NoMemory | Brought::OnDisk => return (brought, true),
            }
        }
        (brought, false)
    }

    /// Gives zeroes: real pages for a write, the shared zero page for a read.
    fn fill(
        &self,
        block: &BlockGuard<'_>,
        inbound: &mut Inbound,
        index: usize,
        count: usize,
        write: bool,
    ) -> Brought {
        let run = PageRun::new(index, count);
        let Some(quiet) = self.quiet(block) else { return Brought::Again };
        let (filled, stop) = match write {
            false => fill_shared(&quiet, index),
            true => self.backend.fill(&self.staging, &quiet, inbound, run),
        };
        if filled > 0 {
            // What was filled was missing: the discarding that it was marked for is over, or takes
            // what is new along.
            block.change_kernels(span(index, filled), PageState::Kernel);
            if write {
                self.accounts.add(Counter::ZeroFilled, filled as u64);
            }
            return Brought::Done(filled);
        }
        match stop {
            Some(Stop::Again) | None => Brought::Again,
            Some(Stop::NoMemory) => Brought::NoMemory,
            // Present already, or gone: either way the thread looks again by itself.
            Some(_) => {
                quiet.wake(run.one());
                Brought::Done(1)
            }
        }
    }

    /// The second chance: staged pages go straight back.
    fn unstage(&self, block: &BlockGuard<'_>, index: usize, count: usize) -> Brought {
        let Some(quiet) = self.quiet(block) else { return Brought::Again };
        let (run, slot) = (PageRun::new(index, count), block.slot());
        let source = self.staging.frame(slot, index);
        // What a compressor reads must not change: the page comes back as a copy then, and its
        // frame stays.
        let placed = match block.is_compressing() {
            true => place_copies(&quiet, run, source.address()),
            false => self.backend.fault_in(&quiet, run, source),
        };
        let back = match placed {
            Placed::Moved(moved) => {
                self.staging.left(slot, span(index, moved));
                moved
            }
            Placed::Copied(copied) => {
                if !block.is_compressing() {
                    self.backend.came_as_copies(&self.staging, slot, span(index, copied));
                }
                copied
            }
            Placed::Gone => 1,
            Placed::Again => return Brought::Again,
            Placed::NoMemory => return Brought::NoMemory,
        };
        block.change(span(index, back), PageState::Staged, PageState::Kernel);
        if !block.is_compressing() {
            block.drop_slot_if_unused();
        }
        self.accounts.add(Counter::Refaults, back as u64);
        Brought::Done(back)
    }

    /// Decompresses adjacent stored pages and puts them in place.
    fn load(&self, block: &BlockGuard<'_>, inbound: &mut Inbound, index: usize, count: usize) -> Brought {
        let mut done = 0;
        while done < count {
            let first = index + done;
            let placed = match self.backend.frames(&self.staging, inbound, count, count - done) {
                Some(pages) => {
                    let source = self.staging.frame(pages.slot, pages.first);
                    let key = (block.base() / PAGE_SIZE + first) as u64;
                    let found = self.decompress(key, source.address(), pages.count, inbound.reads_disk);
                    if found == 0 {
                        return partly(done, Brought::OnDisk);
                    }
                    let Some(quiet) = self.quiet(block) else { return partly(done, Brought::Again) };
                    let placed = self.backend.fault_in(&quiet, PageRun::new(first, found), source);
                    if let Placed::Moved(moved) = placed {
                        inbound.frames.spend(&self.staging, pages, moved);
                    }
                    drop(quiet);
                    self.settle_loaded(block, first, placed, found)
                }
                None => self.load_single(block, inbound, first),
            };
            match placed {
                Ok((pages, more)) => {
                    done += pages;
                    if !more {
                        break;
                    }
                }
                Err(other) => return partly(done, other),
            }
        }
        Brought::Done(done)
    }

    /// Brings in one page by a copy: without moves, or where every slot is in use. A copy is
    /// quicker than a move by itself; but the frame that the kernel makes for it has to be given
    /// back elsewhere, by a move and a call more, and is memory until then.
    fn load_single(
        &self,
        block: &BlockGuard<'_>,
        inbound: &mut Inbound,
        index: usize,
    ) -> Result<(usize, bool), Brought> {
        let at = block.base() + index * PAGE_SIZE;
        if self.decompress((at / PAGE_SIZE) as u64, inbound.page, 1, inbound.reads_disk) == 0 {
            return Err(Brought::OnDisk);
        }
        let Some(quiet) = self.quiet(block) else { return Err(Brought::Again) };
        let placed = place_copies(&quiet, PageRun::new(index, 1), inbound.page);
        drop(quiet);
        let answer = self.settle_loaded(block, index, placed, 1)?;
        self.note_copied(inbound, 1);
        Ok(answer)
    }

    /// The frames that were ready for pages that came in as copies are not needed; they are given
    /// back sixteen at a time.
    pub(super) fn note_copied(&self, inbound: &mut Inbound, pages: usize) {
        if self.moves_frames() {
            inbound.copied += pages;
        }
        while inbound.copied >= BLOCK_PAGES {
            let Some(slot) = self.staging.take_ready(BLOCK_PAGES) else { return };
            inbound.copied -= self.staging.discard(slot).min(inbound.copied);
            self.staging.give(slot);
        }
    }

    /// Notes what became of `wanted` pages out of the pool; returns how many, and whether that was
    /// all of them.
    pub(super) fn settle_loaded(
        &self,
        block: &BlockGuard<'_>,
        index: usize,
        placed: Placed,
        wanted: usize,
    ) -> Result<(usize, bool), Brought> {
        let pages = match placed {
            Placed::Moved(pages) | Placed::Copied(pages) => pages,
            Placed::Gone => 1,
            Placed::Again => return Err(Brought::Again),
            Placed::NoMemory => return Err(Brought::NoMemory),
        };
        block.change(span(index, pages), PageState::Stored, PageState::Kernel);
        let key = (block.base() / PAGE_SIZE + index) as u64;
        self.store.invalidate(GROUP, key, pages as u64);
        self.accounts.add(Counter::ZswpIn, pages as u64);
        Ok((pages, pages == wanted))
    }

    /// Loads adjacent pages; returns how many. All of them, or those before the first one that is
    /// in the swap file where it is not to be read.
    fn decompress(&self, key: u64, target: usize, count: usize, reads_disk: bool) -> usize {
        // SAFETY: the target is a page of the caller's own, frames of its cache, or an extent it
        // took: they lie side by side and are given out here once.
        let whole = unsafe { std::slice::from_raw_parts_mut(target as *mut [u8; PAGE_SIZE], count) };
        let mut refs = PageRefs::new();
        whole.iter_mut().for_each(|page| refs.push(page));
        let loaded = match reads_disk || !self.has_swap {
            true => self.store.load(GROUP, key, refs.as_mut_slice(), Keep::Shared).map(|()| count),
            false => self.store.load_from_pool(GROUP, key, refs.as_mut_slice(), Keep::Shared),
        };
        loaded.unwrap_or_else(|error| {
            self.fatal(format_args!("page {:#x} is lost: {error}", key * PAGE_SIZE as u64));
        })
    }

    /// Puts one page back, for a caller that cannot do anything about it; whether its frame went
    /// along. `None`: not now.
    pub(super) fn place_back(&self, quiet: &Quiet<'_>, page: usize, source: Frame) -> Option<bool> {
        match self.backend.fault_in(quiet, PageRun::new(page, 1), source) {
            Placed::Moved(_) => Some(true),
            Placed::Copied(_) | Placed::Gone => Some(false),
            Placed::Again | Placed::NoMemory => None,
        }
    }

    /// Brings in up to `window` pages from `at` on with one call, all stored or all never touched.
    /// Returns how many, or `None` when the first is not among them.
    ///
    /// What cannot be done that way (a border between mappings, an event, a neighbour whose lock is
    /// held) is left to the way for one block, which knows how to deal with each case.
    fn bring_long(&self, at: usize, write: bool, window: usize, reads_disk: bool) -> Option<usize> {
        let first = self.lock(at);
        let skipped = at % BLOCK_BYTES / PAGE_SIZE;
        let state = first.state(skipped);
        let is_stored = state == PageState::Stored;
        if state == PageState::Staged || !is_stored && !write {
            return None;
        }
        let mut run = RunGuard::of(first);
        run.extend(&self.table, (skipped + window).div_ceil(BLOCK_PAGES));
        let alike = run.mask_of(|other| other == state || !is_stored && other.is_kernels()) >> skipped;
        let mut count = (alike.trailing_ones() as usize).min(window.min(EXTENT_PAGES));
        if is_stored && self.has_swap && !reads_disk {
            // What lies further is found out by loading.
            let on_disk = self.store.on_disk(GROUP, (at / PAGE_SIZE) as u64, count.min(64));
            count = if on_disk == 0 { count } else { count.min(on_disk.trailing_zeros() as usize) };
        }
        if count < LONG_MIN {
            return None;
        }
        let extent = self.staging.filling_extent()?;
        let source = self.staging.frame(extent, 0);
        let count = match is_stored {
            true => self.decompress((at / PAGE_SIZE) as u64, source.address(), count, reads_disk),
            false => {
                // SAFETY: the extent was taken for this.
                unsafe { std::ptr::write_bytes(source.address() as *mut u8, 0, count * PAGE_SIZE) };
                count
            }
        };
        if count == 0 {
            self.staging.give_extent(extent);
            return None;
        }
        let Some(quiet) = self.quiet(&run) else {
            self.staging.give_extent(extent);
            return None;
        };
        let places = PageRun::new(skipped, count);
        let progress = quiet.move_in(places, source);
        let arrived = match progress.stop {
            None => u128::MAX >> (EXTENT_PAGES - count),
            Some(_) => quiet.arrived(places, source),
        };
        for index in 0..EXTENT_SLOTS {
            self.staging.left(extent + index as u32, part(arrived, index));
        }
        for (index, block) in run.iter().enumerate() {
            let mask = part(arrived << skipped, index);
            if mask == 0 {
                continue;
            }
            if !is_stored {
                self.policy.touched(block.history(), mask);
                block.change_kernels(mask, PageState::Kernel);
                continue;
            }
            block.change(mask, PageState::Stored, PageState::Kernel);
            let needed = if index == 0 { span(skipped, 1) } else { 0 };
            self.note_returned(block.history(), mask, needed, true);
            for (page, count) in runs(mask) {
                self.store.invalidate(GROUP, (block.base() / PAGE_SIZE + page) as u64, count as u64);
            }
        }
        drop(quiet);
        drop(run);
        self.staging.give_extent(extent);
        let count_as = if is_stored { Counter::ZswpIn } else { Counter::ZeroFilled };
        self.accounts.add(count_as, arrived.count_ones().into());
        if progress.stop.is_some() && arrived != 0 {
            self.mover.wake(at, count);
        }
        match arrived.trailing_ones() as usize {
            0 => None,
            done => Some(done),
        }
    }
}

/// What an attempt comes to that brought in `done` pages before it ended.
fn partly(done: usize, otherwise: Brought) -> Brought {
    match done {
        0 => otherwise,
        done => Brought::Done(done),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pages::table::ALL_PAGES;
    use crate::trial::{blocks, pager, read};

    /// The masks of adjacent blocks in a state.
    fn masks(pages: &Pages, base: usize, state: PageState) -> [u32; EXTENT_SLOTS] {
        std::array::from_fn(|index| pages.lock(base + index * BLOCK_BYTES).mask(state))
    }

    fn all_numbers(base: usize, pages: std::ops::Range<usize>) {
        for page in pages {
            assert_eq!(read(base, page), page + 1, "page {page}");
        }
    }

    #[test]
    fn an_extent_of_pages_goes_out_is_stored_and_comes_back_with_one_call_each() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(16);
        pager.register(base..base + 16 * BLOCK_BYTES);
        let before = pages.staging.pages();
        assert!(pages.evict_extent(base));
        assert_eq!(pages.mover.mapped(base, EXTENT_PAGES), 0);
        assert_eq!(masks(pages, base, PageState::Staged), [ALL_PAGES; 8]);
        assert_eq!(pages.staging.pages(), before + 128);
        assert!(!pages.evict_extent(base), "nothing is there");
        for _ in 0..8 {
            assert_eq!(pages.staging.ready_pages(), 0);
            pages.compress_oldest();
        }
        assert_eq!(masks(pages, base, PageState::Stored), [ALL_PAGES; 8]);
        assert_eq!((pages.staging.ready_pages(), pages.store.stored_pages()), (128, 128));
        assert!(pages.evict_extent(base + 8 * BLOCK_BYTES));
        while pages.staging.queued_slots() > 0 {
            pages.compress_oldest();
        }
        // From the middle of a block: what is left of eight blocks, or of the window.
        assert_eq!(pages.bring_long(base + 5 * PAGE_SIZE, false, 64, true), Some(64));
        all_numbers(base, 5..69);
        assert_eq!(
            masks(pages, base, PageState::Stored),
            [0x1f, 0, 0, 0, 0xffe0, ALL_PAGES, ALL_PAGES, ALL_PAGES]
        );
        assert_eq!(pages.store.stored_pages(), 192);
        assert_eq!(pages.bring_long(base, false, 128, true), None, "five pages are no long run");
        assert_eq!(pages.bring_long(base + 69 * PAGE_SIZE, true, 128, true), Some(123));
        assert_eq!(
            pages.bring_long(base + 192 * PAGE_SIZE, true, 128, true),
            Some(64),
            "up to the last stored page"
        );
        all_numbers(base, 5..256);
    }

    #[test]
    fn a_single_page_comes_in_by_a_move() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(8);
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert!(pages.evict_extent(base));
        while pages.staging.queued_slots() > 0 {
            pages.compress_oldest();
        }
        let page = sys::arena::take(PAGE_SIZE, PAGE_SIZE).unwrap().as_ptr() as usize;
        let mut inbound = Inbound::new(page);
        let frames = pages.staging.pages();
        assert_eq!(pages.bring(&mut inbound, base + 3 * PAGE_SIZE, false, 1), Brought::Done(1));
        assert_eq!(
            (inbound.copied, pages.staging.pages()),
            (0, frames - 1),
            "its frame is the program's now"
        );
        inbound.frames.empty_out(&pages.staging);
        while let Some(first) = pages.staging.take_ready_extent() {
            pages.staging.discard_extent(first);
        }
        while let Some(slot) = pages.staging.take_ready(1) {
            pages.staging.discard(slot);
            pages.staging.give(slot);
        }
        assert_eq!(pages.staging.pages(), 0);
        assert_eq!(pages.bring(&mut inbound, base + 70 * PAGE_SIZE, true, 1), Brought::Done(1));
        assert_eq!((inbound.copied, pages.staging.pages()), (0, 0), "in a frame made for it");
        all_numbers(base, 3..4);
        all_numbers(base, 70..71);
        assert_eq!(pages.store.stored_pages(), 126);
    }

    #[test]
    fn first_touches_are_brought_up_to_what_is_there() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(8);
        // SAFETY: this test's mapping.
        unsafe { libc::madvise((base + PAGE_SIZE) as *mut _, 50 * PAGE_SIZE, libc::MADV_DONTNEED) };
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert_eq!(pages.bring_long(base + PAGE_SIZE, false, 128, true), None, "reading takes no memory");
        assert_eq!(pages.bring_long(base, true, 128, true), None, "the page is there");
        assert_eq!(pages.bring_long(base + PAGE_SIZE, true, 128, true), Some(50));
        assert!((1..51).all(|page| read(base, page) == 0));
        all_numbers(base, 51..128);
        assert_eq!(masks(pages, base, PageState::Kernel), [ALL_PAGES; 8]);
        assert_eq!(pages.staging.pages(), 78, "the rest of the extent");
    }

    #[test]
    fn frames_that_lie_scattered_are_given_up_for_a_run() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(40);
        // SAFETY: this test's mapping.
        unsafe { libc::madvise((base + 32 * BLOCK_BYTES) as *mut _, 8 * BLOCK_BYTES, libc::MADV_DONTNEED) };
        pager.register(base..base + 40 * BLOCK_BYTES);
        for block in 0..32 {
            let mut spare = pages.staging.take_empty();
            assert!(pages.evict(&mut spare, base + block * BLOCK_BYTES, ALL_PAGES, false));
        }
        let fresh = base + 32 * BLOCK_BYTES;
        assert_eq!(pages.bring_long(fresh, true, 128, true), None, "all wait to be compressed");
        while pages.staging.queued_slots() > 0 {
            pages.compress_oldest();
        }
        assert!(pages.staging.ready_extents() == 0 && !pages.staging.has_room_for_extent());
        assert_eq!(pages.bring_long(fresh, true, 128, true), Some(128));
        assert_eq!((pages.staging.pages(), pages.staging.ready_pages()), (384, 384));
    }

    #[test]
    fn blocks_that_are_not_whole_or_are_held_are_left_to_others() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(16);
        pager.register(base..base + 16 * BLOCK_BYTES);
        let third = pages.lock(base + 2 * BLOCK_BYTES);
        assert!(!pages.evict_extent(base), "another thread holds a block");
        drop(third);
        assert!(pages.evict_extent(base));
        assert!(pages.table.try_lock(base + 2 * BLOCK_BYTES).is_some(), "and lets go of all");
        let half = base + 8 * BLOCK_BYTES;
        pages.mark_discarding(half + 7 * BLOCK_BYTES, half + 8 * BLOCK_BYTES);
        assert!(!pages.evict_extent(half), "a discard is on its way");
        assert_eq!(pages.mover.mapped(half, EXTENT_PAGES), u128::MAX);
        // Two mappings: the kernel moves nothing across their border.
        let other = blocks(16);
        pager.register(other..other + 16 * BLOCK_BYTES);
        let reading = libc::PROT_READ;
        // SAFETY: this test's mapping.
        unsafe { libc::mprotect((other + 2 * BLOCK_BYTES) as *mut _, BLOCK_BYTES, reading) };
        assert!(!pages.evict_extent(other));
        assert_eq!(masks(pages, other, PageState::Kernel), [ALL_PAGES; 8]);
        all_numbers(other, 0..256);
    }

    #[test]
    fn holes_stay_holes_and_the_rest_goes() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(8);
        // SAFETY: this test's mapping.
        unsafe { libc::madvise((base + 20 * PAGE_SIZE) as *mut _, PAGE_SIZE, libc::MADV_DONTNEED) };
        pager.register(base..base + 8 * BLOCK_BYTES);
        assert!(pages.evict_extent(base));
        let staged = masks(pages, base, PageState::Staged);
        assert_eq!((staged[0], staged[1] & 0xf), (ALL_PAGES, 0xf), "what lies before the hole went");
        assert_eq!(pages.staging.pages() as u32, staged.iter().map(|mask| mask.count_ones()).sum::<u32>());
        while pages.staging.queued_slots() > 0 {
            pages.compress_oldest();
        }
        assert_eq!(masks(pages, base, PageState::Staged), [0; 8]);
    }
}
