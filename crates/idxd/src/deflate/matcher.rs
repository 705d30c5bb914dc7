//! Finding matches within the 4 KiB window.
//!
//! Two searches. *Quick* is greedy with one candidate a hash: it feeds fixed mode, where a page has to take about as
//! long as on a device. *Thorough* follows chains and looks one byte ahead before it settles, as zlib does; it feeds
//! whatever uses tables made for the data. Both are functions of the input alone, so that a job that only counts
//! symbols and the job that later writes them find the same matches.

use super::symbols::{MATCH_MAX, MATCH_MIN};
use crate::aecs::WINDOW;

const HASH_BITS: u32 = 12;
/// Candidates tried by the thorough search.
const CHAIN_MAX: usize = 128;
/// A match that long is taken without looking further.
const NICE_LENGTH: usize = 128;
/// From this length on the search for something better at the next byte is cut to a quarter.
const GOOD_LENGTH: usize = 8;
/// From this length on nothing better is looked for at the next byte.
const LAZY_LENGTH: usize = 16;

/// Takes what a search finds, in order.
pub(crate) trait Sink {
    /// Bytes that no match covers.
    fn literals(&mut self, bytes: &[u8]);
    /// A match of `length` bytes that begins `distance` bytes back.
    fn copy(&mut self, length: usize, distance: usize);
    /// Whether nothing further is wanted.
    fn is_full(&self) -> bool {
        false
    }
}

/// The search tables: allocated once, never cleared between jobs. Entries are positions plus `base`, which grows by
/// each job's length, so that what earlier jobs left is older than any position of the current one.
pub(crate) struct Matcher {
    heads: Box<[u32; 1 << HASH_BITS]>,
    chains: Box<[u32; WINDOW]>,
    base: u32,
}

#[inline(always)]
fn load32(data: &[u8], at: usize) -> u32 {
    debug_assert!(at + 4 <= data.len());
    // SAFETY: every caller's loop keeps eight bytes from `at` on inside `data`, as the assertion checks in debug
    // builds.
    u32::from_le(unsafe { data.as_ptr().add(at).cast::<u32>().read_unaligned() })
}

#[inline(always)]
fn load64(data: &[u8], at: usize) -> u64 {
    debug_assert!(at + 8 <= data.len());
    // SAFETY: as for `load32`.
    u64::from_le(unsafe { data.as_ptr().add(at).cast::<u64>().read_unaligned() })
}

/// Bytes that `data` has in common at `a` and `b`, `a < b`, at most `max`, which does not reach past the end.
#[inline(always)]
fn common(data: &[u8], a: usize, b: usize, max: usize) -> usize {
    debug_assert!(a < b && b + max <= data.len());
    let mut length = 0;
    while length + 8 <= max {
        let differ = load64(data, a + length) ^ load64(data, b + length);
        if differ != 0 {
            return length + differ.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    while length < max && data[a + length] == data[b + length] {
        length += 1;
    }
    length
}

#[inline(always)]
fn hash4(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize
}

#[inline(always)]
fn hash3(word: u32) -> usize {
    hash4(word << 8)
}

impl Matcher {
    pub fn new() -> Self {
        Matcher { heads: Box::new([0; 1 << HASH_BITS]), chains: Box::new([0; WINDOW]), base: 1 }
    }

    /// Claims `len` positions and answers the first.
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

    /// Greedy search with one candidate a hash of four bytes.
    pub fn quick<S: Sink>(&mut self, data: &[u8], sink: &mut S) {
        let base = self.claim(data.len());
        let heads = &mut *self.heads;
        let n = data.len();
        // Up to here eight bytes can be loaded.
        let limit = n.saturating_sub(8);
        let (mut at, mut literals_from) = (0, 0);
        while at < limit {
            let here = load64(data, at);
            let slot = &mut heads[hash4(here as u32)];
            let distance = (base + at as u32).wrapping_sub(*slot) as usize;
            *slot = base + at as u32;
            // Entries of earlier jobs are further back than this job's start.
            if distance > at.min(WINDOW) || load32(data, at - distance) != here as u32 {
                // The longer nothing was found, the fewer places are looked at: data that does not compress is to
                // be passed over quickly.
                at += 1 + ((at - literals_from) >> 6);
                continue;
            }
            let differ = load64(data, at - distance) ^ here;
            let length = if differ != 0 {
                differ.trailing_zeros() as usize / 8
            } else {
                let max = (n - at).min(MATCH_MAX) - 8;
                8 + common(data, at - distance + 8, at + 8, max)
            };
            sink.literals(&data[literals_from..at]);
            sink.copy(length, distance);
            if sink.is_full() {
                return;
            }
            let end = at + length;
            if end < limit {
                // What lies inside is found by its second byte and by its last ones.
                let (second, last) = (at + 1, end - 2);
                heads[hash4(load32(data, second))] = base + second as u32;
                heads[hash4(load32(data, last))] = base + last as u32;
            }
            at = end;
            literals_from = end;
        }
        sink.literals(&data[literals_from..]);
    }

    /// Lazy search along chains of three-byte hashes.
    pub fn thorough<S: Sink>(&mut self, data: &[u8], sink: &mut S) {
        let base = self.claim(data.len());
        let n = data.len();
        // Up to here four bytes can be loaded; the last few bytes are found only as part of a longer match.
        let limit = n.saturating_sub(3);
        let mut literals_from = 0;
        let mut at = 0;
        let (mut length, mut distance) = (0, 0);
        while at < limit {
            // `length` and `distance` are the match that begins one byte before `at`, if any.
            let candidate = self.insert(data, base, at);
            let (next_length, next_distance) = if length < LAZY_LENGTH {
                let tries = if length >= GOOD_LENGTH { CHAIN_MAX / 4 } else { CHAIN_MAX };
                self.longest(data, base, at, candidate, length.max(MATCH_MIN - 1), tries)
            } else {
                (0, 0)
            };
            if length >= MATCH_MIN && next_length <= length {
                sink.literals(&data[literals_from..at - 1]);
                sink.copy(length, distance);
                if sink.is_full() {
                    return;
                }
                let end = at - 1 + length;
                for inside in at + 1..end.min(limit) {
                    self.insert(data, base, inside);
                }
                literals_from = end;
                at = end;
                (length, distance) = (0, 0);
            } else {
                (length, distance) = (next_length, next_distance);
                at += 1;
            }
        }
        if length >= MATCH_MIN {
            sink.literals(&data[literals_from..at - 1]);
            sink.copy(length, distance);
            literals_from = at - 1 + length;
        }
        sink.literals(&data[literals_from..]);
    }

    /// Enters position `at` and answers the entry before it.
    #[inline(always)]
    fn insert(&mut self, data: &[u8], base: u32, at: usize) -> u32 {
        let head = &mut self.heads[hash3(load32(data, at))];
        let here = base + at as u32;
        let before = *head;
        *head = here;
        self.chains[here as usize % WINDOW] = before;
        before
    }

    /// The longest match at `at` that is longer than `least`, or nothing.
    fn longest(
        &self,
        data: &[u8],
        base: u32,
        at: usize,
        mut candidate: u32,
        least: usize,
        tries: usize,
    ) -> (usize, usize) {
        let here = base + at as u32;
        let max = (data.len() - at).min(MATCH_MAX);
        let (mut best, mut best_distance) = (least, 0);
        let mut last_distance = 0;
        for _ in 0..tries {
            let distance = here.wrapping_sub(candidate) as usize;
            // A chain leads backwards; where it does not, its links have been overwritten.
            if distance > at.min(WINDOW) || distance <= last_distance || best >= max {
                break;
            }
            last_distance = distance;
            let from = at - distance;
            if data[from + best] == data[at + best] {
                let length = common(data, from, at, max);
                if length > best {
                    (best, best_distance) = (length, distance);
                    if length >= NICE_LENGTH {
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

    /// Replays what a search found.
    #[derive(Default)]
    struct Replay(Vec<u8>);

    impl Sink for Replay {
        fn literals(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
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
        let mut quick = Replay::default();
        matcher.quick(data, &mut quick);
        assert!(quick.0 == data);
        let mut thorough = Replay::default();
        matcher.thorough(data, &mut thorough);
        assert!(thorough.0 == data);
    }

    proptest! {
        #[test]
        fn what_is_found_replays_to_the_input(
            words in proptest::collection::vec((0u8..6, 1usize..40), 0..800), cut in 0usize..12
        ) {
            let mut data: Vec<u8> = words.iter().flat_map(|&(byte, times)| std::iter::repeat_n(byte, times)).collect();
            data.truncate(data.len().saturating_sub(cut));
            let mut matcher = Matcher::new();
            replay(&data, &mut matcher);
            // Again with what the first left in the tables.
            replay(&data[data.len() / 3..], &mut matcher);
        }

        #[test]
        fn short_inputs(data in proptest::collection::vec(0u8..2, 0..24)) {
            replay(&data, &mut Matcher::new());
        }
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
