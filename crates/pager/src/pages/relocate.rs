//! mremap(): what is out follows its mapping.
//!
//! The kernel has moved what is mapped before it tells. What is staged or stored is taken out of the blocks of the old
//! range and stored under its new addresses. Nothing is put into the program's memory here: events that were read after
//! this one may have discarded or moved the new range already, and only the table can follow them. So pages that do not
//! compress are kept in the pool as they are.
//!
//! Source and target may be parts of one block, and of any alignment to each other. So the pages of one block are taken
//! first and its lock is let go of before those of the target are taken: no two at a time. Nobody sees the pages in
//! between, because every fault waits until this event has been applied.

use std::io;
use std::ptr::NonNull;

use sys::{house, PAGE_SIZE};
use zswap::{Group, Keep};

use super::refs::PageRefs;
use super::table::{runs, span, within, PageState, ALL_PAGES, BLOCK_BYTES, BLOCK_PAGES};
use super::{Pages, GROUP};

/// Memory for the pages of one block.
pub(super) struct Transit {
    pages: NonNull<[u8; PAGE_SIZE]>,
}

// SAFETY: the memory is this structure's alone.
unsafe impl Send for Transit {}

impl Transit {
    pub fn new() -> io::Result<Self> {
        Ok(Transit { pages: house::take(BLOCK_BYTES, PAGE_SIZE)?.cast() })
    }

    fn pages(&mut self) -> &mut [[u8; PAGE_SIZE]; BLOCK_PAGES] {
        // SAFETY: BLOCK_PAGES pages taken for this structure, zeroed at first.
        unsafe { &mut *self.pages.as_ptr().cast() }
    }
}

impl Pages {
    /// mremap() moved `[from, from + len)` to `to`: the pages of `group`, the program's or those set aside, follow.
    pub(super) fn relocate(&self, group: Group, from: usize, to: usize, len: usize) {
        let mut transit = self.transit.lock().expect("no panic while held");
        // What was left alone at the target was another mapping's.
        self.discard(to, to + len);
        // The ranges do not overlap, says the kernel, but their blocks can.
        // Displaced pages are few, and their blocks may have no record any more.
        let mut all = (from & !(BLOCK_BYTES - 1)..from + len).step_by(BLOCK_BYTES);
        let mut known = self.table.known(from, from + len);
        while let Some(base) = if group == GROUP { known.next() } else { all.next() } {
            let mask = within(base, from, from + len);
            let taken = match group == GROUP {
                true => self.take_out(base, mask, transit.pages()),
                false => self.take_displaced(base, mask, transit.pages()),
            };
            for (first, count) in runs(taken) {
                self.keep_at(base + first * PAGE_SIZE - from + to, &transit.pages()[first..first + count]);
            }
        }
    }

    /// Takes the pages of `mask` that are out of a block; answers which. Nothing is known of them there afterwards.
    fn take_out(&self, base: usize, mask: u32, pages: &mut [[u8; PAGE_SIZE]; BLOCK_PAGES]) -> u32 {
        // A compression that ends later drops its objects by these very keys.
        let block = self.lock_settled(base);
        block.forget_refused(mask);
        let staged = block.mask(PageState::Staged) & mask;
        for index in (0..BLOCK_PAGES).filter(|index| staged >> index & 1 == 1) {
            // SAFETY: staged pages stay where they are while their block's lock is held.
            pages[index] =
                unsafe { *(self.staging.address(block.slot(), index) as *const [u8; PAGE_SIZE]) };
        }
        block.change(staged, PageState::Staged, PageState::Kernel);
        block.drop_slot_if_unused();
        let stored = block.mask(PageState::Stored) & mask;
        for (first, count) in runs(stored) {
            let key = (base / PAGE_SIZE + first) as u64;
            let mut refs = PageRefs::new();
            pages[first..first + count].iter_mut().for_each(|page| refs.push(page));
            if let Err(error) = self.store.load(GROUP, key, refs.as_mut_slice(), Keep::Exclusive) {
                self.fatal(format_args!("a page from {base:#x} on could not follow mremap: {error}"));
            }
        }
        block.change(stored, PageState::Stored, PageState::Kernel);
        let kernels = block.mask_of(PageState::is_kernels) & mask;
        block.change_kernels(kernels, PageState::Kernel);
        staged | stored
    }

    /// Stores adjacent pages under their new addresses.
    fn keep_at(&self, at: usize, pages: &[[u8; PAGE_SIZE]]) {
        let mut at = at;
        let mut rest = pages;
        while !rest.is_empty() {
            let base = at & !(BLOCK_BYTES - 1);
            let first = (at - base) / PAGE_SIZE;
            let (now, later) = rest.split_at(rest.len().min(BLOCK_PAGES - first));
            let block = self.lock_settled(base);
            let mask = span(first, now.len());
            assert_eq!(block.mask_of(PageState::is_kernels) & mask, mask, "pages out where others moved to");
            let refs: [&[u8; PAGE_SIZE]; BLOCK_PAGES] = std::array::from_fn(|index| &now[index.min(now.len() - 1)]);
            let key = (at / PAGE_SIZE) as u64;
            if let Err(error) = self.store.store_any(GROUP, key, &refs[..now.len()]) {
                self.fatal(format_args!("pages at {at:#x} could not follow mremap: {error}"));
            }
            block.change_kernels(mask & ALL_PAGES, PageState::Stored);
            drop(block);
            at += now.len() * PAGE_SIZE;
            rest = later;
        }
    }
}
