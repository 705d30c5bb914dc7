//! The place of an object in the file: the eight bytes that an index keeps for a page.

/// Bytes of a block, the unit of disk transfers and of their alignment.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a segment, the unit of allocation, cleaning and release.
pub const SEGMENT_BYTES: usize = 1 << 20;
/// Objects begin at multiples of this.
pub const GRAIN_BYTES: usize = 16;
/// Most bytes of an object: 64 KiB, sixteen pages that did not compress.
pub const OBJECT_BYTES_MAX: usize = 1 << 16;
/// Most segments of a file: 2 TiB.
pub const SEGMENTS_MAX: usize = 1 << 21;

const GRAINS: usize = SEGMENT_BYTES / GRAIN_BYTES;
const _: () = assert!(GRAINS == 1 << 16);

/// The place of an object: segment (21 bits), grain within it (16), length (16).
///
/// The holder may use the 11 bits above. A place contains neither the segment's key nor its
/// generation: its holder keeps the segment from being reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(u64);

impl Location {
    /// Bits that [`Location::to_bits`] uses.
    pub const BITS: u32 = 53;

    pub(crate) fn new(segment: usize, position: usize, len: usize) -> Self {
        assert!(segment < SEGMENTS_MAX && position < SEGMENT_BYTES && position.is_multiple_of(GRAIN_BYTES));
        assert!((1..=OBJECT_BYTES_MAX).contains(&len));
        Location((segment as u64) << 32 | ((position / GRAIN_BYTES) as u64) << 16 | (len as u64 - 1))
    }

    /// The place as a number below 2^53.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The place of a number from [`Location::to_bits`].
    ///
    /// # Panics
    /// If a higher bit is set.
    pub fn from_bits(bits: u64) -> Self {
        assert!(bits >> Location::BITS == 0);
        Location(bits)
    }

    /// The segment's number.
    pub fn segment(self) -> usize {
        (self.0 >> 32) as usize
    }

    /// Bytes from the segment's start.
    pub fn position(self) -> usize {
        (self.0 >> 16 & 0xFFFF) as usize * GRAIN_BYTES
    }

    /// Bytes of the object, without its seal.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> usize {
        (self.0 & 0xFFFF) as usize + 1
    }

    /// Bytes from the file's start.
    pub fn offset(self) -> u64 {
        (self.segment() * SEGMENT_BYTES + self.position()) as u64
    }
}

pub(crate) fn grains(sealed: usize) -> u32 {
    sealed.div_ceil(GRAIN_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_kept_at_its_limits() {
        for (segment, position, len) in
            [(0, 0, 1), (SEGMENTS_MAX - 1, SEGMENT_BYTES - 16, OBJECT_BYTES_MAX), (77, 4096, 4096)]
        {
            let place = Location::from_bits(Location::new(segment, position, len).to_bits());
            assert_eq!((place.segment(), place.position(), place.len()), (segment, position, len));
            assert_eq!(place.offset(), (segment * SEGMENT_BYTES + position) as u64);
        }
    }
}
