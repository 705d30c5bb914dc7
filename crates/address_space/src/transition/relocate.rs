//! mremap(): out pages follow their mapping.
//!
//! The kernel moves mapped pages before it reports. Staged and stored pages are taken out of the
//! blocks of the old range and stored under their new addresses. Nothing is placed in the program's
//! memory here: events read later may already have discarded or moved the new range, and only the
//! table can follow them. So incompressible pages are kept in the pool uncompressed.
//!
//! Source and target may share a block, at any alignment. So the pages of one block are taken out
//! and its lock is released before the target's is taken. No thread sees the pages in between,
//! because every fault waits until this event has been applied.
//!
//! Swapped pages enter the pool this way, and return to the file under their new addresses before
//! the pool exceeds the budget: a program may move more than its memory.

use sys::PAGE_SIZE;
use zswap::{Group, Keep, Zswap};

use super::reorder::take_displaced;
use crate::accounts::Accounts;
use crate::address_space::{AddressSpace, GROUP};
use crate::space::block::PageState;
use crate::staging::refs::{ArenaPages, PageRefs};
use crate::units::{BlockNumber, PageMask, PageNumber, BLOCK_PAGES};

/// Growth of the pool after which the budget is checked.
const GROWTH_BYTES: u64 = 1 << 20;

pub(crate) type Transit = ArenaPages<BLOCK_PAGES>;

/// Moves out pages along with an mremap(). `group` is the program's, or the displaced pages'.
pub(crate) fn relocate(memory: &AddressSpace, group: Group, from: usize, to: usize, len: usize) {
    let mut transit = memory.reorder.transit.lock().expect("no panic while held");
    // The out pages at the target belonged to another mapping.
    memory.discard(to, to + len);
    // The kernel ensures that the ranges do not overlap, but their blocks can. The blocks of
    // the few displaced pages may have no record.
    let mut all = BlockNumber::all_of(from, from + len);
    let mut known = memory.space.table.known(from, from + len);
    let mut pool = memory.store.pool_bytes();
    while let Some(block) = if group == GROUP { known.next() } else { all.next() } {
        let mask = PageMask::within(block, from, from + len);
        let taken = match group == GROUP {
            true => take_out(memory, block, mask, transit.pages()),
            false => take_displaced(memory, block, mask, transit.pages()),
        };
        for (first, count) in taken.runs() {
            let at = PageNumber::of(to) + (block.page(first) - PageNumber::of(from));
            keep_at(memory, at, &transit.pages()[first..first + count]);
        }
        keep_pool_near(&memory.store, memory.accounts, &mut pool);
    }
}

/// Shrinks the pool to `pool` bytes if it grew beyond the budget. Waits for the disk only.
fn keep_pool_near(store: &Zswap, accounts: &dyn Accounts, pool: &mut u64) {
    let grown = store.pool_bytes().saturating_sub(*pool);
    if store.swap_file().is_none() || grown < GROWTH_BYTES {
        return;
    }
    if accounts.total() + grown > accounts.budget() && !store.shrink(*pool).reached {
        // No room, or the disk fails: do not retry for each block.
        *pool += grown;
    }
}

/// Takes the out pages of `mask` from a block, whose record forgets them. Returns which they are.
fn take_out(
    memory: &AddressSpace,
    at: BlockNumber,
    mask: PageMask,
    pages: &mut [[u8; PAGE_SIZE]; BLOCK_PAGES],
) -> PageMask {
    // A compression that ended later would drop the new objects by these keys.
    let block = memory.lock_settled(at);
    block.forget_refused(mask);
    let staged = block.mask(PageState::Staged) & mask;
    for index in staged.pages() {
        // SAFETY: staged pages stay while their block's lock is held.
        pages[index] =
            unsafe { *(memory.staging.address(block.staged_slot(), index) as *const [u8; PAGE_SIZE]) };
    }
    block.change(staged, PageState::Staged, PageState::Kernel);
    block.drop_slot_if_unused();
    let stored = block.mask(PageState::Stored) & mask;
    for (first, count) in stored.runs() {
        let mut refs = PageRefs::new();
        pages[first..first + count].iter_mut().for_each(|page| refs.push(page));
        if let Err(error) =
            memory.store.load(GROUP, at.page(first).key(), refs.as_mut_slice(), Keep::Exclusive)
        {
            memory.fatal(format_args!("a page from {at:?} on could not follow mremap: {error}"));
        }
    }
    block.change(stored, PageState::Stored, PageState::Kernel);
    let kernels = block.mask_of(PageState::is_kernels) & mask;
    block.change_kernels(kernels, PageState::Kernel);
    staged | stored
}

fn keep_at(memory: &AddressSpace, at: PageNumber, pages: &[[u8; PAGE_SIZE]]) {
    let mut at = at;
    let mut rest = pages;
    while !rest.is_empty() {
        let first = at.index();
        let (now, later) = rest.split_at(rest.len().min(BLOCK_PAGES - first));
        let block = memory.lock_settled(at.block());
        let mask = PageMask::span(first, now.len());
        assert_eq!(block.mask_of(PageState::is_kernels) & mask, mask, "pages out where others moved to");
        let refs: [&[u8; PAGE_SIZE]; BLOCK_PAGES] =
            std::array::from_fn(|index| &now[index.min(now.len() - 1)]);
        if let Err(error) = memory.store.store_any(GROUP, at.key(), &refs[..now.len()]) {
            memory.fatal(format_args!("pages at {at:?} could not follow mremap: {error}"));
        }
        block.change_kernels(mask, PageState::Stored);
        drop(block);
        at += now.len();
        rest = later;
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::testing::{compress_all, evict, inbound, noise, pages_with, read, write};
    use crate::transition::fault_in::FaultedIn;
    use crate::transition::reorder::{apply, settle};
    use crate::units::{bytes_of, PageRun, BLOCK_BYTES};
    use sys::userfaultfd::Message;

    /// Evicts a block, half of it into the pool.
    fn out(pages: &AddressSpace, base: BlockNumber) {
        evict(pages, base, PageMask::span(0, 8));
        pages.compress_oldest();
        evict(pages, base, PageMask::span(8, 8));
    }

    #[test]
    fn pages_follow_within_a_block_and_across_blocks() {
        let Some((pages, base)) = pages_with(4) else { return };
        // Regression: if source and target shared a block, its lock was taken twice.
        for (from, to, count) in [(0, 8, 4), (2, 7, 5), (4, 40, 12), (0, 21, 16)] {
            out(pages, base);
            let address = |page| base.page(page).address();
            pages.discard(address(to), address(to + count));
            relocate(pages, GROUP, address(from), address(to), bytes_of(count));
            let mut page = [0u8; PAGE_SIZE];
            for index in 0..count {
                assert!(pages.read_out(base.page(to + index), &mut page));
                assert_eq!(usize::from_ne_bytes(page[..8].try_into().unwrap()), from + index + 1);
            }
            // Bring the rest in, and drop records of moved pages: here no page has moved.
            pages.discard(address(to), address(to + count));
            let mut inbound = inbound();
            pages.fault_in_block(&mut inbound, base);
            for page in 0..BLOCK_PAGES {
                let at = base.page(page);
                assert!(matches!(pages.fault_in(&mut inbound, at, true, 1), FaultedIn::Done(_)));
            }
            inbound.frames.empty_out(&pages.staging);
            compress_all(pages);
            assert_eq!(pages.pages_out(), 0);
            (0..BLOCK_PAGES).for_each(|page| write(base, page, page + 1));
        }
    }

    #[test]
    fn pages_that_do_not_compress_follow_too() {
        let Some((pages, base)) = pages_with(2) else { return };
        noise(base.page(0), BLOCK_PAGES);
        let first = read(base, 5);
        evict(pages, base, PageMask::ALL);
        // The target is missing as after mremap().
        let slot = pages.staging.take_empty().unwrap();
        let block = pages.lock(base + 1);
        let coherent = pages.coherent(&block).unwrap();
        let frame = pages.staging.frame(slot.number(), 0);
        assert!(coherent.move_out(PageRun::new(0, BLOCK_PAGES), frame).stop.is_none());
        drop(coherent);
        drop(block);
        relocate(pages, GROUP, base.address(), base.end(), BLOCK_BYTES);
        let mut inbound = inbound();
        assert_eq!(
            pages.fault_in(&mut inbound, (base + 1).page(0), false, BLOCK_PAGES),
            FaultedIn::Done(BLOCK_PAGES)
        );
        assert_eq!(read(base + 1, 5), first);
    }

    /// Regression: one thread's munmap() and another's mremap() to the same place were reported in
    /// reverse order. The moved pages were discarded and read as zeroes.
    #[test]
    fn a_late_report_does_not_discard_newer_pages() {
        let Some((pages, base)) = pages_with(2) else { return };
        out(pages, base);
        let (from, to) = (base.address(), base.end());
        apply(pages, Message::Remap { from, to, len: BLOCK_BYTES });
        assert!(pages.space.events.is_unsettled(), "there are other threads");
        let block = pages.lock(base + 1);
        assert!(pages.coherent(&block).is_none(), "nothing moves until the order is known");
        drop(block);
        apply(pages, Message::Unmap { start: to, end: to + BLOCK_BYTES });
        // The target is still registered, so the report was about the older mapping.
        settle(pages);
        assert!(!pages.space.events.is_unsettled());
        assert_eq!(pages.lock(base + 1).mask_of(|state| !state.is_kernels()), PageMask::ALL);
        apply(pages, Message::Unmap { start: to, end: to + BLOCK_BYTES });
        assert_eq!(pages.pages_out(), 0);
    }

    #[test]
    fn pages_out_at_the_target_follow_a_late_report() {
        let Some((pages, base)) = pages_with(3) else { return };
        out(pages, base);
        out(pages, base + 1);
        let [x, f, t] = [0, 1, 2].map(|block| (base + block).address());
        // f moved to t, then x to f. The reports come in reverse order.
        apply(pages, Message::Remap { from: x, to: f, len: BLOCK_BYTES });
        apply(pages, Message::Remap { from: f, to: t, len: BLOCK_BYTES });
        settle(pages);
        let mut page = [0u8; PAGE_SIZE];
        for (at, first) in [(f, 1), (t, 17)] {
            for index in 0..BLOCK_PAGES {
                assert!(pages.read_out(PageNumber::of(at) + index, &mut page));
                assert_eq!(usize::from_ne_bytes(page[..8].try_into().unwrap()), first + index);
            }
        }
        assert_eq!(pages.pages_out(), 32);
    }
}
