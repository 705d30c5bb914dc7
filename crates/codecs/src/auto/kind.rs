//! The form that `auto` chose for a page.

/// The form of a stored page: the first byte of its object. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// One 64-bit word fills the page.
    Same = 0,
    /// T16.
    T16 = 1,
    /// T16 with its raw words as page LZ.
    T16Lz = 2,
    /// Page LZ.
    Lz = 3,
    /// An array of numbers.
    Numeric = 4,
    /// A few words among zeros.
    Sparse = 5,
    /// An LZ4 block.
    Lz4 = 6,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Kind; 7] =
        [Kind::Same, Kind::T16, Kind::T16Lz, Kind::Lz, Kind::Numeric, Kind::Sparse, Kind::Lz4];

    /// Returns the kind of a number.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(byte)).copied()
    }
}

/// Report names of the forms of an object's pages: the kinds, then raw pages within a larger unit.
pub(crate) const FORMS: [&str; Kind::ALL.len() + 1] =
    ["same", "t16", "t16+lz", "lz", "numeric", "sparse", "lz4", "raw"];
