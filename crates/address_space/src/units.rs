//! Units of memory, and the conversions between them.
//!
//! | unit | type |
//! |---|---|
//! | address, of a byte | `usize` |
//! | page number, the key of a page in the pool | `u64`: [`page_key`] |
//! | page of a block, 0 to 15 | `usize`, called `index` or `first` |
//! | pages of a block | `u32`, a mask, page 0 lowest: [`span`], [`runs`], [`within`] |
//! | count of pages, of bytes | `usize` or `u64` |

use std::ops::{Div, Mul};

use sys::PAGE_SIZE;

/// Pages in a block.
pub const BLOCK_PAGES: usize = 16;
/// Bytes in a block.
pub const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Blocks of an extent, and the most of one transition.
pub const EXTENT_SLOTS: usize = 8;
/// Pages of an extent.
pub const EXTENT_PAGES: usize = EXTENT_SLOTS * BLOCK_PAGES;
/// All pages of a block, as a mask.
pub const ALL_PAGES: u32 = 0xffff;

const PAGE_BYTES: u16 = PAGE_SIZE as u16;
const _: () = assert!(PAGE_BYTES as usize == PAGE_SIZE);

/// Returns the number of the page that contains `address`.
pub fn page_key(address: usize) -> u64 {
    (address / PAGE_SIZE) as u64
}

/// Returns the address of the page that contains `address`.
pub fn page_of(address: usize) -> usize {
    address & !(PAGE_SIZE - 1)
}

/// Returns the address of the block that contains `address`.
pub fn block_of(address: usize) -> usize {
    address & !(BLOCK_BYTES - 1)
}

/// Returns the index within its block of the page that contains `address`.
pub fn index_of(address: usize) -> usize {
    address % BLOCK_BYTES / PAGE_SIZE
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

/// Longest runs of set bits of `mask`, as (first, count).
pub fn runs(mask: u32) -> impl Iterator<Item = (usize, usize)> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let count = (rest >> first).trailing_ones();
        rest &= !(((1u64 << count) - 1) << first) as u32;
        Some((first as usize, count as usize))
    })
}

/// A mask of `count` bits from bit `first`.
pub fn span(first: usize, count: usize) -> u32 {
    (((1u64 << count) - 1) << first) as u32
}

/// The pages of the block at `base` that lie wholly in `[start, end)`.
pub fn within(base: usize, start: usize, end: usize) -> u32 {
    let first = start.saturating_sub(base).min(BLOCK_BYTES).div_ceil(PAGE_SIZE);
    let last = end.saturating_sub(base).min(BLOCK_BYTES) / PAGE_SIZE;
    if last > first {
        span(first, last - first)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(0xffff).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(runs(0b1011_0110).collect::<Vec<_>>(), [(1, 2), (4, 2), (7, 1)]);
        assert_eq!(runs(0x8000_0001).collect::<Vec<_>>(), [(0, 1), (31, 1)]);
        assert_eq!(within(BLOCK_BYTES, 0, 3 * BLOCK_BYTES), ALL_PAGES);
        assert_eq!(within(BLOCK_BYTES, BLOCK_BYTES + 100, page_at(BLOCK_BYTES, 3)), 0b110);
        assert_eq!(within(BLOCK_BYTES, 0, BLOCK_BYTES), 0);
    }
}
