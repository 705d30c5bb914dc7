//! Size classes, which map the size of an object to a slot.
//!
//! A zspage is a chain of `pages` pages cut into equal slots. Every chain length and slot count
//! gives a candidate slot of `pages * 4096 / slots` bytes, so zspages have negligible tails.
//! Candidates less than 1/128, or 4 bytes, below the next larger class are merged into it: a class
//! costs a partly filled zspage and a table row.

use std::sync::OnceLock;

use sys::PAGE_SIZE;

use crate::frame::{FRAME_BYTES, FRAME_PAGES};

/// Bytes of the largest object: a 64 KiB unit kept raw.
pub const OBJECT_BYTES_MAX: usize = FRAME_BYTES;

/// Bytes of the smallest slot; smaller objects take one of these.
pub(crate) const SLOT_BYTES_MIN: usize = 32;

/// Least distance of two classes, as a divisor of their size ...
const MERGE_DIVISOR: usize = 128;
/// ... and in bytes.
const MERGE_BYTES: usize = 4;

/// Shortest and longest chain that a configuration may have.
pub(crate) const CHAIN_MIN: usize = 4;
pub(crate) const CHAIN_MAX: usize = FRAME_PAGES;

/// One size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Pages of a zspage.
    pub pages: u16,
    /// Slots of a zspage.
    pub slots: u16,
}

/// The classes of one chain length, smallest first, and the map from sizes to classes.
pub(crate) struct ClassTable {
    classes: Vec<Geometry>,
    /// Class of each size up to a page. Larger sizes, rare and costly anyway, are searched.
    small: Vec<u16>,
}

impl ClassTable {
    /// The table of chains of up to `chain` pages, made once and shared by all pools.
    pub(crate) fn of_chain(chain: usize) -> &'static ClassTable {
        static TABLES: [OnceLock<ClassTable>; CHAIN_MAX + 1] = [const { OnceLock::new() }; CHAIN_MAX + 1];
        TABLES[chain].get_or_init(|| ClassTable::new(chain))
    }

    fn new(chain: usize) -> Self {
        let classes = classes(chain);
        let mut small = Vec::with_capacity(PAGE_SIZE + 1);
        let mut class = 0;
        for size in 0..=PAGE_SIZE {
            if size > classes[class].slot_bytes as usize {
                class += 1;
            }
            small.push(class as u16);
        }
        ClassTable { classes, small }
    }

    /// Class of objects of `size` bytes, 1..=[`OBJECT_BYTES_MAX`].
    #[inline]
    pub(crate) fn class_of(&self, size: u32) -> u16 {
        match self.small.get(size as usize) {
            Some(&class) => class,
            None => self.classes.partition_point(|class| class.slot_bytes < size) as u16,
        }
    }

    #[inline]
    pub(crate) fn geometry(&self, class: u16) -> Geometry {
        self.classes[class as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.classes[..]) + size_of_val(&self.small[..])
    }
}

fn classes(chain: usize) -> Vec<Geometry> {
    assert!((CHAIN_MIN..=CHAIN_MAX).contains(&chain));
    let mut candidates = Vec::new();
    for pages in 1..=FRAME_PAGES {
        for slots in 1.. {
            let slot_bytes = pages * PAGE_SIZE / slots;
            if slot_bytes < SLOT_BYTES_MIN {
                break;
            }
            // Objects longer than the chain allows need a zspage that holds one of them.
            if pages <= chain || slots == 1 {
                let (slot_bytes, pages, slots) = (slot_bytes as u32, pages as u16, slots as u16);
                candidates.push(Geometry { slot_bytes, pages, slots });
            }
        }
    }
    // Largest slot first; of equal slots the longest chain, which wastes least address space.
    candidates.sort_by_key(|class| (std::cmp::Reverse(class.slot_bytes), std::cmp::Reverse(class.pages)));
    let mut kept: Vec<Geometry> = Vec::new();
    for class in candidates {
        let step = (class.slot_bytes as usize / MERGE_DIVISOR).max(MERGE_BYTES) as u32;
        if kept.last().is_none_or(|larger| larger.slot_bytes - class.slot_bytes >= step) {
            kept.push(class);
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for chain in CHAIN_MIN..=CHAIN_MAX {
            let table = ClassTable::of_chain(chain);
            for size in 1..=OBJECT_BYTES_MAX as u32 {
                let class = table.class_of(size);
                assert!(table.geometry(class).slot_bytes >= size);
                assert!(class == 0 || table.geometry(class - 1).slot_bytes < size);
            }
        }
    }

    #[test]
    fn slots_fill_their_zspage() {
        for chain in CHAIN_MIN..=CHAIN_MAX {
            let table = ClassTable::of_chain(chain);
            for class in (0..table.len() as u16).map(|class| table.geometry(class)) {
                let (slot, slots) = (class.slot_bytes as usize, usize::from(class.slots));
                let bytes = usize::from(class.pages) * PAGE_SIZE;
                assert!(slot * slots <= bytes && bytes - slot * slots < slots, "{class:?}");
                assert!(usize::from(class.pages) <= chain || slots == 1, "{class:?}");
                assert!(slots <= usize::from(u16::MAX));
            }
            assert_eq!(table.geometry(table.len() as u16 - 1).slot_bytes as usize, OBJECT_BYTES_MAX);
        }
    }

    #[test]
    fn longer_chains_round_less() {
        let rounding = |chain| -> f64 {
            let table = ClassTable::of_chain(chain);
            let sizes = 300..1800u32;
            let slots: u32 = sizes.clone().map(|size| table.geometry(table.class_of(size)).slot_bytes).sum();
            f64::from(slots) / f64::from(sizes.sum::<u32>()) - 1.0
        };
        assert!(rounding(16) < rounding(8) && rounding(8) < rounding(4));
        assert!(rounding(16) < 0.006, "{}", rounding(16));
    }
}
