//! Reading bits: first those kept in an AECS, then the input.

pub(crate) const KEPT_WORDS: usize = 32;

/// A position in the input. Copying it saves the position.
#[derive(Clone, Copy)]
pub(crate) struct Bits<'a> {
    input: &'a [u8],
    /// Next byte of `input` to load.
    at: usize,
    /// Bits of the last byte of `input` that do not count.
    ignored: u32,
    /// Loaded and unused bits, the next one lowest. Zero above `count`.
    window: u64,
    count: u32,
    kept: Option<&'a Kept>,
    kept_at: usize,
}

/// Earlier input: words, each with a number of valid bits.
#[derive(Clone)]
pub(crate) struct Kept {
    pub words: [u64; KEPT_WORDS],
    pub valid: [u8; KEPT_WORDS],
}

impl Kept {
    pub const EMPTY: Self = Kept { words: [0; KEPT_WORDS], valid: [0; KEPT_WORDS] };
}

/// The input ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl<'a> Bits<'a> {
    /// Reads `kept`, then `input` without its last `ignored` bits.
    pub fn new(kept: Option<&'a Kept>, input: &'a [u8], ignored: u32) -> Self {
        let whole = (ignored / 8) as usize;
        let input = &input[..input.len().saturating_sub(whole)];
        Bits { input, at: 0, ignored: ignored % 8, window: 0, count: 0, kept, kept_at: 0 }
    }

    /// Loads all available bits, up to at least 48.
    #[inline(always)]
    pub fn refill(&mut self) {
        if self.count >= 48 {
            return;
        }
        if let (None, Some(next)) = (self.kept, self.input.get(self.at..self.at + 8)) {
            // Not the last byte: some of its bits may not count.
            if self.at + 8 < self.input.len() {
                let next = u64::from_le_bytes(next.try_into().expect("eight bytes"));
                let whole = (63 - self.count) / 8;
                self.window |= (next & ((1 << (8 * whole)) - 1)) << self.count;
                self.at += whole as usize;
                self.count += 8 * whole;
                return;
            }
        }
        self.refill_slowly();
    }

    /// [`Bits::refill`] from the kept words and near the end of the input.
    #[cold]
    fn refill_slowly(&mut self) {
        while let Some(kept) = self.kept {
            if self.count > 48 {
                return;
            }
            if self.kept_at == KEPT_WORDS * 64 {
                self.kept = None;
                break;
            }
            // Eight bits of a word at most at a time.
            let (word, from) = (self.kept_at / 64, self.kept_at % 64);
            let valid = u32::from(kept.valid[word]).saturating_sub(from as u32);
            let take = valid.min(8);
            if take == 0 {
                self.kept_at = (word + 1) * 64;
                continue;
            }
            self.window |= (kept.words[word] >> from & ((1 << take) - 1)) << self.count;
            self.count += take;
            self.kept_at += take as usize;
        }
        while self.count <= 48 && self.at < self.input.len() {
            let mut byte = u64::from(self.input[self.at]);
            let mut take = 8;
            if self.at + 1 == self.input.len() {
                take -= self.ignored;
                byte &= (1 << take) - 1;
            }
            self.window |= byte << self.count;
            self.count += take;
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

    /// Takes `count` bits, at most 48.
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

    /// Drops bits up to the next byte border. Input and kept bits both end at one, so borders
    /// follow from the number of bits left.
    pub fn align(&mut self) {
        let rest = (self.left() + if self.input.is_empty() { 0 } else { self.ignored as usize }) % 8;
        self.refill();
        self.consume((rest as u32).min(self.count));
    }

    /// Copies whole bytes from a byte border. Returns their number.
    pub fn copy(&mut self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < out.len() {
            self.refill();
            if self.count >= 8 {
                out[copied] = self.window as u8;
                self.consume(8);
                copied += 1;
            } else {
                return copied;
            }
            if self.count == 0 && self.kept.is_none() {
                // Nothing is loaded: the rest is one piece. The last byte may be cut and is left to
                // the loop.
                let whole =
                    self.input.len() - self.at - usize::from(self.ignored != 0 && self.at < self.input.len());
                let piece = whole.min(out.len() - copied);
                out[copied..copied + piece].copy_from_slice(&self.input[self.at..self.at + piece]);
                self.at += piece;
                copied += piece;
            }
        }
        copied
    }

    /// Gives back whole loaded, unused bytes. Returns the number of input bytes used at least in
    /// part, and the bits before the first unused one.
    pub fn give_back(&self) -> (usize, usize) {
        // The last byte is given back without the bits of it that do not count.
        let cut = if self.at > 0 && self.at == self.input.len() { self.ignored } else { 0 };
        let back = self.at.min(((self.count + cut) / 8) as usize);
        let kept_left =
            if self.kept.is_some() { self.left() - self.count as usize - self.input_left() } else { 0 };
        let given = if back > 0 { back * 8 - cut as usize } else { 0 };
        (self.at - back, self.count as usize - given + kept_left)
    }

    fn input_left(&self) -> usize {
        let input = self.input.len() - self.at;
        input * 8 - if input > 0 { self.ignored as usize } else { 0 }
    }

    /// Bits that are left, loaded or not.
    pub fn left(&self) -> usize {
        let kept = self.kept.map_or(0, |kept| {
            let word = self.kept_at / 64;
            let later: usize = kept.valid.iter().skip(word + 1).map(|&valid| usize::from(valid)).sum();
            let here =
                kept.valid.get(word).map_or(0, |&valid| usize::from(valid).saturating_sub(self.kept_at % 64));
            later + here
        });
        self.count as usize + kept + self.input_left()
    }

    /// Moves up to `most` of the remaining bits into an accumulator, filling whole words first.
    pub fn keep(&mut self, kept: &mut Kept, most: usize) {
        kept.words.fill(0);
        kept.valid.fill(0);
        let mut moved = 0;
        while moved < most {
            let take = (8 - moved % 8).min(most - moved);
            let available = if self.count == 0 { 0 } else { take.min(self.count as usize) };
            if available == 0 {
                self.refill();
                if self.count == 0 {
                    return;
                }
                continue;
            }
            let bits = self.window & ((1 << available) - 1);
            kept.words[moved / 64] |= bits << (moved % 64);
            kept.valid[moved / 64] += available as u8;
            self.consume(available as u32);
            moved += available;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_in_order_from_both_sources() {
        let mut kept = Kept { words: [0; 32], valid: [0; 32] };
        (kept.words[0], kept.valid[0]) = (0b101, 3);
        (kept.words[1], kept.valid[1]) = (0b1, 2);
        let mut bits = Bits::new(Some(&kept), &[0xaa, 0xff, 0x0f], 4);
        assert_eq!(bits.left(), 3 + 2 + 20);
        assert_eq!(bits.take(3), Ok(0b101));
        assert_eq!(bits.take(10), Ok(0b10_1010_1001));
        bits.refill();
        assert_eq!(bits.left(), 12);
        assert_eq!(bits.take(12), Ok(0xfff));
        assert_eq!(bits.take(1), Err(Exhausted));
        assert_eq!(bits.give_back(), (3, 0));
    }

    /// The last byte has four bits that count, all of them loaded and unused.
    #[test]
    fn a_last_byte_with_ignored_bits_is_given_back() {
        let mut bits = Bits::new(None, &[0xaa, 0xff, 0x0f], 4);
        bits.take(16).unwrap();
        bits.refill();
        assert_eq!((bits.count(), bits.give_back()), (4, (2, 0)));
        bits.consume(1);
        assert_eq!(bits.give_back(), (3, 3));
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let input: Vec<u8> = (0..40u32).map(|at| (at * 37 + 11) as u8).collect();
        let mut bits = Bits::new(None, &input, 0);
        bits.take(13).unwrap();
        let mut reference = bits;
        let mut kept = Kept { words: [0; 32], valid: [0; 32] };
        bits.keep(&mut kept, 2048);
        assert_eq!(bits.left(), 0);
        let mut again = Bits::new(Some(&kept), &[], 0);
        assert_eq!(again.left(), 40 * 8 - 13);
        for _ in 0..(40 * 8 - 13) / 7 {
            assert_eq!(again.take(7), reference.take(7));
        }
    }

    #[test]
    fn bytes_are_copied_from_window_and_input() {
        let input: Vec<u8> = (0..100).collect();
        let mut bits = Bits::new(None, &input, 0);
        bits.take(3).unwrap();
        bits.align();
        let mut out = [0; 120];
        assert_eq!(bits.copy(&mut out), 99);
        assert_eq!(out[..99], input[1..]);
    }
}
