//! The symbols of Deflate for match lengths and distances (RFC 1951, section 3.2.5).

pub(crate) const MATCH_MIN: usize = 3;
pub(crate) const MATCH_MAX: usize = 258;

/// First length of each length symbol, from 257 on.
pub(crate) const LENGTH_BASE: [u16; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195,
    227, 258,
];
/// Extra bits of each length symbol.
pub(crate) const LENGTH_EXTRA: [u8; 29] =
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
/// First distance of each distance symbol.
pub(crate) const DISTANCE_BASE: [u16; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073,
    4097, 6145, 8193, 12289, 16385, 24577,
];
/// Extra bits of each distance symbol.
pub(crate) const DISTANCE_EXTRA: [u8; 30] =
    [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];

/// Length symbol less 257, for each match length; unused below [`MATCH_MIN`].
pub(crate) static LENGTH_SLOT: [u8; MATCH_MAX + 1] = length_slots();

const fn length_slots() -> [u8; MATCH_MAX + 1] {
    let mut slots = [0; MATCH_MAX + 1];
    let mut slot = 0;
    while slot < 29 {
        let mut length = LENGTH_BASE[slot] as usize;
        while length <= MATCH_MAX {
            slots[length] = slot as u8;
            length += 1;
        }
        slot += 1;
    }
    slots
}

/// Distance symbol and number of extra bits of `distance`, 1 to 32768. The extra bits themselves
/// are the low bits of `distance - 1`.
#[inline(always)]
pub(crate) fn distance_slot(distance: usize) -> (usize, u32) {
    let n = (distance - 1) as u32;
    // Up to 3 one symbol each, then two symbols for each power of two.
    let log = 31 - (n | 2).leading_zeros();
    let extra = log - 1;
    let slot = if n < 2 { n } else { 2 * log + (n >> extra & 1) };
    (slot as usize, extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_fall_into_their_symbols() {
        for distance in 1..=32768 {
            let (slot, extra) = distance_slot(distance);
            assert_eq!(extra, u32::from(DISTANCE_EXTRA[slot]), "{distance}");
            let low = (distance - 1) & ((1 << extra) - 1);
            assert_eq!(usize::from(DISTANCE_BASE[slot]) + low, distance);
        }
    }

    #[test]
    fn lengths_fall_into_their_symbols() {
        for (length, &slot) in LENGTH_SLOT.iter().enumerate().skip(MATCH_MIN) {
            let slot = usize::from(slot);
            let more = length - usize::from(LENGTH_BASE[slot]);
            assert!(more < 1 << LENGTH_EXTRA[slot] || more == 0, "{length}");
        }
        // 258 has a symbol of its own although the one before reaches it.
        assert_eq!((LENGTH_SLOT[257], LENGTH_SLOT[258]), (27, 28));
    }
}
