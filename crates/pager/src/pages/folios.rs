//! Places for folios: 2 MiB of staging each, where whole huge pages are moved to and from.
//!
//! The kernel moves a huge page as one when both its place and its target are aligned and nothing
//! but one huge page was ever mapped there since the page table was last empty. It takes a
//! microsecond; the same pages leave by extents in 0.7 to 1.3 ms, since the huge page is split
//! first (2-CPU virtual machine, busy, November 2026). So a place is empty, or has all pages of a
//! huge page, which leave it by one move only: a page that is wanted back earlier is copied, and
//! its frame stays.
//!
//! ```text
//! empty --move out--> 32 slots, each queued, compressed and given back by itself
//!   ^  ^                   |
//!   |  |                   v all given back
//!   |  +-- given to the system, with one call --- unless whole huge pages come in, too:
//!   |                                             ready --decompress, move in--> empty
//!   +-----------------------------------------------------------------------------+
//! ```
//!
//! Single pages never come in through these frames: the first would split the huge page. A place
//! where something else happened (the kernel split a huge page, or could not make one) is
//! *spoiled*: it is used on, correct but slow, until it is empty, and is then made like new.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

use super::staging::Staging;
use crate::units::{bytes_of, ALL_PAGES, FOLIO_BLOCKS, FOLIO_BYTES, FOLIO_PAGES};

/// Slots of a place.
pub const FOLIO_SLOTS: usize = FOLIO_BLOCKS;
/// Ready folios that are kept while whole huge pages come in.
const KEPT: usize = 2;
/// Folios that may become free before ready ones are not kept any more, since none was wanted.
const WANTED: u32 = 8;
/// How long none is asked for after the kernel could not make a huge page.
const NONE_NS: u64 = 100_000_000;

/// What is known of one place.
#[derive(Default)]
struct Place {
    /// Slots given back since the place was taken.
    given: AtomicU32,
    /// Slots of which all pages were stored.
    stored: AtomicU32,
    /// Something but one huge page was mapped there.
    spoiled: AtomicBool,
}

/// All places of a staging area.
#[derive(Default)]
pub(crate) struct Folios {
    each: Box<[Place]>,
    lists: Mutex<Lists>,
    ready: AtomicUsize,
    /// Falls as folios become free, and is raised when one comes in.
    wanted: AtomicU32,
    /// When the kernel could not make a huge page.
    none_ns: AtomicU64,
    /// Folios stored whole, and blocks of others, that have not been counted yet.
    folios_stored: AtomicU64,
    blocks_stored: AtomicU64,
}

#[derive(Default)]
struct Lists {
    empty: Vec<u32>,
    ready: Vec<u32>,
}

impl Folios {
    /// `count` empty places, with room for their numbers in every list.
    pub(crate) fn new(count: usize) -> Self {
        let mut empty = Vec::with_capacity(count);
        empty.extend((0..count as u32).rev());
        let lists = Mutex::new(Lists { empty, ready: Vec::with_capacity(count) });
        Folios { each: (0..count).map(|_| Place::default()).collect(), lists, ..Folios::default() }
    }

    /// Slots of all places: the first ones of staging.
    pub(crate) fn slots(&self) -> u32 {
        (self.each.len() * FOLIO_SLOTS) as u32
    }

    fn place(&self, slot: u32) -> &Place {
        &self.each[slot as usize / FOLIO_SLOTS]
    }
}

impl Staging {
    /// Whether a slot is a part of a folio's place: its pages are not to be moved one by one.
    pub fn is_folios(&self, slot: u32) -> bool {
        slot < self.folios.slots()
    }

    /// Whether folios can be staged: there are places, and room for two.
    pub fn takes_folios(&self) -> bool {
        self.folios.slots() > 0 && self.pages_max() >= 2 * FOLIO_PAGES
    }

    /// Whether as many pages may be staged yet as a folio has.
    pub fn has_room_for_folio(&self) -> bool {
        self.pages_max().saturating_sub(self.pages()) >= FOLIO_PAGES
    }

    /// The first slot of an empty place. Each of its slots is to be given back.
    pub fn take_empty_folio(&self) -> Option<u32> {
        let number = self.folios.lists.lock().expect("no panic while held").empty.pop()?;
        Some(number * FOLIO_SLOTS as u32)
    }

    /// The first slot of a place with a huge page to fill. Each of its slots is to be given back.
    pub fn take_ready_folio(&self) -> Option<u32> {
        if self.ready_folios() == 0 {
            return None;
        }
        let number = self.folios.lists.lock().expect("no panic while held").ready.pop()?;
        self.folios.ready.fetch_sub(1, Ordering::Relaxed);
        Some(number * FOLIO_SLOTS as u32)
    }

    /// Huge pages that are ready to be filled.
    pub fn ready_folios(&self) -> usize {
        self.folios.ready.load(Ordering::Relaxed)
    }

    /// A place with a huge page to fill, a ready one or, if `may_make`, one that the kernel makes
    /// now, and whether it is zeroed. `is_huge` tells whether the kernel made one. Others are kept
    /// from now on.
    pub fn filling_folio(&self, may_make: bool, is_huge: impl Fn(usize) -> bool) -> Option<(u32, bool)> {
        self.folios.wanted.store(WANTED, Ordering::Relaxed);
        if let Some(ready) = self.take_ready_folio() {
            if is_huge(self.address(ready, 0)) {
                return Some((ready, false));
            }
            // The kernel has split it since: for a forked child, for example.
            self.spoil_folio(ready);
            self.give_folio(ready);
        }
        let now = sys::now_ns();
        let has_none = now.wrapping_sub(self.folios.none_ns.load(Ordering::Relaxed)) < NONE_NS;
        if has_none || !may_make || !self.has_room_for_folio() {
            return None;
        }
        let first = self.take_empty_folio()?;
        sys::memory::populate(self.address(first, 0), FOLIO_BYTES);
        (first..first + FOLIO_SLOTS as u32).for_each(|slot| self.arrived(slot, ALL_PAGES));
        if is_huge(self.address(first, 0)) {
            return Some((first, true));
        }
        self.folios.none_ns.store(now, Ordering::Relaxed);
        self.spoil_folio(first);
        self.give_folio(first);
        None
    }

    /// Has no ready folio be kept from now on, and gives back those that are; returns how many
    /// pages they had.
    pub fn give_back_folios(&self) -> usize {
        self.folios.wanted.store(0, Ordering::Relaxed);
        let mut pages = 0;
        while let Some(first) = self.take_ready_folio() {
            self.give_folio(first);
            pages += FOLIO_PAGES;
        }
        pages
    }

    /// Gives the slots of a place back.
    pub fn give_folio(&self, first: u32) {
        (first..first + FOLIO_SLOTS as u32).for_each(|slot| self.give(slot));
    }

    /// Notes that something but one huge page was mapped at a place.
    pub fn spoil_folio(&self, first: u32) {
        self.folios.place(first).spoiled.store(true, Ordering::Relaxed);
    }

    /// Notes that all pages of a place's `slot` were stored. That is counted when the place is free
    /// again: as a folio, if all of it was stored, else as blocks.
    pub fn note_folio_stored(&self, slot: u32) {
        self.folios.place(slot).stored.fetch_add(1, Ordering::Relaxed);
    }

    /// Folios that were stored whole, and blocks of others, since the last call.
    pub fn take_folios_stored(&self) -> (u64, u64) {
        let Folios { folios_stored, blocks_stored, .. } = &self.folios;
        if folios_stored.load(Ordering::Relaxed) | blocks_stored.load(Ordering::Relaxed) == 0 {
            return (0, 0);
        }
        (folios_stored.swap(0, Ordering::Relaxed), blocks_stored.swap(0, Ordering::Relaxed))
    }

    /// Gives back a slot of a place.
    pub(super) fn give_to_folio(&self, slot: u32) {
        let place = self.folios.place(slot);
        // The thread that gives the last slot sees what others did with theirs.
        if place.given.fetch_add(1, Ordering::AcqRel) + 1 < FOLIO_SLOTS as u32 {
            return;
        }
        place.given.store(0, Ordering::Relaxed);
        match place.stored.swap(0, Ordering::Relaxed) as usize {
            FOLIO_SLOTS => self.folios.folios_stored.fetch_add(1, Ordering::Relaxed),
            0 => 0,
            blocks => self.folios.blocks_stored.fetch_add(blocks as u64, Ordering::Relaxed),
        };
        let number = slot / FOLIO_SLOTS as u32;
        let first = number * FOLIO_SLOTS as u32;
        let slots = first..first + FOLIO_SLOTS as u32;
        let left: u32 = slots.clone().map(|slot| self.present(slot).count_ones()).sum();
        let is_spoiled = place.spoiled.load(Ordering::Relaxed);
        let wanted = self.folios.wanted.load(Ordering::Relaxed);
        if left as usize == FOLIO_PAGES && !is_spoiled && wanted > 0 && self.ready_folios() < KEPT {
            let _ =
                self.folios.wanted.compare_exchange(wanted, wanted - 1, Ordering::Relaxed, Ordering::Relaxed);
            self.folios.lists.lock().expect("no panic while held").ready.push(number);
            self.folios.ready.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if left > 0 || is_spoiled {
            let is_whole = left as usize == FOLIO_PAGES && !is_spoiled;
            // SAFETY: all slots of the place were given back, so no page of it is needed.
            unsafe { self.give_back_folio(self.address(first, 0), !is_whole) };
            slots.for_each(|slot| self.left(slot, self.present(slot)));
            place.spoiled.store(false, Ordering::Relaxed);
        }
        self.folios.lists.lock().expect("no panic while held").empty.push(number);
    }

    /// Gives what is at a place back to the system.
    ///
    /// # Safety
    /// Its bytes are not needed.
    unsafe fn give_back_folio(&self, at: usize, is_spoiled: bool) {
        match &self.discard_window {
            // SAFETY: the caller's word.
            Some(window) if is_spoiled => unsafe { window.renew(at, FOLIO_BYTES) },
            // SAFETY: the caller's word.
            _ => unsafe { self.give_back(at, bytes_of(FOLIO_PAGES)) },
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn staging() -> Staging {
        Staging::with_places(4 * FOLIO_PAGES, 16, 2, 3).unwrap()
    }

    #[test]
    fn a_place_is_empty_when_its_last_slot_is_given() {
        let staging = staging();
        assert!(staging.takes_folios() && staging.range().start.is_multiple_of(FOLIO_BYTES));
        let first = staging.take_empty_folio().unwrap();
        let slots = first..first + FOLIO_SLOTS as u32;
        for slot in slots.clone() {
            assert!(staging.is_folios(slot));
            staging.arrived(slot, ALL_PAGES);
            staging.queue(slot, 0x10000);
        }
        for slot in slots {
            assert_eq!(staging.pages(), FOLIO_PAGES);
            assert_eq!(staging.oldest(), Some(slot));
            staging.note_folio_stored(slot);
            assert_eq!(staging.take_folios_stored(), (0, 0));
            staging.give(slot);
        }
        assert_eq!((staging.take_folios_stored(), staging.take_folios_stored()), ((1, 0), (0, 0)));
        assert_eq!((staging.pages(), staging.ready_pages(), staging.ready_folios()), (0, 0, 0));
        let all: Vec<u32> = std::iter::from_fn(|| staging.take_empty_folio()).collect();
        assert_eq!(all.len(), 3);
        assert!(!staging.is_folios(staging.take_empty().unwrap()));
        assert!(!staging.is_folios(staging.take_empty_extent().unwrap()));
    }

    #[test]
    fn ready_folios_are_kept_while_some_come_in() {
        let staging = staging();
        let (first, is_zeroed) = staging.filling_folio(true, |_| true).unwrap();
        assert!(is_zeroed && staging.pages() == FOLIO_PAGES);
        // It was not needed after all.
        staging.give_folio(first);
        assert_eq!((staging.ready_folios(), staging.pages(), staging.ready_pages()), (1, FOLIO_PAGES, 0));
        assert_eq!(staging.filling_folio(true, |_| true), Some((first, false)));
        // Moved away.
        (first..first + FOLIO_SLOTS as u32).for_each(|slot| staging.left(slot, ALL_PAGES));
        staging.give_folio(first);
        assert_eq!((staging.ready_folios(), staging.pages()), (0, 0));
        let (again, _) = staging.filling_folio(true, |_| true).unwrap();
        staging.give_folio(again);
        assert_eq!((staging.give_back_folios(), staging.pages()), (FOLIO_PAGES, 0));
    }

    #[test]
    fn frames_that_are_no_huge_page_are_not_kept() {
        let staging = staging();
        assert_eq!(staging.filling_folio(true, |_| false), None);
        assert_eq!((staging.ready_folios(), staging.pages()), (0, 0));
        assert_eq!(staging.filling_folio(true, |_| true), None, "none is asked for, for a while");
        assert_eq!(std::iter::from_fn(|| staging.take_empty_folio()).count(), 3);
    }
}
