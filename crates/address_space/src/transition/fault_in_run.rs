//! Faulting in a whole run of blocks with one call.

use super::fault_in::decompress;
use crate::accounts::Counter;
use crate::address_space::{AddressSpace, GROUP};
use crate::space::block::{BlockGuard, PageState};
use crate::space::run::RunGuard;
use crate::units::{bytes_of, PageMask, PageNumber, PageRun, RunMask};
use crate::units::{BLOCK_PAGES, EXTENT_PAGES, EXTENT_SLOTS};

/// Shorter runs are brought in block by block.
const LONG_MIN: usize = 2 * BLOCK_PAGES;
/// Brings in up to `window` pages from `at` with one call, all stored or all untouched. Returns
/// their number, `None` if the first stays out. `fault_in_within` handles obstacles.
pub(crate) fn fault_in_run(
    memory: &AddressSpace,
    at: PageNumber,
    write: bool,
    window: usize,
    reads_disk: bool,
) -> Option<usize> {
    let first = memory.lock(at.block());
    let skipped = at.index();
    let state = first.state(skipped);
    let is_stored = state == PageState::Stored;
    if state == PageState::Staged || !is_stored && !write {
        return None;
    }
    let mut run = RunGuard::of(first);
    run.extend(&memory.space.table, (skipped + window).div_ceil(BLOCK_PAGES).min(EXTENT_SLOTS));
    let alike = run.mask_of(|other| other == state || !is_stored && other.is_kernels());
    let mut count = alike.counted_from(skipped).leading().min(window.min(EXTENT_PAGES));
    if is_stored && memory.store.swap_file().is_some() && !reads_disk {
        // Loading finds swapped pages further on.
        let on_disk = memory.store.on_disk(GROUP, at.key(), count.min(64));
        count = if on_disk == 0 { count } else { count.min(on_disk.trailing_zeros() as usize) };
    }
    if count < LONG_MIN {
        return None;
    }
    let extent = memory.staging.filling_extent()?;
    let source = memory.staging.frame(extent.first(), 0);
    let count = match is_stored {
        // SAFETY: the extent was taken for this, and has enough pages.
        true => unsafe { decompress(memory, at, source.address(), count, reads_disk) },
        false => {
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(source.address() as *mut u8, 0, bytes_of(count)) };
            count
        }
    };
    let Some(coherent) = memory.coherent(&run).filter(|_| count > 0) else {
        memory.staging.give_extent(extent);
        return None;
    };
    let places = PageRun::new(skipped, count);
    let progress = coherent.move_in(places, source);
    let arrived = match progress.stop {
        None => RunMask::first(count),
        Some(_) => coherent.arrived(places, source),
    };
    for (index, slot) in extent.numbers().enumerate() {
        memory.staging.left(slot, arrived.of_block(index));
    }
    for (index, block) in run.iter().enumerate() {
        let needed = PageMask::span(skipped, usize::from(index == 0));
        let here = arrived.counted_before(skipped).of_block(index);
        note_arrived(memory, block, here, needed, is_stored);
    }
    drop(coherent);
    drop(run);
    memory.staging.give_extent(extent);
    let count_as = if is_stored { Counter::ZswpIn } else { Counter::ZeroFilled };
    memory.accounts.add(count_as, arrived.count() as u64);
    if progress.stop.is_some() && !arrived.is_empty() {
        memory.space.mover.wake(at, count);
    }
    match arrived.leading() {
        0 => None,
        done => Some(done),
    }
}

/// Records the pages of `mask`, which were stored or are first touches, as in place.
fn note_arrived(
    memory: &AddressSpace,
    block: &BlockGuard<'_>,
    mask: PageMask,
    needed: PageMask,
    is_stored: bool,
) {
    if mask.is_empty() {
        return;
    }
    if !is_stored {
        memory.policy.touched(block.history(), mask.bits());
        block.change_kernels(mask, PageState::Kernel);
        return;
    }
    block.change(mask, PageState::Stored, PageState::Kernel);
    memory.note_returned(block.history(), mask, needed, true);
    for (page, count) in mask.runs() {
        memory.store.invalidate(GROUP, block.page(page).key(), count as u64);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::testing::{blocks, compress_all, evict, inbound, pages_with, pages_with_gap, read, register};
    use crate::transition::discard::mark_discarding;
    use crate::transition::fault_in::FaultedIn;
    use crate::units::{BlockNumber, BLOCK_BYTES};

    fn masks(pages: &AddressSpace, base: BlockNumber, state: PageState) -> [PageMask; EXTENT_SLOTS] {
        std::array::from_fn(|index| pages.lock(base + index).mask(state))
    }

    fn all_numbers(base: BlockNumber, pages: std::ops::Range<usize>) {
        for page in pages {
            assert_eq!(read(base, page), page + 1, "page {page}");
        }
    }

    #[test]
    fn an_extent_of_pages_goes_out_is_stored_and_comes_back_with_one_call_each() {
        let Some((pages, base)) = pages_with(16) else { return };
        let before = pages.staging.pages();
        assert!(pages.evict_extent(base));
        assert_eq!(pages.space.mover.mapped(base.address(), EXTENT_PAGES), RunMask::NONE);
        assert_eq!(masks(pages, base, PageState::Staged), [PageMask::ALL; 8]);
        assert_eq!(pages.staging.pages(), before + 128);
        assert!(!pages.evict_extent(base), "nothing is there");
        for _ in 0..8 {
            assert_eq!(pages.staging.ready_pages(), 0);
            pages.compress_oldest();
        }
        assert_eq!(masks(pages, base, PageState::Stored), [PageMask::ALL; 8]);
        assert_eq!((pages.staging.ready_pages(), pages.store.stored_pages()), (128, 128));
        assert!(pages.evict_extent(base + 8));
        compress_all(pages);
        // From the middle of a block, limited by eight blocks or by the window.
        assert_eq!(fault_in_run(pages, base.page(5), false, 64, true), Some(64));
        all_numbers(base, 5..69);
        assert_eq!(
            masks(pages, base, PageState::Stored),
            [0x1f, 0, 0, 0, 0xffe0, 0xffff, 0xffff, 0xffff].map(PageMask::from_bits)
        );
        assert_eq!(pages.store.stored_pages(), 192);
        assert_eq!(fault_in_run(pages, base.page(0), false, 128, true), None, "five pages are no long run");
        assert_eq!(fault_in_run(pages, base.page(69), true, 128, true), Some(123));
        assert_eq!(
            fault_in_run(pages, base.page(192), true, 128, true),
            Some(64),
            "up to the last stored page"
        );
        all_numbers(base, 5..256);
    }

    #[test]
    fn a_single_page_comes_in_by_a_move() {
        let Some((pages, base)) = pages_with(8) else { return };
        assert!(pages.evict_extent(base));
        compress_all(pages);
        let mut inbound = inbound();
        let frames = pages.staging.pages();
        assert_eq!(pages.fault_in(&mut inbound, base.page(3), false, 1), FaultedIn::Done(1));
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
            pages.staging.discard(&slot);
            pages.staging.give(slot);
        }
        assert_eq!(pages.staging.pages(), 0);
        assert_eq!(pages.fault_in(&mut inbound, base.page(70), true, 1), FaultedIn::Done(1));
        assert_eq!((inbound.copied, pages.staging.pages()), (0, 0), "in a frame made for it");
        all_numbers(base, 3..4);
        all_numbers(base, 70..71);
        assert_eq!(pages.store.stored_pages(), 126);
    }

    #[test]
    fn first_touches_are_brought_up_to_the_next_present_page() {
        let Some((pages, base)) = pages_with_gap(8, 1..51) else { return };
        assert_eq!(fault_in_run(pages, base.page(1), false, 128, true), None, "reading takes no memory");
        assert_eq!(fault_in_run(pages, base.page(0), true, 128, true), None, "the page is there");
        assert_eq!(fault_in_run(pages, base.page(1), true, 128, true), Some(50));
        assert!((1..51).all(|page| read(base, page) == 0));
        all_numbers(base, 51..128);
        assert_eq!(masks(pages, base, PageState::Kernel), [PageMask::ALL; 8]);
        assert_eq!(pages.staging.pages(), 78, "the rest of the extent");
    }

    #[test]
    fn frames_that_lie_scattered_are_given_up_for_a_run() {
        let Some((pages, base)) = pages_with_gap(40, 512..640) else { return };
        for block in 0..32 {
            evict(pages, base + block, PageMask::ALL);
        }
        let fresh = base + 32;
        assert_eq!(fault_in_run(pages, fresh.page(0), true, 128, true), None, "all wait to be compressed");
        compress_all(pages);
        assert!(pages.staging.ready_extents() == 0 && !pages.staging.has_room_for_extent());
        assert_eq!(fault_in_run(pages, fresh.page(0), true, 128, true), Some(128));
        assert_eq!((pages.staging.pages(), pages.staging.ready_pages()), (384, 384));
    }

    #[test]
    fn blocks_that_are_not_whole_or_are_held_are_left_to_others() {
        let Some((pages, base)) = pages_with(16) else { return };
        let third = pages.lock(base + 2);
        assert!(!pages.evict_extent(base), "another thread holds a block");
        drop(third);
        assert!(pages.evict_extent(base));
        assert!(pages.space.table.try_lock(base + 2).is_some(), "and lets go of all");
        let half = base + 8;
        mark_discarding(pages, (half + 7).address(), (half + 8).address());
        assert!(!pages.evict_extent(half), "a discard is on its way");
        assert_eq!(pages.space.mover.mapped(half.address(), EXTENT_PAGES), RunMask::ALL);
        // The kernel moves nothing across the border of two mappings.
        let other = blocks(16);
        register(pages, other, 16);
        let reading = libc::PROT_READ;
        // SAFETY: this test's mapping.
        unsafe { libc::mprotect((other + 2).address() as *mut _, BLOCK_BYTES, reading) };
        assert!(!pages.evict_extent(other));
        assert_eq!(masks(pages, other, PageState::Kernel), [PageMask::ALL; 8]);
        all_numbers(other, 0..256);
    }

    #[test]
    fn holes_stay_holes_and_the_rest_goes() {
        let Some((pages, base)) = pages_with_gap(8, 20..21) else { return };
        assert!(pages.evict_extent(base));
        let staged = masks(pages, base, PageState::Staged);
        assert_eq!((staged[0], staged[1].run_at(0)), (PageMask::ALL, 4), "what lies before the hole went");
        assert_eq!(pages.staging.pages(), staged.iter().map(|mask| mask.count()).sum::<usize>());
        compress_all(pages);
        assert_eq!(masks(pages, base, PageState::Staged), [PageMask::NONE; 8]);
    }
}
