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
use crate::space::block::{Locked, PageState};
use crate::space::run::RunGuard;
use crate::staging::refs::{ArenaPages, PageRefs};
use crate::units::{page_at, BlockNumber, PageMask, PageNumber, PageRun, RunMask, BLOCK_PAGES};

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

/// Pages of adjacent blocks that are read together.
struct DiskRead {
    first: BlockNumber,
    /// The faulting page, in the first block.
    needed: PageMask,
    blocks: usize,
    pages: RunMask,
}

impl AddressSpace {
    /// Brings in page `at` if it is in the swap file, with those of the `wanted` pages that
    /// are in it, too. `wanted` counts from the first page of the block and includes the page.
    /// `read_on` reads messages if one is in the way. Hold no block's lock.
    pub fn bring_from_disk(
        &self,
        inbound: &mut Inbound,
        scratch: &mut Scratch,
        at: PageNumber,
        wanted: Range<usize>,
        mut read_on: impl FnMut(),
    ) -> FromDisk {
        let reading = match begin_reading(self, at, wanted) {
            Ok(reading) => reading,
            Err(outcome) => return outcome,
        };
        let pages = scratch.pages();
        let mut refs = PageRefs::new();
        pages.iter_mut().take(reading.pages.count()).for_each(|page| refs.push(page));
        let key = reading.first.page(0).key();
        let mask = reading.pages.bits() as u64;
        let loaded = self.store.load_available(GROUP, key, mask, refs.as_mut_slice(), Keep::Shared);
        let loaded = loaded.unwrap_or_else(|error| lost(self, &reading, error));
        let loaded = RunMask::from_bits(loaded.into());
        let mut done = 0;
        for index in 0..reading.blocks {
            let first = (reading.pages & RunMask::first(index * BLOCK_PAGES)).count();
            let (here, source) = (loaded.of_block(index), pages[first..].as_ptr() as usize);
            done += place_read(self, inbound, &reading, index, here, source, &mut read_on);
        }
        FromDisk::Done(done)
    }
}

fn begin_reading(memory: &AddressSpace, at: PageNumber, wanted: Range<usize>) -> Result<DiskRead, FromDisk> {
    let first = memory.lock(at.block());
    let index = at.index();
    if first.is_reading() {
        return Err(FromDisk::Busy);
    }
    let end = wanted.end.min(PAGES_MAX);
    let wanted = RunMask::first(end) & !RunMask::first(wanted.start);
    let mut run = RunGuard::of(first);
    run.extend(&memory.space.table, end.div_ceil(BLOCK_PAGES));
    let on_disk = memory.store.on_disk(GROUP, run.start().page(0).key(), run.count() * BLOCK_PAGES);
    let wanted = wanted & RunMask::from_bits(on_disk.into());
    let mut reading = DiskRead { first: run.start(), needed: at.mask(), blocks: 0, pages: RunMask::NONE };
    for (number, block) in run.iter().enumerate() {
        let here = wanted.of_block(number) & block.mask(PageState::Stored);
        if here.is_empty() || block.is_reading() || number == 0 && !here.has(index) {
            break;
        }
        block.begin_reading(here);
        reading.blocks += 1;
        reading.pages |= RunMask::from_block(number, here);
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
    loaded: PageMask,
    source: usize,
    read_on: &mut impl FnMut(),
) -> usize {
    let asked = reading.pages.of_block(index);
    // Address of a page read: pages are adjacent in address order.
    let place_of = |index| page_at(source, (asked & PageMask::span(0, index)).count());
    let mut done = 0;
    loop {
        let block = memory.lock(reading.first + index);
        let left = block.watched() & loaded;
        let Some((first, count)) = left.runs().next() else {
            block.end_reading();
            drop(block);
            note_copied(&memory.staging, inbound, done);
            return done;
        };
        let placed = match memory.coherent(&block) {
            None => Placed::Again,
            Some(coherent) => place_copies(&coherent, PageRun::new(first, count), place_of(first)),
        };
        match settle_loaded(&memory.store, memory.accounts, &block, first, placed, count) {
            Ok((pages, _)) => {
                let needed = if index == 0 { reading.needed } else { PageMask::NONE };
                let back = PageMask::span(first, pages);
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
    let pages =
        (0..PAGES_MAX).filter(|page| reading.pages.of_block(page / BLOCK_PAGES).has(page % BLOCK_PAGES));
    let page = reading.first.page(pages.into_iter().nth(index).unwrap_or(0));
    memory.fatal(format_args!("page {page:?} is lost: {error}"))
}
