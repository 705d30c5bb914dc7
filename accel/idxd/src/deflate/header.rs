//! Bits of a block header, written into an AECS accumulator.

/// The order in which the lengths of code-length codes are sent (RFC 1951, section 3.2.7).
pub(crate) const CODE_LENGTH_ORDER: [u8; 19] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Appends bits to an accumulator.
pub(crate) struct Header<'a> {
    bytes: &'a mut [u8; 256],
    bits: u32,
}

impl<'a> Header<'a> {
    /// Appends behind the first `bits` bits of `bytes`; what follows them is cleared.
    ///
    /// # Panics
    /// When there are more bits than the accumulator holds.
    pub fn new(bytes: &'a mut [u8; 256], bits: u32) -> Self {
        assert!(bits <= 256 * 8);
        let whole = (bits / 8) as usize;
        if !bits.is_multiple_of(8) {
            bytes[whole] &= (1 << (bits % 8)) - 1;
        }
        bytes[(bits.div_ceil(8)) as usize..].fill(0);
        Header { bytes, bits }
    }

    /// Bits in the accumulator.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Appends the low `count` bits of `value`, least significant first.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn put(&mut self, value: u32, count: u32) {
        debug_assert!(count <= 16 && value >> count == 0);
        assert!(self.bits + count <= 256 * 8, "header longer than the accumulator");
        let mut window = value << (self.bits % 8);
        let mut at = (self.bits / 8) as usize;
        while window != 0 {
            self.bytes[at] |= window as u8;
            window >>= 8;
            at += 1;
        }
        self.bits += count;
    }

    /// Appends a Huffman code given as an AECS entry: its most significant bit goes first.
    pub fn put_code(&mut self, entry: u32) {
        let length = entry >> 15;
        debug_assert!((1..=15).contains(&length));
        let code = (entry & 0x7fff) as u16;
        self.put(u32::from(code.reverse_bits() >> (16 - length)), length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_append_from_the_least_significant() {
        let mut bytes = [0xff; 256];
        let mut header = Header::new(&mut bytes, 3);
        header.put(0b10, 2);
        header.put(0x1ff, 9);
        // Code 110 goes out as 1, 1, 0.
        header.put_code(0b110 | 3 << 15);
        assert_eq!(header.bits(), 17);
        assert_eq!(bytes[..4], [0b1111_0111, 0b1111_1111, 0b0000_0000, 0]);
    }

    #[test]
    #[should_panic(expected = "longer than the accumulator")]
    fn a_full_accumulator_takes_no_more() {
        let mut bytes = [0; 256];
        Header::new(&mut bytes, 2047).put(3, 2);
    }
}
