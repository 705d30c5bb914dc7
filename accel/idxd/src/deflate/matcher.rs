//! Finding matches within the 4 KiB window.
//!
//! Two searches. *Quick* looks at two candidates and hardly twice at a byte: it feeds fixed mode,
//! where a page has to take about as long as on a device. *Thorough* follows chains and looks one
//! byte ahead before it settles, as zlib does; it serves encoders with tables made for the data.
//! Both are functions of the input alone, so that a job that only counts symbols and the job that
//! later writes them find the same matches.

use std::hint::select_unpredictable;
use std::mem;

use super::symbols::{MATCH_MAX, MATCH_MIN};
use crate::aecs::WINDOW;

const HASH_BITS: u32 = 12;
/// Shortest match of the quick search: what its shorter hash covers.
const QUICK_MIN: usize = 4;
/// Neighbouring positions that the quick search looks at together.
const GROUP: usize = 4;
/// Longest input of the quick search with one set of tables, whose entries have 16 bits.
const SEGMENT: usize = 60 * 1024;
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
    /// `data[from..to]` that no match covers and then a match, which `data` has as well.
    #[inline(always)]
    fn sequence(&mut self, data: &[u8], from: usize, to: usize, length: usize, distance: usize) {
        self.literals(data, from, to);
        self.copy(length, distance);
    }
    /// Whether nothing further is wanted.
    fn is_full(&self) -> bool {
        false
    }
}

/// The search tables, allocated once.
///
/// Those of the quick search are small enough to clear them for each job: entries are positions and
/// nothing has to be told apart. Those of the thorough search are not cleared: entries are
/// positions plus `base`, which grows by each job's length, so that what earlier jobs left is older
/// than any position of the current one.
pub(crate) struct Matcher {
    fours: Box<[u16; 1 << HASH_BITS]>,
    eights: Box<[u16; 1 << HASH_BITS]>,
    heads: Box<[u32; 1 << HASH_BITS]>,
    chains: Box<[u32; WINDOW]>,
    base: u32,
}

#[inline(always)]
fn load32(data: &[u8], at: usize) -> u32 {
    debug_assert!(at + 4 <= data.len());
    // SAFETY: every caller's loop keeps eight bytes from `at` on inside `data`, as the assertion
    // checks in debug builds.
    u32::from_le(unsafe { data.as_ptr().add(at).cast::<u32>().read_unaligned() })
}

#[inline(always)]
fn load64(data: &[u8], at: usize) -> u64 {
    debug_assert!(at + 8 <= data.len());
    // SAFETY: as for `load32`.
    u64::from_le(unsafe { data.as_ptr().add(at).cast::<u64>().read_unaligned() })
}

/// Bytes that `data` has in common at `a` and `b`, `a < b`, at most `max`, which does not reach
/// past the end.
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

/// Bytes that `data` has in common at `a` and `b`, `a < b`, at most sixteen. Both have as many.
#[inline(always)]
fn common16(data: &[u8], a: usize, b: usize) -> u32 {
    debug_assert!(a < b && b + 16 <= data.len());
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
        // SAFETY: SSE2 is part of x86-64; sixteen bytes from `b` on are inside `data`, as the
        // search's limit makes sure, and so are those from `a` on, since tables hold only earlier
        // positions of the same segment.
        let equal = unsafe {
            let first = _mm_loadu_si128(data.as_ptr().add(a).cast());
            let second = _mm_loadu_si128(data.as_ptr().add(b).cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(first, second)) as u32
        };
        (equal ^ 0x1_ffff).trailing_zeros()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let low = load64(data, a) ^ load64(data, b);
        let high = load64(data, a + 8) ^ load64(data, b + 8);
        let (low, high) = (low.trailing_zeros() / 8, high.trailing_zeros() / 8);
        low + select_unpredictable(low == 8, high, 0)
    }
}

impl Matcher {
    pub fn new() -> Self {
        Matcher {
            fours: Box::new([0; 1 << HASH_BITS]),
            eights: Box::new([0; 1 << HASH_BITS]),
            heads: Box::new([0; 1 << HASH_BITS]),
            chains: Box::new([0; WINDOW]),
            base: 1,
        }
    }

    /// Claims `len` positions of the thorough search and returns the first.
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

    /// Search with two candidates: the last place with the same eight bytes, and the last with the
    /// same four.
    ///
    /// Four neighbouring positions are looked at together, without a branch: at random data
    /// dependent branches cost more than all else. What is found is chosen from by arithmetic, so
    /// that a step ends in one branch, "nothing found".
    pub fn quick<S: Sink>(&mut self, data: &[u8], sink: &mut S) {
        // Positions are relative to a segment, so that 16 bits hold them and no entry of an earlier
        // one is left. What one segment finds ends with it; the loss is one match in 60 KiB.
        let mut rest = data;
        while rest.len() > SEGMENT {
            let (segment, after) = rest.split_at(SEGMENT);
            if !self.quick_segment::<S, true>(segment, sink) {
                return;
            }
            rest = after;
        }
        if rest.len() <= WINDOW {
            self.quick_segment::<S, false>(rest, sink);
        } else {
            self.quick_segment::<S, true>(rest, sink);
        }
    }

    /// The quick search within one segment, `IS_LONG` when it is longer than the window. Returns
    /// whether more is wanted.
    fn quick_segment<S: Sink, const IS_LONG: bool>(&mut self, data: &[u8], sink: &mut S) -> bool {
        let n = data.len();
        debug_assert!(n <= SEGMENT && (IS_LONG || n <= WINDOW));
        let (fours, eights) = (&mut *self.fours, &mut *self.eights);
        // An unused entry means position 0, which is as good a candidate as any: all are compared.
        fours.fill(0);
        eights.fill(0);
        let is_near = |at: usize, from: usize| !IS_LONG || at - from <= WINDOW;
        // A match cannot begin at position 0.
        let (mut at, mut literals_from) = (1, 0);
        // Up to here the last of the positions has the sixteen bytes that are compared.
        let limit = n.saturating_sub(GROUP + 15);
        while at < limit {
            // All words before all comparisons: otherwise the compiler takes them out of the
            // vectors, which costs more.
            let words: [u64; GROUP] = std::array::from_fn(|ahead| load64(data, at + ahead));
            let (mut near, mut far) = ([0; GROUP], [0; GROUP]);
            for ahead in 0..GROUP {
                let position = (at + ahead) as u16;
                near[ahead] = usize::from(mem::replace(&mut fours[hash4(words[ahead] as u32)], position));
                far[ahead] = usize::from(mem::replace(&mut eights[hash8(words[ahead])], position));
            }
            // A byte each, and sixteen bits each, the first position lowest.
            let (mut lengths, mut candidates) = (0u32, 0u64);
            for ahead in 0..GROUP {
                let here = at + ahead;
                let near_length = common16(data, near[ahead], here);
                let near_length = select_unpredictable(is_near(here, near[ahead]), near_length, 0);
                let far_length = common16(data, far[ahead], here);
                let far_length = select_unpredictable(is_near(here, far[ahead]), far_length, 0);
                let far_wins = far_length > near_length;
                lengths |= select_unpredictable(far_wins, far_length, near_length) << (8 * ahead);
                candidates |=
                    (select_unpredictable(far_wins, far[ahead], near[ahead]) as u64) << (16 * ahead);
            }
            // The top bit of each byte that is 4 or more; none is above 16.
            let found = (lengths + 0x0101_0101 * (0x80 - QUICK_MIN as u32)) & 0x8080_8080;
            if found == 0 {
                // The longer nothing was found, the fewer places are looked at: data that does not
                // compress is to be passed over quickly.
                at += GROUP + ((at - literals_from) >> 6);
                continue;
            }
            let first = found.trailing_zeros() as usize / 8;
            let lengths = lengths >> (8 * first);
            let (length, next_length) = ((lengths & 0xff) as usize, (lengths >> 8 & 0xff) as usize);
            let wait = next_length > length;
            let mut length = select_unpredictable(wait, next_length, length);
            let chosen = first + usize::from(wait);
            let from = (candidates >> (16 * chosen) & 0xffff) as usize;
            let start = at + chosen;
            if length == 16 {
                length += common(data, from + 16, start + 16, (n - start).min(MATCH_MAX) - 16);
            }
            sink.sequence(data, literals_from, start, length, start - from);
            if sink.is_full() {
                return false;
            }
            at = start + length;
            literals_from = at;
            if at < limit {
                // What lies inside is found by its last bytes beside those looked at above.
                // Entering more would hide places with longer matches.
                let inside = at - 1;
                let word = load64(data, inside);
                fours[hash4(word as u32)] = inside as u16;
                eights[hash8(word)] = inside as u16;
            }
        }
        // The last few bytes, one at a time.
        while at + 4 <= n {
            let from = usize::from(mem::replace(&mut fours[hash4(load32(data, at))], at as u16));
            let length = if is_near(at, from) { common(data, from, at, (n - at).min(MATCH_MAX)) } else { 0 };
            if length < QUICK_MIN {
                at += 1;
                continue;
            }
            sink.sequence(data, literals_from, at, length, at - from);
            at += length;
            literals_from = at;
        }
        sink.literals(data, literals_from, n);
        !sink.is_full()
    }

    /// Lazy search along chains of three-byte hashes.
    pub fn thorough<S: Sink>(&mut self, data: &[u8], sink: &mut S) {
        let base = self.claim(data.len());
        let n = data.len();
        // Up to here four bytes can be loaded; the last few bytes are found only as part of a
        // longer match.
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

    /// Enters position `at` and returns the entry before it.
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

    /// Longer than the window, than what 16 bits can tell apart, and across a segment's border.
    #[test]
    fn long_inputs() {
        let mut matcher = Matcher::new();
        let mut state = 1u32;
        let mut words = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) % 7 * 0x0101
        });
        let data: Vec<u8> = words.by_ref().take(100_000).flat_map(u32::to_le_bytes).collect();
        for len in
            [WINDOW, WINDOW + 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, SEGMENT + 20, 3 * SEGMENT + 7, data.len()]
        {
            replay(&data[..len], &mut matcher);
        }
        replay(&vec![0; 2 * SEGMENT + 5], &mut matcher);
    }

    #[test]
    fn the_same_input_gives_the_same_matches_whatever_came_before() {
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
            matcher.quick(&data, &mut log);
            log.0
        };
        let mut used = Matcher::new();
        let fresh = log(&mut used);
        used.quick(&data[1000..], &mut Log(Vec::new()));
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
