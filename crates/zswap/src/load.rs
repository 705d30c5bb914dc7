//! Loading pages: pins entries, decompresses objects in batches with no lock held, then removes the
//! entries.

use acomp::{DecompressRequest, Object, Page, UnitError, MAX_BATCH, PAGE_SIZE};

use crate::config::{Group, Keep, LoadError};
use crate::disk::DiskRead;
use crate::forms::Requests;
use crate::group::{leaf_part, slots, Freed, GroupCell, GroupState};
use crate::leaf::{DiskEntry, Entry, Leaf, Source, LEAF_PAGES};
use crate::sync::MutexGuard;
use crate::zswap::{handle_of, in_range};
use crate::{checksum, filled, filled::fetch_line, Zswap};

/// Most pages whose entries are read at a time.
const CHUNK: usize = 64;

/// Entries of up to 64 requested pages, copied from the tables while their pages are pinned.
pub(crate) struct Chunk {
    words: [u64; CHUNK],
    /// Bits of the words that are repeated words.
    same: u64,
    /// Bits of the words whose objects are in the swap file.
    disk: u64,
    sums: [u32; CHUNK],
    len: usize,
}

impl Chunk {
    pub(crate) fn new() -> Self {
        Chunk { words: [0; CHUNK], same: 0, disk: 0, sums: [0; CHUNK], len: 0 }
    }

    fn source(&self, index: usize) -> Option<Source> {
        (self.same >> index & 1 == 0).then(|| match self.disk >> index & 1 {
            0 => Source::Memory(Entry(self.words[index])),
            _ => Source::Disk(DiskEntry(self.words[index])),
        })
    }

    pub(crate) fn on_disk(&self) -> impl Iterator<Item = (usize, DiskEntry)> + '_ {
        bits(self.disk).map(|index| (index, DiskEntry(self.words[index])))
    }

    pub(crate) fn add(&mut self, zswap: &Zswap, state: &mut GroupState, name: u32, mask: u16) {
        let sums = zswap.config.verify.then(|| *state.tree.sums(&zswap.slabs, name));
        let leaf = state.tree.leaf(&zswap.slabs, name);
        for slot in slots(mask) {
            let at = self.len;
            match leaf.same_word(slot) {
                Some(word) => {
                    self.words[at] = word;
                    self.same |= 1 << at;
                }
                None => match leaf.source(slot) {
                    Source::Memory(entry) => self.words[at] = entry.0,
                    Source::Disk(entry) => {
                        self.words[at] = entry.0;
                        self.disk |= 1 << at;
                    }
                },
            }
            if let Some(sums) = &sums {
                self.sums[at] = sums[slot];
            }
            self.len += 1;
        }
    }
}

/// The pages of a chunk of keys, cut at leaves: key bits of the leaf and mask within.
fn parts(key: u64, mask: u64) -> impl Iterator<Item = (u32, u16)> {
    let mut done = 0;
    let count = u64::from(64 - mask.leading_zeros());
    std::iter::from_fn(move || {
        (done < count).then(|| {
            let (key_high, all) = leaf_part(key + done, count - done);
            let part = ((mask >> done) as u16) << all.trailing_zeros() & all;
            done += u64::from(all.count_ones());
            (key_high, part)
        })
    })
    .filter(|&(_, part)| part != 0)
}

/// Pages of the chunk that starts at page `done`. Chunks end with leaves, so that no unit is split.
fn chunk_len(key: u64, done: usize, left: usize) -> usize {
    left.min(CHUNK - ((key + done as u64) % LEAF_PAGES as u64) as usize)
}

/// Positions of the set bits, ascending.
fn bits(mask: u64) -> impl Iterator<Item = usize> {
    (0..CHUNK).filter(move |at| mask >> at & 1 == 1)
}

fn ones(count: usize) -> u64 {
    match count {
        0 => 0,
        count => !0 >> (64 - count),
    }
}

impl Zswap {
    /// Loads consecutive pages from `key`.
    ///
    /// # Errors
    /// [`LoadError`] if any page is missing or damaged; then no entry was removed.
    pub fn load(&self, group: Group, key: u64, pages: &mut [&mut Page], keep: Keep) -> Result<(), LoadError> {
        let cell = self.holder(group, key, pages.len() as u64)?;
        let mut done = 0;
        let mut result = Ok(());
        let mut rest = &mut *pages;
        // Kept until the end, for algorithms with accounting.
        let mut reads = Vec::new();
        while !rest.is_empty() {
            let (pages, later) = rest.split_at_mut(chunk_len(key, done, rest.len()));
            rest = later;
            let mask = ones(pages.len());
            match self.load_chunk(cell, key + done as u64, mask, pages) {
                Err(error) => {
                    result = Err(error.at(|index| index + done));
                    break;
                }
                Ok(read) if keep == Keep::Shared => {
                    self.end_chunk(group, cell, key + done as u64, mask, keep, read)
                }
                Ok(read) => reads.extend(read.map(|read| (done, read))),
            }
            done += pages.len();
        }
        if keep == Keep::Exclusive {
            // Either every page is loaded, or no entry is removed.
            let mut reads = reads.into_iter().peekable();
            let mut ended = 0;
            while ended < done {
                let count = chunk_len(key, ended, done - ended);
                let read = reads.next_if(|(at, _)| *at == ended).map(|(_, read)| read);
                let key = key + ended as u64;
                match result {
                    Ok(()) => self.end_chunk(group, cell, key, ones(count), keep, read),
                    Err(_) => {
                        let mut state = cell.lock();
                        self.unpin_chunk(cell, &mut state, key, ones(count));
                    }
                }
                ended += count;
            }
        }
        result
    }

    /// Loads the pages of `mask`, bit `i` being key `key + i`; `pages` has one page per set bit, in
    /// order. For masks from [`present`](Zswap::present).
    ///
    /// # Errors
    /// As [`load`](Zswap::load); an index counts `pages`.
    ///
    /// # Panics
    /// If `pages` and the mask do not agree.
    pub fn load_masked(
        &self,
        group: Group,
        key: u64,
        mask: u64,
        pages: &mut [&mut Page],
        keep: Keep,
    ) -> Result<(), LoadError> {
        assert_eq!(pages.len(), mask.count_ones() as usize, "a page for each bit");
        if mask == 0 {
            return Ok(());
        }
        let cell = self.holder(group, key, u64::from(64 - mask.leading_zeros()))?;
        let read = self.load_chunk(cell, key, mask, pages)?;
        self.end_chunk(group, cell, key, mask, keep, read);
        Ok(())
    }

    /// Loads those of the pages of `wanted` that are stored, in the pool or in the swap file, and
    /// returns their mask. No thread can take any of them between the check and the load. `pages`
    /// has one page per bit of `wanted`, in order; those of missing pages are not touched.
    ///
    /// # Errors
    /// As [`load`](Zswap::load), but never for a missing page; an index counts the bits of
    /// `wanted`.
    ///
    /// # Panics
    /// If `pages` and the mask do not agree.
    pub fn load_available(
        &self,
        group: Group,
        key: u64,
        wanted: u64,
        pages: &mut [&mut Page],
        keep: Keep,
    ) -> Result<u64, LoadError> {
        assert_eq!(pages.len(), wanted.count_ones() as usize, "a page for each bit");
        loop {
            let mask = self.present(group, key, 64) & wanted;
            let mut some: Vec<&mut Page> = Vec::with_capacity(CHUNK);
            let is_there = bits(wanted).map(|at| mask >> at & 1 == 1);
            some.extend(
                pages.iter_mut().zip(is_there).filter(|(_, there)| *there).map(|(page, _)| &mut **page),
            );
            match self.load_masked(group, key, mask, &mut some, keep) {
                Ok(()) => return Ok(mask),
                // Another thread has taken a page since: check again.
                Err(LoadError::Missing { .. }) => {}
                Err(error) => {
                    let before = |index| ones(bits(mask).nth(index).expect("a bit of the mask"));
                    return Err(error.at(|index| (wanted & before(index)).count_ones() as usize));
                }
            }
        }
    }

    /// Loads consecutive pages from `key` up to the first one in the swap file, and returns how
    /// many. Never waits for the disk, nor for a thread that does.
    ///
    /// # Errors
    /// As [`load`](Zswap::load); a missing page counts only before the first one in the swap file.
    pub fn load_from_pool(
        &self,
        group: Group,
        key: u64,
        pages: &mut [&mut Page],
        keep: Keep,
    ) -> Result<usize, LoadError> {
        let cell = self.holder(group, key, pages.len() as u64)?;
        let mut done = 0;
        while done < pages.len() {
            let key = key + done as u64;
            let wanted = chunk_len(key, 0, pages.len() - done);
            let mut chunk = Chunk::new();
            let count = self
                .pin_from_pool(cell, key, wanted, &mut chunk)
                .map_err(|error| error.at(|index| index + done))?;
            if count == 0 {
                break;
            }
            self.load_pinned(cell, key, ones(count), &chunk, &mut pages[done..done + count])
                .map_err(|error| error.at(|index| index + done))?;
            self.end_chunk(group, cell, key, ones(count), keep, None);
            done += count;
            if count < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// The group that may hold `count` pages from `key`.
    fn holder(&self, group: Group, key: u64, count: u64) -> Result<&GroupCell, LoadError> {
        let cell = in_range(key, count).then(|| self.group(group));
        cell.flatten().ok_or(LoadError::Missing { index: 0 })
    }

    /// Pins the first pages of a chunk, up to the first one in the swap file; returns how many.
    fn pin_from_pool(
        &self,
        cell: &GroupCell,
        key: u64,
        count: usize,
        chunk: &mut Chunk,
    ) -> Result<usize, LoadError> {
        let mut state = cell.lock();
        loop {
            let on_disk = state.pages(&self.slabs, key, count, Leaf::on_disk);
            let count = (on_disk.trailing_zeros() as usize).min(count);
            match self.try_pin(&mut state, key, ones(count), chunk)? {
                true => return Ok(count),
                // When it is idle it may have moved to the disk.
                false => state = cell.wait(state),
            }
        }
    }

    /// Pins, reads and decompresses up to 64 pages. They stay pinned only on success.
    fn load_chunk(
        &self,
        cell: &GroupCell,
        key: u64,
        mask: u64,
        pages: &mut [&mut Page],
    ) -> Result<Option<DiskRead<'_>>, LoadError> {
        let mut chunk = Chunk::new();
        let mut state = cell.lock();
        // Every load pins in ascending order, so waiting while holding lower pages cannot deadlock.
        while !self.try_pin(&mut state, key, mask, &mut chunk)? {
            state = cell.wait(state);
        }
        drop(state);
        self.load_pinned(cell, key, mask, &chunk, pages)
    }

    /// Reads and decompresses pinned pages; unpins them on failure.
    fn load_pinned(
        &self,
        cell: &GroupCell,
        key: u64,
        mask: u64,
        chunk: &Chunk,
        pages: &mut [&mut Page],
    ) -> Result<Option<DiskRead<'_>>, LoadError> {
        let timed = self.config.swap.is_some() && self.balance.samples(chunk);
        let began = timed.then(std::time::Instant::now);
        let loaded =
            self.read_disk(chunk).and_then(|read| match self.decompress(chunk, read.as_ref(), pages) {
                Ok(()) => Ok(read),
                Err(index) => {
                    self.events.decompress_fail.add(1);
                    Err(LoadError::Damaged { index })
                }
            });
        match &loaded {
            Ok(_) => {
                if let Some(began) = began {
                    self.balance.pool_load(chunk.len, began.elapsed());
                }
            }
            Err(_) => {
                let mut state = cell.lock();
                self.unpin_chunk(cell, &mut state, key, mask);
            }
        }
        loaded
    }

    /// Pins the pages, all present, and copies their entries. Returns false, and does nothing, if a
    /// page is busy.
    fn try_pin(
        &self,
        state: &mut GroupState,
        key: u64,
        mask: u64,
        chunk: &mut Chunk,
    ) -> Result<bool, LoadError> {
        let mut seen = 0;
        for (key_high, part) in parts(key, mask) {
            let found = state.tree.find(&self.slabs, key_high);
            let present = found.map_or(0, |name| state.tree.leaf(&self.slabs, name).present());
            if present & part != part {
                let before = part & ((1u16 << (part & !present).trailing_zeros()) - 1);
                return Err(LoadError::Missing { index: seen + before.count_ones() as usize });
            }
            seen += part.count_ones() as usize;
            let name = found.expect("it has pages");
            if state.tree.leaf(&self.slabs, name).busy & self.with_units(state, name, part) != 0 {
                return Ok(false);
            }
        }
        for (key_high, part) in parts(key, mask) {
            let name = state.tree.find(&self.slabs, key_high).expect("found above");
            let all = self.with_units(state, name, part);
            state.tree.leaf(&self.slabs, name).busy |= all;
            chunk.add(self, state, name, part);
        }
        Ok(true)
    }

    /// The pages of a leaf and those that share their objects.
    pub(crate) fn with_units(&self, state: &mut GroupState, name: u32, part: u16) -> u16 {
        if self.unit_pages == 1 {
            return part;
        }
        let leaf = state.tree.leaf(&self.slabs, name);
        slots(part & (leaf.objects() | leaf.on_disk())).fold(part, |all, slot| all | leaf.unit_of(slot))
    }

    fn unpin_chunk(&self, cell: &GroupCell, state: &mut MutexGuard<'_, GroupState>, key: u64, mask: u64) {
        for (key_high, part) in parts(key, mask) {
            let name = state.tree.find(&self.slabs, key_high).expect("pinned pages stay");
            let all = self.with_units(state, name, part);
            cell.unpin(state, &self.slabs, name, all);
        }
    }

    /// Ends the load of pages: unpins them, and removes them or gives them a second chance.
    fn end_chunk(
        &self,
        group: Group,
        cell: &GroupCell,
        key: u64,
        mask: u64,
        keep: Keep,
        read: Option<DiskRead<'_>>,
    ) {
        let mut freed = Freed::new();
        let mut from_disk = 0;
        let mut state = cell.lock();
        for (key_high, part) in parts(key, mask) {
            let name = state.tree.find(&self.slabs, key_high).expect("pinned pages stay");
            let all = self.with_units(&mut state, name, part);
            cell.unpin(&mut state, &self.slabs, name, all);
            let leaf = state.tree.leaf(&self.slabs, name);
            let back = leaf.on_disk() & part;
            if back != 0 {
                // The rest of the block is warmer than assumed.
                from_disk += u64::from(back.count_ones());
                self.returned.insert(group, key_high);
                leaf.chances = leaf.chances.max(1);
            }
            match keep {
                Keep::Exclusive => cell.remove(&mut state, &self.slabs, name, part, &mut freed),
                Keep::Shared => leaf.chances = leaf.chances.max(1),
            }
        }
        cell.numbers().zswpin.add(u64::from(mask.count_ones()));
        cell.numbers().disk_loads.add(from_disk);
        drop(state);
        if let Some(read) = &read {
            self.forget_read(read, &freed);
        }
        self.free(&mut freed);
    }

    /// Decompresses the pages of a chunk; `read` has the objects from the swap file. The pages are
    /// pinned, so their objects stay. Returns the index of a page that failed.
    pub(crate) fn decompress(
        &self,
        chunk: &Chunk,
        read: Option<&DiskRead<'_>>,
        pages: &mut [&mut Page],
    ) -> Result<(), usize> {
        assert_eq!(chunk.len, pages.len());
        let cpu = sys::cpu::current();
        // Pages whose objects must be decompressed.
        let is_unit = |at: &usize| chunk.source(*at).is_some_and(|source| !source.is_raw());
        let units = (0..chunk.len).filter(is_unit).fold(0, |mask, at| mask | 1 << at);
        let (mut left, mut requests, mut done) = (units, Requests::default(), Ok(()));
        while left != 0 && done.is_ok() {
            done = self.decompress_batch(chunk, read, &mut left, pages, cpu, &mut requests);
        }
        if let Some(tally) = self.config.load_tally.filter(|_| units != 0) {
            tally(&requests);
        }
        done?;
        // Last, so that the locks and prefetches of a batch do not wait for these writes.
        for (at, page) in pages.iter_mut().enumerate().filter(|(at, _)| units >> at & 1 == 0) {
            match chunk.source(at) {
                None => filled::fill(page, chunk.words[at]),
                Some(Source::Memory(entry)) => self.copy_raw(entry, page),
                Some(Source::Disk(entry)) => {
                    let start = entry.position() * PAGE_SIZE;
                    page.copy_from_slice(&of_disk(read, at)[start..start + PAGE_SIZE]);
                }
            }
        }
        if self.config.verify {
            for (index, page) in pages.iter().enumerate() {
                if checksum::of(page) != chunk.sums[index] {
                    return Err(index);
                }
            }
        }
        Ok(())
    }

    fn copy_raw(&self, entry: Entry, page: &mut Page) {
        let object = self.pools.of_objects(entry.pool()).objects.read(handle_of(entry));
        page.copy_from_slice(&object.bytes()[entry.position() * PAGE_SIZE..][..PAGE_SIZE]);
    }

    /// Decompresses one batch of units, the first ones of the pages of `left` and of one pool, and
    /// removes their pages from `left`. Skips pages between them of other pools or without an
    /// object to decompress.
    fn decompress_batch(
        &self,
        chunk: &Chunk,
        read: Option<&DiskRead<'_>>,
        left: &mut u64,
        pages: &mut [&mut Page],
        cpu: usize,
        requests: &mut Requests,
    ) -> Result<(), usize> {
        let source = |at: usize| chunk.source(at).expect("what is left has an object");
        let pool_id = source(left.trailing_zeros() as usize).pool();
        let pool = self.pools.of_objects(pool_id);
        // Consecutive pages of one object are one unit, wherever the object is.
        let mut units = [(0u8, 0u8); MAX_BATCH];
        let mut sources = [None; MAX_BATCH];
        let mut len = 0;
        let mut rest = *left;
        while rest != 0 && len < pool.batch {
            let at = rest.trailing_zeros() as usize;
            let first = source(at);
            let same = |index: &usize| rest >> index & 1 == 1 && source(*index).same_object(first);
            let run = (at..chunk.len).take_while(same).count();
            let mask = ones(run) << at;
            rest &= !mask;
            if first.pool() == pool_id {
                (units[len], sources[len]) = ((at as u8, run as u8), Some(first));
                len += 1;
                *left &= !mask;
            }
        }
        let units = &units[..len];
        let unit_pages = |n: usize| sources[n].expect("a unit has an object").pages();

        let mut worker = pool.worker(cpu);
        let worker = &mut *worker;
        let guards: [Option<zsmalloc::ReadGuard<'_>>; MAX_BATCH] =
            std::array::from_fn(|n| match sources[n] {
                Some(Source::Memory(entry)) => Some(pool.objects.read(handle_of(entry))),
                _ => None,
            });
        let objects: [Object<'_>; MAX_BATCH] = std::array::from_fn(|n| match (&guards[n], sources[n]) {
            (Some(guard), _) => Object::whole(guard.bytes()),
            (None, Some(_)) => Object::whole(of_disk(read, units[n].0 as usize)),
            (None, None) => Object::default(),
        });
        // Each object would start with page-table and memory misses; prefetching overlaps them.
        for object in &objects[..len] {
            prefetch(object.head);
        }
        let mut results = [Err(UnitError::Failed); MAX_BATCH];
        requests.add(&*pool.algorithm, len);
        {
            let mut rooms = worker.buffers.chunks_exact_mut(self.config.unit_size);
            let mut rest = pages.iter_mut().enumerate();
            let mut outputs: [&mut [u8]; MAX_BATCH] = std::array::from_fn(|n| {
                let Some(&(first, _)) = units.get(n) else { return &mut [][..] };
                let is_first = |(index, _): &(usize, _)| *index == usize::from(first);
                let (_, page) = rest.find(is_first).expect("units lie in the order of their pages");
                match unit_pages(n) {
                    1 => page.as_mut_slice(),
                    pages => &mut rooms.next().expect("a room a unit")[..pages * PAGE_SIZE],
                }
            });
            worker.context.decompress(&mut DecompressRequest {
                objects: &objects[..len],
                outputs: &mut outputs[..len],
                results: &mut results[..len],
            });
        }
        let mut rooms = worker.buffers.chunks_exact(self.config.unit_size);
        for (n, (&(first, run), result)) in units.iter().zip(&results).enumerate() {
            let (first, run) = (first as usize, run as usize);
            let unit_pages = unit_pages(n);
            if *result != Ok(unit_pages * PAGE_SIZE) {
                return Err(first);
            }
            if unit_pages > 1 {
                let room = rooms.next().expect("a room a unit");
                for (index, page) in (first..).zip(&mut pages[first..first + run]) {
                    let position = chunk.source(index).expect("of the unit").position();
                    let start = position * PAGE_SIZE;
                    page.copy_from_slice(&room[start..start + PAGE_SIZE]);
                }
            }
        }
        Ok(())
    }
}

/// Prefetches the first lines of an object; the processor's own prefetcher continues.
fn prefetch(bytes: &[u8]) {
    bytes.chunks(64).take(PREFETCH_LINES).for_each(fetch_line);
}

/// Of 4, 12 and 32 lines, 12 saves most of LZ4's and Zstandard's load times, and 32 no more.
const PREFETCH_LINES: usize = 12;

fn of_disk<'a>(read: Option<&'a DiskRead<'_>>, index: usize) -> &'a [u8] {
    read.expect("what is in the swap file was read").object(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_cut_at_leaves() {
        let all: Vec<_> = parts(0x1E, ones(20)).collect();
        assert_eq!(all, [(1, 0xC000), (2, 0xFFFF), (3, 0b11)]);
        let some: Vec<_> = parts(0x1E, 0b1000_0000_0000_0000_0001).collect();
        assert_eq!(some, [(1, 0x4000), (3, 0b10)]);
        assert_eq!(parts(0, ones(64)).count(), 4);
    }
}
