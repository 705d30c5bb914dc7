//! Arrays of numbers: frame of reference, optional difference, bit packing, all of it vertical.
//!
//! A page is 64 rows of 64 bytes. A row holds 64, 32, 16 or 8 elements of 1, 2, 4 or 8 bytes. An
//! element's code depends only on elements of its column, so that a row is one vector and nothing
//! moves between lanes: no transposition, no prefix sum. The optional difference is to the row
//! before.
//!
//! Layout, little-endian:
//!
//! | size | content |
//! |---|---|
//! | 1 | bits 0-1: log2 of the element's size `E`; bit 2: differences; others 0 |
//! | 1 | shift: trailing zero bits common to all residues |
//! | E | base: the least value (or difference), compared as signed |
//! | 64, or 0 | with differences: the first row as it is (its residue is 0) |
//! | 16 | width in bits of the residues of rows 4g .. 4g + 3, shift not counted |
//! | 64 k | the columns' bit streams: lane `c` of consecutive rows is the stream of column `c` |
//!
//! Residue = (value or difference - base) >> shift. A column's stream takes the residues of its 64
//! elements in row order, least significant bit first, in units of E bytes; it is padded with zero
//! bits to a whole unit.

mod element;
mod pack;
mod spread;

use crate::{Isa, PAGE_SIZE};
use element::Element;
use spread::Spread;

pub(crate) const ROWS: usize = 64;
pub(crate) const ROW: usize = 64;
/// Rows that share a width.
pub(crate) const GROUP: usize = 4;
pub(crate) const GROUPS: usize = ROWS / GROUP;
/// No object is longer.
pub const OBJECT_MAX: usize = 2 + 8 + ROW + GROUPS + PAGE_SIZE;

/// A numeric object that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged numeric object")]
pub struct Damaged;

/// The interpretation of a page: size of its elements, and whether differences are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// log2 of the element's size in bytes, 0 to 3.
    pub log2_size: u8,
    /// Whether rows are packed as differences from the row before.
    pub differences: bool,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 8] = {
        let mut all = [Shape { log2_size: 0, differences: false }; 8];
        let mut at = 0;
        while at < 8 {
            all[at] = Shape { log2_size: at as u8 % 4, differences: at >= 4 };
            at += 1;
        }
        all
    };

    const fn fixed_len(self) -> usize {
        2 + (1 << self.log2_size) + if self.differences { ROW } else { 0 }
    }

    const fn object_len(self, bits: usize) -> usize {
        self.fixed_len() + GROUPS + (GROUP * bits).div_ceil(8 << self.log2_size) * ROW
    }

    fn code(self) -> u8 {
        self.log2_size | u8::from(self.differences) << 2
    }

    fn from_code(code: u8) -> Option<Shape> {
        (code < 8).then_some(Shape { log2_size: code & 3, differences: code & 4 != 0 })
    }
}

/// Runs `$body` with `$E` as the element type of `$shape`.
macro_rules! with_element {
    ($shape:expr, $E:ident => $body:expr) => {
        match $shape.log2_size {
            0 => {
                type $E = u8;
                $body
            }
            1 => {
                type $E = u16;
                $body
            }
            2 => {
                type $E = u32;
                $body
            }
            _ => {
                type $E = u64;
                $body
            }
        }
    };
}

/// Returns the shape with the shortest expected object, and its approximate length, judged by an
/// eighth of the page. Returns `usize::MAX` if every shape is sure to save next to nothing.
pub fn estimate(isa: Isa, page: &[u8; PAGE_SIZE]) -> (Shape, usize) {
    estimate_below(isa, page, usize::MAX)
}

/// [`estimate`] for objects below `limit`: may return `usize::MAX` instead of a length of `limit`
/// or more, which takes a quarter of the time.
pub fn estimate_below(isa: Isa, page: &[u8; PAGE_SIZE], limit: usize) -> (Shape, usize) {
    assert!(isa.is_available(), "this machine lacks {isa}");
    let spread = Spread::of(isa, page);
    if limit < usize::MAX && spread.floor() >= limit {
        return (Shape::ALL[0], usize::MAX);
    }
    let hopeless = spread.is_hopeless();
    with_isa!(
        isa,
        fn run(page: &[u8; PAGE_SIZE], hopeless: bool) -> (Shape, usize) {
            let mut best = (Shape::ALL[0], usize::MAX);
            let sizes: &[u8] = match (hopeless, pack::hopeless_bytes(page)) {
                (false, _) => &[3, 2, 1, 0],
                (true, false) => &[0],
                (true, true) => &[],
            };
            for &log2_size in sizes {
                let shape = Shape { log2_size, differences: false };
                let bits = with_element!(shape, E => pack::sample::<E>(page));
                for (differences, bits) in [false, true].into_iter().zip(bits) {
                    let shape = Shape { log2_size, differences };
                    let len = shape.object_len(GROUPS * bits as usize);
                    if len < best.1 {
                        best = (shape, len);
                    }
                }
            }
            best
        }
    )
}

/// Encodes `page` as `shape` into `out` and returns the object's length, or `None` if `out` is too
/// short.
pub fn encode(isa: Isa, page: &[u8; PAGE_SIZE], shape: Shape, out: &mut [u8]) -> Option<usize> {
    with_isa!(
        isa,
        fn run(page: &[u8; PAGE_SIZE], shape: Shape, out: &mut [u8]) -> Option<usize> {
            with_element!(shape, E => pack::encode::<E>(page, shape, out))
        }
    )
}

/// Decodes `object` into `page`. Any bytes yield an error or some page.
///
/// # Errors
/// [`Damaged`] if the object contradicts itself.
pub fn decode(isa: Isa, object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    with_isa!(
        isa,
        fn run(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
            let shape = object.first().and_then(|&code| Shape::from_code(code)).ok_or(Damaged)?;
            with_element!(shape, E => pack::decode::<E>(object, shape, page))
        }
    )
}
