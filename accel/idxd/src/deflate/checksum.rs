//! A device's checksums over plain data: gzip's CRC-32, and an XOR of 16-bit words.

/// CRC-32 of gzip, continued from `crc` (0 to begin).
pub fn crc32(crc: u32, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(data);
    hasher.finalize()
}

/// XOR of the little-endian 16-bit words of `data`, an odd last byte into the low byte, continued
/// from `xor`.
pub fn xor16(xor: u16, data: &[u8]) -> u16 {
    let mut words = data.chunks_exact(8);
    let mut wide = 0u64;
    for word in &mut words {
        wide ^= u64::from_le_bytes(word.try_into().expect("eight bytes"));
    }
    let mut tail = [0; 8];
    tail[..words.remainder().len()].copy_from_slice(words.remainder());
    wide ^= u64::from_le_bytes(tail);
    wide ^= wide >> 32;
    xor ^ (wide ^ wide >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bitwise(data: &[u8]) -> u32 {
        let mut state = !0u32;
        for &byte in data {
            state ^= u32::from(byte);
            for _ in 0..8 {
                state = state >> 1 ^ if state & 1 != 0 { 0xedb8_8320 } else { 0 };
            }
        }
        !state
    }

    #[test]
    fn check_values() {
        assert_eq!(crc32(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(xor16(0, &[0x01, 0x02, 0x04, 0x08, 0x10]), 0x0a15);
    }

    proptest! {
        #[test]
        fn every_length_and_split_agrees_with_the_definition(
            data in proptest::collection::vec(any::<u8>(), 0..1700), at in 0usize..1700
        ) {
            let at = at.min(data.len());
            prop_assert_eq!(crc32(0, &data), bitwise(&data));
            prop_assert_eq!(crc32(crc32(0, &data[..at]), &data[at..]), crc32(0, &data));
            let even = at & !1;
            prop_assert_eq!(xor16(xor16(0, &data[..even]), &data[even..]), xor16(0, &data));
        }
    }
}
