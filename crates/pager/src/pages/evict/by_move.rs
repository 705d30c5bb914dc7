//! Eviction: how pages leave the program for their staging slots, by `UFFDIO_MOVE`.
//!
//! `UFFDIO_MOVE` does not look whether its source is registered, and a mapping may have been
//! replaced a moment ago by another one. But it looks whether a call that changes mappings is under
//! way at the userfaultfd that guards its *target*, under the lock under which such calls begin. So
//! staging is guarded by the program's own. Then a move succeeds only if every munmap(), mremap(),
//! madvise() and fork that has begun has been reported, and its thread has gone on: all reports
//! have been read, and applied, or there would be no proof of quiet; and the mapping that the
//! kernel has just been asked about is registered still.

use sys::userfaultfd::{Stop, WRITE_PROTECT};
use sys::PAGE_SIZE;

use super::{fill_shared, place_copies, EvictBackend, Placed};
use crate::accounts::Counter;
use crate::config::{Config, StartError};
use crate::pages::block::{BlockGuard, PageState, NO_SLOT};
use crate::pages::discard_window::DiscardWindow;
use crate::pages::extents::{EXTENT_PAGES, EXTENT_SLOTS};
use crate::pages::guard::Reports;
use crate::pages::inbound::Inbound;
use crate::pages::mover::Quiet;
use crate::pages::run::{part, PageRun, RunGuard};
use crate::pages::staging::{self, Frame, Staging};
use crate::pages::{now_ms, Pages};
use crate::sync::Userfaultfd;
use crate::units::{bytes_of, page_at, pages_in, runs, span, ALL_PAGES, BLOCK_BYTES};

/// The back end. All its state is staging's.
pub(super) struct ByMove(());

impl ByMove {
    /// With staging that `program` guards.
    pub fn new(config: &Config, program: Userfaultfd) -> Result<(Self, Staging), StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let mut staging = Staging::new(config.staging_pages).map_err(system("staging memory"))?;
        staging.discard_window = Some(DiscardWindow::new(program, config.executable)?);
        if config.executable {
            staging.allow_execution().map_err(system("executable staging memory"))?;
        }
        Ok((ByMove(()), staging))
    }
}

impl EvictBackend for ByMove {
    fn moves_frames(&self) -> bool {
        true
    }

    fn protect(&self, reports: Reports, staging: &Staging, on: bool) -> bool {
        // Write-protect mode satisfies the kernel's rule that a destination of moves is registered,
        // and leaves first touches to the kernel. No page is ever protected.
        let range = staging.range();
        match on {
            true => reports.register(range.start, range.len(), WRITE_PROTECT).is_ok(),
            false => reports.unregister(range.start, range.len()).is_ok(),
        }
    }

    fn move_out(
        &self,
        pages: &Pages,
        spare: &mut Option<u32>,
        base: usize,
        mask: u32,
        may_wait: bool,
    ) -> bool {
        let mut unshared = false;
        loop {
            let Some(block) = pages.table.try_lock(base) else { return false };
            let wanted = mask & block.mask(PageState::Kernel);
            let own = Some(block.slot()).filter(|slot| *slot != NO_SLOT);
            let Some(slot) = own.or(*spare).filter(|_| wanted != 0 && !block.is_compressing()) else {
                return false;
            };
            let Some(quiet) = pages.quiet(&block) else {
                drop(block);
                pages.apply_events();
                return false;
            };
            // What a page left behind that came back as a copy.
            let left_behind = pages.staging.present(slot) & wanted;
            // SAFETY: the block is locked and is not being compressed, and the pages wanted are the
            // kernel's: what the slot has at their places is not needed.
            unsafe { pages.staging.discard_pages(slot, left_behind) };
            let (mut moved, mut busy) = (0, None);
            for (first, count) in runs(wanted) {
                if !quiet.is_guarded(first) {
                    continue;
                }
                let at = page_at(base, first);
                let (left, shared) = move_run(pages, &quiet, &block, slot, first, count);
                moved |= left;
                busy = busy.or(shared.map(|start| (start, page_at(at, count) - start)));
            }
            note_staged(pages, &block, slot, moved);
            // Only now may events be read: one that discards these pages must find them in the
            // table.
            drop(quiet);
            if moved != 0 {
                drop(block);
                // The block's own slot is in the queue, or will be by the thread that took it from
                // there.
                if own.is_none() {
                    pages.staging.queue(slot, base);
                    *spare = None;
                }
                return true;
            }
            match busy {
                Some(_) if !may_wait => return false,
                // Shared with a forked child, or pinned. Ask the kernel for copies of our own,
                // which can be moved.
                Some((start, len)) if !unshared => {
                    drop(block);
                    sys::memory::unshare(start, len);
                    unshared = true;
                }
                Some(_) => {
                    block.refuse_briefly(wanted, now_ms());
                    return false;
                }
                None => return false,
            }
        }
    }

    fn move_out_extent(&self, pages: &Pages, base: usize) -> bool {
        let Some(first) = pages.table.try_lock(base) else { return false };
        let mut run = RunGuard::of(first);
        run.extend(&pages.table, EXTENT_SLOTS);
        let is_whole = |block: &BlockGuard<'_>| {
            block.mask(PageState::Kernel) == ALL_PAGES && block.slot() == NO_SLOT && !block.is_compressing()
        };
        if run.count() < EXTENT_SLOTS || !run.iter().all(is_whole) {
            return false;
        }
        let Some(first) = pages.staging.take_empty_extent() else { return false };
        let Some(quiet) = pages.quiet(&run).filter(|quiet| quiet.is_guarded(0)) else {
            pages.staging.give_extent(first);
            return false;
        };
        let frame = pages.staging.frame(first, 0);
        let target = frame.address();
        let progress = quiet.move_out(PageRun::new(0, EXTENT_PAGES), frame);
        let moved = match progress.stop {
            None => u128::MAX,
            Some(_) => pages.mover.arrived(target, base, EXTENT_PAGES),
        };
        if progress.stop.is_some() {
            // The zero page of a late look at a page that had left, as in `move_run`.
            let stray = pages.mover.mapped(target, EXTENT_PAGES) & !moved;
            for index in 0..EXTENT_SLOTS {
                for (page, count) in runs(part(stray, index)) {
                    // SAFETY: slots of an extent taken for this, at places that no page came to.
                    unsafe { pages.staging.discard_stray(first + index as u32, page, count) };
                }
            }
        }
        for (index, block) in run.iter().enumerate() {
            note_staged(pages, block, first + index as u32, part(moved, index));
        }
        // Only now may events be read: one that discards these pages must find them in the table.
        drop(quiet);
        drop(run);
        for index in 0..EXTENT_SLOTS {
            let slot = first + index as u32;
            match part(moved, index) {
                0 => pages.staging.give(slot),
                _ => pages.staging.queue(slot, base + index * BLOCK_BYTES),
            }
        }
        moved != 0
    }

    fn fault_in(&self, quiet: &Quiet<'_>, run: PageRun, source: Frame) -> Placed {
        let progress = quiet.move_in(run, source);
        if progress.done > 0 || progress.stop.is_none() {
            return Placed::Moved(pages_in(progress.done));
        }
        match progress.stop.expect("nothing was done") {
            Stop::Again => Placed::Again,
            Stop::NoMemory => Placed::NoMemory,
            Stop::Gone => sys::thread::end_process(),
            Stop::Invalid | Stop::Busy => place_one(quiet, run, source),
            Stop::Exists => {
                let arrived = quiet.arrived(run, source).trailing_ones() as usize;
                quiet.wake(PageRun::new(run.first, arrived.max(1)));
                match arrived {
                    0 => Placed::Gone,
                    arrived => Placed::Moved(arrived),
                }
            }
            Stop::Hole => {
                quiet.wake(run.one());
                Placed::Gone
            }
        }
    }

    fn fill(
        &self,
        staging: &Staging,
        quiet: &Quiet<'_>,
        inbound: &mut Inbound,
        run: PageRun,
    ) -> (usize, Option<Stop>) {
        match move_zeroes(staging, quiet, inbound, run) {
            // No ready frame, or a mapping that nothing can be moved into: not writable any
            // more, or locked.
            (0, None | Some(Stop::Invalid)) => fill_shared(quiet, run.first),
            other => other,
        }
    }

    fn frames(
        &self,
        staging: &Staging,
        inbound: &mut Inbound,
        _run: usize,
        wanted: usize,
    ) -> Option<staging::Pages> {
        inbound.frames.pages(staging, wanted)
    }

    /// They are ready pages.
    unsafe fn came_as_copies(&self, _staging: &Staging, _slot: u32, _mask: u32) {}
}

/// Notes which pages of a block, if any, a move brought into `slot`.
fn note_staged(pages: &Pages, block: &BlockGuard<'_>, slot: u32, moved: u32) {
    if moved != 0 {
        pages.staging.arrived(slot, moved);
        pages.staging.set_owner(slot, block.base());
        block.change(moved, PageState::Kernel, PageState::Staged);
        pages.policy.evicted(block.history(), moved);
        block.set_slot(slot);
    }
}

/// Moves adjacent pages of a block into a slot; returns those that left, and where a shared one is
/// among the others.
fn move_run(
    pages: &Pages,
    quiet: &Quiet<'_>,
    block: &BlockGuard<'_>,
    slot: u32,
    first: usize,
    count: usize,
) -> (u32, Option<usize>) {
    let (mut at, end) = (first, first + count);
    let (mut moved, mut busy, mut heals) = (0, None, 0);
    while at < end {
        let progress = quiet.move_out(PageRun::new(at, end - at), pages.staging.frame(slot, at));
        let done = pages_in(progress.done);
        moved |= span(at, done);
        at += done;
        match progress.stop {
            None => {}
            Some(Stop::Again) if done > 0 => {}
            Some(Stop::Busy) => {
                // From where this call began.
                busy.get_or_insert(quiet.address(at - done));
                at += 1;
            }
            Some(Stop::Again) if pages.mover.is_changing() => break,
            Some(Stop::Hole | Stop::Again) => at += 1,
            Some(Stop::Exists) if heals < 2 => {
                heals += 1;
                // What did not move itself yet has its place where `at` is now.
                let (source, target) = (page_at(block.base(), at), pages.staging.address(slot, at));
                let arrived = pages.mover.arrived(target, source, end - at) as u32;
                moved |= arrived << at;
                // Anything else in the slot is the zero page of a late look at a page that had
                // left.
                let stray = pages.mover.mapped(target, end - at) as u32 & !arrived;
                for (first, count) in runs(stray) {
                    // SAFETY: a locked block's slot, or one taken for it, at places that no page
                    // came to.
                    unsafe { pages.staging.discard_stray(slot, at + first, count) };
                }
                at += arrived.trailing_ones() as usize;
            }
            Some(_) => {
                // Locked, read-only, executable, under a protection key: not to be moved.
                pages.accounts.add(Counter::Immovable, (end - at) as u64);
                block.refuse(span(at, end - at), now_ms());
                at = end;
            }
        }
    }
    (moved, busy)
}

/// Moves pages of zeroes in; returns how many, and what the kernel said when it was not all.
/// Nothing said means that there were no frames left.
fn move_zeroes(
    staging: &Staging,
    quiet: &Quiet<'_>,
    inbound: &mut Inbound,
    run: PageRun,
) -> (usize, Option<Stop>) {
    let mut done = 0;
    while done < run.count {
        let Some(pages) = inbound.frames.pages(staging, run.count - done) else { break };
        let source = staging.frame(pages.slot, pages.first);
        // SAFETY: the cached frames belong to this thread.
        unsafe { std::ptr::write_bytes(source.address() as *mut u8, 0, bytes_of(pages.count)) };
        let progress = quiet.move_in(PageRun::new(run.first + done, pages.count), source);
        let moved = pages_in(progress.done);
        inbound.frames.spend(staging, pages, moved);
        done += moved;
        if progress.stop.is_some() {
            return (done, progress.stop);
        }
    }
    (done, None)
}

/// Moves, or copies, the first page of a run that does not move as a whole.
fn place_one(quiet: &Quiet<'_>, run: PageRun, source: Frame) -> Placed {
    // The run may only have crossed a border between mappings.
    if run.count > 1 && quiet.move_in(run.one(), source).done == PAGE_SIZE {
        return Placed::Moved(1);
    }
    // Copying works under any protection.
    place_copies(quiet, run.one(), source.address())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pages::{Compressed, FaultedIn, Inbound};
    use crate::trial::{blocks, pager, read, write};
    use crate::units::BLOCK_PAGES;

    #[test]
    fn more_pages_of_a_block_join_those_that_wait() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        let mut spare = pages.staging.take_empty();
        assert!(pages.evict(&mut spare, base, 0x00ff, false) && spare.is_none());
        let (slot, other) = (pages.lock(base).slot(), pages.staging.take_empty());
        spare = other;
        pages.lock(base).set_compressing(true);
        assert!(!pages.evict(&mut spare, base, ALL_PAGES, false), "its slot is being read");
        pages.lock(base).set_compressing(false);
        assert!(pages.evict(&mut spare, base, 0x0fff, false));
        assert_eq!((spare, pages.lock(base).slot(), pages.staging.queued_slots()), (other, slot, 1));
        assert_eq!(pages.lock(base).mask(PageState::Staged), 0x0fff);

        // A page that comes back as a copy leaves its frame in the slot, and goes there once more.
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = Inbound::new(pager.own_page());
        assert_eq!(pages.fault_in_within(&block, &mut inbound, 3, true, 1), FaultedIn::Done(1));
        block.set_compressing(false);
        drop(block);
        write(base, 3, 77);
        assert!(pages.evict(&mut spare, base, ALL_PAGES, false));
        assert_eq!((spare, pages.lock(base).mask(PageState::Staged)), (other, ALL_PAGES));
        assert_eq!((pages.staging.pages(), pages.mover.mapped(base, BLOCK_PAGES)), (16, 0));
        let numbers = (0..BLOCK_PAGES).map(|page| read(pages.staging.address(slot, 0), page));
        assert!(numbers.enumerate().all(|(page, number)| number == if page == 3 { 77 } else { page + 1 }));
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        let block = pages.lock(base);
        assert_eq!(
            (block.mask(PageState::Stored), block.slot(), pages.staging.queued_slots()),
            (ALL_PAGES, NO_SLOT, 0)
        );
    }

    #[test]
    fn a_page_that_is_wanted_while_it_is_compressed_comes_back_as_a_copy() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        let mut spare = pages.staging.take_empty();
        assert!(pages.evict(&mut spare, base, ALL_PAGES, false));
        let block = pages.lock(base);
        block.set_compressing(true);
        let mut inbound = Inbound::new(pager.own_page());
        assert_eq!(pages.fault_in_within(&block, &mut inbound, 0, true, 4), FaultedIn::Done(4));
        write(base, 2, 99);
        // What the compressor reads is as it was.
        let slot = block.slot();
        assert_eq!(
            (0..4).map(|page| read(pages.staging.address(slot, 0), page)).collect::<Vec<_>>(),
            [1, 2, 3, 4]
        );
        assert_eq!(block.mask(PageState::Staged), 0xfff0);
        block.set_compressing(false);
        drop(block);
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.lock(base).mask(PageState::Stored), read(base, 2)), (0xfff0, 99));
    }

    #[test]
    fn frames_that_others_refer_to_are_given_back() {
        let Some(pager) = pager(false) else { return };
        let pages = pager.pages();
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        pager.stop_recycling();
        let mut spare = pages.staging.take_empty();
        assert!(pages.evict(&mut spare, base, ALL_PAGES, false));
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.staging.pages(), pages.staging.ready_pages()), (0, 0));
        let mut inbound = Inbound::new(pager.own_page());
        assert_eq!(pages.fault_in(&mut inbound, base, false, BLOCK_PAGES), FaultedIn::Done(BLOCK_PAGES));
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
