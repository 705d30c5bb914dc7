//! The element types, and rows of them.

use super::ROW;

/// One element of an array, as an unsigned integer.
pub(crate) trait Element: Copy + Default + 'static {
    const BITS: u32;
    type Row: Copy;

    fn zero_row() -> Self::Row;
    /// Returns a row of `value` in every lane.
    fn splat(value: Self) -> Self::Row;
    fn load(bytes: &[u8; ROW]) -> Self::Row;
    fn store(row: &Self::Row, bytes: &mut [u8; ROW]);
    fn add(a: &Self::Row, b: &Self::Row) -> Self::Row;
    fn sub(a: &Self::Row, b: &Self::Row) -> Self::Row;
    fn or(a: &Self::Row, b: &Self::Row) -> Self::Row;
    fn and(a: &Self::Row, b: &Self::Row) -> Self::Row;
    /// Minimum of each lane, as signed numbers.
    fn min(a: &Self::Row, b: &Self::Row) -> Self::Row;
    /// Maximum of each lane, as signed numbers.
    fn max(a: &Self::Row, b: &Self::Row) -> Self::Row;
    /// Shifts each lane left by `by`, which is below [`Element::BITS`].
    fn left(row: &Self::Row, by: u32) -> Self::Row;
    /// Shifts each lane right by `by`, which is below [`Element::BITS`].
    fn right(row: &Self::Row, by: u32) -> Self::Row;
    /// The least lane, as signed numbers.
    fn least(row: &Self::Row) -> Self;
    /// The greatest lane, as signed numbers.
    fn greatest(row: &Self::Row) -> Self;
    /// Bitwise or of all lanes.
    fn any(row: &Self::Row) -> Self;
    fn wrapping_sub(self, other: Self) -> Self;
    /// Number of bits up to the highest one set.
    fn width(self) -> u32;
    /// Number of zero bits below the lowest one set.
    fn trailing(self) -> u32;
    /// Returns the `width` lowest bits set.
    fn mask(width: u32) -> Self;
    fn from_bytes(bytes: &[u8]) -> Self;
    fn put_bytes(self, bytes: &mut [u8]);
}

macro_rules! element {
    ($unsigned:ident, $signed:ident) => {
        impl Element for $unsigned {
            const BITS: u32 = $unsigned::BITS;
            type Row = [$unsigned; ROW / size_of::<$unsigned>()];

            #[inline(always)]
            fn zero_row() -> Self::Row {
                [0; ROW / size_of::<$unsigned>()]
            }
            #[inline(always)]
            fn splat(value: Self) -> Self::Row {
                [value; ROW / size_of::<$unsigned>()]
            }
            #[inline(always)]
            fn load(bytes: &[u8; ROW]) -> Self::Row {
                let lanes = bytes.as_chunks::<{ size_of::<$unsigned>() }>().0;
                std::array::from_fn(|at| $unsigned::from_le_bytes(lanes[at]))
            }
            #[inline(always)]
            fn store(row: &Self::Row, bytes: &mut [u8; ROW]) {
                let lanes = bytes.as_chunks_mut::<{ size_of::<$unsigned>() }>().0;
                for (lane, value) in lanes.iter_mut().zip(row) {
                    *lane = value.to_le_bytes();
                }
            }
            #[inline(always)]
            fn add(a: &Self::Row, b: &Self::Row) -> Self::Row {
                std::array::from_fn(|at| a[at].wrapping_add(b[at]))
            }
            #[inline(always)]
            fn sub(a: &Self::Row, b: &Self::Row) -> Self::Row {
                std::array::from_fn(|at| a[at].wrapping_sub(b[at]))
            }
            #[inline(always)]
            fn or(a: &Self::Row, b: &Self::Row) -> Self::Row {
                std::array::from_fn(|at| a[at] | b[at])
            }
            #[inline(always)]
            fn and(a: &Self::Row, b: &Self::Row) -> Self::Row {
                std::array::from_fn(|at| a[at] & b[at])
            }
            #[inline(always)]
            fn min(a: &Self::Row, b: &Self::Row) -> Self::Row {
                std::array::from_fn(|at| (a[at] as $signed).min(b[at] as $signed) as $unsigned)
            }
            #[inline(always)]
            fn max(a: &Self::Row, b: &Self::Row) -> Self::Row {
                std::array::from_fn(|at| (a[at] as $signed).max(b[at] as $signed) as $unsigned)
            }
            #[inline(always)]
            fn left(row: &Self::Row, by: u32) -> Self::Row {
                std::array::from_fn(|at| row[at] << by)
            }
            #[inline(always)]
            fn right(row: &Self::Row, by: u32) -> Self::Row {
                std::array::from_fn(|at| row[at] >> by)
            }
            #[inline(always)]
            fn least(row: &Self::Row) -> Self {
                row.iter().fold($signed::MAX, |least, &lane| least.min(lane as $signed)) as $unsigned
            }
            #[inline(always)]
            fn greatest(row: &Self::Row) -> Self {
                row.iter().fold($signed::MIN, |greatest, &lane| greatest.max(lane as $signed)) as $unsigned
            }
            #[inline(always)]
            fn any(row: &Self::Row) -> Self {
                row.iter().fold(0, |any, lane| any | lane)
            }
            #[inline(always)]
            fn wrapping_sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn width(self) -> u32 {
                Self::BITS - self.leading_zeros()
            }
            #[inline(always)]
            fn trailing(self) -> u32 {
                self.trailing_zeros()
            }
            #[inline(always)]
            fn mask(width: u32) -> Self {
                if width >= Self::BITS {
                    Self::MAX
                } else {
                    ((1 as Self) << width) - 1
                }
            }
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let (bytes, _) = bytes.split_first_chunk().expect("the caller passes enough bytes");
                Self::from_le_bytes(*bytes)
            }
            #[inline(always)]
            fn put_bytes(self, bytes: &mut [u8]) {
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
            }
        }
    };
}

element!(u8, i8);
element!(u16, i16);
element!(u32, i32);
element!(u64, i64);
