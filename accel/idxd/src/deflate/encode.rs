//! From matches to bits: prepared code tables, and the writer.

use super::matcher::Sink;
use super::symbols::{distance_slot, LENGTH_BASE, LENGTH_EXTRA, LENGTH_SLOT, MATCH_MAX, MATCH_MIN};
use crate::aecs::{CompressAecs, Histogram, DISTANCES, FIXED};

/// Bits of a code, ready to send (first bit lowest), and their number from bit 24 up. Zero: no
/// code.
type Code = u32;

const fn ready(entry: u32) -> Code {
    let length = entry >> 15 & 15;
    if length == 0 {
        return 0;
    }
    let code = (entry & 0x7fff) as u16;
    (code.reverse_bits() >> (16 - length)) as u32 | length << 24
}

/// Codes by meaning: literals, whole match lengths with their extra bits, distance symbols.
pub(crate) struct Tables {
    literals: [Code; 256],
    lengths: [Code; MATCH_MAX + 1],
    distances: [Code; DISTANCES],
    eob: Code,
}

pub(crate) static FIXED_TABLES: Tables = Tables::of(&FIXED);

impl Tables {
    pub const EMPTY: Self =
        Tables { literals: [0; 256], lengths: [0; MATCH_MAX + 1], distances: [0; DISTANCES], eob: 0 };

    const fn of(aecs: &CompressAecs) -> Self {
        let mut tables = Self::EMPTY;
        tables.load(aecs);
        tables
    }

    pub const fn load(&mut self, aecs: &CompressAecs) {
        let mut at = 0;
        while at < 256 {
            self.literals[at] = ready(aecs.literals[at]);
            at += 1;
        }
        self.eob = ready(aecs.literals[256]);
        let mut length = MATCH_MIN;
        while length <= MATCH_MAX {
            let slot = LENGTH_SLOT[length] as usize;
            let code = ready(aecs.literals[257 + slot]);
            self.lengths[length] = if code == 0 {
                0
            } else {
                let more = (length - LENGTH_BASE[slot] as usize) as u32;
                (code & 0xff_ffff) | more << (code >> 24) | ((code >> 24) + LENGTH_EXTRA[slot] as u32) << 24
            };
            length += 1;
        }
        let mut at = 0;
        while at < DISTANCES {
            self.distances[at] = ready(aecs.distances[at]);
            at += 1;
        }
    }
}

/// Whether `aecs` has the codes of fixed mode.
pub(crate) fn is_fixed(aecs: &CompressAecs) -> bool {
    aecs.literals == FIXED.literals && aecs.distances == FIXED.distances
}

/// Writes bits, least significant first, into a buffer of fixed size.
pub(crate) struct BitWriter<'a> {
    out: &'a mut [u8],
    at: usize,
    window: u64,
    count: u32,
    overflow: bool,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        BitWriter { out, at: 0, window: 0, count: 0, overflow: false }
    }

    /// Adds `count` bits without storing any; at most 56 between two calls of [`BitWriter::flush`].
    #[inline(always)]
    fn add(&mut self, bits: u64, count: u32) {
        debug_assert!(self.count + count <= 63 && bits >> count == 0);
        self.window |= bits << self.count;
        self.count += count;
    }

    #[inline(always)]
    fn add_code(&mut self, code: Code) {
        self.add(u64::from(code & 0xff_ffff), code >> 24);
    }

    /// Stores whole bytes; fewer than eight bits remain.
    #[inline(always)]
    fn flush(&mut self) {
        if let Some(space) = self.out.get_mut(self.at..self.at + 8) {
            space.copy_from_slice(&self.window.to_le_bytes());
            self.at += (self.count / 8) as usize;
            self.window >>= self.count & !7;
            self.count &= 7;
        } else {
            self.flush_at_end();
        }
    }

    #[cold]
    fn flush_at_end(&mut self) {
        while self.count >= 8 {
            match self.out.get_mut(self.at) {
                Some(byte) => *byte = self.window as u8,
                None => self.overflow = true,
            }
            self.at += usize::from(!self.overflow);
            self.window >>= 8;
            self.count -= 8;
        }
    }

    /// Appends the low `count` bits of `value`, at most 32.
    pub fn put(&mut self, value: u32, count: u32) {
        self.add(u64::from(value), count);
        self.flush();
    }

    /// Appends a Huffman code given as an AECS entry: its most significant bit goes first.
    pub fn put_code(&mut self, entry: u32) {
        self.add_code(ready(entry));
        self.flush();
    }

    /// Appends the first `count` bits of `bytes`.
    pub fn put_bits_of(&mut self, bytes: &[u8], count: u32) {
        let whole = (count / 8) as usize;
        for &byte in &bytes[..whole] {
            self.put(u32::from(byte), 8);
        }
        let rest = count % 8;
        if rest != 0 {
            self.put(u32::from(bytes[whole]) & ((1 << rest) - 1), rest);
        }
    }

    /// Stores the last, partly filled byte. Returns the number of bits.
    pub fn finish(&mut self) -> u32 {
        let bits = self.at as u32 * 8 + self.count;
        self.put(0, (8 - self.count) % 8);
        bits
    }

    pub fn len(&self) -> usize {
        self.at
    }

    /// Whether the buffer was too short.
    pub fn has_overflowed(&self) -> bool {
        self.overflow
    }
}

pub(crate) struct Encoder<'w, 'a> {
    pub writer: &'w mut BitWriter<'a>,
    pub tables: &'w Tables,
    /// Set when a symbol had no code.
    pub missing: bool,
}

impl Encoder<'_, '_> {
    #[inline(always)]
    fn code(&mut self, code: Code) {
        self.missing |= code == 0;
        self.writer.add_code(code);
    }

    pub fn end_of_block(&mut self) {
        self.code(self.tables.eob);
        self.writer.flush();
    }
}

impl Sink for Encoder<'_, '_> {
    #[inline(always)]
    fn literals(&mut self, data: &[u8], from: usize, to: usize) {
        // Seven bits may wait; 3 x 15 fit beside them.
        for group in data[from..to].chunks(3) {
            for &byte in group {
                self.code(self.tables.literals[usize::from(byte)]);
            }
            self.writer.flush();
        }
    }

    #[inline(always)]
    fn copy(&mut self, length: usize, distance: usize) {
        // At most 20 + 15 + 10 bits within the window.
        let (slot, extra) = distance_slot(distance);
        self.code(self.tables.lengths[length]);
        self.code(self.tables.distances[slot]);
        self.writer.add((distance - 1) as u64 & ((1 << extra) - 1), extra);
        self.writer.flush();
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.writer.overflow || self.missing
    }
}

pub(crate) struct Counter<'a>(pub &'a mut Histogram);

impl Sink for Counter<'_> {
    fn literals(&mut self, data: &[u8], from: usize, to: usize) {
        for &byte in &data[from..to] {
            self.0.literals[byte as usize] += 1;
        }
    }

    fn copy(&mut self, length: usize, distance: usize) {
        self.0.literals[257 + LENGTH_SLOT[length] as usize] += 1;
        self.0.distances[distance_slot(distance).0] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_do_not_fit_are_reported_and_nothing_is_written_behind() {
        for room in 0..24 {
            let mut bytes = [0xee; 32];
            let mut writer = BitWriter::new(&mut bytes[..room]);
            for _ in 0..16 {
                writer.put(0x5a, 8);
            }
            assert_eq!((writer.has_overflowed(), writer.len()), (room < 16, room.min(16)));
            assert!(bytes[..room.min(16)].iter().all(|&byte| byte == 0x5a));
            assert!(bytes[room..].iter().all(|&byte| byte == 0xee));
        }
    }

    #[test]
    fn bits_append_from_the_least_significant() {
        let mut bytes = [0; 16];
        let mut writer = BitWriter::new(&mut bytes);
        writer.put_bits_of(&[0xff], 3);
        writer.put(0b10, 2);
        writer.put(0x1ff, 9);
        // Code 110 is sent as 1, 1, 0.
        writer.put_code(0b110 | 3 << 15);
        assert_eq!(writer.finish(), 17);
        assert_eq!(bytes[..4], [0b1111_0111, 0b1111_1111, 0b0000_0000, 0]);
    }
}
