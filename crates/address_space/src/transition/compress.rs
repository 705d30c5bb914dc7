//! From staging into the pool: the oldest slots are compressed together, and their frames become
//! ready.
//!
//! No block's lock is held while its slot is compressed. The block is marked, so the slot does not
//! change: faults copy pages out of it, and no page joins. If a page is no longer staged at the
//! end, its object is dropped.

use sys::PAGE_SIZE;

use super::place::{place, Placed};
use crate::accounts::Counter;
use crate::address_space::{now_ms, AddressSpace, GROUP};
use crate::space::block::{BlockGuard, PageState};
use crate::staging::slot::QueuedSlot;
use crate::units::{BlockNumber, PageMask, PageRun, SlotNumber, BLOCK_PAGES};

/// The outcome of compressing the oldest slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressed {
    /// Pages are stored, or were no longer needed.
    Stored,
    /// The pool refused all pages, and they are back in place.
    Refused,
    /// The pool refused all pages, but an event prevents their return: they stay queued.
    Blocked,
    /// No slot waited.
    Nothing,
}

impl Compressed {
    fn and(self, other: Compressed) -> Compressed {
        use Compressed::{Blocked, Nothing, Refused, Stored};
        match (self, other) {
            (Stored, _) | (_, Stored) => Stored,
            (Refused, _) | (_, Refused) => Refused,
            (Blocked, _) | (_, Blocked) => Blocked,
            (Nothing, Nothing) => Nothing,
        }
    }
}

/// Most pages of a batch: two requests to a compressor, or a full block. So compressing to make
/// room takes a handler no longer than one full block.
const BATCH_PAGES: usize = BLOCK_PAGES;

/// A block that is marked as being compressed.
struct Taken {
    block: BlockNumber,
    slot: QueuedSlot,
    staged: PageMask,
    /// Those of `staged` that the pool has accepted.
    stored: PageMask,
}

impl AddressSpace {
    /// Compresses the oldest slots. A heap used at random loses one or two pages of a block at a
    /// time, so slots are taken until a batch is full.
    pub fn compress_oldest(&self) -> Compressed {
        let mut batch = [const { None::<Taken> }; BATCH_PAGES];
        let (mut len, mut pages, mut outcome) = (0, 0, Compressed::Nothing);
        while pages < BATCH_PAGES {
            let Some(slot) = self.staging.oldest_of(BATCH_PAGES - pages) else { break };
            match begin_compressing(self, slot) {
                None => outcome = Compressed::Stored,
                Some(taken) => {
                    pages += taken.staged.count();
                    batch[len] = Some(taken);
                    len += 1;
                }
            }
        }
        // The pool takes keys in ascending order.
        batch[..len].sort_unstable_by_key(|taken| taken.as_ref().map(|taken| taken.block));
        store_batch(self, &mut batch[..len]);
        for taken in batch.into_iter().flatten() {
            outcome = outcome.and(finish_compressing(self, taken));
        }
        outcome
    }
}

/// Marks a slot's block as being compressed. Returns `None` if no page of the slot is needed.
fn begin_compressing(memory: &AddressSpace, slot: QueuedSlot) -> Option<Taken> {
    let number = slot.number();
    let block = memory.lock(memory.staging.owner(number));
    let staged = if block.slot() == Some(number) { block.mask(PageState::Staged) } else { PageMask::NONE };
    if staged.is_empty() {
        if block.slot() == Some(number) {
            block.set_slot(None);
        }
        drop(block);
        memory.staging.release(slot);
        return None;
    }
    block.set_compressing(true);
    Some(Taken { block: block.number(), slot, staged, stored: PageMask::NONE })
}

fn finish_compressing(memory: &AddressSpace, taken: Taken) -> Compressed {
    let Taken { block: number, slot, staged, stored } = taken;
    let block = memory.lock(number);
    let kept = block.mask(PageState::Staged) & staged;
    for (first, count) in (stored & !kept).runs() {
        memory.store.invalidate(GROUP, block.page(first).key(), count as u64);
    }
    block.change(stored & kept, PageState::Staged, PageState::Stored);
    memory.accounts.add(Counter::ZswpOut, (stored & kept).count() as u64);
    block.set_compressing(false);
    let refused = kept & !stored;
    let is_empty = refused.is_empty() || put_back(memory, &block, slot.number(), refused);
    block.drop_slot_if_unused();
    drop(block);
    match is_empty {
        true => memory.staging.release(slot),
        false => memory.staging.queue(slot, number),
    }
    match (is_empty, (stored & kept).is_empty()) {
        (false, true) => Compressed::Blocked,
        (true, true) if !refused.is_empty() => Compressed::Refused,
        _ => Compressed::Stored,
    }
}

/// Stores staged pages in the fewest possible requests. Refused pages do not affect others.
fn store_batch(memory: &AddressSpace, batch: &mut [Option<Taken>]) {
    let page = |slot: SlotNumber, index: usize| {
        // SAFETY: a page of the slot, which does not change while the block is marked.
        unsafe { &*(memory.staging.address(slot, index) as *const [u8; PAGE_SIZE]) }
    };
    let Some(Some(first)) = batch.first() else { return };
    // Slots may have gained pages since they were chosen.
    let mut pages = [(0, page(first.slot.number(), 0)); BATCH_PAGES + BLOCK_PAGES];
    let mut len = 0;
    for taken in batch.iter().flatten() {
        for index in taken.staged.pages() {
            pages[len] = (taken.block.page(index).key(), page(taken.slot.number(), index));
            len += 1;
        }
    }
    let Ok(refused) = memory.store.store_scattered(GROUP, &pages[..len], 1) else {
        memory.accounts.add(Counter::RejectAllocFail, len as u64);
        return;
    };
    for (counter, pages) in [
        (Counter::RejectCompressPoor, refused.poor),
        (Counter::RejectCompressFail, refused.failed),
        (Counter::RejectAllocFail, refused.pages & !(refused.poor | refused.failed)),
    ] {
        memory.accounts.add(counter, pages.count_ones().into());
    }
    let mut n = 0;
    for taken in batch.iter_mut().flatten() {
        for index in taken.staged.pages() {
            if refused.pages >> n & 1 == 0 {
                taken.stored |= PageMask::span(index, 1);
            }
            n += 1;
        }
    }
}

/// Returns refused pages to the program and skips them. Returns false if an event prevents it.
fn put_back(memory: &AddressSpace, block: &BlockGuard<'_>, slot: SlotNumber, mask: PageMask) -> bool {
    block.refuse(mask, now_ms());
    let Some(coherent) = memory.coherent(block) else { return false };
    for index in mask.pages() {
        let page = PageMask::span(index, 1);
        // A page shared with a relative is copied, and its frame stays in the slot.
        match place(&coherent, PageRun::new(index, 1), memory.staging.frame(slot, index)) {
            Placed::Moved(_) => memory.staging.left(slot, page),
            Placed::Copied(_) | Placed::Gone => {}
            Placed::Again | Placed::NoMemory => return false,
        }
        block.change(page, PageState::Staged, PageState::Kernel);
        memory.note_returned(block.history(), page, PageMask::NONE, false);
    }
    true
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;

    use acomp::{Algorithm, Context, ContextError, Software, UnitCodec, UnitError, UnitResult};

    use super::*;
    use crate::accounts::Accounts;
    use crate::testing::{blocks, evict, inbound, noise, pages_storing, pages_with, read, register, write};
    use crate::transition::fault_in::FaultedIn;

    /// Queues one page of each block.
    fn queue(pages: &AddressSpace, base: BlockNumber, numbers: impl Iterator<Item = usize>) {
        numbers.for_each(|number| evict(pages, base + number, PageMask::span(number % BLOCK_PAGES, 1)));
    }

    #[test]
    fn single_pages_of_many_blocks_go_together() {
        let Some((pages, base)) = pages_with(20) else { return };
        queue(pages, base, (0..20).rev());
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.staging.queued_slots(), pages.store.stored_pages()), (4, 16));
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!(pages.compress_oldest(), Compressed::Nothing);
        let mut inbound = inbound();
        for number in 0..20 {
            assert_eq!(
                pages.lock(base + number).mask(PageState::Stored),
                PageMask::span(number % BLOCK_PAGES, 1)
            );
            let page = (base + number).page(number % BLOCK_PAGES);
            assert_eq!(pages.fault_in(&mut inbound, page, false, 1), FaultedIn::Done(1));
        }
        assert!((0..20 * BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }

    #[test]
    fn a_block_that_was_wanted_and_one_that_is_refused_leave_the_batch_to_the_others() {
        let Some((pages, base)) = pages_with(3) else { return };
        noise(base.page(BLOCK_PAGES + 1), 1);
        let first = read(base, BLOCK_PAGES + 1);
        queue(pages, base, 0..3);
        let mut inbound = inbound();
        assert_eq!(pages.fault_in(&mut inbound, base.page(0), true, 1), FaultedIn::Done(1));
        write(base, 0, 77);
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((pages.staging.queued_slots(), pages.store.stored_pages()), (0, 1));
        let kernels = [0, 1, 2].map(|number| pages.lock(base + number).mask(PageState::Kernel));
        assert_eq!(kernels, [PageMask::ALL, PageMask::ALL, PageMask::ALL & !PageMask::span(2, 1)]);
        assert_eq!((read(base, 0), read(base, BLOCK_PAGES + 1)), (77, first));
    }

    #[test]
    fn a_full_block_is_a_batch_of_its_own() {
        let Some((pages, base)) = pages_with(2) else { return };
        queue(pages, base, 0..1);
        evict(pages, base + 1, PageMask::ALL);
        for left in [1, 0] {
            assert_eq!((pages.compress_oldest(), pages.staging.queued_slots()), (Compressed::Stored, left));
        }
    }

    /// Compresses pages to their first words. It fails on a page that begins with 2, and one that
    /// begins with 3 does not shrink.
    struct Moody;

    impl Algorithm for Moody {
        fn name(&self) -> &str {
            "moody"
        }

        fn context(&self) -> Result<Box<dyn Context>, ContextError> {
            Ok(Box::new(Software::new(Moody)))
        }
    }

    impl UnitCodec for Moody {
        fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
            match unit[0] {
                2 => Err(UnitError::Failed),
                3 => Err(UnitError::NoSpace),
                _ => {
                    output[..8].copy_from_slice(&unit[..8]);
                    Ok(8)
                }
            }
        }

        fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
            output.fill(0);
            output[..8].copy_from_slice(object);
            Ok(())
        }
    }

    /// The rejects, in the order of [`REJECTS`].
    struct Counted([AtomicU64; 3]);

    const REJECTS: [Counter; 3] =
        [Counter::RejectCompressPoor, Counter::RejectCompressFail, Counter::RejectAllocFail];

    impl Accounts for Counted {
        fn budget(&self) -> u64 {
            1 << 40
        }
        fn total(&self) -> u64 {
            0
        }
        fn publish(&self, _: u64, _: u64, _: u64, _: u64) {}
        fn add(&self, counter: Counter, by: u64) {
            if let Some(at) = REJECTS.iter().position(|reject| *reject == counter) {
                self.0[at].fetch_add(by, Ordering::Relaxed);
            }
        }
        fn fault(&self, _: u64) {}
        fn say(&self, text: &str) {
            eprintln!("{text}");
        }
    }

    #[test]
    fn each_reason_to_refuse_a_page_has_its_counter() {
        let accounts = &*Box::leak(Box::new(Counted(Default::default())));
        let config = zswap::Config { max_groups: crate::address_space::GROUPS, ..Default::default() };
        let store = zswap::Zswap::new(config, Arc::new(Moody)).unwrap();
        let base = blocks(1);
        let Some(pages) = pages_storing(store, accounts) else { return };
        register(pages, base, 1);
        let rejects = || accounts.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        evict(pages, base, PageMask::span(0, 4));
        assert_eq!(pages.compress_oldest(), Compressed::Stored);
        assert_eq!((rejects(), pages.store.stored_pages()), ([1, 1, 0], 2));
        evict(pages, base, PageMask::span(5, 3));
        pages.store.fail_objects_after(Some(0));
        assert_eq!(pages.compress_oldest(), Compressed::Refused);
        assert_eq!((rejects(), pages.store.stored_pages()), ([1, 1, 3], 2));
        assert!((1..3).chain(5..8).all(|page| read(base, page) == page + 1));
    }
}
