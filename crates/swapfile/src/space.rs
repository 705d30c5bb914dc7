//! Which segments of the file are taken, and by whom: in memory that the processes of a tree share.
//!
//! ```text
//!   word 0    1      2..8   8..8+n     then, for each row
//!   +--------+------+-------+----------+-----------------------+
//!   | in use | kept | -     | segments | owner | a bit a segment |
//!   +--------+------+-------+----------+-----------------------+
//!   segment: 63..32 generation | 31..24 state | 23..0 holders
//! ```
//!
//! A process has a *row*: the segments it holds. It holds one from taking it until none of its
//! objects is left there; a forked child starts with its parent's segments. The last holder to
//! leave frees the segment. When a process dies at any moment, the process that notices releases
//! its row ([`Space::reap`]); a death between two steps loses at most one segment, until the run
//! ends.
//!
//! A segment's generation increases whenever it is taken, so that cleaning recognizes directories
//! of an older use.
//!
//! Every process that has the table can write anything into it. That loses the objects of the
//! processes of this table, and breaks nothing else: reads verify seals whose keys are not here
//! (`seal`), numbers beyond the table are not used, and a process never writes to a segment in
//! which it has objects, even if the table says that it is free.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::place::SEGMENTS_MAX;

const HEADER_WORDS: usize = 8;
const IN_USE: usize = 0;
const KEPT_COUNT: usize = 1;

/// States of a segment. Free, without blocks of the disk.
const HOLE: u64 = 0;
const HELD: u64 = 1;
/// Free, with its blocks.
const KEPT: u64 = 2;
/// Its blocks are being given back.
const LEAVING: u64 = 3;
/// Held by a process, and never reused: writing there failed.
const RETIRED: u64 = 4;
/// Never reused.
const BAD: u64 = 5;

const HOLDERS_MAX: u64 = (1 << 24) - 1;

#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    fn new(generation: u32, state: u64, holders: u64) -> Word {
        Word(u64::from(generation) << 32 | state << 24 | holders.min(HOLDERS_MAX))
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn state(self) -> u64 {
        self.0 >> 24 & 0xFF
    }

    fn holders(self) -> u64 {
        self.0 & HOLDERS_MAX
    }
}

/// The table. It consists of atomics: a process may die at any step of another.
pub struct Space {
    words: NonNull<AtomicU64>,
    len: usize,
    /// From its creation, so that no value in shared memory leads beyond the table.
    segments: usize,
    rows: usize,
    /// The memory, if this process owns it.
    _own: Option<Box<[AtomicU64]>>,
}

// SAFETY: atomics, valid as long as the table: owned, or promised by the caller of `shared`.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    /// Words of a table for `segments` segments and `rows` processes.
    pub fn words(segments: usize, rows: usize) -> usize {
        HEADER_WORDS + segments + rows * Space::row_words(segments)
    }

    fn row_words(segments: usize) -> usize {
        1 + segments.div_ceil(64)
    }

    /// A table for this process and its children without exec, none of which may use it.
    pub fn private(segments: usize) -> Space {
        Space::owned(segments, 1)
    }

    fn owned(segments: usize, rows: usize) -> Space {
        let own: Box<[AtomicU64]> = (0..Space::words(segments, rows)).map(|_| AtomicU64::new(0)).collect();
        let words = NonNull::from(&own[0]);
        Space::of(words, own.len(), segments, rows, Some(own))
    }

    /// A table in memory that processes share, which is zero at first.
    ///
    /// # Safety
    /// `words` is valid for `len` words as long as the table and its users live, and is not used
    /// otherwise.
    ///
    /// # Panics
    /// If the memory is too small.
    pub unsafe fn shared(words: NonNull<AtomicU64>, len: usize, segments: usize, rows: usize) -> Space {
        assert!(len >= Space::words(segments, rows));
        Space::of(words, len, segments, rows, None)
    }

    fn of(
        words: NonNull<AtomicU64>,
        len: usize,
        segments: usize,
        rows: usize,
        own: Option<Box<[AtomicU64]>>,
    ) -> Space {
        assert!((1..=SEGMENTS_MAX).contains(&segments) && (1..1 << 16).contains(&rows));
        Space { words, len, segments, rows, _own: own }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.len);
        // SAFETY: within the words of the table.
        unsafe { &*self.words.as_ptr().add(at) }
    }

    /// Segments of the file.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Segments held by any process.
    pub fn in_use(&self) -> u64 {
        self.word(IN_USE).load(Ordering::Relaxed).min(self.segments as u64)
    }

    /// Free segments that still have their blocks.
    pub fn kept(&self) -> u64 {
        self.word(KEPT_COUNT).load(Ordering::Relaxed).min(self.segments as u64)
    }

    fn segment(&self, number: usize) -> &AtomicU64 {
        assert!(number < self.segments());
        self.word(HEADER_WORDS + number)
    }

    fn now(&self, number: usize) -> Word {
        Word(self.segment(number).load(Ordering::Relaxed))
    }

    fn exchange(&self, number: usize, now: Word, next: Word) -> bool {
        self.segment(number).compare_exchange(now.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn owner(&self, row: usize) -> &AtomicU64 {
        self.word(HEADER_WORDS + self.segments() + row * Space::row_words(self.segments()))
    }

    fn bits(&self, row: usize, segment: usize) -> &AtomicU64 {
        let row_at = HEADER_WORDS + self.segments() + row * Space::row_words(self.segments());
        self.word(row_at + 1 + segment / 64)
    }

    /// Takes a row for the process `owner` (any number but 0); `None` if all are taken.
    pub fn join(&self, owner: u32) -> Option<usize> {
        assert!(owner != 0);
        (0..self.rows).find(|&row| {
            let owner = u64::from(owner);
            self.owner(row).compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    pub(crate) fn rename(&self, row: usize, owner: u32) {
        self.owner(row).store(u64::from(owner), Ordering::Release);
    }

    /// Releases all segments of a process that ended or no longer uses them; returns how many.
    pub fn reap(&self, owner: u32) -> u64 {
        let mut count = 0;
        for row in 0..self.rows {
            if self.owner(row).load(Ordering::Acquire) == u64::from(owner) {
                count += self.leave(row);
            }
        }
        count
    }

    /// Releases all segments of a row, and the row.
    pub(crate) fn leave(&self, row: usize) -> u64 {
        let mut count = 0;
        for segment in self.held(row) {
            self.release_segment(row, segment);
            count += 1;
        }
        self.owner(row).store(0, Ordering::Release);
        count
    }

    pub(crate) fn held(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        let bits = move |first| {
            let bits = self.bits(row, first).load(Ordering::Acquire);
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| first + bit)
        };
        // The last word has bits beyond the segments.
        (0..self.segments()).step_by(64).flat_map(bits).take_while(|&segment| segment < self.segments())
    }

    pub(crate) fn held_count(&self, row: usize) -> u64 {
        let words = (0..self.segments()).step_by(64);
        words.map(|first| u64::from(self.bits(row, first).load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Takes a free segment: one with blocks if possible, else the first hole. Returns its number,
    /// its generation, and whether it has blocks.
    pub(crate) fn take(&self, row: usize) -> Option<(usize, u32, bool)> {
        let wants: &[u64] = if self.kept() > 0 { &[KEPT, HOLE] } else { &[HOLE] };
        for &state in wants {
            for number in 0..self.segments() {
                let now = self.now(number);
                // A generation is not used twice: after the last one the segment is never taken.
                if now.state() != state || now.generation() == u32::MAX {
                    continue;
                }
                let next = Word::new(now.generation() + 1, HELD, 1);
                if self.exchange(number, now, next) {
                    if state == KEPT {
                        self.word(KEPT_COUNT).fetch_sub(1, Ordering::Relaxed);
                    }
                    self.word(IN_USE).fetch_add(1, Ordering::Relaxed);
                    self.bits(row, number).fetch_or(1 << (number % 64), Ordering::AcqRel);
                    return Some((number, next.generation(), state == KEPT));
                }
            }
        }
        None
    }

    /// Notes that holes were given blocks, so that they are taken first. If another process has
    /// released some of the blocks since, the write finds out.
    pub(crate) fn keep(&self, range: std::ops::Range<usize>) {
        for number in range {
            let now = self.now(number);
            if now.state() == HOLE && self.exchange(number, now, Word::new(now.generation(), KEPT, 0)) {
                self.word(KEPT_COUNT).fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Consecutive holes from `first` on, up to `most`.
    pub(crate) fn holes(&self, first: usize, most: usize) -> usize {
        let is_hole = |number: &usize| self.now(*number).state() == HOLE;
        (first..self.segments().min(first + most)).take_while(is_hole).count()
    }

    pub(crate) fn generation(&self, number: usize) -> u32 {
        self.now(number).generation()
    }

    pub(crate) fn owners(&self) -> impl Iterator<Item = u32> + '_ {
        let owners = (0..self.rows).map(|row| self.owner(row).load(Ordering::Acquire) as u32);
        owners.filter(|owner| *owner != 0)
    }

    pub(crate) fn holders(&self, number: usize) -> u64 {
        self.now(number).holders()
    }

    /// Keeps a segment that the caller holds from being reused.
    pub(crate) fn retire(&self, number: usize) {
        self.update(number, |now| Word::new(now.generation(), RETIRED, now.holders()));
    }

    #[cfg(test)]
    fn holds(&self, row: usize, number: usize) -> bool {
        self.bits(row, number).load(Ordering::Relaxed) >> (number % 64) & 1 == 1
    }

    /// Releases a row's segment, if the row holds it.
    pub(crate) fn release_segment(&self, row: usize, number: usize) {
        let bit = 1u64 << (number % 64);
        if self.bits(row, number).fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            return;
        }
        let next = self.update(number, |now| {
            let state = match (now.holders(), now.state()) {
                (1, RETIRED) => BAD,
                (1, _) => KEPT,
                (_, state) => state,
            };
            Word::new(now.generation(), state, now.holders().saturating_sub(1))
        });
        if next.holders() == 0 {
            self.word(IN_USE).fetch_sub(1, Ordering::Relaxed);
            if next.state() == KEPT {
                self.word(KEPT_COUNT).fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn update(&self, number: usize, change: impl Fn(Word) -> Word) -> Word {
        let segment = self.segment(number);
        let before =
            segment.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(change(Word(now)).0));
        change(Word(before.expect("always changed")))
    }

    /// A row for a child that is about to be forked, with the segments of `row`. It belongs to
    /// `owner`, the parent, until the child renames it.
    pub(crate) fn fork_row(&self, row: usize, owner: u32) -> Option<usize> {
        let forked = self.join(owner)?;
        for number in self.held(row) {
            self.update(number, |now| Word::new(now.generation(), now.state(), now.holders() + 1));
            self.bits(forked, number).fetch_or(1 << (number % 64), Ordering::AcqRel);
        }
        Some(forked)
    }

    /// Gives the blocks of free segments back by `release`, which returns whether it could, until
    /// `keep` still have theirs. Returns how many segments lost theirs.
    pub(crate) fn trim(&self, keep: u64, release: impl Fn(usize) -> bool) -> u64 {
        let mut count = 0;
        // The last ones first, so that the file's end comes free.
        for number in (0..self.segments()).rev() {
            if self.kept() <= keep {
                break;
            }
            let now = self.now(number);
            let leaving = Word::new(now.generation(), LEAVING, 0);
            if now.state() != KEPT || !self.exchange(number, now, leaving) {
                continue;
            }
            let released = release(number);
            let state = if released { HOLE } else { KEPT };
            self.segment(number).store(Word::new(now.generation(), state, 0).0, Ordering::Release);
            if !released {
                break;
            }
            self.word(KEPT_COUNT).fetch_sub(1, Ordering::Relaxed);
            count += 1;
        }
        count
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<AtomicU64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_taken_again_has_another_generation() {
        let space = Space::private(3);
        let row = space.join(7).unwrap();
        assert_eq!(space.join(8), None, "one row");
        assert_eq!(space.take(row), Some((0, 1, false)));
        assert_eq!(space.take(row), Some((1, 1, false)));
        space.release_segment(row, 0);
        space.release_segment(row, 0);
        assert_eq!((space.in_use(), space.kept()), (1, 1));
        assert_eq!(space.take(row), Some((0, 2, true)), "with its blocks, before a hole");
        assert_eq!(space.take(row), Some((2, 1, false)));
        assert_eq!(space.take(row), None);
        assert_eq!((space.in_use(), space.kept()), (3, 0));
    }

    #[test]
    fn the_last_holder_frees_and_the_dead_are_reaped() {
        let space = Space::owned(200, 4);
        let parent = space.join(10).unwrap();
        for _ in 0..150 {
            space.take(parent).unwrap();
        }
        let child = space.fork_row(parent, 10).unwrap();
        space.rename(child, 11);
        space.release_segment(parent, 149);
        assert_eq!(space.in_use(), 150, "what both have is counted once");
        assert!(space.holds(child, 149) && !space.holds(parent, 149));
        space.release_segment(child, 149);
        assert_eq!((space.in_use(), space.kept()), (149, 1));
        // The child takes a segment and is killed.
        let (own, ..) = space.take(child).unwrap();
        assert_eq!(space.reap(11), 150);
        assert_eq!(space.in_use(), 149);
        assert_eq!(space.holders(own), 0);
        assert_eq!(space.reap(10), 149);
        assert_eq!((space.in_use(), space.kept()), (0, 150));
        assert!((0..4).all(|owner| space.join(20 + owner).is_some()));
    }

    #[test]
    fn blocks_go_back_but_for_those_kept() {
        let space = Space::private(100);
        let row = space.join(1).unwrap();
        (0..60).for_each(|_| assert!(space.take(row).is_some()));
        (0..60).for_each(|number| space.release_segment(row, number));
        let released = std::cell::RefCell::new(Vec::new());
        let release = |number| {
            released.borrow_mut().push(number);
            true
        };
        assert_eq!(space.trim(8, release), 52);
        assert_eq!(released.borrow().len(), 52);
        assert!(!released.borrow().contains(&3), "the first ones stay");
        assert_eq!(space.trim(0, |_| false), 0, "a file system that cannot");
        assert_eq!(space.kept(), 8);
    }

    #[test]
    fn holes_that_were_given_blocks_are_taken_before_others() {
        let space = Space::private(8);
        let row = space.join(1).unwrap();
        assert_eq!(space.take(row), Some((0, 1, false)));
        assert_eq!((space.holes(1, 3), space.holes(6, 5)), (3, 2));
        space.keep(5..7);
        assert_eq!((space.kept(), space.holes(1, 8)), (2, 4));
        assert_eq!(space.take(row), Some((5, 1, true)));
        assert_eq!(space.take(row), Some((6, 1, true)));
        assert_eq!(space.take(row), Some((1, 1, false)));
        assert_eq!(space.kept(), 0);
    }

    #[test]
    fn a_retired_segment_is_not_used_again() {
        let space = Space::private(2);
        let row = space.join(1).unwrap();
        let (bad, ..) = space.take(row).unwrap();
        space.retire(bad);
        assert_eq!(space.in_use(), 1);
        space.release_segment(row, bad);
        assert_eq!((space.in_use(), space.kept()), (0, 0));
        let (good, ..) = space.take(row).unwrap();
        assert_ne!(good, bad);
        assert_eq!(space.take(row), None);
    }

    #[test]
    fn threads_take_each_segment_once() {
        let space = Space::owned(500, 4);
        let all: Vec<usize> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|owner| {
                    let space = &space;
                    scope.spawn(move || {
                        let row = space.join(owner + 1).unwrap();
                        std::iter::from_fn(|| space.take(row)).map(|(number, ..)| number).collect::<Vec<_>>()
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        assert_eq!(all.len(), 500);
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 500);
        assert_eq!(space.in_use(), 500);
    }
}
