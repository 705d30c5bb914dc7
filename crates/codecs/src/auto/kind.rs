//! What `auto` made of a page, and how often.

use std::sync::atomic::{AtomicU64, Ordering};

/// The form in which a page is stored: the first byte of its object. The numbers are part of the
/// format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// One 64-bit word fills the page.
    Same = 0,
    /// T16.
    T16 = 1,
    /// T16, its raw words as page LZ.
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

    /// The kind of that number.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(byte)).copied()
    }

    /// For reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Same => "same",
            Kind::T16 => "t16",
            Kind::T16Lz => "t16+lz",
            Kind::Lz => "lz",
            Kind::Numeric => "numeric",
            Kind::Sparse => "sparse",
            Kind::Lz4 => "lz4",
        }
    }
}

/// Pages compressed, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the number of the [`Kind`].
    pub kinds: [u64; Kind::ALL.len()],
    /// Pages given up: refused, or kept as they are within a larger unit.
    pub refused: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, kind: Option<Kind>) {
        match kind {
            Some(kind) => self.kinds[kind as usize] += 1,
            None => self.refused += 1,
        }
    }

    /// The pages of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.kinds[kind as usize]
    }
}

/// What reports call the forms of an object's pages: the kinds, then pages as they are within a
/// larger unit.
pub(crate) const FORMS: [&str; Kind::ALL.len() + 1] = {
    let mut names = ["raw"; Kind::ALL.len() + 1];
    let mut number = 0;
    while number < Kind::ALL.len() {
        names[number] = Kind::ALL[number].name();
        number += 1;
    }
    names
};

static TOTALS: [AtomicU64; Kind::ALL.len() + 1] = [const { AtomicU64::new(0) }; Kind::ALL.len() + 1];

/// Adds a request's counts to the process's.
pub(crate) fn publish(counts: &Counts) {
    for (total, count) in TOTALS.iter().zip(counts.kinds.iter().chain([&counts.refused])) {
        if *count != 0 {
            total.fetch_add(*count, Ordering::Relaxed);
        }
    }
}

/// What every `auto` context of this process has done so far.
pub fn counts() -> Counts {
    let mut counts = Counts::default();
    for (count, total) in counts.kinds.iter_mut().chain([&mut counts.refused]).zip(&TOTALS) {
        *count = total.load(Ordering::Relaxed);
    }
    counts
}
