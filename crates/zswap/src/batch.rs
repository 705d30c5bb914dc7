//! Storing one batch: units compressed at once, objects allocated and written in bulk, entries
//! published table first and list last. Pages need not be neighbours, so that a compressor that
//! gains from eight units a request gets eight, for folios of any size.

use acomp::{CompressRequest, Page, UnitError, MAX_BATCH, PAGE_SIZE};

use crate::config::{Group, StoreError};
use crate::group::{Freed, GroupCell, Item};
use crate::leaf::Entry;
use crate::pool::Pool;
use crate::{checksum, filled, Forms, Zswap};

/// Most pages in one batch: the size of a worker's buffers.
pub(crate) const BATCH_PAGES_MAX: usize = 32;

/// The keys of a request's pages, ascending.
pub(crate) enum Keys<'a> {
    /// Consecutive, from this one.
    From(u64),
    Each(&'a [u64]),
}

impl Keys<'_> {
    #[inline]
    fn at(&self, page: usize) -> u64 {
        match self {
            Keys::From(first) => first + page as u64,
            Keys::Each(keys) => keys[page],
        }
    }

    /// Pages of the unit that begins with page `at`: neighbours, of at most `most` pages, within an
    /// aligned run of `unit_pages` keys, so that no unit straddles two leaves.
    fn unit(&self, at: usize, most: usize, unit_pages: usize) -> usize {
        let key = self.at(at);
        let to_border = unit_pages - key as usize % unit_pages;
        let is_neighbour = |page: &usize| self.at(at + page) == key + *page as u64;
        1 + (1..to_border.min(most)).take_while(is_neighbour).count()
    }

    /// The end of the run of neighbours that begins with page `at`, before page `end`.
    fn run_end(&self, at: usize, end: usize, mut is_alike: impl FnMut(usize) -> bool) -> usize {
        let is_next = |page: &usize| self.at(*page) == self.at(page - 1) + 1 && is_alike(*page);
        at + 1 + (at + 1..end).take_while(is_next).count()
    }
}

pub(crate) struct Request<'a> {
    pub(crate) group: Group,
    pub(crate) cell: &'a GroupCell,
    pub(crate) cpu: usize,
    pub(crate) node: usize,
    pub(crate) raw_allowed: bool,
    pub(crate) keys: Keys<'a>,
    pub(crate) pages: &'a [&'a Page],
    /// Whether all pages are stored or none: a batch with a refused page stores nothing, and the
    /// last batch counts the folio.
    pub(crate) is_whole: bool,
}

pub(crate) struct Stored {
    /// Pages taken from the request.
    pub(crate) pages: usize,
    /// Refused pages, as bits, those of them that did not shrink, and those on which the compressor
    /// failed.
    pub(crate) refused: u64,
    pub(crate) poor: u64,
    pub(crate) failed: u64,
    /// Why the first was refused.
    pub(crate) error: Option<StoreError>,
}

/// A unit of a batch, as a range of its pages.
#[derive(Clone, Copy, Default)]
struct Unit {
    first: u8,
    pages: u8,
}

impl Unit {
    fn range(self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.pages as usize
    }

    fn mask(self) -> u64 {
        u64::MAX >> (64 - self.pages) << self.first
    }
}

/// The pages of one batch, and the units among them that need an object.
#[derive(Default)]
struct Cut {
    units: [Unit; MAX_BATCH],
    len: usize,
    pages: usize,
}

impl Cut {
    /// Cuts up to `batch` units off a request's pages from `done` to `end`. Pages that repeat a
    /// word, which `is_same` decides for a unit, take no place in the batch. Only its last unit may
    /// be short.
    fn new(
        keys: &Keys<'_>,
        (done, end): (usize, usize),
        unit_pages: usize,
        batch: usize,
        mut is_same: impl FnMut(Unit) -> bool,
    ) -> Self {
        let mut cut = Cut::default();
        while cut.len < batch && done + cut.pages < end {
            let pages = keys.unit(done + cut.pages, end - done - cut.pages, unit_pages);
            if cut.pages + pages > BATCH_PAGES_MAX {
                break;
            }
            let unit = Unit { first: cut.pages as u8, pages: pages as u8 };
            cut.pages += pages;
            if is_same(unit) {
                continue;
            }
            cut.units[cut.len] = unit;
            cut.len += 1;
            if pages < unit_pages {
                break;
            }
        }
        cut
    }
}

/// Objects of a batch, allocated and written but not yet published.
struct Objects {
    handles: [zsmalloc::Handle; MAX_BATCH],
    lens: [u32; MAX_BATCH],
    /// Units without an object, as bits, those of them that did not shrink, and those on which the
    /// compressor failed.
    left_out: u8,
    poor: u8,
    failed: u8,
    /// Why the first has none.
    error: Option<StoreError>,
}

impl Zswap {
    pub(crate) fn store_batch(&self, request: &Request<'_>, done: usize, forms: &mut Forms) -> Stored {
        for page in request.pages[done..].iter().take(MAX_BATCH) {
            filled::fetch_ends(page);
        }
        let mut refs = self.pools.current(MAX_BATCH);
        let pool = refs.pool();
        let mut items = [Item { word: 0, same: false }; BATCH_PAGES_MAX];
        // The pages of units that need an object, packed.
        let mut sources = [request.pages[done]; BATCH_PAGES_MAX];
        let mut sources_len = 0;
        let cut = Cut::new(&request.keys, (done, request.pages.len()), self.unit_pages, pool.batch, |unit| {
            let pages = &request.pages[done..][unit.range()];
            let is_same = fill_items(pages, &mut items[unit.range()]);
            if !is_same {
                sources[sources_len..][..pages.len()].copy_from_slice(pages);
                sources_len += pages.len();
            }
            is_same
        });
        let (units, taken) = (&cut.units[..cut.len], cut.pages);
        let pages = &request.pages[done..done + taken];
        forms.add_same(taken - sources_len);
        let objects = (!units.is_empty())
            .then(|| self.put_objects(request, pool, units, &sources[..sources_len], done, forms));
        let mut stored = Stored { pages: taken, refused: 0, poor: 0, failed: 0, error: None };
        let mut weights = [0u32; BATCH_PAGES_MAX];
        let mut accepted = 0;
        if let Some(objects) = &objects {
            stored.error = objects.error;
            for (n, &unit) in units.iter().enumerate() {
                stored.poor |= unit.mask() * u64::from(objects.poor >> n & 1);
                stored.failed |= unit.mask() * u64::from(objects.failed >> n & 1);
                if objects.left_out >> n & 1 != 0 {
                    stored.refused |= unit.mask();
                    continue;
                }
                accepted += 1;
                let (handle, len) = (objects.handles[n].to_raw().get(), objects.lens[n]);
                let entry = Entry::new(handle, len as usize, 0, unit.pages as usize, refs.id, request.node);
                for (position, item) in items[unit.range()].iter_mut().enumerate() {
                    *item = Item { word: entry.at(position).0, same: false };
                }
                weights[unit.first as usize] = len;
            }
        }
        if request.is_whole && stored.refused != 0 {
            return stored;
        }
        let mut sums = [0; BATCH_PAGES_MAX];
        if self.config.verify {
            for (sum, page) in sums.iter_mut().zip(pages) {
                *sum = checksum::of(page);
            }
        }

        let cell = request.cell;
        let mut freed = Freed::new();
        let mut lost = 0u64;
        let (keys, end) = (&request.keys, done + taken);
        let mut state = cell.lock();
        'idle: loop {
            let mut at = done;
            while at < end {
                let run_end = keys.run_end(at, end, |_| true);
                if state.pages(&self.slabs, keys.at(at), run_end - at, |leaf| leaf.busy) != 0 {
                    state = cell.wait(state);
                    continue 'idle;
                }
                at = run_end;
            }
            break;
        }
        let chances = |key_high| self.chances_of(request.group, key_high);
        let is_out = |page: usize| stored.refused >> (page - done) & 1 != 0;
        let mut at = done;
        while at < end {
            let first = at;
            at = keys.run_end(at, end, |page| is_out(page) == is_out(first));
            if is_out(first) {
                continue;
            }
            let range = first - done..at - done;
            let bytes = weights[range.clone()].iter().map(|bytes| u64::from(*bytes)).sum();
            let sums = self.config.verify.then_some(&sums[range.clone()]);
            let (slabs, items) = (&self.slabs, &items[range.clone()]);
            let key = keys.at(first);
            let published =
                cell.publish(&mut state, slabs, key, items, sums, bytes, request.node, chances, &mut freed);
            if published.is_err() {
                lost |= u64::MAX >> (64 - range.len()) << range.start;
            }
        }
        if request.is_whole && lost == 0 && end == request.pages.len() {
            cell.numbers().zswpout.add(end as u64);
        }
        drop(state);
        if lost != 0 {
            self.events.reject_kmemcache_fail.add(1);
            stored.refused |= lost;
            stored.error.get_or_insert(StoreError::NoMemory);
            for (n, unit) in units.iter().enumerate().filter(|(_, unit)| lost >> unit.first & 1 != 0) {
                let objects = objects.as_ref().expect("units have objects");
                let (handle, pages) = (objects.handles[n], unit.pages as usize);
                if pool.keeps_account && (objects.lens[n] as usize) < pages * PAGE_SIZE {
                    pool.forget_stored(handle, pages);
                }
                pool.objects.free_bulk(&[handle]);
                accepted -= 1;
            }
        }
        // The objects hold their pool from here on, and may already be freed.
        refs.hand_over(accepted);
        self.share_stored(cell, (done..end).map(|page| keys.at(page)));
        self.free(&mut freed);
        stored
    }

    /// Compresses units and writes the results to the arena; a whole request all or none.
    fn put_objects(
        &self,
        request: &Request<'_>,
        pool: &Pool,
        units: &[Unit],
        sources: &[&Page],
        done: usize,
        forms: &mut Forms,
    ) -> Objects {
        let mut worker = pool.worker(request.cpu);
        let worker = &mut *worker;
        let mut rooms = worker.buffers.chunks_exact_mut(self.config.unit_size);
        let mut outputs: [&mut [u8]; MAX_BATCH] = std::array::from_fn(|unit| match units.get(unit) {
            Some(unit) => &mut rooms.next().expect("a room a unit")[..unit.pages as usize * PAGE_SIZE],
            None => &mut [],
        });
        let outputs = &mut outputs[..units.len()];
        let mut results = [Err(UnitError::Failed); MAX_BATCH];
        let results = &mut results[..units.len()];
        forms.compress.add(&*pool.algorithm, units.len());
        worker.context.compress(&mut CompressRequest {
            pages: sources,
            unit_size: self.config.unit_size,
            outputs,
            results,
        });

        let raw_allowed = request.raw_allowed || pool.algorithm.keeps_raw();
        let mut objects = Objects {
            handles: [zsmalloc::Handle::DANGLING; MAX_BATCH],
            lens: [0; MAX_BATCH],
            left_out: 0,
            poor: 0,
            failed: 0,
            error: None,
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
                    let events = &self.events;
                    let (counter, units, why) = match error {
                        UnitError::NoSpace => {
                            (&events.reject_compress_poor, &mut objects.poor, StoreError::Poor { index })
                        }
                        UnitError::Failed => {
                            (&events.reject_compress_fail, &mut objects.failed, StoreError::Failed { index })
                        }
                    };
                    counter.add(1);
                    *units |= 1 << n;
                    objects.left_out |= 1 << n;
                    objects.error.get_or_insert(why);
                    0
                }
            };
            made[n] = result.is_ok();
            objects.lens[n] = len as u32;
            first += unit.pages as usize;
        }
        let all = u8::MAX >> (MAX_BATCH - units.len());
        if request.is_whole && objects.left_out != 0 {
            objects.left_out = all;
        }
        if objects.left_out != all {
            let mut contents: [&[u8]; MAX_BATCH] = [&[]; MAX_BATCH];
            let mut put = 0;
            let mut first = 0;
            for (n, &unit) in units.iter().enumerate() {
                let len = objects.lens[n] as usize;
                let raw_page = unit.pages == 1 && len == PAGE_SIZE;
                if objects.left_out >> n & 1 == 0 {
                    contents[put] = if raw_page { sources[first].as_slice() } else { &outputs[n][..len] };
                    put += 1;
                }
                first += unit.pages as usize;
            }
            let mut handles = [zsmalloc::Handle::DANGLING; MAX_BATCH];
            if pool.objects.put_bulk(&contents[..put], request.node as u8, &mut handles[..put]).is_err() {
                self.events.reject_alloc_fail.add(1);
                objects.error.get_or_insert(StoreError::NoMemory);
                objects.left_out = all;
            } else {
                let in_place = (0..units.len()).filter(|n| objects.left_out >> n & 1 == 0);
                for (n, handle) in in_place.zip(&handles[..put]) {
                    objects.handles[n] = *handle;
                }
            }
        }
        for (n, &unit) in units.iter().enumerate() {
            let (pages, object) = (unit.pages as usize, &outputs[n][..objects.lens[n] as usize]);
            match (objects.left_out >> n & 1 == 0, made[n]) {
                (true, true) if self.config.tally.is_some() => {
                    forms.add_object(&*pool.algorithm, object, pages);
                }
                (true, false) if self.config.tally.is_some() => forms.add_raw(pages),
                (false, true) => forget_unit(pool, object, unit),
                _ => {}
            }
        }
        objects
    }
}

fn forget_unit(pool: &Pool, object: &[u8], unit: Unit) {
    if pool.keeps_account {
        pool.algorithm.forget(acomp::Object::whole(object), unit.pages as usize);
    }
}

/// Whether every page of a unit repeats a word, which needs no object; then fills the pages' items.
fn fill_items(pages: &[&Page], items: &mut [Item]) -> bool {
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

    fn cuts(keys: &Keys<'_>, pages: usize, unit_pages: usize, batch: usize, same: u64) -> Vec<Vec<u8>> {
        let (mut all, mut done) = (Vec::new(), 0);
        while done < pages {
            let cut =
                Cut::new(keys, (done, pages), unit_pages, batch, |unit| unit.mask() << done & !same == 0);
            all.push(cut.units[..cut.len].iter().map(|unit| unit.pages).collect());
            done += cut.pages;
        }
        all
    }

    #[test]
    fn requests_are_cut_into_batches_and_units() {
        let cuts = |key, pages, unit_pages, batch| cuts(&Keys::From(key), pages, unit_pages, batch, 0);
        assert_eq!(cuts(3, 9, 1, 8), [vec![1; 8], vec![1]]);
        assert_eq!(cuts(3, 17, 1, 8), [vec![1; 8], vec![1; 8], vec![1]]);
        assert_eq!(cuts(0, 5, 1, 1), vec![vec![1]; 5]);
        assert_eq!(cuts(0, 16, 4, 8), [vec![4; 4]]);
        assert_eq!(cuts(2, 15, 4, 8), [vec![2], vec![4, 4, 4, 1]]);
        assert_eq!(cuts(32, 64, 16, 2), [vec![16, 16], vec![16, 16]]);
    }

    #[test]
    fn pages_that_need_no_object_and_gaps_take_no_place_in_a_batch() {
        assert_eq!(cuts(&Keys::From(0), 12, 1, 8, 0b1111), [vec![1; 8]]);
        assert_eq!(cuts(&Keys::From(0), 48, 1, 8, u64::MAX), [vec![], vec![]], "32 pages at most");
        let keys = [4, 5, 6, 7, 9, 12, 13, 14, 15];
        assert_eq!(cuts(&Keys::Each(&keys), 9, 4, 8, 0), [vec![4, 1], vec![4]]);
        assert_eq!(cuts(&Keys::Each(&keys), 9, 4, 8, 1 << 4), [vec![4, 4]]);
    }
}
