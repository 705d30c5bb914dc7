//! Codes for the decoder: a table for short codes, canonical counting for long ones.

use super::bits::{Bits, Exhausted};
use super::dynamic::CODE_BITS_MAX;

/// The meaning of a code and its bits to drop: 3:0 code length, 7:4 extra bits, 11:8 one of the
/// kinds below, 31:16 value. Zero: no code of the table's bits has this prefix.
pub(crate) type Entry = u32;

pub(crate) const LITERAL: Entry = 1 << 8;
/// The value is the first length or distance of the symbol's range.
pub(crate) const BASE: Entry = 1 << 9;
pub(crate) const END: Entry = 1 << 10;
/// A symbol that Deflate gives a code but no meaning.
pub(crate) const MEANINGLESS: Entry = 1 << 11;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    Oversubscribed,
    Empty,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSymbol {
    /// The input ended inside the code.
    Exhausted,
    Unassigned,
}

impl From<Exhausted> for NoSymbol {
    fn from(_: Exhausted) -> Self {
        Self::Exhausted
    }
}

/// One code. `BITS` is the size of the direct table, `SIZE` is 2 to that power.
pub(crate) struct DecodeTable<const BITS: u32, const SIZE: usize> {
    direct: [Entry; SIZE],
    of_length: [u16; CODE_BITS_MAX + 1],
    /// Entries without their lengths, in the order of codes.
    by_code: [Entry; 288],
}

impl<const BITS: u32, const SIZE: usize> DecodeTable<BITS, SIZE> {
    pub const fn new() -> Self {
        assert!(SIZE == 1 << BITS);
        DecodeTable { direct: [0; SIZE], of_length: [0; CODE_BITS_MAX + 1], by_code: [0; 288] }
    }

    /// Builds the table of `lengths`; `entry` gives each symbol's meaning, without a code length.
    pub fn build(&mut self, lengths: &[u8], entry: impl Fn(usize) -> Entry) -> Result<(), Malformed> {
        self.of_length.fill(0);
        for &length in lengths {
            self.of_length[usize::from(length)] += 1;
        }
        if usize::from(self.of_length[0]) == lengths.len() {
            self.of_length[0] = 0;
            self.direct.fill(0);
            return Err(Malformed::Empty);
        }
        self.of_length[0] = 0;
        let mut left = 1i32;
        let mut first_index = [0u16; CODE_BITS_MAX + 2];
        let mut next_code = [0u32; CODE_BITS_MAX + 2];
        for length in 1..=CODE_BITS_MAX {
            left = 2 * left - i32::from(self.of_length[length]);
            if left < 0 {
                return Err(Malformed::Oversubscribed);
            }
            first_index[length + 1] = first_index[length] + self.of_length[length];
            next_code[length + 1] = (next_code[length] + u32::from(self.of_length[length])) << 1;
        }
        // Prefixes of long codes and unassigned codes must not keep an older table's entries.
        self.direct.fill(0);
        for (symbol, &length) in lengths.iter().enumerate() {
            if length == 0 {
                continue;
            }
            let bits = u32::from(length);
            let length = usize::from(length);
            let meaning = entry(symbol);
            self.by_code[usize::from(first_index[length])] = meaning;
            first_index[length] += 1;
            let code = next_code[length];
            next_code[length] += 1;
            if bits <= BITS {
                let first = (code as u16).reverse_bits() >> (16 - bits);
                for slot in self.direct[usize::from(first)..].iter_mut().step_by(1 << bits) {
                    *slot = meaning | bits;
                }
            }
        }
        Ok(())
    }

    /// The entry of the first code in `window`, if the direct table has it.
    #[inline(always)]
    pub fn direct(&self, window: u64) -> Entry {
        self.direct[(window as usize) & (SIZE - 1)]
    }

    /// The entry of a code beyond the direct table, bit by bit. `count` bits of `window` are valid.
    #[cold]
    #[inline(never)]
    pub fn counted(&self, window: u64, count: u32) -> Result<Entry, NoSymbol> {
        let (mut code, mut first, mut index) = (0u32, 0u32, 0u32);
        for length in 1..=CODE_BITS_MAX as u32 {
            if length > count {
                return Err(NoSymbol::Exhausted);
            }
            code |= (window >> (length - 1) & 1) as u32;
            let codes = u32::from(self.of_length[length as usize]);
            if code < first + codes {
                return Ok(self.by_code[(index + code - first) as usize] | length);
            }
            index += codes;
            first = (first + codes) << 1;
            code <<= 1;
        }
        Err(NoSymbol::Unassigned)
    }

    pub fn read(&self, bits: &mut Bits<'_>) -> Result<Entry, NoSymbol> {
        bits.refill();
        let mut entry = self.direct(bits.window());
        if entry == 0 || (entry & 15) > bits.count() {
            entry = self.counted(bits.window(), bits.count())?;
        }
        bits.consume(entry & 15);
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lengths: &[u8]) -> Result<Box<DecodeTable<3, 8>>, Malformed> {
        let mut table = Box::new(DecodeTable::new());
        table.build(lengths, |symbol| (symbol as u32) << 16 | LITERAL)?;
        Ok(table)
    }

    #[test]
    fn short_and_long_codes_are_read() {
        let table = table(&[1, 2, 3, 4, 5, 5]).unwrap();
        let sent = [0, 1, 1, 3, 2, 4, 5, 0];
        let codes = ["0", "10", "110", "1110", "11110", "11111"];
        let mut stream = [0u8; 8];
        for (at, bit) in sent.iter().flat_map(|&symbol| codes[symbol].bytes()).enumerate() {
            stream[at / 8] |= (bit - b'0') << (at % 8);
        }
        let mut bits = Bits::new(&stream);
        let read = sent.map(|_| (table.read(&mut bits).unwrap() >> 16) as usize);
        assert_eq!(read, sent);
    }

    #[test]
    fn malformed_lengths() {
        assert_eq!(table(&[0, 0, 0]).err(), Some(Malformed::Empty));
        assert_eq!(table(&[1, 1, 1]).err(), Some(Malformed::Oversubscribed));
        assert!(table(&[1, 0, 2]).is_ok());
    }

    #[test]
    fn codes_without_a_symbol_and_ends_of_input() {
        let table = table(&[1, 0, 2]).unwrap();
        let mut unassigned = Bits::new(&[0xff, 0xff]);
        assert_eq!(table.read(&mut unassigned), Err(NoSymbol::Unassigned));
        let mut short = Bits::new(&[0x80]);
        short.take(7).unwrap();
        assert_eq!(table.read(&mut short), Err(NoSymbol::Exhausted));
    }
}
