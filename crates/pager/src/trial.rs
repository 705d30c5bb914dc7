//! Shared by the tests of several files: a pager, and memory for it.

use std::ops::Range;

use sys::userfaultfd::feature;

use crate::accounts::Plenty;
use crate::config::{Config, StartError};
use crate::pager::Pager;
use crate::pages::{DiscardWindow, Staging};
use crate::sync::Userfaultfd;
use crate::tracker::AccessTracker;
use crate::units::{page_at, BLOCK_BYTES, BLOCK_PAGES};

/// A pager without registrations and threads. `None` if this process may not have one.
pub(crate) fn pager() -> Option<&'static Pager> {
    make(None, None)
}

/// A pager of a range. Tests that refresh mappings must not find other tests' mappings.
pub(crate) fn pager_of(only: Range<usize>) -> Option<&'static Pager> {
    make(Some(only), None)
}

/// A pager of a range whose uses `tracker` reports.
pub(crate) fn tracked_pager(only: Range<usize>, tracker: Box<dyn AccessTracker>) -> Option<&'static Pager> {
    make(Some(only), Some(tracker))
}

fn make(only: Option<Range<usize>>, tracker: Option<Box<dyn AccessTracker>>) -> Option<&'static Pager> {
    let config = Config {
        staging_pages: 512,
        handlers: 2,
        own: Vec::new(),
        only,
        kept: crate::config::NamedPages::NONE,
        records: false,
        without_tracking: false,
        executable: false,
    };
    let mut registry = acomp::Registry::new();
    codecs::register_all(&mut registry);
    let algorithm = registry.find("lz4").unwrap();
    let store =
        zswap::Zswap::new(zswap::Config { max_groups: crate::POOL_GROUPS, ..Default::default() }, algorithm)
            .unwrap();
    match Pager::new(config, store, &Plenty) {
        Ok(mut pager) => {
            if let Some(tracker) = tracker {
                pager.track_by(tracker);
            }
            Some(Box::leak(Box::new(pager)))
        }
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

/// Blocks of which the fourth lacks a page.
pub(crate) fn blocks_with_a_gap(count: usize) -> usize {
    let base = blocks(count);
    // SAFETY: the mapping made above.
    unsafe { libc::madvise((base + 3 * BLOCK_BYTES) as *mut _, sys::PAGE_SIZE, libc::MADV_DONTNEED) };
    base
}

pub(crate) fn write(base: usize, page: usize, value: usize) {
    // SAFETY: tests pass pages of their own mappings.
    unsafe { (page_at(base, page) as *mut usize).write_volatile(value) };
}

pub(crate) fn read(base: usize, page: usize) -> usize {
    // SAFETY: as above.
    unsafe { (page_at(base, page) as *const usize).read_volatile() }
}
