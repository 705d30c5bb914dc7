//! The free parts of the reserved address space.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free ranges; adjacent ones are merged.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Ends by starts.
    free: BTreeMap<usize, usize>,
}

impl Ranges {
    /// All of `range` is free.
    pub fn new(range: Range<usize>) -> Self {
        Ranges { free: BTreeMap::from([(range.start, range.end)]) }
    }

    /// Takes the lowest `len` free bytes, so that used ranges stay together.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        let start = *self.free.iter().find(|(start, end)| **end - **start >= len)?.0;
        self.take_at(start, len);
        Some(start)
    }

    /// Takes `[start, start + len)` if all of it is free.
    pub fn take_at(&mut self, start: usize, len: usize) -> bool {
        let Some((&first, &end)) = self.free.range(..=start).next_back() else { return false };
        if len > end.saturating_sub(start) {
            return false;
        }
        self.free.remove(&first);
        for (start, end) in [(first, start), (start + len, end)] {
            if start < end {
                self.free.insert(start, end);
            }
        }
        true
    }

    /// Returns a range that was taken.
    pub fn give(&mut self, start: usize, len: usize) {
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &its_end)) = self.free.range(..=start).next_back() {
            assert!(its_end <= start, "a range is given back once");
            if its_end == start {
                self.free.remove(&before);
                start = before;
            }
        }
        if let Some((&behind, &its_end)) = self.free.range(start..).next() {
            assert!(behind >= end, "a range is given back once");
            if behind == end {
                self.free.remove(&behind);
                end = its_end;
            }
        }
        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_beyond_the_address_space_are_not_free() {
        let mut ranges = Ranges::new(100..200);
        assert!(ranges.take_at(100, 50));
        for len in [51, usize::MAX - 150, usize::MAX - 149, usize::MAX - 70, usize::MAX] {
            assert!(!ranges.take_at(150, len) && ranges.take(len).is_none(), "{len}");
        }
        assert!(!ranges.take_at(usize::MAX, 2));
        assert_eq!(ranges.free, BTreeMap::from([(150, 200)]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn ranges_are_given_out_once(steps in prop::collection::vec((any::<u8>(), 1usize..9, any::<prop::sample::Index>()), 0..80)) {
            const ALL: usize = 64;
            let mut ranges = Ranges::new(0..ALL);
            let mut used = [false; ALL];
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (what, len, which) in steps {
                match what % 3 {
                    0 if !taken.is_empty() => {
                        let (start, len) = taken.swap_remove(which.index(taken.len()));
                        used[start..start + len].fill(false);
                        ranges.give(start, len);
                    }
                    1 if !taken.is_empty() => {
                        let index = which.index(taken.len());
                        let (start, old) = taken[index];
                        let end = start + old + len;
                        let is_free = end <= ALL && !used[start + old..end].contains(&true);
                        prop_assert_eq!(ranges.take_at(start + old, len), is_free);
                        if is_free {
                            used[start..end].fill(true);
                            taken[index].1 += len;
                        }
                    }
                    _ => {
                        let expected = (0..=ALL - len).find(|at| !used[*at..at + len].contains(&true));
                        prop_assert_eq!(ranges.take(len), expected);
                        if let Some(start) = expected {
                            used[start..start + len].fill(true);
                            taken.push((start, len));
                        }
                    }
                }
            }
            for (start, len) in taken {
                ranges.give(start, len);
            }
            prop_assert_eq!(ranges.free, BTreeMap::from([(0, ALL)]));
        }
    }
}
