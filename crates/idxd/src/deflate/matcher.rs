//! Finding matches within the 4 KiB window.
//!
//! Two searches. *Quick* looks at two or three candidates and never twice at a byte: it feeds fixed mode, where a page
//! has to take about as long as on a device. *Thorough* follows chains and looks one byte ahead before it settles, as
//! zlib does; it feeds whatever uses tables made for the data. Both are functions of the input alone, so that a job that
//! only counts symbols and the job that later writes them find the same matches.

use super::symbols::{MATCH_MAX, MATCH_MIN};
use crate::aecs::WINDOW;

const HASH_BITS: u32 = 12;
/// Shortest match of the quick search: what its shorter hash covers.
const QUICK_MIN: usize = 4;
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
    /// Bytes that no match covers: `data[from..to]`. The rest of `data` may be read as well.
    fn literals(&mut self, data: &[u8], from: usize, to: usize);
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
    longs: Box<[u32; 1 << HASH_BITS]>,
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
    debug_assert!(a <= b && b + max <= data.len());
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

#[inline(always)]
fn hash8(word: u64) -> usize {
    (word.wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - HASH_BITS)) as usize
}

/// Enters `position` and answers how far back the entry before it was, 0 when out of the window.
#[inline(always)]
fn swap_distance(entry: &mut u32, position: u32, window: usize) -> usize {
    let distance = position.wrapping_sub(*entry) as usize;
    *entry = position;
    if distance <= window {
        distance
    } else {
        0
    }
}

/// Bytes in common at `at` and `distance` before it, at most 16 and not past the end; 0 for distance 0.
#[inline(always)]
fn common16(data: &[u8], at: usize, distance: usize) -> usize {
    debug_assert!(distance <= at);
    if at + 16 > data.len() {
        return if distance == 0 { 0 } else { common(data, at - distance, at, data.len() - at) };
    }
    let differ: u32;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
        // SAFETY: SSE2 is part of x86-64; sixteen bytes from `at` on are inside `data`, as just checked, and so are
        // those from `at - distance` on.
        differ = unsafe {
            let here = _mm_loadu_si128(data.as_ptr().add(at).cast());
            let there = _mm_loadu_si128(data.as_ptr().add(at - distance).cast());
            !_mm_movemask_epi8(_mm_cmpeq_epi8(here, there)) as u32
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        differ = 1 << common(data, at - distance, at, if distance == 0 { 0 } else { 16 });
    }
    // A multiplication instead of a branch that would often be mispredicted.
    differ.trailing_zeros() as usize * usize::from(distance != 0)
}

impl Matcher {
    pub fn new() -> Self {
        Matcher {
            heads: Box::new([0; 1 << HASH_BITS]),
            longs: Box::new([0; 1 << HASH_BITS]),
            chains: Box::new([0; WINDOW]),
            base: 1,
        }
    }

    /// Claims `len` positions and answers the first.
    fn claim(&mut self, len: usize) -> u32 {
        assert!(len <= 1 << 31, "longer than any device takes");
        if self.base > u32::MAX - len as u32 {
            self.heads.fill(0);
            self.longs.fill(0);
            self.base = 1;
        }
        let base = self.base;
        self.base = base.saturating_add(len as u32);
        base
    }

    /// Search with two candidates: the last place with the same eight bytes, and the last with the same four.
    ///
    /// Most of the time goes to mispredicted branches, so candidates are compared sixteen bytes at once, chosen between
    /// without branches, and the candidate at the next byte is looked at whether it will be needed or not.
    pub fn quick<S: Sink>(&mut self, data: &[u8], sink: &mut S) {
        let base = self.claim(data.len());
        let (heads, longs) = (&mut *self.heads, &mut *self.longs);
        let n = data.len();
        // Up to here eight bytes can be loaded, also at the next position.
        let limit = n.saturating_sub(9);
        let (mut at, mut literals_from) = (0, 0);
        while at < limit {
            let here = load64(data, at);
            let position = base + at as u32;
            let window = at.min(WINDOW);
            // Entries of earlier jobs are further back than this job's start: out of the window.
            let far = swap_distance(&mut longs[hash8(here)], position, window);
            let near = swap_distance(&mut heads[hash4(here as u32)], position, window);
            let (far_length, near_length) = (common16(data, at, far), common16(data, at, near));
            let far_wins = far_length > near_length;
            let mut length = if far_wins { far_length } else { near_length };
            let mut distance = if far_wins { far } else { near };
            if length < QUICK_MIN {
                // The longer nothing was found, the fewer places are looked at: data that does not compress is to
                // be passed over quickly.
                at += 1 + ((at - literals_from) >> 6);
                continue;
            }
            let next = swap_distance(&mut longs[hash8(load64(data, at + 1))], position + 1, window);
            let next_length = common16(data, at + 1, next);
            let wait = next_length > length + 1;
            at += usize::from(wait);
            length = if wait { next_length } else { length };
            distance = if wait { next } else { distance };

            if length == 16 {
                length += common(data, at - distance + 16, at + 16, (n - at).min(MATCH_MAX) - 16);
            }
            while at > literals_from
                && at > distance
                && length < MATCH_MAX
                && data[at - 1] == data[at - 1 - distance]
            {
                at -= 1;
                length += 1;
            }
            sink.literals(data, literals_from, at);
            sink.copy(length, distance);
            if sink.is_full() {
                return;
            }
            let end = at + length;
            if end < limit {
                // What lies inside is found by its second byte and by its last ones. Entering more would hide places
                // with longer matches.
                for inside in [at + 1, end - 2] {
                    let word = load64(data, inside);
                    longs[hash8(word)] = base + inside as u32;
                    heads[hash4(word as u32)] = base + inside as u32;
                }
            }
            at = end;
            literals_from = end;
        }
        sink.literals(data, literals_from, n);
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
                sink.literals(data, literals_from, at - 1);
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
            sink.literals(data, literals_from, at - 1);
            sink.copy(length, distance);
            literals_from = at - 1 + length;
        }
        sink.literals(data, literals_from, n);
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
