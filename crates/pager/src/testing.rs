//! Shared by the tests of several files: a pager.

use std::ops::Range;

use address_space::testing::{Plenty, Simulated};
use address_space::units::BlockNumber;
use address_space::{AccessTracker, AddressSpace};

use crate::config::Config;
use crate::pager::Pager;

pub(crate) use address_space::testing::{blocks, drop_pages, evict, inbound, noise, range_of, read};

/// A pager without registrations and threads. `None` if this process may not have one.
pub fn pager() -> Option<&'static Pager> {
    make(None, None)
}

/// A pager, and registered blocks ([`blocks`]).
pub fn pager_with(count: usize) -> Option<(&'static Pager, BlockNumber)> {
    pager_with_gap(count, 0..0)
}

/// The same, where some pages are missing.
pub fn pager_with_gap(count: usize, gap: Range<usize>) -> Option<(&'static Pager, BlockNumber)> {
    let (pager, base) = (pager()?, blocks(count));
    drop_pages(base.page(gap.start), gap.len());
    pager.register(range_of(base, count));
    Some((pager, base))
}

/// A pager of blocks ([`blocks`]) that are not registered, and of no other memory: tests that
/// refresh mappings must not find other tests'.
pub fn pager_of(count: usize) -> Option<(&'static Pager, BlockNumber)> {
    let base = blocks(count);
    Some((make(Some(range_of(base, count)), None)?, base))
}

/// The same with registered blocks, whose uses the test reports.
pub fn tracked_pager(count: usize) -> Option<(&'static Pager, BlockNumber, &'static Simulated)> {
    let (base, simulated) = (blocks(count), &*Box::leak(Box::new(Simulated::default())));
    let pager = make(Some(range_of(base, count)), Some(Box::new(simulated)))?;
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
