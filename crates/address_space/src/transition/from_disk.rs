//! Bringing in from the swap file, by threads that may wait for the disk.
//!
//! No lock is held during the read. The blocks, and the pages being read, are marked. Other threads
//! may bring in, discard and move any page: a change of state clears the page's mark, and the page
//! read is dropped. A few neighbours are read along, and up to four blocks with one request if
//! pages are read in order.

use std::ops::Range;

use zswap::{Keep, LoadError};

use super::fault_in::{note_copied, settle_loaded, FaultedIn};
use super::inbound::Inbound;
use super::place::{place_copies, Placed};
use crate::address_space::{AddressSpace, GROUP};
use crate::space::block::PageState;
use crate::space::run::{Locked, PageRun, RunGuard};
use crate::staging::refs::{ArenaPages, PageRefs};
use crate::units::{index_of, page_at, page_key, runs, span, BLOCK_BYTES, BLOCK_PAGES};

/// Most blocks per read: as many pages as a request to the swap file may have.
const BLOCKS_MAX: usize = 4;
const PAGES_MAX: usize = BLOCKS_MAX * BLOCK_PAGES;

/// The outcome of a read from the swap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromDisk {
    /// Number of pages in place. The requested page is among them, or gone, or changed.
    Done(usize),
    /// The page is not in the swap file.
    Elsewhere,
    /// Another thread reads pages of the block.
    Busy,
}

/// A thread's buffer for pages read.
pub type Scratch = ArenaPages<PAGES_MAX>;

/// Pages of adjacent blocks that are read together: sixteen bits a block.
struct DiskRead {
    base: usize,
    /// The faulting page, in the first block.
    needed: usize,
    blocks: usize,
    mask: u64,
}

impl DiskRead {
    fn part(&self, index: usize) -> u32 {
        (self.mask >> (index * BLOCK_PAGES)) as u32 & 0xffff
    }
}

impl AddressSpace {
    /// Brings in the page at `at` if it is in the swap file, with those of the `wanted` pages that
    /// are in it, too. `wanted` counts from the first page of the block and includes the page.
    /// `read_on` reads messages if one is in the way. Hold no block's lock.
    pub fn bring_from_disk(
        &self,
        inbound: &mut Inbound,
        scratch: &mut Scratch,
        at: usize,
        wanted: Range<usize>,
        mut read_on: impl FnMut(),
    ) -> FromDisk {
        let reading = match begin_reading(self, at, wanted) {
            Ok(reading) => reading,
            Err(outcome) => return outcome,
        };
        let pages = scratch.pages();
        let mut refs = PageRefs::new();
        pages.iter_mut().take(reading.mask.count_ones() as usize).for_each(|page| refs.push(page));
        let key = page_key(reading.base);
        let loaded = self.store.load_available(GROUP, key, reading.mask, refs.as_mut_slice(), Keep::Shared);
        let loaded = loaded.unwrap_or_else(|error| lost(self, &reading, error));
        let mut done = 0;
        for index in 0..reading.blocks {
            let first = (reading.mask & ((1u64 << (index * BLOCK_PAGES)) - 1)).count_ones() as usize;
            let here = (loaded >> (index * BLOCK_PAGES)) as u32 & 0xffff;
            done += place_read(
                self,
                inbound,
                &reading,
                index,
                here,
                pages[first..].as_ptr() as usize,
                &mut read_on,
            );
        }
        FromDisk::Done(done)
    }
}

fn begin_reading(memory: &AddressSpace, at: usize, wanted: Range<usize>) -> Result<DiskRead, FromDisk> {
    let first = memory.lock(at);
    let index = index_of(at);
    if first.is_reading() {
        return Err(FromDisk::Busy);
    }
    let end = wanted.end.min(PAGES_MAX);
    let wanted = (u64::MAX >> (PAGES_MAX - end)) & !((1 << wanted.start) - 1);
    let mut run = RunGuard::of(first);
    run.extend(&memory.space.table, end.div_ceil(BLOCK_PAGES));
    let key = page_key(run.base());
    let on_disk = memory.store.on_disk(GROUP, key, run.count() * BLOCK_PAGES) & wanted;
    let mut reading = DiskRead { base: run.base(), needed: index, blocks: 0, mask: 0 };
    for (number, block) in run.iter().enumerate() {
        let here = (on_disk >> (number * BLOCK_PAGES)) as u32 & block.mask(PageState::Stored);
        if here == 0 || block.is_reading() || number == 0 && here >> index & 1 == 0 {
            break;
        }
        block.begin_reading(here);
        reading.blocks += 1;
        reading.mask |= u64::from(here) << (number * BLOCK_PAGES);
    }
    match reading.blocks {
        0 => Err(FromDisk::Elsewhere),
        _ => Ok(reading),
    }
}

/// Places the pages read of a block that are still wanted. Returns their number.
fn place_read(
    memory: &AddressSpace,
    inbound: &mut Inbound,
    reading: &DiskRead,
    index: usize,
    loaded: u32,
    source: usize,
    read_on: &mut impl FnMut(),
) -> usize {
    let base = reading.base + index * BLOCK_BYTES;
    let asked = reading.part(index);
    // Address of a page read: pages are adjacent in address order.
    let place_of = |page: usize| page_at(source, (asked & ((1 << page) - 1)).count_ones() as usize);
    let mut done = 0;
    loop {
        let block = memory.lock(base);
        let left = block.watched() & loaded;
        let Some((first, count)) = runs(left).next() else {
            block.end_reading();
            drop(block);
            note_copied(memory, inbound, done);
            return done;
        };
        let placed = match memory.quiet(&block) {
            None => Placed::Again,
            Some(quiet) => place_copies(&quiet, PageRun::new(first, count), place_of(first)),
        };
        match settle_loaded(memory, &block, first, placed, count) {
            Ok((pages, _)) => {
                let needed = if index == 0 { span(reading.needed, 1) } else { 0 };
                let back = span(first, pages);
                memory.note_returned(block.history(), back, needed & back, false);
                done += pages;
            }
            Err(why) => {
                drop(block);
                read_on();
                if why == FaultedIn::NoMemory {
                    sys::thread::sleep_ns(1_000_000);
                }
                sys::thread::yield_now();
            }
        }
    }
}

fn lost(memory: &AddressSpace, reading: &DiskRead, error: LoadError) -> ! {
    let index = match error {
        LoadError::Missing { index } | LoadError::Damaged { index } | LoadError::Disk { index, .. } => index,
    };
    let bits = (0..64).filter(|bit| reading.mask >> bit & 1 == 1);
    let page = page_at(reading.base, bits.into_iter().nth(index).unwrap_or(0));
    memory.fatal(format_args!("page {page:#x} is lost: {error}"))
}
