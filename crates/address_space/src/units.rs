//! Units of memory, and the conversions between them.
//!
//! | unit | type |
//! |---|---|
//! | page of the program, and its key in the pool | [`PageNumber`] |
//! | block of the program | [`BlockNumber`] |
//! | page of a block, 0 to 15 | `usize`, called `index` or `first` |
//! | pages of a block | [`PageMask`] |
//! | pages of adjacent blocks | [`RunMask`] |
//! | adjacent pages of locked blocks | [`PageRun`] |
//! | slot of staging | [`SlotNumber`] |
//! | count of pages, of bytes | `usize` or `u64` |
//! | range of bytes, as mappings and events have it; a buffer of the pager's own | `usize` |
//!
//! Addresses, page numbers and block numbers were once plain numbers, and only chance revealed a
//! fault that took a page's number for its address. Now each conversion is a named function. Ranges
//! of bytes stay `usize`, as in the kernel's calls and reports, because they occur only beside
//! those.

use std::fmt;
use std::ops::{Add, AddAssign, BitAnd, BitAndAssign, BitOr, BitOrAssign, Div, Mul, Not, Sub};

use sys::PAGE_SIZE;

/// Pages in a block.
pub const BLOCK_PAGES: usize = 16;
/// Bytes in a block.
pub const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Slots of an extent; one transition moves at most this many blocks.
pub const EXTENT_SLOTS: usize = 8;
/// Pages of an extent.
pub const EXTENT_PAGES: usize = EXTENT_SLOTS * BLOCK_PAGES;

const PAGE_BYTES: u16 = PAGE_SIZE as u16;
const _: () = assert!(PAGE_BYTES as usize == PAGE_SIZE);

/// A page of the program's address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageNumber(usize);

impl PageNumber {
    /// The page that contains `address`.
    pub const fn of(address: usize) -> Self {
        PageNumber(address / PAGE_SIZE)
    }

    /// The address of its first byte.
    pub const fn address(self) -> usize {
        self.0 * PAGE_SIZE
    }

    /// Its key in the pool.
    pub const fn key(self) -> u64 {
        self.0 as u64
    }

    /// The page with a key.
    pub const fn of_key(key: u64) -> Self {
        PageNumber(key as usize)
    }

    /// The page `count` pages in front, if there is one.
    pub fn before(self, count: usize) -> Option<Self> {
        self.0.checked_sub(count).map(PageNumber)
    }

    /// The block that contains it.
    pub const fn block(self) -> BlockNumber {
        BlockNumber(self.0 / BLOCK_PAGES)
    }

    /// Its index in its block.
    pub const fn index(self) -> usize {
        self.0 % BLOCK_PAGES
    }

    /// The page alone, among those of its block.
    pub fn mask(self) -> PageMask {
        PageMask::span(self.index(), 1)
    }
}

/// A block of the program's address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct BlockNumber(usize);

impl BlockNumber {
    /// The block that contains `address`.
    pub const fn of(address: usize) -> Self {
        BlockNumber(address / BLOCK_BYTES)
    }

    /// The blocks that contain bytes of `[start, end)`.
    pub fn all_of(start: usize, end: usize) -> impl Iterator<Item = Self> {
        (start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(BlockNumber)
    }

    /// The address of its first byte.
    pub const fn address(self) -> usize {
        self.0 * BLOCK_BYTES
    }

    /// The address of the first byte behind it.
    pub const fn end(self) -> usize {
        self.address() + BLOCK_BYTES
    }

    /// The number itself, which counts from address 0.
    pub(crate) const fn index(self) -> usize {
        self.0
    }

    /// The page `index` pages behind its first.
    pub const fn page(self, index: usize) -> PageNumber {
        PageNumber(self.0 * BLOCK_PAGES + index)
    }
}

/// Returns the address of the page `index` pages behind `start`.
pub fn page_at(start: usize, index: usize) -> usize {
    start + index * PAGE_SIZE
}

/// Bytes of `pages` pages.
pub fn bytes_of<T: From<u16> + Mul<Output = T>>(pages: T) -> T {
    pages * T::from(PAGE_BYTES)
}

/// Whole pages in `bytes`.
pub fn pages_in<T: From<u16> + Div<Output = T>>(bytes: T) -> T {
    bytes / T::from(PAGE_BYTES)
}

/// Pages of a block. It has a type because callers mistook the bare number for a count of pages or
/// a page's index, and shifted bits out of the block.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PageMask(u16);

impl PageMask {
    /// No page.
    pub const NONE: PageMask = PageMask(0);
    /// All pages of a block.
    pub const ALL: PageMask = PageMask(u16::MAX);

    /// `count` pages from page `first` on.
    pub fn span(first: usize, count: usize) -> Self {
        PageMask((((1u32 << count) - 1) << first) as u16)
    }

    /// The pages of `block` that lie wholly in `[start, end)`.
    pub fn within(block: BlockNumber, start: usize, end: usize) -> Self {
        let base = block.address();
        let first = start.saturating_sub(base).min(BLOCK_BYTES).div_ceil(PAGE_SIZE);
        let last = end.saturating_sub(base).min(BLOCK_BYTES) / PAGE_SIZE;
        Self::span(first, last.saturating_sub(first))
    }

    /// The pages whose bits are set, page 0 lowest. Bits beyond a block are ignored.
    pub const fn from_bits(bits: u32) -> Self {
        PageMask(bits as u16)
    }

    /// A set bit for each page, page 0 lowest.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether there is no page.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether page `index` is among them.
    pub fn has(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }

    /// Number of pages.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Number of adjacent pages from page `index` on.
    pub fn run_at(self, index: usize) -> usize {
        (self.0 >> index).trailing_ones() as usize
    }

    /// All pages but the first.
    pub fn without_first(self) -> Self {
        PageMask(self.0 & self.0.wrapping_sub(1))
    }

    /// The indices of the pages, ascending.
    pub fn pages(self) -> impl Iterator<Item = usize> + Clone {
        (0..BLOCK_PAGES).filter(move |index| self.has(*index))
    }

    /// Longest runs of adjacent pages, as (first, count).
    pub fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let first = rest.0.trailing_zeros() as usize;
            (!rest.is_empty()).then(|| {
                let count = rest.run_at(first);
                rest &= !Self::span(first, count);
                (first, count)
            })
        })
    }
}

impl FromIterator<usize> for PageMask {
    fn from_iter<I: IntoIterator<Item = usize>>(pages: I) -> Self {
        pages.into_iter().fold(Self::NONE, |mask, index| mask | Self::span(index, 1))
    }
}

impl fmt::Debug for PageMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Adjacent locked pages, numbered from the first page of the locked block or run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// The first page.
    pub first: usize,
    /// Number of pages.
    pub count: usize,
}

impl PageRun {
    /// `count` pages from `first` on.
    pub fn new(first: usize, count: usize) -> Self {
        PageRun { first, count }
    }

    /// The first page alone.
    pub fn one(self) -> Self {
        PageRun { count: 1, ..self }
    }
}

/// Pages of adjacent blocks, at most an extent's, from the first page of the first block on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunMask(u128);

impl RunMask {
    /// No page.
    pub const NONE: RunMask = RunMask(0);
    /// All pages of an extent.
    pub const ALL: RunMask = RunMask(u128::MAX);

    /// The pages whose bits are set, the first page lowest.
    pub const fn from_bits(bits: u128) -> Self {
        RunMask(bits)
    }

    /// A set bit for each page, the first page lowest.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The first `count` pages.
    pub fn first(count: usize) -> Self {
        RunMask(u128::MAX.checked_shr((EXTENT_PAGES - count) as u32).unwrap_or(0))
    }

    /// The pages of block `index`.
    pub fn of_block(self, index: usize) -> PageMask {
        PageMask((self.0 >> (index * BLOCK_PAGES)) as u16)
    }

    /// Pages of block `index`, as pages of a run.
    pub fn from_block(index: usize, pages: PageMask) -> Self {
        RunMask(u128::from(pages.0) << (index * BLOCK_PAGES))
    }

    /// The same pages counted from a page `pages` further on. Earlier ones are dropped.
    pub fn counted_from(self, pages: usize) -> Self {
        RunMask(self.0 >> pages)
    }

    /// The same pages, counted from a page that lies `pages` pages earlier.
    pub fn counted_before(self, pages: usize) -> Self {
        RunMask(self.0 << pages)
    }

    /// Whether there is no page.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of pages.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Number of adjacent pages from the first on.
    pub fn leading(self) -> usize {
        self.0.trailing_ones() as usize
    }
}

/// A slot of staging. Only a [`crate::Slot`] gives the right to it; a block's record has its
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotNumber(u32);

impl SlotNumber {
    /// The word that stands for no slot: a block's record has 24 bits for a slot.
    pub const NONE_WORD: u32 = 0xff_ffff;

    pub(crate) const fn new(index: usize) -> Self {
        SlotNumber(index as u32)
    }

    /// Its index among all slots.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The slot `count` slots behind it.
    pub(crate) const fn behind(self, count: usize) -> Self {
        SlotNumber(self.0 + count as u32)
    }

    /// A word for a slot or none, of 24 bits.
    pub fn word_of(slot: Option<Self>) -> u32 {
        slot.map_or(Self::NONE_WORD, |slot| slot.0)
    }

    /// The slot of a word, of which 24 bits count.
    pub fn of_word(word: u32) -> Option<Self> {
        let number = word & Self::NONE_WORD;
        (number != Self::NONE_WORD).then_some(SlotNumber(number))
    }
}

macro_rules! number_operations {
    ($($number:ident)*) => {$(
        impl Add<usize> for $number {
            type Output = Self;
            fn add(self, count: usize) -> Self {
                $number(self.0 + count)
            }
        }

        impl AddAssign<usize> for $number {
            fn add_assign(&mut self, count: usize) {
                self.0 += count;
            }
        }

        impl Sub<usize> for $number {
            type Output = Self;
            fn sub(self, count: usize) -> Self {
                $number(self.0 - count)
            }
        }

        impl Sub for $number {
            type Output = usize;
            fn sub(self, other: Self) -> usize {
                self.0 - other.0
            }
        }

        /// Shows the address, which is what the user of a message finds in /proc/PID/maps.
        impl fmt::Debug for $number {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.address())
            }
        }
    )*};
}
number_operations! { PageNumber BlockNumber }

macro_rules! set_operations {
    ($($mask:ident)*) => {$(
        impl BitAnd for $mask {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                $mask(self.0 & other.0)
            }
        }

        impl BitOr for $mask {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                $mask(self.0 | other.0)
            }
        }

        impl Not for $mask {
            type Output = Self;
            fn not(self) -> Self {
                $mask(!self.0)
            }
        }

        impl BitAndAssign for $mask {
            fn bitand_assign(&mut self, other: Self) {
                *self = *self & other;
            }
        }

        impl BitOrAssign for $mask {
            fn bitor_assign(&mut self, other: Self) {
                *self = *self | other;
            }
        }
    )*};
}
set_operations! { PageMask RunMask }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let page = PageNumber::of(3 * BLOCK_BYTES + 5 * PAGE_SIZE + 7);
        assert_eq!((page.block(), page.index()), (BlockNumber::of(3 * BLOCK_BYTES), 5));
        assert_eq!((page.block().page(5), page.key()), (page, 53));
        assert_eq!((page + 11 - page, (page + 11).block().address()), (11, 4 * BLOCK_BYTES));
        let blocks = |start, end| BlockNumber::all_of(start, end).collect::<Vec<_>>();
        assert_eq!(blocks(BLOCK_BYTES - 1, BLOCK_BYTES + 1), [BlockNumber(0), BlockNumber(1)]);
        assert_eq!(blocks(BLOCK_BYTES, BLOCK_BYTES), []);
    }

    #[test]
    fn masks() {
        let runs = |bits| PageMask::from_bits(bits).runs().collect::<Vec<_>>();
        assert_eq!(runs(0), []);
        assert_eq!(runs(0xffff), [(0, 16)]);
        assert_eq!(runs(0b1011_0110), [(1, 2), (4, 2), (7, 1)]);
        assert_eq!(runs(0x8001), [(0, 1), (15, 1)]);
        assert_eq!(PageMask::from_bits(0x8011).pages().collect::<Vec<_>>(), [0, 4, 15]);
        let within = |start, end| PageMask::within(BlockNumber(1), start, end);
        assert_eq!(within(0, 3 * BLOCK_BYTES), PageMask::ALL);
        assert_eq!(within(BLOCK_BYTES + 100, page_at(BLOCK_BYTES, 3)), PageMask::span(1, 2));
        assert_eq!(within(0, BLOCK_BYTES), PageMask::NONE);
        assert_eq!(within(BLOCK_BYTES + 100, BLOCK_BYTES + 200), PageMask::NONE);
        assert_eq!(
            (PageMask::span(2, 3).without_first(), PageMask::span(2, 3).run_at(3)),
            (PageMask::span(3, 2), 2)
        );
        assert_eq!((RunMask::first(0), RunMask::first(EXTENT_PAGES)), (RunMask::NONE, RunMask::ALL));
        let run = RunMask::from_block(1, PageMask::span(2, 1));
        assert_eq!((run.of_block(0), run.of_block(1)), (PageMask::NONE, PageMask::span(2, 1)));
        assert_eq!(
            (run.counted_from(18).leading(), run.counted_before(16).of_block(2)),
            (1, PageMask::span(2, 1))
        );
    }
}
