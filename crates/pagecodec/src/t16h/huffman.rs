//! Code lengths from counts, and canonical codes from lengths.

pub(crate) const LEN_MAX: u32 = 10;

/// Returns a complete prefix code's lengths, 1 to [`LEN_MAX`] bits for each of 256 symbols.
pub(crate) fn lengths(counts: &[u64; 256]) -> [u8; 256] {
    let mut order: [usize; 256] = std::array::from_fn(|symbol| symbol);
    order.sort_unstable_by_key(|&symbol| (counts[symbol], symbol));
    // Two queues: leaves by count, inner nodes in order of creation, which is also by count.
    let mut weights = [0u64; 511];
    let mut parents = [0usize; 511];
    for (node, &symbol) in order.iter().enumerate() {
        weights[node] = counts[symbol];
    }
    let (mut leaf, mut inner) = (0, 256);
    for node in 256..511 {
        for _ in 0..2 {
            let take_leaf = leaf < 256 && (inner >= node || weights[leaf] <= weights[inner]);
            let taken = if take_leaf { &mut leaf } else { &mut inner };
            weights[node] += weights[*taken];
            parents[*taken] = node;
            *taken += 1;
        }
    }
    let mut depths = [0u32; 511];
    for node in (0..510).rev() {
        depths[node] = depths[parents[node]] + 1;
    }
    // Cuts too long codes, lengthens the rarest shorter ones to pay for that, and uses leftover
    // space to shorten the most frequent that fit.
    let mut lens: [u32; 256] = std::array::from_fn(|leaf| depths[leaf].clamp(1, LEN_MAX));
    let space = 1i64 << LEN_MAX;
    let mut used: i64 = lens.iter().map(|&len| 1 << (LEN_MAX - len)).sum();
    while used > space {
        // Deepest first: costs the least per bit of space.
        let deepest =
            (0..256).filter(|&leaf| lens[leaf] < LEN_MAX).max_by_key(|&leaf| (lens[leaf], 255 - leaf));
        let leaf = deepest.expect("256 codes of 10 bits fit");
        lens[leaf] += 1;
        used -= 1 << (LEN_MAX - lens[leaf]);
    }
    for leaf in (0..256).rev() {
        while lens[leaf] > 1 && used + (1 << (LEN_MAX - lens[leaf])) <= space {
            used += 1 << (LEN_MAX - lens[leaf]);
            lens[leaf] -= 1;
        }
    }
    let mut result = [0; 256];
    for (leaf, &symbol) in order.iter().enumerate() {
        result[symbol] = lens[leaf] as u8;
    }
    result
}

pub(crate) fn is_valid(lens: &[u8; 256]) -> bool {
    let in_range = lens.iter().all(|&len| (1..=LEN_MAX as u8).contains(&len));
    in_range && lens.iter().map(|&len| 1u32 << (LEN_MAX - u32::from(len))).sum::<u32>() <= 1 << LEN_MAX
}

/// Returns the canonical codes: by length, then by symbol, counting up from zero.
pub(crate) fn codes(lens: &[u8; 256]) -> [u16; 256] {
    let mut codes = [0; 256];
    let mut next = 0u32;
    for len in 1..=LEN_MAX {
        for symbol in 0..256 {
            if u32::from(lens[symbol]) == len {
                codes[symbol] = (next >> (LEN_MAX - len)) as u16;
                next += 1 << (LEN_MAX - len);
            }
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_complete_for_any_counts() {
        let cases: [fn(usize) -> u64; 5] = [
            |_| 1,
            |symbol| 1 << (symbol % 50),
            |symbol| symbol as u64 + 1,
            |symbol| if symbol == 7 { 1 << 40 } else { 1 },
            |symbol| (symbol as u64 * 7919 % 1000).pow(3) + 1,
        ];
        for counts in cases {
            let lens = lengths(&std::array::from_fn(counts));
            assert!(is_valid(&lens));
            let used: u32 = lens.iter().map(|&len| 1 << (LEN_MAX - u32::from(len))).sum();
            assert!(used > 1000, "{used} of 1024 code space used");
        }
        // 255 rare symbols, and one bit for a symbol of almost all the weight.
        let lens = lengths(&std::array::from_fn(|symbol| if symbol == 7 { 1 << 40 } else { 1 }));
        assert_eq!(lens[7], 1);
    }
}
