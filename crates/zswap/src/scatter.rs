//! The way in for pages that are not neighbours: batches are filled across folios, so that a
//! compressor that gains from eight units a request gets eight, for folios of any size.

use acomp::{Page, MAX_BATCH};

use crate::config::{Group, StoreError};
use crate::group::{Freed, Item};
use crate::leaf::Entry;
use crate::store::{fill_items, Folio, LeftOut, Unit, BATCH_PAGES_MAX};
use crate::zswap::in_range;
use crate::{checksum, filled, Forms, Zswap};

/// Most pages of one call of [`Zswap::store_scattered`].
pub const SCATTERED_MAX: usize = 64;

/// Pages of a call of [`Zswap::store_scattered`] that were not stored: bit `i` for `pages[i]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// All of them.
    pub pages: u64,
    /// Those of them whose unit did not shrink. The others are of the same folios, or had no memory
    /// or no compressor.
    pub poor: u64,
}

impl Zswap {
    /// Stores pages that need not be neighbours, each under its key. Keys ascend; there are at most
    /// [`SCATTERED_MAX`]. Pages whose keys lie in the same aligned run of `folio_pages` keys (a
    /// power of two; 1: each page by itself) are stored together or not at all. Returns which pages
    /// were refused; all others are stored.
    ///
    /// What was stored under any of the keys before is gone afterwards, whether its page is refused
    /// or not.
    ///
    /// # Errors
    /// [`StoreError::GroupLimit`], [`StoreError::PoolLimit`] and [`StoreError::OutOfRange`] (also
    /// where keys do not ascend or there are too many); no page is stored then.
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
        let raw_allowed = self.can_write_back(group, cell);
        if let Err(error) = self.admit(group, cell) {
            for (key, count) in runs_of(pages) {
                self.erase(cell, key, count);
            }
            return Err(error);
        }
        let cpu = sys::cpu::current();
        let folio = Folio { group, cell, cpu, node: self.node_of(cpu), raw_allowed };
        let (mut forms, mut refused, mut done) = (Forms::default(), Refused::default(), 0);
        while done < pages.len() {
            let (stored, not) = self.store_scattered_batch(&folio, &pages[done..], &mut forms);
            refused.pages |= not.pages << done;
            refused.poor |= not.poor << done;
            done += stored;
        }
        if refused.pages != 0 {
            refused.pages = self.take_folios_out(&folio, pages, refused.pages, folio_pages);
        }
        if let Some(tally) = self.config.tally {
            tally(&forms);
        }
        let _state = cell.lock();
        cell.numbers().zswpout.add(pages.len() as u64 - u64::from(refused.pages.count_ones()));
        Ok(refused)
    }

    /// Takes out what is stored of folios with a page that was refused, and what was there before.
    /// Returns all pages of such folios.
    fn take_folios_out(
        &self,
        folio: &Folio<'_>,
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
                    self.erase(folio.cell, key, count);
                }
            }
        }
        all
    }

    /// Stores one batch from the front of `pages`. Returns how many pages that took, and which of
    /// them were refused.
    fn store_scattered_batch(
        &self,
        folio: &Folio<'_>,
        pages: &[(u64, &Page)],
        forms: &mut Forms,
    ) -> (usize, Refused) {
        for (_, page) in pages.iter().take(MAX_BATCH) {
            filled::fetch_ends(page);
        }
        let mut refs = self.pools.current(MAX_BATCH);
        let pool = refs.pool();
        let mut plain = [pages[0].1; BATCH_PAGES_MAX];
        for (slot, (_, page)) in plain.iter_mut().zip(pages) {
            *slot = page;
        }
        let mut items = [Item { word: 0, same: false }; BATCH_PAGES_MAX];
        let mut units = [Unit::default(); MAX_BATCH];
        let mut sources = [pages[0].1; BATCH_PAGES_MAX];
        let (mut len, mut sources_len, mut taken) = (0, 0, 0);
        // Pages that repeat a word need no place in the batch, so that it is filled with those that
        // do.
        while len < pool.batch && taken < pages.len() {
            let unit = unit_at(pages, taken, self.unit_pages);
            if taken + unit.pages as usize > BATCH_PAGES_MAX {
                break;
            }
            taken += unit.pages as usize;
            if fill_items(&plain[unit.range()], &mut items[unit.range()]) {
                continue;
            }
            sources[sources_len..][..unit.pages as usize].copy_from_slice(&plain[unit.range()]);
            sources_len += unit.pages as usize;
            units[len] = unit;
            len += 1;
            // Only a request's last unit may be short.
            if (unit.pages as usize) < self.unit_pages {
                break;
            }
        }
        let (pages, units) = (&pages[..taken], &units[..len]);
        forms.add_same(taken - sources_len);
        let mut left_out = LeftOut::default();
        let objects = match len {
            0 => None,
            _ => {
                let sources = &sources[..sources_len];
                self.put_objects(folio, pool, units, sources, 0, forms, Some(&mut left_out)).ok()
            }
        };
        let mut weights = [0u32; BATCH_PAGES_MAX];
        let (mut refused, mut poor) = (0u64, 0u64);
        let mut accepted = 0;
        for (n, &unit) in units.iter().enumerate() {
            let mask = (u64::MAX >> (64 - unit.pages)) << unit.first;
            if left_out.poor >> n & 1 != 0 {
                poor |= mask;
            }
            let Some(objects) = objects.as_ref().filter(|_| left_out.units >> n & 1 == 0) else {
                refused |= mask;
                continue;
            };
            accepted += 1;
            let (handle, len) = (objects.handles[n].to_raw().get(), objects.lens[n]);
            let entry = Entry::new(handle, len as usize, 0, unit.pages as usize, refs.id, folio.node);
            for (position, item) in items[unit.range()].iter_mut().enumerate() {
                *item = Item { word: entry.at(position).0, same: false };
            }
            weights[unit.first as usize] = len;
        }
        let mut sums = [0; BATCH_PAGES_MAX];
        if self.config.verify {
            for (sum, (_, page)) in sums.iter_mut().zip(pages) {
                *sum = checksum::of(page);
            }
        }

        let cell = folio.cell;
        let mut freed = Freed::new();
        let mut lost = 0u64;
        let mut state = cell.lock();
        'idle: loop {
            for (key, count) in runs_of(pages) {
                if cell.is_busy(&mut state, &self.slabs, key, count) {
                    state = cell.wait(state);
                    continue 'idle;
                }
            }
            break;
        }
        let mut first = 0;
        while first < taken {
            let is_out = |at: usize| refused >> at & 1 != 0;
            let mut end = first + 1;
            while end < taken && pages[end].0 == pages[end - 1].0 + 1 && is_out(end) == is_out(first) {
                end += 1;
            }
            let (key, range) = (pages[first].0, first..end);
            first = end;
            if is_out(range.start) {
                continue;
            }
            let bytes = weights[range.clone()].iter().map(|bytes| u64::from(*bytes)).sum();
            let chances = |key_high| self.chances_of(folio.group, key_high);
            let sums = self.config.verify.then_some(&sums[range.clone()]);
            let items = &items[range.clone()];
            let published = cell.publish(
                &mut state,
                &self.slabs,
                key,
                items,
                sums,
                bytes,
                folio.node,
                chances,
                &mut freed,
            );
            if published.is_err() {
                lost |= (u64::MAX >> (64 - range.len())) << range.start;
            }
        }
        drop(state);
        if let (true, Some(objects)) = (lost != 0, &objects) {
            self.events.reject_kmemcache_fail.add(1);
            for (n, unit) in units.iter().enumerate().filter(|(_, unit)| lost >> unit.first & 1 != 0) {
                if left_out.units >> n & 1 != 0 {
                    continue;
                }
                let (handle, pages) = (objects.handles[n], unit.pages as usize);
                if pool.keeps_account && (objects.lens[n] as usize) < pages * acomp::PAGE_SIZE {
                    pool.forget_stored(handle, pages);
                }
                pool.objects.free_bulk(&[handle]);
                accepted -= 1;
            }
        }
        // The objects hold their pool from here on, and may be gone already.
        refs.hand_over(accepted);
        self.free(&mut freed);
        (taken, Refused { pages: refused | lost, poor })
    }
}

/// The unit at the front of `pages[at..]`: neighbours within an aligned run of `unit_pages` keys.
fn unit_at(pages: &[(u64, &Page)], at: usize, unit_pages: usize) -> Unit {
    let key = pages[at].0;
    let to_border = unit_pages - key as usize % unit_pages;
    let neighbours = pages[at..].iter().zip(key..).take_while(|(page, key)| page.0 == *key);
    Unit { first: at as u8, pages: neighbours.take(to_border).count() as u8 }
}

/// Runs of neighbours: the first key, and how many.
fn runs_of<'a>(pages: &'a [(u64, &Page)]) -> impl Iterator<Item = (u64, u64)> + 'a {
    pages.chunk_by(|a, b| a.0 + 1 == b.0).map(|run| (run[0].0, run.len() as u64))
}
