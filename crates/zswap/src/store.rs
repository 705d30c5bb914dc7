//! A folio's way in: batches of units compressed at once, objects allocated and written in bulk,
//! entries published table first and list last; all or nothing for the folio.

use acomp::{CompressRequest, Page, UnitError, MAX_BATCH, PAGE_SIZE};

use crate::config::{Group, StoreError};
use crate::group::{Freed, GroupCell, Item};
use crate::leaf::Entry;
use crate::pool::Pool;
use crate::sync::atomic::Ordering;
use crate::zswap::in_range;
use crate::{checksum, filled, Forms, Zswap};

/// Most pages in one batch: what a worker's buffers hold.
pub(crate) const BATCH_PAGES_MAX: usize = 32;

/// A unit of a batch: which of the batch's pages it covers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unit {
    pub(crate) first: u8,
    pub(crate) pages: u8,
}

impl Unit {
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.pages as usize
    }
}

/// The units of one batch.
#[derive(Default)]
struct Cut {
    units: [Unit; MAX_BATCH],
    len: usize,
    pages: usize,
}

impl Cut {
    /// Cuts up to `batch` units off the front of `pages` pages from `key`. Units end at multiples
    /// of their size, so that none straddles two leaves; a request's last unit alone may be short.
    fn new(key: u64, pages: usize, unit_pages: usize, batch: usize) -> Self {
        let mut cut = Cut::default();
        while cut.len < batch && cut.pages < pages {
            let to_border = unit_pages - (key + cut.pages as u64) as usize % unit_pages;
            let unit = to_border.min(pages - cut.pages);
            cut.units[cut.len] = Unit { first: cut.pages as u8, pages: unit as u8 };
            cut.len += 1;
            cut.pages += unit;
            if unit < unit_pages {
                break;
            }
        }
        cut
    }
}

/// Objects of a batch, allocated and written but not yet published: unit `n` of the batch's units
/// with objects.
pub(crate) struct Objects {
    pub(crate) handles: [zsmalloc::Handle; MAX_BATCH],
    pub(crate) lens: [u32; MAX_BATCH],
    len: usize,
}

/// Units of a batch that are not stored although others are, as bits.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeftOut {
    /// All of them.
    pub(crate) units: u8,
    /// Those of them that did not shrink.
    pub(crate) poor: u8,
}

/// What all batches of a folio, or of a request, share.
pub(crate) struct Folio<'a> {
    pub(crate) group: Group,
    pub(crate) cell: &'a GroupCell,
    pub(crate) cpu: usize,
    pub(crate) node: usize,
    pub(crate) raw_allowed: bool,
}

impl Zswap {
    /// Stores consecutive pages from `key`. What was stored under these keys before is gone
    /// afterwards, whether the call succeeds or not.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is stored under any of the keys then.
    pub fn store(&self, group: Group, key: u64, pages: &[&Page]) -> Result<(), StoreError> {
        if !in_range(key, pages.len() as u64) {
            return Err(StoreError::OutOfRange);
        }
        let cell = self.make_group(group).ok_or(StoreError::OutOfRange)?;
        let raw_allowed = self.can_write_back(group, cell);
        let stored =
            self.admit(group, cell).and_then(|()| self.store_folio(group, cell, key, pages, raw_allowed));
        if stored.is_err() {
            self.erase(cell, key, pages.len() as u64);
        }
        stored
    }

    /// The same for pages that have no other place: those that do not compress are kept as they
    /// are, and no limit refuses them.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`] and [`StoreError::OutOfRange`]; nothing is stored under any of the
    /// keys then.
    pub fn store_any(&self, group: Group, key: u64, pages: &[&Page]) -> Result<(), StoreError> {
        if !in_range(key, pages.len() as u64) {
            return Err(StoreError::OutOfRange);
        }
        let cell = self.make_group(group).ok_or(StoreError::OutOfRange)?;
        let stored = self.store_folio(group, cell, key, pages, true);
        if stored.is_err() {
            self.erase(cell, key, pages.len() as u64);
        }
        stored
    }

    fn store_folio(
        &self,
        group: Group,
        cell: &GroupCell,
        key: u64,
        pages: &[&Page],
        raw_allowed: bool,
    ) -> Result<(), StoreError> {
        let cpu = sys::cpu::current();
        let folio = Folio { group, cell, cpu, node: self.node_of(cpu), raw_allowed };
        let mut forms = Forms::default();
        let mut done = 0;
        while done < pages.len() {
            done += self.store_batch(&folio, key, pages, done, &mut forms)?;
        }
        if let Some(tally) = self.config.tally {
            tally(&forms);
        }
        Ok(())
    }

    /// Checks the group's limit, then the pools'. Beyond one, stores are refused until use is down
    /// to its threshold.
    pub(crate) fn admit(&self, group: Group, cell: &GroupCell) -> Result<(), StoreError> {
        let limit = cell.limit.load(Ordering::Relaxed);
        if limit != u64::MAX {
            let bytes = || cell.numbers().bytes.get();
            let threshold = self.threshold_of(limit);
            if bytes() >= limit {
                cell.reached_full.store(true, Ordering::Relaxed);
            }
            if cell.reached_full.load(Ordering::Relaxed) {
                // As the kernel does: a synchronous try, and never at another group's expense.
                if bytes() > threshold && limit > 0 {
                    self.shrink_group(group, cell, threshold);
                }
                if limit == 0 || bytes() > threshold {
                    return Err(StoreError::GroupLimit);
                }
                cell.reached_full.store(false, Ordering::Relaxed);
            }
        }
        let max = self.config.max_pool_bytes;
        if max == u64::MAX {
            return Ok(());
        }
        let now = self.pool_bytes();
        if now >= max {
            self.events.pool_limit_hit.add(1);
            self.reached_full.store(true, Ordering::Relaxed);
        } else if self.reached_full.load(Ordering::Relaxed) && now <= self.accept_threshold() {
            self.reached_full.store(false, Ordering::Relaxed);
        }
        if self.reached_full.load(Ordering::Relaxed) {
            return Err(StoreError::PoolLimit);
        }
        Ok(())
    }

    /// Stores one batch of the folio, from its page `done` on; returns how many pages that were.
    fn store_batch(
        &self,
        folio: &Folio<'_>,
        key: u64,
        all_pages: &[&Page],
        done: usize,
        forms: &mut Forms,
    ) -> Result<usize, StoreError> {
        for page in all_pages[done..].iter().take(MAX_BATCH) {
            filled::fetch_ends(page);
        }
        let mut refs = self.pools.current(MAX_BATCH);
        let pool = refs.pool();
        let cut = Cut::new(key + done as u64, all_pages.len() - done, self.unit_pages, pool.batch);
        let pages = &all_pages[done..done + cut.pages];
        let key = key + done as u64;
        let mut items = [Item { word: 0, same: false }; BATCH_PAGES_MAX];

        // Units that need an object, and their pages side by side.
        let mut units = [Unit::default(); MAX_BATCH];
        let mut len = 0;
        let mut sources = [pages[0]; BATCH_PAGES_MAX];
        let mut sources_len = 0;
        for &unit in &cut.units[..cut.len] {
            if !fill_items(&pages[unit.range()], &mut items[unit.range()]) {
                sources[sources_len..][..unit.pages as usize].copy_from_slice(&pages[unit.range()]);
                sources_len += unit.pages as usize;
                units[len] = unit;
                len += 1;
            }
        }
        let units = &units[..len];
        forms.add_same(cut.pages - sources_len);
        let objects = match len {
            0 => None,
            _ => Some(self.put_objects(folio, pool, units, &sources[..sources_len], done, forms, None)?),
        };
        let mut bytes = 0;
        if let Some(objects) = &objects {
            for (&unit, (handle, &len)) in units.iter().zip(objects.handles.iter().zip(&objects.lens)) {
                let entry = Entry::new(
                    handle.to_raw().get(),
                    len as usize,
                    0,
                    unit.pages as usize,
                    refs.id,
                    folio.node,
                );
                for (position, item) in items[unit.range()].iter_mut().enumerate() {
                    *item = Item { word: entry.at(position).0, same: false };
                }
                bytes += u64::from(len);
            }
        }
        let mut sums = [0; BATCH_PAGES_MAX];
        if self.config.verify {
            for (sum, page) in sums.iter_mut().zip(pages) {
                *sum = checksum::of(page);
            }
        }
        let sums = self.config.verify.then_some(&sums[..cut.pages]);

        let cell = folio.cell;
        let mut freed = Freed::new();
        let mut state = cell.lock();
        while cell.is_busy(&mut state, &self.slabs, key, cut.pages as u64) {
            state = cell.wait(state);
        }
        let items = &items[..cut.pages];
        let chances = |key_high| self.chances_of(folio.group, key_high);
        let published =
            cell.publish(&mut state, &self.slabs, key, items, sums, bytes, folio.node, chances, &mut freed);
        if published.is_err() {
            drop(state);
            if let Some(objects) = objects {
                let handles = &objects.handles[..objects.len];
                if pool.keeps_account {
                    for ((&handle, unit), &len) in handles.iter().zip(units).zip(&objects.lens) {
                        let pages = unit.pages as usize;
                        if (len as usize) < pages * PAGE_SIZE {
                            pool.forget_stored(handle, pages);
                        }
                    }
                }
                pool.objects.free_bulk(handles);
            }
            self.events.reject_kmemcache_fail.add(1);
            return Err(StoreError::NoMemory);
        }
        if done + cut.pages == all_pages.len() {
            cell.numbers().zswpout.add(all_pages.len() as u64);
        }
        drop(state);
        // The objects hold their pool from here on, and may be gone already.
        refs.hand_over(objects.map_or(0, |objects| objects.len));
        self.free(&mut freed);
        Ok(cut.pages)
    }

    /// Compresses units and writes what they became to the arena: all or none of them; with
    /// `left_out`, all but those that are named there afterwards.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn put_objects(
        &self,
        folio: &Folio<'_>,
        pool: &Pool,
        units: &[Unit],
        sources: &[&Page],
        done: usize,
        forms: &mut Forms,
        mut left_out: Option<&mut LeftOut>,
    ) -> Result<Objects, StoreError> {
        let mut worker = pool.worker(folio.cpu);
        let worker = &mut *worker;
        let mut rooms = worker.buffers.chunks_exact_mut(self.config.unit_size);
        let mut outputs: [&mut [u8]; MAX_BATCH] = std::array::from_fn(|unit| match units.get(unit) {
            Some(unit) => &mut rooms.next().expect("a room a unit")[..unit.pages as usize * PAGE_SIZE],
            None => &mut [],
        });
        let outputs = &mut outputs[..units.len()];
        let mut results = [Err(UnitError::Failed); MAX_BATCH];
        let results = &mut results[..units.len()];
        forms.requests += 1;
        forms.units += units.len() as u32;
        worker.context.compress(&mut CompressRequest {
            pages: sources,
            unit_size: self.config.unit_size,
            outputs,
            results,
        });

        let raw_allowed = folio.raw_allowed || pool.algorithm.keeps_raw();
        let mut refused = None;
        let mut objects = Objects {
            handles: [zsmalloc::Handle::DANGLING; MAX_BATCH],
            lens: [0; MAX_BATCH],
            len: units.len(),
        };
        // Which results are objects of the algorithm.
        let mut made = [false; MAX_BATCH];
        let mut first = 0;
        for (n, &unit) in units.iter().enumerate() {
            let whole = unit.pages as usize * PAGE_SIZE;
            let result = match results[n] {
                Ok(0) => Err(UnitError::Failed),
                Ok(len) if len >= whole => {
                    forget_unit(pool, &outputs[n][..len], unit);
                    Err(UnitError::NoSpace)
                }
                result => result,
            };
            let len = match result {
                Ok(len) => len,
                Err(_) if raw_allowed => {
                    if unit.pages > 1 {
                        for (room, page) in outputs[n].chunks_exact_mut(PAGE_SIZE).zip(&sources[first..]) {
                            room.copy_from_slice(*page);
                        }
                    }
                    whole
                }
                Err(error) => {
                    let index = done + unit.first as usize;
                    let (counter, answer) = match error {
                        UnitError::NoSpace => (&self.events.reject_compress_poor, StoreError::Poor { index }),
                        UnitError::Failed => {
                            (&self.events.reject_compress_fail, StoreError::Failed { index })
                        }
                    };
                    counter.add(1);
                    match left_out.as_deref_mut() {
                        Some(left_out) => {
                            left_out.units |= 1 << n;
                            left_out.poor |= u8::from(error == UnitError::NoSpace) << n;
                        }
                        None => drop(refused.get_or_insert(answer)),
                    }
                    0
                }
            };
            made[n] = result.is_ok();
            objects.lens[n] = len as u32;
            first += unit.pages as usize;
        }
        let left_out = left_out.map_or(0, |left_out| left_out.units);
        let lens = &objects.lens[..units.len()];
        if refused.is_none() && left_out.count_ones() < units.len() as u32 {
            let mut contents: [&[u8]; MAX_BATCH] = [&[]; MAX_BATCH];
            let mut put = 0;
            let mut first = 0;
            for (n, &unit) in units.iter().enumerate() {
                let len = lens[n] as usize;
                let raw_page = unit.pages == 1 && len == PAGE_SIZE;
                if left_out >> n & 1 == 0 {
                    contents[put] = if raw_page { sources[first].as_slice() } else { &outputs[n][..len] };
                    put += 1;
                }
                first += unit.pages as usize;
            }
            let mut handles = [zsmalloc::Handle::DANGLING; MAX_BATCH];
            let is_put = pool.objects.put_bulk(&contents[..put], folio.node as u8, &mut handles[..put]);
            let in_place = (0..units.len()).filter(|n| left_out >> n & 1 == 0);
            for (n, handle) in in_place.zip(&handles[..put]) {
                objects.handles[n] = *handle;
            }
            if is_put.is_err() {
                self.events.reject_alloc_fail.add(1);
                refused = Some(StoreError::NoMemory);
            }
        }
        if let Some(answer) = refused {
            for (n, &unit) in units.iter().enumerate().filter(|(n, _)| made[*n]) {
                forget_unit(pool, &outputs[n][..lens[n] as usize], unit);
            }
            return Err(answer);
        }
        if self.config.tally.is_some() {
            for (n, &unit) in units.iter().enumerate().filter(|(n, _)| left_out >> n & 1 == 0) {
                let pages = unit.pages as usize;
                match made[n] {
                    true => forms.add_object(&*pool.algorithm, &outputs[n][..lens[n] as usize], pages),
                    false => forms.add_raw(pages),
                }
            }
        }
        Ok(objects)
    }
}

/// Tells an algorithm that wants to know that an object will not be stored.
fn forget_unit(pool: &Pool, object: &[u8], unit: Unit) {
    if pool.keeps_account {
        pool.algorithm.forget(acomp::Object::whole(object), unit.pages as usize);
    }
}

/// Whether every page of a unit repeats a word, which needs no object; the pages' items are filled
/// then.
pub(crate) fn fill_items(pages: &[&Page], items: &mut [Item]) -> bool {
    for (page, item) in pages.iter().zip(items) {
        match filled::word_of(page) {
            Some(word) => *item = Item { word, same: true },
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(mut key: u64, mut pages: usize, unit_pages: usize, batch: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while pages > 0 {
            let cut = Cut::new(key, pages, unit_pages, batch);
            all.push(cut.units[..cut.len].iter().map(|unit| unit.pages).collect());
            key += cut.pages as u64;
            pages -= cut.pages;
        }
        all
    }

    #[test]
    fn requests_are_cut_into_batches_and_units() {
        assert_eq!(cuts(3, 9, 1, 8), [vec![1; 8], vec![1]]);
        assert_eq!(cuts(3, 17, 1, 8), [vec![1; 8], vec![1; 8], vec![1]]);
        assert_eq!(cuts(0, 5, 1, 1), vec![vec![1]; 5]);
        assert_eq!(cuts(0, 16, 4, 8), [vec![4; 4]]);
        assert_eq!(cuts(2, 15, 4, 8), [vec![2], vec![4, 4, 4, 1]]);
        assert_eq!(cuts(32, 64, 16, 2), [vec![16, 16], vec![16, 16]]);
    }
}
