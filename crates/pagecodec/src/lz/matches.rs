//! The matches chosen in the four parts of the input, and their join into one sequence.

use std::ops::Range;

use super::{INPUT_MAX, MATCH_MIN};

/// Parts of the input that are walked in parallel.
pub(super) const PARTS: usize = 4;
/// Bytes by which a part's last match may reach into the next part.
pub(super) const REACH: usize = 64;
/// Matches coded per step.
pub(super) const GROUP: usize = 32;
/// Most matches of a part, plus one written but not counted, in whole groups.
pub(super) const PART_RECORDS: usize = INPUT_MAX / PARTS / MATCH_MIN + 2 + GROUP;

/// A part's matches: starts, sources, and ends, stored one place later so that the end before the
/// first match has a place. Longer than needed by one step of the vector loop that reads them.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Records {
    pub(super) starts: [u16; PART_RECORDS],
    pub(super) sources: [u16; PART_RECORDS],
    pub(super) ends: [u16; PART_RECORDS + 1],
}

pub(super) struct Matches {
    pub(super) records: [Records; PARTS],
    /// The valid range of each part's records.
    taken: [Range<u16>; PARTS],
}

impl Matches {
    #[inline(always)]
    pub(super) fn parts(&self) -> impl Iterator<Item = (&Records, Range<usize>)> {
        let taken = self.taken.iter().map(|taken| usize::from(taken.start)..usize::from(taken.end));
        self.records.iter().zip(taken)
    }

    /// Takes the first `counts` records of each part. A part's last match may cover matches of the
    /// next part: removes or shortens these, or extends the match where they continue it.
    #[inline(always)]
    pub(super) fn join(&mut self, counts: &[usize; PARTS]) {
        // Place, offset and end of the last match before the part.
        let (mut last, mut offset, mut covered) = ((0, 0), 0, 0);
        for (part, &count) in counts.iter().enumerate() {
            let mut first = 0;
            let records = &mut self.records[part];
            while first < count {
                let (start, source, end) =
                    (records.starts[first], records.sources[first], records.ends[first + 1]);
                if start > covered {
                    break;
                }
                if start - source == offset && end > covered {
                    covered = end;
                } else if end >= covered + MATCH_MIN as u16 {
                    records.starts[first] = covered;
                    records.sources[first] = source + (covered - start);
                    break;
                }
                first += 1;
            }
            records.ends[first] = covered;
            if first > 0 && last.1 > 0 {
                let (part, place): (usize, usize) = last;
                self.records[part].ends[place] = covered;
            }
            let records = &self.records[part];
            if first < count {
                last = (part, count);
                (offset, covered) =
                    (records.starts[count - 1] - records.sources[count - 1], records.ends[count]);
            }
            self.taken[part] = first as u16..count as u16;
        }
    }
}
