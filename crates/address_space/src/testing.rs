//! Shared by the tests of several files and crates: memory for an address space, and its moves.

use std::ops::Range;

use sys::PAGE_SIZE;

use crate::address_space::{AddressSpace, Bell};
use crate::transition::inbound::Inbound;
use crate::units::{bytes_of, BlockNumber, PageMask, PageNumber, BLOCK_BYTES, BLOCK_PAGES};

pub use crate::accounts::Plenty;
pub use crate::tracker::simulated::Simulated;
#[cfg(test)]
pub use own::*;

/// Aligned blocks that are never unmapped. Each page begins with its number.
pub fn blocks(count: usize) -> BlockNumber {
    let at = sys::memory::map((count + 1) * BLOCK_BYTES).unwrap().as_ptr() as usize;
    let base = BlockNumber::of(at.next_multiple_of(BLOCK_BYTES));
    for page in 0..count * BLOCK_PAGES {
        write(base, page, page + 1);
    }
    base
}

/// The bytes of blocks.
pub fn range_of(base: BlockNumber, count: usize) -> Range<usize> {
    base.address()..(base + count).address()
}

/// Makes pages of a test's mapping missing.
pub fn drop_pages(at: PageNumber, count: usize) {
    if let Some(at) = std::ptr::NonNull::new(at.address() as *mut u8).filter(|_| count > 0) {
        // SAFETY: tests pass their own mappings.
        unsafe { sys::memory::discard(at, bytes_of(count)) };
    }
}

/// Fills pages of a test's mapping with noise, which does not compress.
pub fn noise(at: PageNumber, pages: usize) {
    let mut word = 88_172_645_463_325_252usize;
    for index in 0..bytes_of(pages) / 8 {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        // SAFETY: tests pass their own mappings.
        unsafe { (at.address() as *mut usize).add(index).write_volatile(word) };
    }
}

/// Moves pages of a block out, into the block's slot or one of its own.
pub fn evict(pages: &AddressSpace, base: BlockNumber, mask: PageMask) {
    let mut spare = pages.staging.take_empty();
    assert!(pages.evict(&mut spare, base, mask, false));
    spare.into_iter().for_each(|slot| pages.staging.give(slot));
}

/// A bell that nothing hears.
pub fn bell() -> Bell {
    Bell(sys::memory::map(PAGE_SIZE).unwrap().as_ptr() as usize)
}

/// Compresses every queued slot.
pub fn compress_all(pages: &AddressSpace) {
    while pages.staging.queued_slots() > 0 {
        pages.compress_oldest();
    }
}

/// The resources of a thread that brings pages in.
pub fn inbound() -> Inbound {
    Inbound::new(sys::arena::take(PAGE_SIZE, PAGE_SIZE).unwrap().as_ptr() as usize)
}

/// Writes a page's first word.
pub fn write(base: BlockNumber, page: usize, value: usize) {
    // SAFETY: tests pass pages of their own mappings.
    unsafe { (base.page(page).address() as *mut usize).write_volatile(value) };
}

/// Reads a page's first word.
pub fn read(base: BlockNumber, page: usize) -> usize {
    // SAFETY: as above.
    unsafe { (base.page(page).address() as *const usize).read_volatile() }
}

#[cfg(test)]
mod own {
    use sys::userfaultfd::feature;

    use super::*;
    use crate::accounts::Accounts;
    use crate::address_space::{Registered, Settings};
    use crate::errors::StartError;
    use crate::staging::discard_window::DiscardWindow;
    use crate::staging::Staging;
    use crate::sync::Userfaultfd;

    /// An address space, and registered blocks ([`blocks`]). `None` if the process may not have
    /// one.
    pub fn pages_with(count: usize) -> Option<(&'static AddressSpace, BlockNumber)> {
        pages_with_gap(count, 0..0)
    }

    /// The same, where some pages are missing.
    pub fn pages_with_gap(count: usize, gap: Range<usize>) -> Option<(&'static AddressSpace, BlockNumber)> {
        let (pages, base) = (pages_storing(Settings::store_for_tests(), &Plenty)?, blocks(count));
        drop_pages(base.page(gap.start), gap.len());
        register(pages, base, count);
        Some((pages, base))
    }

    /// The slot of a block, as a block of its own.
    pub fn slot(pages: &AddressSpace, block: BlockNumber) -> BlockNumber {
        BlockNumber::of(pages.staging.address(pages.lock(block).staged_slot(), 0))
    }

    /// Registers blocks.
    pub fn register(pages: &AddressSpace, base: BlockNumber, count: usize) {
        assert_eq!(pages.register(range_of(base, count)), Registered::Done);
    }

    /// An address space with this store and these accounts. `None` as for [`pages_with`].
    pub fn pages_storing(
        store: zswap::Zswap,
        accounts: &'static dyn Accounts,
    ) -> Option<&'static AddressSpace> {
        match AddressSpace::new(&Settings::for_tests(512), store, accounts) {
            Ok((pages, _)) => Some(Box::leak(Box::new(pages))),
            Err(error) => {
                testkit::skip!("userfaultfd", "{error}");
                None
            }
        }
    }

    /// Staging alone. `None` as for [`pages_with`].
    pub fn staging(pages_max: usize) -> Option<Staging> {
        let window = Userfaultfd::open(feature::MOVING)
            .map_err(StartError::from)
            .and_then(|program| DiscardWindow::new(program, false));
        match window {
            Ok(window) => Some(Staging::new(pages_max, window).unwrap()),
            Err(error) => {
                testkit::skip!("userfaultfd", "{error}");
                None
            }
        }
    }
}
