//! Shared by the tests: a small random source, and bytes that tell one object from another.
#![allow(dead_code)]

/// xorshift64*: the same sequence on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 32) as usize * end) >> 32
    }

    /// A size typical of compressed heap pages: mostly 300 to 1800 bytes, some tiny, some a page.
    pub fn size(&mut self) -> u32 {
        let size = match self.below(20) {
            0 => 1 + self.below(300),
            1 | 2 => 1800 + self.below(2297),
            _ => 300 + self.below(900) + self.below(600),
        };
        size as u32
    }
}

/// `len` bytes that depend on `stamp` and on their position.
pub fn content(stamp: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(stamp);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}
