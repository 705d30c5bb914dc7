//! Finding matches within the 4 KiB window: chains of three-byte hashes, and as in zlib a look one
//! byte ahead before a match is taken.
//!
//! A search is a function of the input and the effort alone, so that a job that only counts symbols
//! and the job that later writes them find the same matches. No library hands out its matches or
//! writes them with given codes; zlib's Z_FIXED strategy ends its blocks every 32 Ki symbols, while
//! devices must write a single one.

use super::symbols::{MATCH_MAX, MATCH_MIN};
use crate::aecs::WINDOW;

const HASH_BITS: u32 = 12;
/// From this length on the search at the next byte is cut to a quarter.
const GOOD_LENGTH: usize = 8;

#[derive(Clone, Copy)]
pub(crate) struct Effort {
    tries: usize,
    /// From this length on the next byte is not searched.
    lazy: usize,
    /// A match of this length is taken at once.
    nice: usize,
    /// Skips over data that does not match, and over most bytes inside a match.
    hurries: bool,
}

impl Effort {
    /// For fixed codes, where a page must take about as long as on a device.
    pub const QUICK: Self = Effort { tries: 4, lazy: MATCH_MIN, nice: 16, hurries: true };
    /// For codes made for the data.
    pub const THOROUGH: Self = Effort { tries: 32, lazy: 16, nice: 128, hurries: false };
}

/// Receives the result of a search, in order.
pub(crate) trait Sink {
    /// Bytes outside matches: `data[from..to]`. The rest of `data` may be read as well.
    fn literals(&mut self, data: &[u8], from: usize, to: usize);
    fn copy(&mut self, length: usize, distance: usize);
    /// Whether the search may stop.
    fn is_full(&self) -> bool {
        false
    }
}

/// The search tables, allocated once and never cleared: entries are positions plus `base`, which
/// grows by each job's length, so that entries of earlier jobs are older than any position of the
/// current one.
pub(crate) struct Matcher {
    heads: Box<[u32; 1 << HASH_BITS]>,
    chains: Box<[u32; WINDOW]>,
    base: u32,
}

/// Hash of the three bytes at `at`; a fourth follows.
#[inline(always)]
fn hash3(data: &[u8], at: usize) -> usize {
    let word = u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"));
    ((word << 8).wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

/// Length of the common bytes at `a` and `b`, `a < b`, at most `max`, which stays within the data.
#[inline(always)]
fn common(data: &[u8], a: usize, b: usize, max: usize) -> usize {
    let (first, second) = (&data[a..a + max], &data[b..b + max]);
    let words = first.chunks_exact(8).zip(second.chunks_exact(8));
    for (at, (first, second)) in words.enumerate() {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let differ = word(first) ^ word(second);
        if differ != 0 {
            return at * 8 + differ.trailing_zeros() as usize / 8;
        }
    }
    let rest = max / 8 * 8;
    rest + first[rest..].iter().zip(&second[rest..]).take_while(|(first, second)| first == second).count()
}

impl Matcher {
    pub fn new() -> Self {
        Matcher { heads: Box::new([0; 1 << HASH_BITS]), chains: Box::new([0; WINDOW]), base: 1 }
    }

    fn claim(&mut self, len: usize) -> u32 {
        assert!(len <= 1 << 31, "longer than any device takes");
        if self.base > u32::MAX - len as u32 {
            self.heads.fill(0);
            self.base = 1;
        }
        let base = self.base;
        self.base = base.saturating_add(len as u32);
        base
    }

    /// Hands literals and matches that cover `data` to `sink`.
    pub fn search<S: Sink>(&mut self, data: &[u8], effort: Effort, sink: &mut S) {
        let base = self.claim(data.len());
        let n = data.len();
        // Four bytes can be loaded up to here; the last few bytes are found only as part of a
        // longer match.
        let limit = n.saturating_sub(3);
        let mut literals_from = 0;
        let mut at = 0;
        let (mut length, mut distance) = (0, 0);
        while at < limit {
            // `length` and `distance` are the match that begins one byte before `at`, if any.
            let candidate = self.insert(data, base, at);
            let (next_length, next_distance) = if length < effort.lazy {
                let tries = if length >= GOOD_LENGTH { effort.tries / 4 } else { effort.tries };
                self.longest(
                    data,
                    base,
                    (at, candidate),
                    length.max(MATCH_MIN - 1),
                    Effort { tries, ..effort },
                )
            } else {
                (0, 0)
            };
            if length >= MATCH_MIN && next_length <= length {
                sink.literals(data, literals_from, at - 1);
                sink.copy(length, distance);
                if sink.is_full() {
                    return;
                }
                let end = at - 1 + length;
                let first = if effort.hurries { end - 1 } else { at + 1 };
                for inside in first..end.min(limit) {
                    self.insert(data, base, inside);
                }
                literals_from = end;
                at = end;
                (length, distance) = (0, 0);
            } else {
                (length, distance) = (next_length, next_distance);
                let passed = length < MATCH_MIN && effort.hurries;
                at += 1 + if passed { (at - literals_from) >> 5 } else { 0 };
            }
        }
        if length >= MATCH_MIN {
            // One byte before `at`: no byte in between was skipped.
            sink.literals(data, literals_from, at - 1);
            sink.copy(length, distance);
            literals_from = at - 1 + length;
        }
        sink.literals(data, literals_from, n);
    }

    #[inline(always)]
    fn insert(&mut self, data: &[u8], base: u32, at: usize) -> u32 {
        let head = &mut self.heads[hash3(data, at)];
        let here = base + at as u32;
        let before = *head;
        *head = here;
        self.chains[here as usize % WINDOW] = before;
        before
    }

    /// The longest match at `at` above `least`, if any.
    fn longest(
        &self,
        data: &[u8],
        base: u32,
        (at, mut candidate): (usize, u32),
        least: usize,
        effort: Effort,
    ) -> (usize, usize) {
        let here = base + at as u32;
        let max = (data.len() - at).min(MATCH_MAX);
        let (mut best, mut best_distance) = (least, 0);
        let mut last_distance = 0;
        for _ in 0..effort.tries {
            let distance = here.wrapping_sub(candidate) as usize;
            // A chain leads backwards; elsewhere its links have been overwritten.
            if distance > at.min(WINDOW) || distance <= last_distance || best >= max {
                break;
            }
            last_distance = distance;
            let from = at - distance;
            if data[from + best] == data[at + best] {
                let length = common(data, from, at, max);
                if length > best {
                    (best, best_distance) = (length, distance);
                    if length >= effort.nice {
                        break;
                    }
                }
            }
            candidate = self.chains[candidate as usize % WINDOW];
        }
        if best_distance == 0 {
            (0, 0)
        } else {
            (best, best_distance)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Replay(Vec<u8>);

    impl Sink for Replay {
        fn literals(&mut self, data: &[u8], from: usize, to: usize) {
            self.0.extend_from_slice(&data[from..to]);
        }

        fn copy(&mut self, length: usize, distance: usize) {
            assert!((MATCH_MIN..=MATCH_MAX).contains(&length) && (1..=WINDOW).contains(&distance));
            assert!(distance <= self.0.len());
            for _ in 0..length {
                self.0.push(self.0[self.0.len() - distance]);
            }
        }
    }

    fn replay(data: &[u8], matcher: &mut Matcher) {
        for effort in [Effort::QUICK, Effort::THOROUGH] {
            let mut found = Replay::default();
            matcher.search(data, effort, &mut found);
            assert!(found.0 == data);
        }
    }

    proptest! {
        #[test]
        fn found_matches_replay_to_the_input(
            words in proptest::collection::vec((0u8..6, 1usize..40), 0..800), cut in 0usize..12
        ) {
            let mut data: Vec<u8> = words.iter().flat_map(|&(byte, times)| std::iter::repeat_n(byte, times)).collect();
            data.truncate(data.len().saturating_sub(cut));
            let mut matcher = Matcher::new();
            replay(&data, &mut matcher);
            // Again with the first search's entries in the tables.
            replay(&data[data.len() / 3..], &mut matcher);
        }

        #[test]
        fn short_inputs(data in proptest::collection::vec(0u8..2, 0..24)) {
            replay(&data, &mut Matcher::new());
        }
    }

    /// Longer than the window, beyond 16-bit positions, and across a segment's border.
    #[test]
    fn long_inputs() {
        let mut matcher = Matcher::new();
        let mut state = 1u32;
        let mut words = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) % 7 * 0x0101
        });
        let data: Vec<u8> = words.by_ref().take(100_000).flat_map(u32::to_le_bytes).collect();
        for len in [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 3 * WINDOW + 7, data.len()] {
            replay(&data[..len], &mut matcher);
        }
        replay(&vec![0; 20 * WINDOW + 5], &mut matcher);
    }

    #[test]
    fn matches_do_not_depend_on_earlier_inputs() {
        struct Log(Vec<(usize, usize)>);
        impl Sink for Log {
            fn literals(&mut self, _: &[u8], from: usize, to: usize) {
                self.0.push((from, to));
            }
            fn copy(&mut self, length: usize, distance: usize) {
                self.0.push((length, distance));
            }
        }
        let data: Vec<u8> = (0..4096u32).map(|at| ((at * at) >> 9) as u8).collect();
        let log = |matcher: &mut Matcher| {
            let mut log = Log(Vec::new());
            matcher.search(&data, Effort::QUICK, &mut log);
            log.0
        };
        let mut used = Matcher::new();
        let fresh = log(&mut used);
        used.search(&data[1000..], Effort::QUICK, &mut Log(Vec::new()));
        assert!(fresh.len() > 10 && log(&mut used) == fresh);
    }

    #[test]
    fn positions_start_over_before_they_wrap() {
        let data: Vec<u8> = (0..4096u32).map(|at| ((at * at) >> 5) as u8).collect();
        let mut matcher = Matcher::new();
        replay(&data, &mut matcher);
        matcher.base = u32::MAX - 5000;
        replay(&data, &mut matcher);
        replay(&data, &mut matcher);
        assert!(matcher.base < 20_000);
    }
}
