//! Shared by the tests of several files: a pager.

use std::ops::Range;

use address_space::testing::{Plenty, Simulated};
use address_space::units::{bytes_of, page_at, BLOCK_BYTES};
use address_space::{AccessTracker, AddressSpace};

use crate::config::Config;
use crate::pager::Pager;

pub(crate) use address_space::testing::{blocks, drop_pages, evict, inbound, noise, read};

/// A pager without registrations and threads. `None` if this process may not have one.
pub fn pager() -> Option<&'static Pager> {
    make(None, None)
}

/// A pager, and registered blocks ([`blocks`]).
pub fn pager_with(count: usize) -> Option<(&'static Pager, usize)> {
    pager_with_gap(count, 0..0)
}

/// The same, where some pages are missing.
pub fn pager_with_gap(count: usize, gap: Range<usize>) -> Option<(&'static Pager, usize)> {
    let (pager, base) = (pager()?, blocks(count));
    drop_pages(page_at(base, gap.start), bytes_of(gap.len()));
    pager.register(base..base + count * BLOCK_BYTES);
    Some((pager, base))
}

/// A pager of blocks ([`blocks`]) that are not registered, and of no other memory: tests that
/// refresh mappings must not find other tests'.
pub fn pager_of(count: usize) -> Option<(&'static Pager, usize)> {
    let base = blocks(count);
    Some((make(Some(base..base + count * BLOCK_BYTES), None)?, base))
}

/// The same with registered blocks, whose uses the test reports.
pub fn tracked_pager(count: usize) -> Option<(&'static Pager, usize, &'static Simulated)> {
    let (base, simulated) = (blocks(count), &*Box::leak(Box::new(Simulated::default())));
    let pager = make(Some(base..base + count * BLOCK_BYTES), Some(Box::new(simulated)))?;
    pager.refresh_mappings();
    Some((pager, base, simulated))
}

fn make(only: Option<Range<usize>>, tracker: Option<Box<dyn AccessTracker>>) -> Option<&'static Pager> {
    let config = Config { only, ..Config::for_tests(512) };
    let made = AddressSpace::new(&config.settings(), Config::store_for_tests(), &Plenty);
    let pager = made.and_then(|(mut pages, features)| {
        tracker.into_iter().for_each(|tracker| pages.track_by(tracker));
        Pager::of(config, pages, features, &Plenty)
    });
    match pager {
        Ok(pager) => Some(Box::leak(Box::new(pager))),
        Err(error) => {
            testkit::skip!("userfaultfd", "{error}");
            None
        }
    }
}
