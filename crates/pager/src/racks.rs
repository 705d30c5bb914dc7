//! Racks: eight staging slots side by side, for runs of 128 pages.
//!
//! While a worker computes on another CPU, each call that moves pages interrupts that CPU for the TLB's sake, which in a
//! virtual machine takes longer than to move 64 pages (12 to 14 us, 2-CPU virtual machine, November 2026). So long runs go
//! out and come in 128 pages a call, and racks are where such a call finds 128 pages side by side.
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

use sys::PAGE_SIZE;

use crate::staging::{Staging, FULL};
use crate::table::{ALL_PAGES, BLOCK_PAGES};

/// Slots of a rack.
pub const RACK_SLOTS: usize = 8;
/// Pages of a rack.
pub const RACK_PAGES: usize = RACK_SLOTS * BLOCK_PAGES;

/// What is known of one rack.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rack {
    /// Its slots are given out one by one.
    split: bool,
    /// Slots given back since the rack was taken as a whole; of a split one, those that are empty.
    given: u8,
}

/// All racks of a staging area.
#[derive(Default)]
pub(crate) struct Racks {
    each: Vec<Rack>,
    /// Racks with all their pages, and those with none.
    ready: Vec<u32>,
    empty: Vec<u32>,
}

impl Racks {
    /// `count` empty ones, with room for their numbers in every list.
    pub(crate) fn new(count: usize) -> Self {
        let mut empty = Vec::with_capacity(count);
        empty.extend((0..count as u32).rev());
        Racks { each: vec![Rack::default(); count], ready: Vec::with_capacity(count), empty }
    }
}

impl Staging {
    fn rack_of(&self, slot: u32) -> usize {
        (slot - self.first_rack_slot) as usize / RACK_SLOTS
    }

    fn first_slot(&self, rack: u32) -> u32 {
        self.first_rack_slot + rack * RACK_SLOTS as u32
    }

    /// The first slot of a rack without pages. Each of its slots is to be given back.
    pub fn take_empty_rack(&self) -> Option<u32> {
        let rack = self.lists.lock().expect("no panic while held").racks.empty.pop()?;
        Some(self.first_slot(rack))
    }

    /// The first slot of a rack of ready pages only. Each of its slots is to be given back.
    pub fn take_ready_rack(&self) -> Option<u32> {
        if self.ready_pages() < RACK_PAGES {
            return None;
        }
        let rack = self.lists.lock().expect("no panic while held").racks.ready.pop()?;
        self.ready.fetch_sub(RACK_PAGES, Ordering::Relaxed);
        Some(self.first_slot(rack))
    }

    /// Whether some rack has ready pages only.
    pub fn has_ready_rack(&self) -> bool {
        self.ready_pages() >= RACK_PAGES
            && !self.lists.lock().expect("no panic while held").racks.ready.is_empty()
    }

    /// Has the slots of a ready rack be like others, in `full`.
    pub(crate) fn split_ready_rack(&self, racks: &mut Racks, full: &mut Vec<u32>) {
        if let Some(rack) = racks.ready.pop() {
            racks.each[rack as usize] = Rack { split: true, given: 0 };
            let first = self.first_slot(rack);
            full.extend(first..first + RACK_SLOTS as u32);
        }
    }

    /// Gives back a slot of a rack; answers how many pages are ready now that were not.
    pub(crate) fn give_to_rack(
        &self,
        slot: u32,
        racks: &mut Racks,
        full: &mut Vec<u32>,
        crumbs: &mut Vec<u32>,
    ) -> usize {
        let number = self.rack_of(slot);
        let rack = &mut racks.each[number];
        let mut list = |slot: u32| match self.present(slot).count_ones() {
            0 => 0,
            count if count >= FULL => {
                full.push(slot);
                count as usize
            }
            count => {
                crumbs.push(slot);
                count as usize
            }
        };
        if rack.split {
            let ready = list(slot);
            rack.given += u8::from(ready == 0);
            if usize::from(rack.given) == RACK_SLOTS {
                *rack = Rack::default();
                racks.empty.push(number as u32);
            }
            return ready;
        }
        rack.given += 1;
        if usize::from(rack.given) < RACK_SLOTS {
            return 0;
        }
        let first = self.first_rack_slot + (number * RACK_SLOTS) as u32;
        let slots = first..first + RACK_SLOTS as u32;
        let empty = slots.clone().filter(|slot| self.present(*slot) == 0).count();
        if empty == RACK_SLOTS {
            *rack = Rack::default();
            racks.empty.push(number as u32);
            return 0;
        }
        if slots.clone().all(|slot| self.present(slot) == ALL_PAGES) {
            *rack = Rack::default();
            racks.ready.push(number as u32);
            return RACK_PAGES;
        }
        *rack = Rack { split: true, given: empty as u8 };
        slots.map(list).sum()
    }

    /// Gives the slots of a rack back.
    pub fn give_rack(&self, first: u32) {
        (first..first + RACK_SLOTS as u32).for_each(|slot| self.give(slot));
    }

    /// Gives the pages of a taken ready rack back to the system with one call, and the rack.
    pub fn discard_rack(&self, first: u32) {
        let at = std::ptr::NonNull::new(self.address(first, 0) as *mut u8).expect("in the house");
        // SAFETY: the rack was taken, and ready pages hold nothing that is needed.
        unsafe { sys::memory::discard(at, RACK_PAGES * PAGE_SIZE) };
        (first..first + RACK_SLOTS as u32).for_each(|slot| self.left(slot, ALL_PAGES));
        self.give_rack(first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_is_ready_when_its_last_slot_is_compressed() {
        let staging = Staging::new(RACK_PAGES).unwrap();
        let first = staging.take_empty_rack().unwrap();
        for slot in first..first + 8 {
            staging.arrived(slot, ALL_PAGES);
            staging.queue(slot, 0x10000);
        }
        for given in 0..8 {
            assert_eq!((staging.take_ready_rack(), staging.ready_pages()), (None, 0), "{given} given");
            let slot = staging.oldest().unwrap();
            staging.give(slot);
        }
        assert_eq!(staging.ready_pages(), RACK_PAGES);
        assert_eq!(staging.take_ready_rack(), Some(first));
        assert_eq!(staging.ready_pages(), 0);
        staging.discard_rack(first);
        assert_eq!((staging.pages(), staging.ready_pages()), (0, 0));
        assert!(staging.take_empty_rack().is_some());
    }

    #[test]
    fn what_is_left_of_a_rack_is_used_slot_by_slot() {
        let staging = Staging::new(RACK_PAGES).unwrap();
        let racks: Vec<u32> = std::iter::from_fn(|| staging.take_empty_rack()).collect();
        let first = racks[0];
        for (slot, pages) in (first..).zip([ALL_PAGES, 0x3, 0, ALL_PAGES, 0, 0, 0, 0]) {
            staging.arrived(slot, pages);
            staging.give(slot);
        }
        assert_eq!((staging.ready_pages(), staging.take_ready_rack()), (34, None));
        assert_eq!(staging.take_ready(1), Some(first + 1), "crumbs go first");
        let mut taken = vec![first + 1];
        taken.extend(std::iter::from_fn(|| staging.take_ready(16)));
        taken.sort_unstable();
        assert_eq!(taken, [first, first + 1, first + 3]);
        for slot in taken {
            assert!(staging.take_empty_rack().is_none());
            staging.left(slot, staging.present(slot));
            staging.give(slot);
        }
        assert_eq!(staging.take_empty_rack(), Some(first));
        racks.iter().for_each(|first| staging.give_rack(*first));
    }

    #[test]
    fn single_pages_are_taken_out_of_a_ready_rack_when_nothing_else_is_there() {
        let staging = Staging::new(RACK_PAGES).unwrap();
        let first = staging.take_empty_rack().unwrap();
        (first..first + 8).for_each(|slot| staging.arrived(slot, ALL_PAGES));
        staging.give_rack(first);
        let mut seen = Vec::new();
        while let Some(slot) = staging.take_ready(1) {
            seen.push(slot);
            staging.discard(slot);
            staging.give(slot);
        }
        seen.sort_unstable();
        assert_eq!(seen, (first..first + 8).collect::<Vec<_>>());
        assert_eq!((staging.ready_pages(), staging.pages()), (0, 0));
        assert!(std::iter::from_fn(|| staging.take_empty_rack()).any(|rack| rack == first));
    }
}
