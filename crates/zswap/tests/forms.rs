//! Stores report the forms of stored pages: of whole folios, once each.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use acomp::Page;
use support::{with_swap, Trim};
use zswap::{form_names, Config, Forms, Group, StoreError, Zswap, FORMS_MAX};

static TOTALS: [AtomicU64; FORMS_MAX] = [const { AtomicU64::new(0) }; FORMS_MAX];

fn tally(forms: &Forms) {
    for (total, pages) in TOTALS.iter().zip(&forms.pages) {
        total.fetch_add(u64::from(*pages), Ordering::Relaxed);
    }
}

fn told() -> Vec<u64> {
    let totals: Vec<u64> = TOTALS.iter().map(|total| total.swap(0, Ordering::Relaxed)).collect();
    let used = totals.iter().rposition(|total| *total > 0).map_or(0, |last| last + 1);
    totals[..used].to_vec()
}

/// A page that Trim shortens to `len` bytes; for one repeated byte the store needs no object.
fn page(len: usize) -> Page {
    let mut page = [0; 4096];
    for (at, byte) in page[..len].iter_mut().enumerate() {
        *byte = at as u8 | 1;
    }
    page
}

#[test]
fn stored_pages_are_counted_by_form() {
    let trim = Trim::new("trim:7", 8);
    assert_eq!(form_names(&*trim), ["same", "raw", "trim"]);
    let config = Config { tally: Some(tally), ..Config::default() };
    let store = Zswap::new(config.clone(), trim.clone()).unwrap();
    let (small, full, same) = (page(100), page(4096), page(0));

    let folio = [&small, &same, &small, &small, &same, &small, &small, &small, &small, &same, &small];
    store.store(Group(0), 0, &folio).unwrap();
    assert_eq!(told(), [3, 0, 8]);
    store.store(Group(0), 0, &[&same; 4]).unwrap();
    assert_eq!(told(), [4]);

    // The second batch fails after the first was published: the folio is neither stored nor
    // reported.
    let mut poor = [&small; 16];
    poor[12] = &full;
    assert_eq!(store.store(Group(0), 64, &poor), Err(StoreError::Poor { index: 12 }));
    assert_eq!(told(), []);
    trim.fail_after.store(9, Ordering::Relaxed);
    assert_eq!(store.store(Group(0), 64, &[&small; 16]), Err(StoreError::Failed { index: 9 }));
    assert_eq!(told(), []);
    store.store(Group(0), 64, &poor[..12]).unwrap();
    assert_eq!(told(), [0, 0, 12]);

    // With writeback, pages that do not shrink are kept raw.
    let store = Zswap::new(with_swap(config.clone()), trim.clone()).unwrap();
    store.store(Group(0), 0, &poor).unwrap();
    assert_eq!(told(), [0, 1, 15]);

    // Units of four pages: one that is the same word throughout needs no object.
    let store = Zswap::new(Config { unit_size: 4 * 4096, ..config }, trim).unwrap();
    let folio: Vec<&Page> = [&same; 4].into_iter().chain([&small, &same, &small, &same]).collect();
    store.store(Group(0), 0, &folio).unwrap();
    assert_eq!(told(), [4, 0, 4]);
}
