//! Bringing pages in: zeroes for untouched pages, staged pages, and pages from the pool.

use sys::userfaultfd::Stop;
use sys::PAGE_SIZE;
use zswap::{Keep, Zswap};

use super::fault_in_run::fault_in_run;
use super::inbound::Inbound;
use super::place::{self, fill_shared, place, place_copies, Placed};
use crate::accounts::{Accounts, Counter};
use crate::address_space::{AddressSpace, GROUP};
use crate::space::block::{BlockGuard, PageState};
use crate::staging::refs::PageRefs;
use crate::staging::Staging;
use crate::units::{BlockNumber, PageMask, PageNumber, PageRun, BLOCK_PAGES};

/// Windows for which a whole run is brought in with one call.
const LONG_WINDOW_MIN: usize = 4 * BLOCK_PAGES;

/// The outcome of bringing pages in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultedIn {
    /// Number of pages, the faulting one first, that are in place or gone with their mapping.
    Done(usize),
    /// An event is unread or unapplied: read messages and try again.
    Again,
    /// The kernel has no memory.
    NoMemory,
    /// The page is in the swap file, and the caller does not read it.
    OnDisk,
}

impl AddressSpace {
    /// Brings in page `at` and following pages in the same state, up to `window` pages.
    pub fn fault_in(&self, inbound: &mut Inbound, at: PageNumber, write: bool, window: usize) -> FaultedIn {
        self.fault_in_for(inbound, at, at, write, window)
    }

    /// The same on behalf of a thread that waits for page `needed`, there or further on.
    pub fn fault_in_for(
        &self,
        inbound: &mut Inbound,
        needed: PageNumber,
        at: PageNumber,
        write: bool,
        window: usize,
    ) -> FaultedIn {
        if window >= LONG_WINDOW_MIN {
            if let Some(pages) = fault_in_run(self, at, write, window, inbound.reads_disk) {
                return FaultedIn::Done(pages);
            }
        }
        let block = self.lock(at.block());
        let index = at.index();
        let was_kernels = block.state(index).is_kernels();
        let brought = fault_in_within(self, &block, inbound, index, write, window.min(BLOCK_PAGES - index));
        if let FaultedIn::Done(pages) = brought {
            let came = PageMask::span(index, pages);
            match was_kernels {
                true => self.policy.touched(block.history(), came.bits()),
                false => {
                    let is_here = needed.block() == block.number();
                    let needed = if is_here { needed.mask() } else { PageMask::NONE };
                    self.note_returned(block.history(), came, needed, false);
                }
            }
        }
        brought
    }

    /// Brings in adjacent stored pages from the start of a block. Returns their number.
    /// For readahead: stops at any obstacle.
    pub fn fault_in_ahead(&self, inbound: &mut Inbound, at: BlockNumber, window: usize) -> usize {
        let Some(block) = self.space.table.find(at).and_then(|_| self.space.table.try_lock(at)) else {
            return 0;
        };
        match block.mask(PageState::Stored).run_at(0).min(window) {
            0 => 0,
            run => match load(self, &block, inbound, 0, run) {
                FaultedIn::Done(pages) => {
                    self.note_returned(block.history(), PageMask::span(0, pages), PageMask::NONE, false);
                    pages
                }
                _ => 0,
            },
        }
    }

    /// Brings in all out pages of a block. Returns their number, and whether an event left some.
    pub fn fault_in_block(&self, inbound: &mut Inbound, at: BlockNumber) -> (usize, bool) {
        let block = self.lock_settled(at);
        let mut brought = 0;
        for index in 0..BLOCK_PAGES {
            if block.state(index).is_kernels() {
                continue;
            }
            match fault_in_within(self, &block, inbound, index, false, BLOCK_PAGES - index) {
                FaultedIn::Done(pages) => brought += pages,
                FaultedIn::Again | FaultedIn::NoMemory | FaultedIn::OnDisk => return (brought, true),
            }
        }
        (brought, false)
    }
}

/// Brings in pages of one block. The caller has its lock.
pub fn fault_in_within(
    memory: &AddressSpace,
    block: &BlockGuard<'_>,
    inbound: &mut Inbound,
    index: usize,
    write: bool,
    window: usize,
) -> FaultedIn {
    let alike = |mask: PageMask| mask.run_at(index).min(window);
    match block.state(index) {
        PageState::Staged => unstage(memory, block, index, alike(block.mask(PageState::Staged))),
        PageState::Stored => load(memory, block, inbound, index, alike(block.mask(PageState::Stored))),
        _ => fill(memory, block, inbound, index, alike(block.mask_of(PageState::is_kernels)), write),
    }
}

/// Fills with zeroes: private pages for a write, the shared zero page for a read.
fn fill(
    memory: &AddressSpace,
    block: &BlockGuard<'_>,
    inbound: &mut Inbound,
    index: usize,
    count: usize,
    write: bool,
) -> FaultedIn {
    let run = PageRun::new(index, count);
    let Some(coherent) = memory.coherent(block) else { return FaultedIn::Again };
    let (filled, stop) = match write {
        false => fill_shared(&coherent, index),
        true => place::fill(&memory.staging, &coherent, inbound, run),
    };
    if filled > 0 {
        // Filled pages were missing, so their discarding is over, or covers the new page, too.
        block.change_kernels(PageMask::span(index, filled), PageState::Kernel);
        if write {
            memory.accounts.add(Counter::ZeroFilled, filled as u64);
        }
        return FaultedIn::Done(filled);
    }
    match stop {
        Some(Stop::Again) | None => FaultedIn::Again,
        Some(Stop::NoMemory) => FaultedIn::NoMemory,
        // Present already, or gone. Either way the thread retries by itself.
        Some(_) => {
            coherent.wake(run.one());
            FaultedIn::Done(1)
        }
    }
}

/// The second chance: staged pages move straight back.
fn unstage(memory: &AddressSpace, block: &BlockGuard<'_>, index: usize, count: usize) -> FaultedIn {
    let Some(coherent) = memory.coherent(block) else { return FaultedIn::Again };
    let (run, slot) = (PageRun::new(index, count), block.staged_slot());
    let source = memory.staging.frame(slot, index);
    // The compressor's input must not change: then the page is copied back and its frame stays.
    let placed = match block.is_compressing() {
        true => place_copies(&coherent, run, source.address()),
        false => place(&coherent, run, source),
    };
    let back = match placed {
        Placed::Moved(moved) => {
            memory.staging.left(slot, PageMask::span(index, moved));
            moved
        }
        // The frames that copies leave behind are ready pages.
        Placed::Copied(copied) => copied,
        Placed::Gone => 1,
        Placed::Again => return FaultedIn::Again,
        Placed::NoMemory => return FaultedIn::NoMemory,
    };
    block.change(PageMask::span(index, back), PageState::Staged, PageState::Kernel);
    if !block.is_compressing() {
        block.drop_slot_if_unused();
    }
    memory.accounts.add(Counter::Refaults, back as u64);
    FaultedIn::Done(back)
}

fn load(
    memory: &AddressSpace,
    block: &BlockGuard<'_>,
    inbound: &mut Inbound,
    index: usize,
    count: usize,
) -> FaultedIn {
    let mut done = 0;
    while done < count {
        let first = index + done;
        let placed = match inbound.frames.pages(&memory.staging, count - done) {
            Some(pages) => {
                let source = memory.staging.frame(pages.slot, pages.first);
                let at = block.page(first);
                // SAFETY: adjacent frames of this handler's cache.
                let found =
                    unsafe { decompress(memory, at, source.address(), pages.count, inbound.reads_disk) };
                if found == 0 {
                    return partly(done, FaultedIn::OnDisk);
                }
                let Some(coherent) = memory.coherent(block) else { return partly(done, FaultedIn::Again) };
                let placed = place(&coherent, PageRun::new(first, found), source);
                if let Placed::Moved(moved) = placed {
                    inbound.frames.spend(&memory.staging, pages, moved);
                }
                drop(coherent);
                settle_loaded(&memory.store, memory.accounts, block, first, placed, found)
            }
            None => load_single(memory, block, inbound, first),
        };
        match placed {
            Ok((pages, more)) => {
                done += pages;
                if !more {
                    break;
                }
            }
            Err(other) => return partly(done, other),
        }
    }
    FaultedIn::Done(done)
}

/// Brings in one page by a copy, when every slot is in use. The copy is faster than a move, but
/// its new frame must be offset elsewhere by a move and another call.
fn load_single(
    memory: &AddressSpace,
    block: &BlockGuard<'_>,
    inbound: &mut Inbound,
    index: usize,
) -> Result<(usize, bool), FaultedIn> {
    // SAFETY: the handler's own page.
    if unsafe { decompress(memory, block.page(index), inbound.buffer, 1, inbound.reads_disk) } == 0 {
        return Err(FaultedIn::OnDisk);
    }
    let Some(coherent) = memory.coherent(block) else { return Err(FaultedIn::Again) };
    let placed = place_copies(&coherent, PageRun::new(index, 1), inbound.buffer);
    drop(coherent);
    let settled = settle_loaded(&memory.store, memory.accounts, block, index, placed, 1)?;
    note_copied(&memory.staging, inbound, 1);
    Ok(settled)
}

/// Discards ready frames in exchange for pages that were copied in, sixteen at a time.
pub(crate) fn note_copied(staging: &Staging, inbound: &mut Inbound, pages: usize) {
    inbound.copied += pages;
    while inbound.copied >= BLOCK_PAGES {
        let Some(slot) = staging.take_ready(BLOCK_PAGES) else { return };
        let discarded = staging.discard(&slot);
        inbound.copied -= discarded.min(inbound.copied);
        staging.give(slot);
    }
}

/// Records the placing of pages from the pool. Returns their number, and whether it was all.
pub(crate) fn settle_loaded(
    store: &Zswap,
    accounts: &dyn Accounts,
    block: &BlockGuard<'_>,
    index: usize,
    placed: Placed,
    wanted: usize,
) -> Result<(usize, bool), FaultedIn> {
    let pages = match placed {
        Placed::Moved(pages) | Placed::Copied(pages) => pages,
        Placed::Gone => 1,
        Placed::Again => return Err(FaultedIn::Again),
        Placed::NoMemory => return Err(FaultedIn::NoMemory),
    };
    block.change(PageMask::span(index, pages), PageState::Stored, PageState::Kernel);
    store.invalidate(GROUP, block.page(index).key(), pages as u64);
    accounts.add(Counter::ZswpIn, pages as u64);
    Ok((pages, pages == wanted))
}

/// Loads adjacent pages. Returns their number: all, or, unless `reads_disk`, those before the
/// first one in the swap file.
///
/// # Safety
/// `target` begins `count` adjacent pages that only the caller uses.
pub(crate) unsafe fn decompress(
    memory: &AddressSpace,
    at: PageNumber,
    target: usize,
    count: usize,
    reads_disk: bool,
) -> usize {
    // SAFETY: by this function's contract.
    let whole = unsafe { std::slice::from_raw_parts_mut(target as *mut [u8; PAGE_SIZE], count) };
    let mut refs = PageRefs::new();
    whole.iter_mut().for_each(|page| refs.push(page));
    let loaded = match reads_disk || memory.store.swap_file().is_none() {
        true => memory.store.load(GROUP, at.key(), refs.as_mut_slice(), Keep::Shared).map(|()| count),
        false => memory.store.load_from_pool(GROUP, at.key(), refs.as_mut_slice(), Keep::Shared),
    };
    loaded.unwrap_or_else(|error| {
        memory.fatal(format_args!("page {at:?} is lost: {error}"));
    })
}

/// The result of an attempt that brought in `done` pages before it ended.
fn partly(done: usize, otherwise: FaultedIn) -> FaultedIn {
    match done {
        0 => otherwise,
        done => FaultedIn::Done(done),
    }
}
