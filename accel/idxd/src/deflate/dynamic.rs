//! Code tables and headers of dynamic blocks.
//!
//! Lengths come from an in-place minimum-redundancy construction (Moffat and Katajainen, 1995) and
//! are then limited by moving leaves until the Kraft sum fits. Nothing allocates.

use super::encode::BitWriter;
use crate::aecs::{code_entry, CompressAecs, Histogram, DISTANCES, LITERALS};

/// Longest literal/length and distance code.
pub const CODE_BITS_MAX: usize = 15;
/// Longest header written: 316 lengths of at most 5 bits on average (the best code is never worse
/// than one of equal lengths), 57 bits of code-length codes and 17 bits before.
pub const HEADER_BITS_MAX: u32 = 316 * 5 + 57 + 17;
const CODE_LENGTH_BITS_MAX: usize = 7;
const CODE_LENGTHS: usize = 19;
/// The order in which the lengths of their codes are sent (RFC 1951, section 3.2.7).
pub(crate) const CODE_LENGTH_ORDER: [u8; CODE_LENGTHS] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// The end-of-block symbol.
pub const EOB: usize = 256;

/// Length-limited code lengths for `counts`; zero for absent symbols. The code is complete: with
/// fewer than two symbols, others get a code of one bit as well.
///
/// # Panics
/// If there are more than 288 counts, or fewer than two.
pub fn code_lengths(counts: &[u32], limit: usize, lengths: &mut [u8]) {
    assert!((2..=288).contains(&counts.len()) && lengths.len() == counts.len() && limit <= CODE_BITS_MAX);
    lengths.fill(0);
    // Count above symbol: sorts by count, then by symbol.
    let mut sorted = [0u64; 288];
    let mut used = 0;
    for (symbol, &count) in counts.iter().enumerate() {
        if count != 0 {
            sorted[used] = u64::from(count) << 9 | symbol as u64;
            used += 1;
        }
    }
    if used < 2 {
        let only = if used == 1 { (sorted[0] & 511) as usize } else { 0 };
        lengths[only] = 1;
        lengths[usize::from(only == 0)] = 1;
        return;
    }
    let sorted = &mut sorted[..used];
    sorted.sort_unstable();
    let mut weights = [0u64; 288];
    for (weight, key) in weights.iter_mut().zip(sorted.iter()) {
        *weight = key >> 9;
    }
    depths(&mut weights[..used]);

    // Codes per length, the lengths cut at the limit.
    let mut of_length = [0u32; CODE_BITS_MAX + 1];
    for &depth in &weights[..used] {
        of_length[(depth as usize).min(limit)] += 1;
    }
    limit_kraft(&mut of_length, limit);

    let mut next = sorted.iter();
    for length in (1..=limit).rev() {
        for key in next.by_ref().take(of_length[length] as usize) {
            lengths[(key & 511) as usize] = length as u8;
        }
    }
    debug_assert!(next.next().is_none());
}

/// Replaces ascending weights by the depths of their leaves in an optimal tree.
fn depths(weights: &mut [u64]) {
    let n = weights.len();
    debug_assert!(n >= 2);
    // Combine: inner nodes' weights replace consumed leaves, then become parent indices.
    weights[0] += weights[1];
    let (mut root, mut leaf) = (0, 2);
    for next in 1..n - 1 {
        if leaf >= n || weights[root] < weights[leaf] {
            weights[next] = weights[root];
            weights[root] = next as u64;
            root += 1;
        } else {
            weights[next] = weights[leaf];
            leaf += 1;
        }
        if leaf >= n || (root < next && weights[root] < weights[leaf]) {
            weights[next] += weights[root];
            weights[root] = next as u64;
            root += 1;
        } else {
            weights[next] += weights[leaf];
            leaf += 1;
        }
    }
    weights[n - 2] = 0;
    for node in (0..n - 2).rev() {
        weights[node] = weights[weights[node] as usize] + 1;
    }
    // Depths of leaves: at each depth, nodes that are not inner are leaves.
    let (mut available, mut inner_used, mut depth) = (1i64, 0i64, 0u64);
    let mut root = n as i64 - 2;
    let mut next = n as i64 - 1;
    while available > 0 {
        while root >= 0 && weights[root as usize] == depth {
            inner_used += 1;
            root -= 1;
        }
        while available > inner_used {
            weights[next as usize] = depth;
            next -= 1;
            available -= 1;
        }
        available = 2 * inner_used;
        depth += 1;
        inner_used = 0;
    }
}

/// Moves leaves down until the lengths, cut at `limit`, are a prefix code again.
fn limit_kraft(of_length: &mut [u32; CODE_BITS_MAX + 1], limit: usize) {
    let full = 1u32 << limit;
    let mut kraft: u32 = (1..=limit).map(|length| of_length[length] << (limit - length)).sum();
    while kraft > full {
        of_length[limit] -= 1;
        let shorter = (1..limit).rev().find(|&length| of_length[length] > 0).expect("288 codes fit 2^9");
        of_length[shorter] -= 1;
        of_length[shorter + 1] += 2;
        kraft -= 1;
    }
    debug_assert_eq!(kraft, full);
}

/// Canonical codes for `lengths`, as AECS entries.
pub fn code_entries(lengths: &[u8], entries: &mut [u32]) {
    let mut of_length = [0u32; CODE_BITS_MAX + 1];
    for &length in lengths {
        of_length[length as usize] += 1;
    }
    let mut next = [0u32; CODE_BITS_MAX + 1];
    let mut code = 0;
    for length in 1..CODE_BITS_MAX {
        code = (code + of_length[length]) << 1;
        next[length + 1] = code;
    }
    for (entry, &length) in entries.iter_mut().zip(lengths) {
        *entry = 0;
        if length != 0 {
            *entry = code_entry(next[length as usize], u32::from(length));
            next[length as usize] += 1;
        }
    }
}

/// Runs of code lengths: symbol, extra value and extra bits of each.
struct Runs {
    items: [(u8, u8); LITERALS + DISTANCES],
    len: usize,
}

impl Runs {
    fn push(&mut self, symbol: u8, extra: u8, counts: &mut [u32; CODE_LENGTHS]) {
        self.items[self.len] = (symbol, extra);
        self.len += 1;
        counts[symbol as usize] += 1;
    }

    /// Appends `lengths` on its own: no run crosses tables, and the first length is never a
    /// repetition, which devices refuse (error code 4).
    fn append(&mut self, lengths: &[u8], counts: &mut [u32; CODE_LENGTHS]) {
        for group in lengths.chunk_by(|a, b| a == b) {
            let (value, mut left) = (group[0], group.len());
            if value == 0 {
                while left >= 11 {
                    let run = left.min(138);
                    self.push(18, (run - 11) as u8, counts);
                    left -= run;
                }
                if left >= 3 {
                    self.push(17, (left - 3) as u8, counts);
                    left = 0;
                }
            } else {
                self.push(value, 0, counts);
                left -= 1;
                while left >= 3 {
                    let run = left.min(6);
                    self.push(16, (run - 3) as u8, counts);
                    left -= run;
                }
            }
            for _ in 0..left {
                self.push(value, 0, counts);
            }
        }
    }
}

/// Writes codes for `histogram` into `aecs`, and a final dynamic block's header after its bits.
pub(crate) fn write_aecs(aecs: &mut CompressAecs, histogram: &Histogram) {
    let mut literals = [0u8; LITERALS];
    let mut distances = [0u8; DISTANCES];
    let mut counts = histogram.literals;
    counts[EOB] = counts[EOB].max(1);
    code_lengths(&counts, CODE_BITS_MAX, &mut literals);
    code_lengths(&histogram.distances, CODE_BITS_MAX, &mut distances);
    code_entries(&literals, &mut aecs.literals);
    code_entries(&distances, &mut aecs.distances);
    let mut bytes = [0; 256];
    let mut header = BitWriter::new(&mut bytes);
    header.put_bits_of(&aecs.accumulator, aecs.accumulator_bits);
    write_header(&mut header, &literals, &distances);
    aecs.accumulator_bits = header.finish();
    assert!(!header.has_overflowed(), "header longer than the accumulator");
    aecs.accumulator = bytes;
}

/// Writes the header of a final dynamic block with these code lengths: at most [`HEADER_BITS_MAX`]
/// bits.
fn write_header(header: &mut BitWriter<'_>, literals: &[u8; LITERALS], distances: &[u8; DISTANCES]) {
    let trimmed = |lengths: &[u8], least: usize| {
        lengths.iter().rposition(|&length| length != 0).map_or(least, |last| (last + 1).max(least))
    };
    let literal_count = trimmed(literals, 257);
    let distance_count = trimmed(distances, 1);
    let mut counts = [0u32; CODE_LENGTHS];
    let mut runs = Runs { items: [(0, 0); LITERALS + DISTANCES], len: 0 };
    runs.append(&literals[..literal_count], &mut counts);
    runs.append(&distances[..distance_count], &mut counts);

    let mut lengths = [0u8; CODE_LENGTHS];
    code_lengths(&counts, CODE_LENGTH_BITS_MAX, &mut lengths);
    let mut entries = [0u32; CODE_LENGTHS];
    code_entries(&lengths, &mut entries);
    let order = CODE_LENGTH_ORDER.iter();
    let order_count =
        order.clone().rposition(|&symbol| lengths[symbol as usize] != 0).map_or(4, |at| (at + 1).max(4));

    header.put(1, 1);
    header.put(2, 2);
    header.put(literal_count as u32 - 257, 5);
    header.put(distance_count as u32 - 1, 5);
    header.put(order_count as u32 - 4, 4);
    for &symbol in order.take(order_count) {
        header.put(u32::from(lengths[symbol as usize]), 3);
    }
    for &(symbol, extra) in &runs.items[..runs.len] {
        header.put_code(entries[symbol as usize]);
        match symbol {
            16 => header.put(u32::from(extra), 2),
            17 => header.put(u32::from(extra), 3),
            18 => header.put(u32::from(extra), 7),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kraft(lengths: &[u8]) -> u64 {
        lengths.iter().filter(|&&length| length != 0).map(|&length| 1u64 << (15 - length)).sum()
    }

    /// Cost of the best code without a limit, by the textbook method.
    fn best_cost(counts: &[u32]) -> u64 {
        let mut heap: std::collections::BinaryHeap<_> =
            counts.iter().filter(|&&c| c > 0).map(|&c| std::cmp::Reverse(u64::from(c))).collect();
        let mut cost = 0;
        while heap.len() > 1 {
            let pair = heap.pop().unwrap().0 + heap.pop().unwrap().0;
            cost += pair;
            heap.push(std::cmp::Reverse(pair));
        }
        cost
    }

    proptest! {
        #[test]
        fn codes_are_complete_and_the_best_where_no_limit_binds(
            counts in proptest::collection::vec(prop_oneof![Just(0u32), 1u32..2000], 2..288)
        ) {
            let mut lengths = vec![0; counts.len()];
            code_lengths(&counts, 15, &mut lengths);
            prop_assert_eq!(kraft(&lengths), 1 << 15);
            let mut weights: Vec<u64> = counts.iter().filter(|&&count| count > 0).map(|&c| c.into()).collect();
            weights.sort_unstable();
            if weights.len() >= 2 {
                // The tree may be deeper than 15 in spite of the small counts: then codes cannot be
                // the best.
                depths(&mut weights);
            }
            if weights.len() >= 2 && weights[0] <= 15 {
                let cost: u64 = counts.iter().zip(&lengths).map(|(&c, &l)| u64::from(c) * u64::from(l)).sum();
                prop_assert_eq!(cost, best_cost(&counts));
                prop_assert!(counts.iter().zip(&lengths).all(|(&count, &length)| (count == 0) == (length == 0)));
            }
        }

        #[test]
        fn a_limit_is_kept(counts in proptest::collection::vec(0u32..u32::MAX, 2..19), limit in 5usize..8) {
            let mut lengths = vec![0; counts.len()];
            code_lengths(&counts, limit, &mut lengths);
            prop_assert!(lengths.iter().all(|&length| usize::from(length) <= limit));
            prop_assert_eq!(kraft(&lengths), 1 << 15);
        }
    }

    /// Fibonacci counts make the deepest trees.
    #[test]
    fn fibonacci_counts_are_limited_to_15() {
        let mut counts = vec![1u32, 1];
        while counts.len() < 40 {
            counts.push(counts[counts.len() - 1] + counts[counts.len() - 2]);
        }
        let mut lengths = vec![0; 40];
        code_lengths(&counts, 15, &mut lengths);
        assert_eq!((kraft(&lengths), *lengths.iter().max().unwrap()), (1 << 15, 15));
    }

    /// The example of RFC 1951, section 3.2.2.
    #[test]
    fn canonical_codes_follow_the_rfc() {
        let lengths = [3, 3, 3, 3, 3, 2, 4, 4];
        let mut entries = [0; 8];
        code_entries(&lengths, &mut entries);
        let codes: Vec<_> = entries.iter().map(|entry| entry & 0x7fff).collect();
        assert_eq!(codes, [2, 3, 4, 5, 6, 0, 14, 15]);
    }

    #[test]
    fn the_fixed_codes_are_canonical() {
        let mut lengths = [0u8; 288];
        for (symbol, length) in lengths.iter_mut().enumerate() {
            *length = match symbol {
                0..=143 => 8,
                144..=255 => 9,
                256..=279 => 7,
                _ => 8,
            };
        }
        let mut entries = [0; 288];
        code_entries(&lengths, &mut entries);
        assert_eq!(entries[..LITERALS], crate::aecs::FIXED.literals);
    }

    #[test]
    fn the_longest_header_fits_the_accumulator() {
        // All symbols used, with counts that spread the lengths: many distinct lengths and few
        // runs.
        let mut histogram = Histogram::ZERO;
        for (at, count) in histogram.literals.iter_mut().enumerate() {
            *count = 1 << (at * 7 % 14);
        }
        for (at, count) in histogram.distances.iter_mut().enumerate() {
            *count = 1 << (at * 11 % 14);
        }
        let mut aecs = CompressAecs::ZERO;
        aecs.set_dynamic(&histogram);
        assert!((800..HEADER_BITS_MAX).contains(&aecs.accumulator_bits), "{}", aecs.accumulator_bits);
    }
}
