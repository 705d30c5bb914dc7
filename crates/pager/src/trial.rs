//! Shared by the tests of several files: a pager, and memory for it.

use std::ops::Range;

use sys::userfaultfd::feature;
use sys::PAGE_SIZE;

use crate::accounts::{Accounts, Plenty};
use crate::config::{Config, StartError};
use crate::pager::Pager;
use crate::pages::{DiscardWindow, Inbound, Pages, Staging};
use crate::sync::Userfaultfd;
use crate::tracker::simulated::Simulated;
use crate::tracker::AccessTracker;
use crate::units::{bytes_of, page_at, BLOCK_BYTES, BLOCK_PAGES};

/// A pager without registrations and threads. `None` if this process may not have one.
pub(crate) fn pager() -> Option<&'static Pager> {
    make(None, None)
}

/// A pager, and registered blocks ([`blocks`]).
pub(crate) fn pager_with(count: usize) -> Option<(&'static Pager, usize)> {
    pager_with_gap(count, 0..0)
}

/// The same, where some pages are missing.
pub(crate) fn pager_with_gap(count: usize, gap: Range<usize>) -> Option<(&'static Pager, usize)> {
    let (pager, base) = (pager()?, blocks(count));
    drop_pages(page_at(base, gap.start), bytes_of(gap.len()));
    pager.register(base..base + count * BLOCK_BYTES);
    Some((pager, base))
}

/// As [`pager_with`], for tests of pages.
pub(crate) fn pages_with(count: usize) -> Option<(&'static Pages, usize)> {
    pager_with(count).map(|(pager, base)| (pager.pages(), base))
}

/// A pager of blocks ([`blocks`]) that are not registered, and of no other memory: tests that
/// refresh mappings must not find other tests'.
pub(crate) fn pager_of(count: usize) -> Option<(&'static Pager, usize)> {
    let base = blocks(count);
    Some((make(Some(base..base + count * BLOCK_BYTES), None)?, base))
}

/// The same with registered blocks, whose uses the test reports.
pub(crate) fn tracked_pager(count: usize) -> Option<(&'static Pager, usize, &'static Simulated)> {
    let (base, simulated) = (blocks(count), &*Box::leak(Box::new(Simulated::new())));
    let pager = make(Some(base..base + count * BLOCK_BYTES), Some(Box::new(simulated)))?;
    pager.refresh_mappings();
    Some((pager, base, simulated))
}

fn make(only: Option<Range<usize>>, tracker: Option<Box<dyn AccessTracker>>) -> Option<&'static Pager> {
    let config = Config { only, ..Config::for_tests(512) };
    let pager = pager_storing(config, Config::store_for_tests(), &Plenty)?;
    if let Some(tracker) = tracker {
        pager.track_by(tracker);
    }
    Some(pager)
}

/// A pager with this store and these accounts. `None` as for [`pager`].
pub(crate) fn pager_storing(
    config: Config,
    store: zswap::Zswap,
    accounts: &'static dyn Accounts,
) -> Option<&'static mut Pager> {
    match Pager::new(config, store, accounts) {
        Ok(pager) => Some(Box::leak(Box::new(pager))),
        Err(error) => {
            testkit::skip!("userfaultfd", "{error}");
            None
        }
    }
}

/// Staging without a pager. `None` as for [`pager`].
pub(crate) fn staging(pages_max: usize) -> Option<Staging> {
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

/// Aligned blocks that are never unmapped. Each page begins with its number.
pub(crate) fn blocks(count: usize) -> usize {
    let at = sys::memory::map((count + 1) * BLOCK_BYTES).unwrap().as_ptr() as usize;
    let base = at.next_multiple_of(BLOCK_BYTES);
    for page in 0..count * BLOCK_PAGES {
        write(base, page, page + 1);
    }
    base
}

/// Makes pages of a test's mapping missing.
pub(crate) fn drop_pages(at: usize, len: usize) {
    // SAFETY: tests pass their own mappings.
    unsafe { libc::madvise(at as *mut _, len, libc::MADV_DONTNEED) };
}

/// Fills pages of a test's mapping with what does not compress.
pub(crate) fn noise(at: usize, pages: usize) {
    let mut word = 88_172_645_463_325_252usize;
    for index in 0..bytes_of(pages) / 8 {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        // SAFETY: tests pass their own mappings.
        unsafe { (at as *mut usize).add(index).write_volatile(word) };
    }
}

/// Moves pages of a block out, into the block's slot or one of its own.
pub(crate) fn evict(pages: &Pages, base: usize, mask: u32) {
    let mut spare = pages.staging.take_empty();
    assert!(pages.evict(&mut spare, base, mask, false));
    spare.into_iter().for_each(|slot| pages.staging.give(slot));
}

pub(crate) fn compress_all(pages: &Pages) {
    while pages.staging.queued_slots() > 0 {
        pages.compress_oldest();
    }
}

/// The resources of a thread that brings pages in.
pub(crate) fn inbound() -> Inbound {
    Inbound::new(sys::arena::take(PAGE_SIZE, PAGE_SIZE).unwrap().as_ptr() as usize)
}

pub(crate) fn write(base: usize, page: usize, value: usize) {
    // SAFETY: tests pass pages of their own mappings.
    unsafe { (page_at(base, page) as *mut usize).write_volatile(value) };
}

pub(crate) fn read(base: usize, page: usize) -> usize {
    // SAFETY: as above.
    unsafe { (page_at(base, page) as *const usize).read_volatile() }
}
