//! Reading bits.

/// A position in the input. Copying it saves the position.
#[derive(Clone, Copy)]
pub(crate) struct Bits<'a> {
    input: &'a [u8],
    /// Next byte of `input` to load.
    at: usize,
    /// Loaded and unused bits, the next one lowest. Zero above `count`.
    window: u64,
    count: u32,
}

/// The input ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl<'a> Bits<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Bits { input, at: 0, window: 0, count: 0 }
    }

    /// Loads all available bits, up to at least 48.
    #[inline(always)]
    pub fn refill(&mut self) {
        if self.count >= 48 {
            return;
        }
        let Some(next) = self.input.get(self.at..self.at + 8) else { return self.refill_at_end() };
        let next = u64::from_le_bytes(next.try_into().expect("eight bytes"));
        let whole = (63 - self.count) / 8;
        self.window |= (next & ((1 << (8 * whole)) - 1)) << self.count;
        self.at += whole as usize;
        self.count += 8 * whole;
    }

    #[cold]
    fn refill_at_end(&mut self) {
        while self.count <= 48 && self.at < self.input.len() {
            self.window |= u64::from(self.input[self.at]) << self.count;
            self.count += 8;
            self.at += 1;
        }
    }

    /// The bits loaded, the next one lowest.
    #[inline(always)]
    pub fn window(&self) -> u64 {
        self.window
    }

    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    #[inline(always)]
    pub fn consume(&mut self, count: u32) {
        debug_assert!(count <= self.count);
        self.window >>= count;
        self.count -= count;
    }

    /// Takes `count` bits, at most 32.
    pub fn take(&mut self, count: u32) -> Result<u32, Exhausted> {
        if self.count < count {
            self.refill();
            if self.count < count {
                return Err(Exhausted);
            }
        }
        let value = (self.window & ((1u64 << count) - 1)) as u32;
        self.consume(count);
        Ok(value)
    }

    /// Drops bits up to the next byte border.
    pub fn align(&mut self) {
        self.consume(self.count % 8);
    }

    /// Copies bytes from a byte border. Returns their number.
    pub fn copy(&mut self, out: &mut [u8]) -> usize {
        debug_assert!(self.count.is_multiple_of(8));
        *self = Bits { at: self.used(), ..Bits::new(self.input) };
        let copied = out.len().min(self.input.len() - self.at);
        out[..copied].copy_from_slice(&self.input[self.at..self.at + copied]);
        self.at += copied;
        copied
    }

    /// The bytes of input that were used, at least in part.
    pub fn used(&self) -> usize {
        self.at - (self.count / 8) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_in_order_until_the_input_ends() {
        let mut bits = Bits::new(&[0xaa, 0xff, 0x0f]);
        assert_eq!((bits.used(), bits.take(3)), (0, Ok(0b010)));
        assert_eq!((bits.used(), bits.take(10)), (1, Ok(0b11_1111_0101)));
        assert_eq!((bits.used(), bits.take(11)), (2, Ok(0b000_0111_1111)));
        assert_eq!((bits.used(), bits.take(1)), (3, Err(Exhausted)));
    }

    #[test]
    fn bytes_are_copied_from_window_and_input() {
        let input: Vec<u8> = (0..100).collect();
        let mut bits = Bits::new(&input);
        bits.take(3).unwrap();
        bits.align();
        let mut out = [0; 120];
        assert_eq!((bits.copy(&mut out[..40]), bits.used()), (40, 41));
        assert_eq!(bits.take(8), Ok(41));
        assert_eq!(bits.copy(&mut out[40..]), 58);
        assert!(out[..40] == input[1..41] && out[40..98] == input[42..]);
    }
}
