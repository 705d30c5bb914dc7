//! Storing pages that are not neighbours: batches are filled across folios.

use acomp::Page;

use crate::batch::{Keys, Request};
use crate::config::{Group, StoreError};
use crate::group::GroupCell;
use crate::zswap::in_range;
use crate::{Forms, Zswap};

/// Most pages of one call of [`Zswap::store_scattered`].
pub const SCATTERED_MAX: usize = 64;

/// Pages that a call of [`Zswap::store_scattered`] refused: bit `i` for `pages[i]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// All refused pages.
    pub pages: u64,
    /// Those of them whose unit did not shrink.
    pub poor: u64,
    /// Those of them on whose unit the compressor failed. The others are of the same folios, or
    /// there was no memory for them.
    pub failed: u64,
}

impl Zswap {
    /// Stores pages that need not be neighbours, each under its key. Keys ascend; there are at most
    /// [`SCATTERED_MAX`]. Pages whose keys lie in the same aligned run of `folio_pages` keys (a
    /// power of two; 1: each page by itself) are stored together or not at all. Returns the refused
    /// pages; all others are stored.
    ///
    /// Older pages under any of the keys are removed, whether the new page is refused or not.
    ///
    /// # Errors
    /// [`StoreError::GroupLimit`], [`StoreError::PoolLimit`] and [`StoreError::OutOfRange`] (also
    /// if keys do not ascend or there are too many); then no page is stored.
    pub fn store_scattered(
        &self,
        group: Group,
        pages: &[(u64, &Page)],
        folio_pages: u64,
    ) -> Result<Refused, StoreError> {
        assert!(folio_pages.is_power_of_two(), "folios of {folio_pages} pages");
        let ascends = pages.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if pages.len() > SCATTERED_MAX || !ascends || pages.last().is_some_and(|page| !in_range(page.0, 1)) {
            return Err(StoreError::OutOfRange);
        }
        let cell = self.make_group(group).ok_or(StoreError::OutOfRange)?;
        let raw_allowed = self.can_write_back(cell);
        if let Err(error) = self.admit(group, cell) {
            for (key, count) in runs_of(pages) {
                self.erase(cell, key, count);
            }
            return Err(error);
        }
        let Some(first) = pages.first() else { return Ok(Refused::default()) };
        let (mut keys, mut plain) = ([0; SCATTERED_MAX], [first.1; SCATTERED_MAX]);
        for ((key, slot), page) in keys.iter_mut().zip(&mut plain).zip(pages) {
            (*key, *slot) = *page;
        }
        let cpu = sys::cpu::current();
        let node = self.node_of(cpu);
        let (keys, all) = (Keys::Each(&keys[..pages.len()]), &plain[..pages.len()]);
        let request = Request { group, cell, cpu, node, raw_allowed, keys, pages: all, is_whole: false };
        let (mut forms, mut refused, mut done) = (Forms::default(), Refused::default(), 0);
        while done < pages.len() {
            let stored = self.store_batch(&request, done, &mut forms);
            refused.pages |= stored.refused << done;
            refused.poor |= stored.poor << done;
            refused.failed |= stored.failed << done;
            done += stored.pages;
        }
        if refused.pages != 0 {
            refused.pages = self.take_folios_out(cell, pages, refused.pages, folio_pages);
        }
        if let Some(tally) = self.config.tally {
            tally(&forms);
        }
        let _state = cell.lock();
        cell.numbers().zswpout.add(pages.len() as u64 - u64::from(refused.pages.count_ones()));
        Ok(refused)
    }

    /// Removes new and older pages of folios with a refused page. Returns all pages of such folios.
    fn take_folios_out(
        &self,
        cell: &GroupCell,
        pages: &[(u64, &Page)],
        refused: u64,
        folio_pages: u64,
    ) -> u64 {
        let (mut all, mut first) = (0, 0);
        for part in pages.chunk_by(|a, b| a.0 / folio_pages == b.0 / folio_pages) {
            let mask = (u64::MAX >> (64 - part.len())) << first;
            first += part.len();
            if refused & mask != 0 {
                all |= mask;
                for (key, count) in runs_of(part) {
                    self.erase(cell, key, count);
                }
            }
        }
        all
    }
}

/// Runs of neighbours: first key and length.
fn runs_of<'a>(pages: &'a [(u64, &Page)]) -> impl Iterator<Item = (u64, u64)> + 'a {
    pages.chunk_by(|a, b| a.0 + 1 == b.0).map(|run| (run[0].0, run.len() as u64))
}
