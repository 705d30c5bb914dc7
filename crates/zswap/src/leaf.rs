//! Sixteen pages' entries, side by side.
//!
//! ```text
//!   0         128        132       134    136    138          140    144    148    152  153        154   160     224
//!   +----------+----------+---------+------+------+------------+------+------+------+----+----------+-----+-------+
//!   | 16 words | key >> 4 | present | same | busy | writing    |disk, | prev | next |list| chances  |tried| - sums|
//!   |          |          |         |      |      |            |mark |    |      |    |          |     |       |
//!   +----------+----------+---------+------+------+------------+------+------+------+----+----------+-----+-------+
//!   word: same-filled page: the repeated word.
//!         on disk:  63..11 place in the swap file | 10..7 page within unit | 6..3 pages of unit - 1 | 2..0 pool
//!         else  63..32 handle | 31..16 length - 1 | 15..12 page within unit | 11..8 pages of unit - 1 | 7..5 pool |
//!               4..2 node | 1..0 unused
//! ```
//!
//! Keeping sixteen neighbours' entries together, instead of an entry, a table slot and two links
//! per page, makes a batch cheap and the metadata small: 10 bytes a page in a full leaf, 14 with
//! checksums. In return, age has a granularity of 64 KiB of address space: folios are stored whole,
//! so their pages have one age anyway.
//!
//! A unit's pages never straddle two leaves. Each page of a unit repeats the unit's handle; the
//! object is freed with the last page of its unit.

use acomp::PAGE_SIZE;
use swapfile::Location;

/// Pages whose entries share a leaf.
pub const LEAF_PAGES: usize = 16;
pub(crate) const LEAF_BITS: u32 = 4;

/// The entry of a stored page that has an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    pub(crate) fn new(
        handle: u32,
        len: usize,
        position: usize,
        pages: usize,
        pool: usize,
        node: usize,
    ) -> Self {
        debug_assert!((1..=pages * PAGE_SIZE).contains(&len) && pages <= LEAF_PAGES && position < pages);
        debug_assert!(pool < 8 && node < 8);
        Entry(
            u64::from(handle) << 32
                | (len as u64 - 1) << 16
                | (position as u64) << 12
                | (pages as u64 - 1) << 8
                | (pool as u64) << 5
                | (node as u64) << 2,
        )
    }

    /// The same entry for another page of its unit.
    pub(crate) fn at(self, position: usize) -> Self {
        debug_assert!(position < self.pages());
        Entry(self.0 & !(0xF << 12) | (position as u64) << 12)
    }

    pub(crate) fn handle(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn len(self) -> usize {
        ((self.0 >> 16) as u16) as usize + 1
    }

    /// The page's index in its unit.
    pub(crate) fn position(self) -> usize {
        (self.0 >> 12) as usize & 0xF
    }

    pub(crate) fn pages(self) -> usize {
        ((self.0 >> 8) as usize & 0xF) + 1
    }

    pub(crate) fn pool(self) -> usize {
        (self.0 >> 5) as usize & 7
    }

    /// The entry of the same page with another object.
    pub(crate) fn with_object(self, handle: u32, len: usize) -> Self {
        debug_assert!((1..=self.pages() * PAGE_SIZE).contains(&len));
        Entry(u64::from(handle) << 32 | (len as u64 - 1) << 16 | self.0 & 0xFFFF)
    }

    pub(crate) fn node(self) -> usize {
        (self.0 >> 2) as usize & 7
    }

    /// Whether the unit is kept raw.
    pub(crate) fn is_raw(self) -> bool {
        self.len() == self.pages() * PAGE_SIZE
    }

    pub(crate) fn same_object(self, other: Entry) -> bool {
        self.handle() == other.handle() && self.pool() == other.pool()
    }
}

/// The entry of a page whose object is in the swap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskEntry(pub(crate) u64);

const _: () = assert!(Location::BITS == 53);

impl DiskEntry {
    pub(crate) fn new(place: Location, position: usize, pages: usize, pool: usize) -> Self {
        debug_assert!(pages <= LEAF_PAGES && position < pages && pool < 8);
        DiskEntry(place.to_bits() << 11 | (position as u64) << 7 | (pages as u64 - 1) << 3 | pool as u64)
    }

    pub(crate) fn place(self) -> Location {
        Location::from_bits(self.0 >> 11)
    }

    pub(crate) fn position(self) -> usize {
        (self.0 >> 7) as usize & 0xF
    }

    pub(crate) fn pages(self) -> usize {
        ((self.0 >> 3) as usize & 0xF) + 1
    }

    pub(crate) fn pool(self) -> usize {
        self.0 as usize & 7
    }
}

/// The place of a page's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Memory(Entry),
    Disk(DiskEntry),
}

impl Source {
    pub(crate) fn pool(self) -> usize {
        match self {
            Source::Memory(entry) => entry.pool(),
            Source::Disk(entry) => entry.pool(),
        }
    }

    pub(crate) fn pages(self) -> usize {
        match self {
            Source::Memory(entry) => entry.pages(),
            Source::Disk(entry) => entry.pages(),
        }
    }

    pub(crate) fn position(self) -> usize {
        match self {
            Source::Memory(entry) => entry.position(),
            Source::Disk(entry) => entry.position(),
        }
    }

    pub(crate) fn is_raw(self) -> bool {
        match self {
            Source::Memory(entry) => entry.is_raw(),
            Source::Disk(entry) => entry.place().len() == entry.pages() * PAGE_SIZE,
        }
    }

    pub(crate) fn same_object(self, other: Source) -> bool {
        match (self, other) {
            (Source::Memory(one), Source::Memory(other)) => one.same_object(other),
            (Source::Disk(one), Source::Disk(other)) => one.place() == other.place(),
            _ => false,
        }
    }
}

/// The leaf as it lies in its slab; checksums, one per page, follow it if they are kept.
#[repr(C)]
pub(crate) struct Leaf {
    words: [u64; LEAF_PAGES],
    /// The keys' bits above the page within the leaf.
    pub(crate) key_high: u32,
    /// Stored pages.
    present: u16,
    /// Those that repeat one word.
    same: u16,
    /// Those that are being read: they may neither leave nor change.
    pub(crate) busy: u16,
    /// Those that are being written back and have not changed since.
    writing: u16,
    /// Those in the swap file.
    on_disk: u16,
    /// The mark of the turn that set `writing`: a leaf may be made again during an older write.
    mark: u16,
    /// LRU neighbours by name; 0 at the ends.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// The list the leaf is on: its node + 1, or 0 when on none.
    pub(crate) list: u8,
    /// How many of the leaf's next writeback turns are skipped.
    pub(crate) chances: u8,
    /// Whether the leaf had its turn to be promoted, on its present list.
    pub(crate) tried: bool,
}

pub(crate) const LEAF_BYTES: usize = 160;
pub(crate) const LEAF_BYTES_WITH_SUMS: usize = LEAF_BYTES + 4 * LEAF_PAGES;
const _: () = assert!(size_of::<Leaf>() == LEAF_BYTES);

impl Leaf {
    pub(crate) fn present(&self) -> u16 {
        self.present
    }

    /// Pages with an object in the pool.
    pub(crate) fn objects(&self) -> u16 {
        self.present & !self.same & !self.on_disk
    }

    pub(crate) fn on_disk(&self) -> u16 {
        self.on_disk
    }

    pub(crate) fn same_word(&self, slot: usize) -> Option<u64> {
        (self.same >> slot & 1 == 1).then(|| self.words[slot])
    }

    pub(crate) fn source(&self, slot: usize) -> Source {
        match self.on_disk >> slot & 1 {
            0 => Source::Memory(self.entry(slot)),
            _ => Source::Disk(DiskEntry(self.words[slot])),
        }
    }

    pub(crate) fn entry(&self, slot: usize) -> Entry {
        debug_assert!(self.objects() >> slot & 1 == 1);
        Entry(self.words[slot])
    }

    /// Publishes a page. The slot must be free.
    pub(crate) fn insert(&mut self, slot: usize, word: u64, same: bool) {
        assert!(self.present >> slot & 1 == 0 && self.busy >> slot & 1 == 0);
        self.present |= 1 << slot;
        self.same |= u16::from(same) << slot;
        self.words[slot] = word;
    }

    /// The stored pages of the unit of the page at `slot`, which has an object.
    pub(crate) fn unit_of(&self, slot: usize) -> u16 {
        let source = self.source(slot);
        if source.pages() == 1 {
            return 1 << slot;
        }
        let first = slot - source.position();
        let objects = self.present & !self.same;
        (first..first + source.pages())
            .filter(|&other| objects >> other & 1 == 1 && self.source(other).same_object(source))
            .fold(0, |mask, other| mask | 1 << other)
    }

    /// Removes a page. The caller frees the object if this was the last page of its unit.
    pub(crate) fn remove(&mut self, slot: usize) -> Removed {
        let bit = 1u16 << slot;
        assert!(self.present & bit != 0 && self.busy & bit == 0);
        let removed = if self.same & bit != 0 {
            Removed::Same
        } else {
            let is_last = self.unit_of(slot) == bit;
            match (self.source(slot), is_last) {
                (Source::Memory(entry), true) => Removed::Object(entry),
                (Source::Memory(entry), false) => Removed::Part(entry),
                (Source::Disk(entry), true) => Removed::Disk(entry),
                (Source::Disk(_), false) => Removed::DiskPart,
            }
        };
        self.present &= !bit;
        self.same &= !bit;
        self.on_disk &= !bit;
        self.writing &= !bit;
        removed
    }

    /// Replaces the object of a page that is the only one of its unit; returns the old entry.
    pub(crate) fn replace(&mut self, slot: usize, entry: Entry) -> Entry {
        assert!(self.objects() >> slot & 1 == 1 && entry.pages() == 1);
        Entry(std::mem::replace(&mut self.words[slot], entry.0))
    }

    /// Moves a page's object to the swap file; returns the old entry.
    pub(crate) fn move_to_disk(&mut self, slot: usize, entry: DiskEntry) -> Entry {
        assert!(self.objects() >> slot & 1 == 1 && self.busy >> slot & 1 == 0);
        self.on_disk |= 1 << slot;
        Entry(std::mem::replace(&mut self.words[slot], entry.0))
    }

    /// Moves an object within the swap file, for those of a unit's pages that are still in `from`;
    /// returns these pages.
    pub(crate) fn move_on_disk(&mut self, first: usize, pages: usize, from: Location, to: Location) -> u16 {
        let all = self.in_place(first, pages, from);
        for slot in crate::group::slots(all) {
            let before = DiskEntry(self.words[slot]);
            self.words[slot] = DiskEntry::new(to, before.position(), before.pages(), before.pool()).0;
        }
        all
    }

    /// Those of a unit's pages that are in this place of the swap file.
    pub(crate) fn in_place(&self, first: usize, pages: usize, place: Location) -> u16 {
        (first..(first + pages).min(LEAF_PAGES))
            .filter(|&slot| self.on_disk >> slot & 1 == 1 && DiskEntry(self.words[slot]).place() == place)
            .fold(0, |mask, slot| mask | 1 << slot)
    }

    /// Notes that the pages are being written back in the turn of `mark`.
    pub(crate) fn begin_writing(&mut self, mask: u16, mark: u16) {
        assert!(self.writing == 0 && mask & !self.objects() == 0);
        (self.writing, self.mark) = (mask, mark);
    }

    /// Unchanged pages of any writeback in progress.
    pub(crate) fn writing(&self) -> u16 {
        self.writing
    }

    /// Unchanged pages of this writeback.
    pub(crate) fn writing_by(&self, mark: u16) -> u16 {
        if self.mark == mark {
            self.writing
        } else {
            0
        }
    }

    /// Ends the writeback; returns its pages that neither left nor changed.
    pub(crate) fn end_writing(&mut self, mark: u16) -> u16 {
        if self.mark == mark {
            std::mem::take(&mut self.writing)
        } else {
            0
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removed {
    /// A page without object.
    Same,
    /// A page whose unit has other pages left.
    Part(Entry),
    /// The last page of its unit.
    Object(Entry),
    /// A page whose unit has other pages left, in the swap file.
    DiskPart,
    /// The last page of its unit, in the swap file.
    Disk(DiskEntry),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Leaf {
        // SAFETY: all fields are integers and a bool, for which zeroes are valid.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn an_entry_keeps_every_field_at_its_limits() {
        for (handle, len, position, pages, pool, node) in [
            (u32::MAX, 65536, 15, 16, 7, 7),
            (1, 1, 0, 1, 0, 0),
            (77, 4096, 0, 1, 3, 5),
            (78, 4097, 1, 2, 4, 1),
        ] {
            let entry = Entry::new(handle, len, position, pages, pool, node);
            assert_eq!(
                (entry.handle(), entry.len(), entry.position(), entry.pages(), entry.pool(), entry.node()),
                (handle, len, position, pages, pool, node)
            );
            assert_eq!(entry.is_raw(), len == pages * 4096);
        }
    }

    #[test]
    fn an_object_goes_with_the_last_page_of_its_unit() {
        let mut leaf = empty();
        let unit = Entry::new(9, 5000, 0, 4, 1, 0);
        for position in 0..4 {
            leaf.insert(4 + position, unit.at(position).0, false);
        }
        leaf.insert(8, Entry::new(9, 100, 0, 1, 2, 0).0, false);
        assert_eq!(leaf.unit_of(6), 0xF0);
        assert_eq!(leaf.remove(5), Removed::Part(unit.at(1)));
        // A newer page in the unit's range does not belong to the unit.
        leaf.insert(5, Entry::new(10, 50, 0, 1, 1, 0).0, false);
        assert_eq!(leaf.unit_of(7), 0xD0);
        assert_eq!(leaf.remove(4), Removed::Part(unit));
        assert_eq!(leaf.remove(7), Removed::Part(unit.at(3)));
        assert_eq!(leaf.remove(6), Removed::Object(unit.at(2)));
        leaf.insert(6, 42, true);
        assert_eq!(leaf.same_word(6), Some(42));
        assert_eq!(leaf.remove(6), Removed::Same);
        assert_eq!(leaf.present(), 1 << 5 | 1 << 8);
    }

    #[test]
    fn a_change_ends_a_page_s_writing() {
        let mut leaf = empty();
        for slot in 0..3 {
            leaf.insert(slot, Entry::new(slot as u32 + 1, 10, 0, 1, 0, 0).0, false);
        }
        leaf.begin_writing(0b111, 7);
        leaf.remove(1);
        leaf.insert(1, Entry::new(2, 10, 0, 1, 0, 0).0, false);
        assert_eq!((leaf.writing(), leaf.writing_by(6), leaf.end_writing(6)), (0b101, 0, 0));
        assert_eq!(leaf.end_writing(7), 0b101);
        assert_eq!(leaf.end_writing(7), 0);
    }

    #[test]
    fn a_unit_on_disk_is_one_object_and_moves_as_one() {
        let (from, to) = (Location::from_bits(0x1F_FFFF_FFFF_0FFF), Location::from_bits(0xFFF));
        let mut leaf = empty();
        let unit = Entry::new(9, 4096, 0, 4, 1, 0);
        for position in 0..4 {
            leaf.insert(4 + position, unit.at(position).0, false);
        }
        for position in 0..4 {
            let entry = DiskEntry::new(from, position, 4, 7);
            assert_eq!(
                (entry.place(), entry.position(), entry.pages(), entry.pool()),
                (from, position, 4, 7)
            );
            assert_eq!(leaf.move_to_disk(4 + position, entry), unit.at(position));
        }
        assert_eq!((leaf.objects(), leaf.on_disk(), leaf.unit_of(5)), (0, 0xF0, 0xF0));
        assert_eq!(leaf.remove(5), Removed::DiskPart);
        leaf.insert(5, Entry::new(10, 50, 0, 1, 1, 0).0, false);
        assert_eq!(leaf.in_place(4, 4, from), 0xD0);
        assert_eq!(leaf.move_on_disk(4, 4, to, from), 0);
        assert_eq!(leaf.move_on_disk(4, 4, from, to), 0xD0);
        assert!(!leaf.source(7).is_raw() && leaf.source(7).position() == 3);
        assert_eq!(leaf.remove(4), Removed::DiskPart);
        assert_eq!(leaf.remove(6), Removed::DiskPart);
        assert_eq!(leaf.remove(7), Removed::Disk(DiskEntry::new(to, 3, 4, 7)));
        assert_eq!((leaf.present(), leaf.objects(), leaf.on_disk()), (1 << 5, 1 << 5, 0));
    }
}
