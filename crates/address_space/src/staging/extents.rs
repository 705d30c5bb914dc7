//! Extents: eight staging slots side by side, for runs of 128 pages.
//!
//! While a worker computes on another CPU, each call that moves pages interrupts that CPU to flush
//! its TLB. In a virtual machine this takes longer than moving 64 pages (12 to 14 us, 2-CPU virtual
//! machine, November 2026). So long runs move 128 pages a call, between extents' adjacent slots.
//!
//! ```text
//! empty --move out--> eight slots, each queued, compressed and given back by itself
//!   ^                        |
//!   |                        v all given back
//!   |        128 pages: ready as a whole --move in--> empty
//!   |        fewer:    split: its slots are like others until each is empty
//!   +---------------------------+
//! ```

use std::sync::atomic::Ordering;

use super::slot::{Empty, Extent, Free, Ready};
use super::{Staging, FULL};
use crate::units::{bytes_of, PageMask, SlotNumber, EXTENT_PAGES, EXTENT_SLOTS};

#[derive(Debug, Clone, Copy, Default)]
struct ExtentRecord {
    /// The slots are given out one by one.
    split: bool,
    /// Slots returned since the whole extent was taken, or empty slots of a split extent.
    given: u8,
}

#[derive(Default)]
pub(crate) struct Extents {
    each: Vec<ExtentRecord>,
    /// Extents with all their pages. `empty` has those with none.
    ready: Vec<u32>,
    empty: Vec<u32>,
}

impl Extents {
    /// Makes `count` empty extents, with room for their numbers in every list.
    pub fn new(count: usize) -> Self {
        let mut empty = Vec::with_capacity(count);
        empty.extend((0..count as u32).rev());
        Extents { each: vec![ExtentRecord::default(); count], ready: Vec::with_capacity(count), empty }
    }

    /// Splits a ready extent into single slots, in `full`.
    pub(crate) fn split_ready(&mut self, first_extent_slot: SlotNumber, full: &mut Vec<SlotNumber>) {
        if let Some(extent) = self.ready.pop() {
            self.each[extent as usize] = ExtentRecord { split: true, given: 0 };
            full.extend(slots_of(first_extent_slot, extent));
        }
    }
}

/// The slots of an extent.
fn slots_of(first_extent_slot: SlotNumber, extent: u32) -> impl Iterator<Item = SlotNumber> + Clone {
    let first = extent as usize * EXTENT_SLOTS;
    (first..first + EXTENT_SLOTS).map(move |index| first_extent_slot.behind(index))
}

impl Staging {
    fn extent<State>(&self, extent: u32) -> Extent<State> {
        Extent::new(self.first_extent_slot.behind(extent as usize * EXTENT_SLOTS))
    }

    /// Takes an extent without pages. The caller returns each slot.
    pub fn take_empty_extent(&self) -> Option<Extent<Empty>> {
        let extent = self.lists.lock().expect("no panic while held").extents.empty.pop()?;
        Some(self.extent(extent))
    }

    /// Takes an extent of ready pages. The caller returns each slot.
    pub fn take_ready_extent(&self) -> Option<Extent<Ready>> {
        if self.ready_pages() < EXTENT_PAGES {
            return None;
        }
        let extent = self.lists.lock().expect("no panic while held").extents.ready.pop()?;
        self.counts.ready.fetch_sub(EXTENT_PAGES, Ordering::Relaxed);
        Some(self.extent(extent))
    }

    /// Ready extents.
    pub fn ready_extents(&self) -> usize {
        match self.ready_pages() {
            0..EXTENT_PAGES => 0,
            _ => self.lists.lock().expect("no panic while held").extents.ready.len(),
        }
    }

    /// Takes an extent of ready frames, or of fresh ones in place of scattered ones. Otherwise
    /// frames would stay scattered: short runs would come in, and go out again.
    pub fn filling_extent(&self) -> Option<Extent<Ready>> {
        if let Some(extent) = self.take_ready_extent().or_else(|| self.fresh_extent()) {
            return Some(extent);
        }
        if self.ready_pages() < EXTENT_PAGES {
            return None;
        }
        let extent = self.take_empty_extent()?;
        while !self.has_room_for_extent() {
            if self.discard_scattered().is_none() {
                self.give_extent(extent);
                return None;
            }
        }
        Some(self.with_fresh_frames(extent))
    }

    fn fresh_extent(&self) -> Option<Extent<Ready>> {
        let extent = if self.has_room_for_extent() { self.take_empty_extent()? } else { return None };
        Some(self.with_fresh_frames(extent))
    }

    fn with_fresh_frames(&self, extent: Extent<Empty>) -> Extent<Ready> {
        // One call instead of a fault per page.
        sys::memory::populate(self.address(extent.first(), 0), bytes_of(EXTENT_PAGES));
        extent.numbers().for_each(|slot| self.arrived(slot, PageMask::ALL));
        extent.with_frames()
    }

    /// Adds an extent of fresh frames to the ready ones. Returns false if there is no room.
    pub fn make_fresh_extent(&self) -> bool {
        self.fresh_extent().map(|extent| self.give_extent(extent)).is_some()
    }

    /// Whether staging has room for another extent's pages.
    pub fn has_room_for_extent(&self) -> bool {
        self.pages_max().saturating_sub(self.pages()) >= EXTENT_PAGES
    }

    /// Returns a slot to its extent. Returns the number of pages that became ready.
    pub(crate) fn give_to_extent(
        &self,
        slot: SlotNumber,
        extents: &mut Extents,
        full: &mut Vec<SlotNumber>,
        partial: &mut Vec<SlotNumber>,
    ) -> usize {
        let number = (slot.index() - self.first_extent_slot.index()) / EXTENT_SLOTS;
        let extent = &mut extents.each[number];
        let mut list = |slot: SlotNumber| {
            let count = self.present(slot).count();
            match count {
                0 => {}
                FULL.. => full.push(slot),
                _ => partial.push(slot),
            }
            count
        };
        if extent.split {
            let ready = list(slot);
            extent.given += u8::from(ready == 0);
            if usize::from(extent.given) == EXTENT_SLOTS {
                *extent = ExtentRecord::default();
                extents.empty.push(number as u32);
            }
            return ready;
        }
        extent.given += 1;
        if usize::from(extent.given) < EXTENT_SLOTS {
            return 0;
        }
        let slots = slots_of(self.first_extent_slot, number as u32);
        let empty = slots.clone().filter(|slot| self.present(*slot).is_empty()).count();
        if empty == EXTENT_SLOTS {
            *extent = ExtentRecord::default();
            extents.empty.push(number as u32);
            return 0;
        }
        if slots.clone().all(|slot| self.present(slot) == PageMask::ALL) {
            *extent = ExtentRecord::default();
            extents.ready.push(number as u32);
            return EXTENT_PAGES;
        }
        *extent = ExtentRecord { split: true, given: empty as u8 };
        slots.map(list).sum()
    }

    /// Returns all slots of an extent.
    pub fn give_extent<State: Free>(&self, extent: Extent<State>) {
        extent.slots().for_each(|slot| self.give(slot));
    }

    /// Discards the pages of a taken ready extent with one call, and returns the extent.
    pub fn discard_extent(&self, extent: Extent<Ready>) {
        // SAFETY: the extent was taken, and the content of ready pages is not needed.
        unsafe { self.discard_window.discard(self.address(extent.first(), 0), bytes_of(EXTENT_PAGES)) };
        extent.numbers().for_each(|slot| self.left(slot, PageMask::ALL));
        self.give_extent(extent);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::super::slot::ReadySlot;
    use super::*;
    use crate::units::BlockNumber;

    #[test]
    fn a_extent_is_ready_when_its_last_slot_is_compressed() {
        let Some(staging) = crate::testing::staging(EXTENT_PAGES) else { return };
        let extent = staging.take_empty_extent().unwrap();
        let first = extent.first();
        for slot in extent.slots() {
            staging.arrived(slot.number(), PageMask::ALL);
            staging.queue(slot.filled(), BlockNumber::of(0x10000));
        }
        for given in 0..8 {
            assert_eq!((staging.take_ready_extent(), staging.ready_pages()), (None, 0), "{given} given");
            staging.give(staging.oldest_of(16).unwrap().done());
        }
        assert_eq!((staging.ready_pages(), staging.ready_extents()), (EXTENT_PAGES, 1));
        assert_eq!(staging.discard_scattered(), None, "they lie together");
        let extent = staging.take_ready_extent().unwrap();
        assert_eq!((extent.first(), staging.ready_pages()), (first, 0));
        staging.discard_extent(extent);
        assert_eq!((staging.pages(), staging.ready_pages()), (0, 0));
        assert!(staging.take_empty_extent().is_some());
    }

    #[test]
    fn the_rest_of_an_extent_is_used_slot_by_slot() {
        let Some(staging) = crate::testing::staging(EXTENT_PAGES) else { return };
        let mut extents: Vec<_> = std::iter::from_fn(|| staging.take_empty_extent()).collect();
        let extent = extents.remove(0);
        let first = extent.first();
        for (slot, pages) in extent.slots().zip([16, 2, 0, 16, 0, 0, 0, 0]) {
            staging.arrived(slot.number(), PageMask::span(0, pages));
            staging.give(slot);
        }
        assert_eq!((staging.ready_pages(), staging.take_ready_extent()), (34, None));
        let partial = staging.take_ready(1).unwrap();
        let number = |index| first.behind(index);
        assert_eq!(partial.number(), number(1), "partial go first");
        let mut taken = vec![partial];
        taken.extend(std::iter::from_fn(|| staging.take_ready(16)));
        taken.sort_unstable_by_key(ReadySlot::number);
        assert!(taken.iter().map(ReadySlot::number).eq([0, 1, 3].map(number)));
        for slot in taken {
            assert!(staging.take_empty_extent().is_none());
            staging.left(slot.number(), staging.present(slot.number()));
            staging.give(slot);
        }
        extents.push(staging.take_empty_extent().unwrap());
        assert_eq!(extents.last().unwrap().first(), first);
        extents.into_iter().for_each(|extent| staging.give_extent(extent));
    }

    #[test]
    fn single_pages_are_taken_out_of_a_ready_extent_when_nothing_else_is_there() {
        let Some(staging) = crate::testing::staging(EXTENT_PAGES) else { return };
        let extent = staging.take_empty_extent().unwrap();
        let first = extent.first();
        extent.numbers().for_each(|slot| staging.arrived(slot, PageMask::ALL));
        staging.give_extent(extent);
        let mut seen = Vec::new();
        while let Some(slot) = staging.take_ready(1) {
            seen.push(slot.number());
            staging.discard(&slot);
            staging.give(slot);
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..8).map(|index| first.behind(index))));
        assert_eq!((staging.ready_pages(), staging.pages()), (0, 0));
        assert!(std::iter::from_fn(|| staging.take_empty_extent()).any(|extent| extent.first() == first));
    }
}
