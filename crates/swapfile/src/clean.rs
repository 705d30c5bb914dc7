//! Cleaning: moves the live objects of mostly dead segments together, which frees the segments.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use crate::pack::last_directory;
use crate::place::{GRAIN_BYTES, SEGMENT_BYTES};
use crate::segments::Candidate;
use crate::writer::{Age, Writer};
use crate::{Location, Pack, Record, SwapFile, WriteError};

/// Segments with a larger live share are skipped: moving their objects frees little.
const LIVE_PERCENT_MAX: u64 = 75;
/// A segment that other processes hold too is cleaned only if little of it is this process's.
const SHARED_PERCENT_MAX: u64 = 25;

/// Knows which objects are needed, and where.
pub trait Owner {
    /// Whether the object at this place is needed.
    fn holds(&self, record: &Record, place: Location) -> bool;

    /// Notes that the object is at `to` as well, which replaces `from`. Returns whether it is still
    /// needed: if it is, the caller frees `from`, which is no longer used; otherwise the caller
    /// frees `to`. May wait for readers of the object.
    fn moved(&self, record: &Record, from: Location, to: Location) -> bool;
}

/// Result of cleaning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments cleaned.
    pub segments: u64,
    /// Objects moved.
    pub objects: u64,
    /// Bytes of segments that cleaning freed.
    pub bytes_freed: u64,
    /// Segments that could not be read, or only partly.
    pub unreadable: u64,
}

impl SwapFile {
    /// Whether enough is dead for cleaning to pay: a third of this process's segments, or any
    /// notable amount if the file is nearly full. Each process cleans only its own objects.
    pub fn wants_cleaning(&self) -> bool {
        let used = self.space().held_count(self.row()) * SEGMENT_BYTES as u64;
        let dead = used.saturating_sub(self.live_bytes.load(Ordering::Relaxed));
        let spare = 4 * SEGMENT_BYTES as u64;
        let is_nearly_full = self.free_bytes() < (self.size_bytes() / 16).max(spare);
        dead > spare && dead * if is_nearly_full { 8 } else { 3 } > used
    }

    /// The segment with the best score: much room for few moved bytes. Long unchanged segments
    /// score higher, since their live objects will probably stay live.
    fn best_candidate(&self, tried: &[usize]) -> Option<Candidate> {
        let held = self.space().held(self.row()).filter_map(|number| self.segments.candidate(number));
        let pays = |candidate: &Candidate| {
            let shared = self.space().holders(candidate.number) > 1;
            let limit = if shared { SHARED_PERCENT_MAX } else { LIVE_PERCENT_MAX };
            live_percent(candidate) <= limit && !tried.contains(&candidate.number)
        };
        held.filter(pays).max_by_key(|candidate| {
            let live = live_percent(candidate);
            (100 - live) * u64::from(candidate.age + 1) * 1000 / (100 + live)
        })
    }
}

fn live_percent(candidate: &Candidate) -> u64 {
    u64::from(candidate.live_grains) * GRAIN_BYTES as u64 * 100 / SEGMENT_BYTES as u64
}

/// A cleaning in progress.
struct Cleaning<'a> {
    file: Arc<SwapFile>,
    writer: &'a mut Writer,
    owner: &'a dyn Owner,
    /// An unfinished pack, and the old places of its objects.
    pack: Option<Pack>,
    from: Vec<Location>,
    report: CleanReport,
}

impl Writer {
    /// Cleans up to `segments_max` segments; fewer if no other is worth it.
    ///
    /// # Errors
    /// [`WriteError`] if the live objects cannot be written; they stay in place.
    ///
    /// # Panics
    /// If packs are in flight.
    pub fn clean(&mut self, owner: &dyn Owner, segments_max: u64) -> Result<CleanReport, WriteError> {
        assert!(self.in_flight() == 0);
        let file = self.file().clone();
        let (began, mut tried, mut result) = (Instant::now(), Vec::new(), Ok(()));
        let (pack, from, report) = (None, Vec::new(), CleanReport::default());
        let mut cleaning = Cleaning { file: file.clone(), writer: self, owner, pack, from, report };
        while cleaning.report.segments + cleaning.report.unreadable < segments_max && result.is_ok() {
            let Some(candidate) = file.best_candidate(&tried) else { break };
            tried.push(candidate.number);
            if !file.segments.begin_cleaning(candidate.number) {
                continue;
            }
            result = cleaning.clean_segment(&candidate);
            if file.segments.end_cleaning(candidate.number) {
                file.release_segment(candidate.number);
                cleaning.report.segments += 1;
                cleaning.report.bytes_freed += SEGMENT_BYTES as u64;
                file.count(|counters| counters.segments_cleaned += 1);
            } else {
                cleaning.report.unreadable += 1;
            }
        }
        file.count(|counters| counters.clean_ns += began.elapsed().as_nanos() as u64);
        result.map(|()| cleaning.report)
    }
}

impl Cleaning<'_> {
    fn clean_segment(&mut self, candidate: &Candidate) -> Result<(), WriteError> {
        let Ok(mut lane) = self.file.lane() else { return Ok(()) };
        let read = self.file.read_segment(&mut *lane, candidate.number, candidate.filled as usize);
        self.file.give_lane(lane);
        let Ok(mut buffer) = read else {
            self.file.count(|counters| counters.reads_failed += 1);
            return Ok(());
        };
        let moved = self.move_live(candidate, &mut buffer).and_then(|()| self.flush());
        if let Some(pack) = self.pack.take() {
            self.writer.abandon(pack);
            self.from.clear();
        }
        moved
    }

    /// Packs the live objects of a segment, read into `buffer`, up to the first failing block.
    fn move_live(&mut self, candidate: &Candidate, buffer: &mut [u8]) -> Result<(), WriteError> {
        let generation = self.file.space().generation(candidate.number);
        let mut end = candidate.filled as usize;
        while end > 0 {
            let segment = candidate.number as u32;
            let Some((start, records)) =
                last_directory(segment, generation, &mut buffer[..end], &self.file.seal)
            else {
                // An unwritten or damaged pack. The holders of objects before it still find them.
                self.file.count(|counters| counters.reads_failed += 1);
                break;
            };
            // Objects of one block of pages are adjacent in the directory, and stay so.
            for together in records.chunk_by(|(a, _), (b, _)| (a.group, a.key >> 4) == (b.group, b.key >> 4))
            {
                for together in together.chunks(crate::TOGETHER_MAX) {
                    self.move_block(together, buffer)?;
                }
            }
            end = start;
        }
        Ok(())
    }

    fn move_block(&mut self, objects: &[(Record, Location)], buffer: &mut [u8]) -> Result<(), WriteError> {
        let seal = &self.file.seal;
        let mut live = [const { None }; crate::TOGETHER_MAX];
        let mut records = [objects[0].0; crate::TOGETHER_MAX];
        let mut count = 0;
        for (record, place) in objects {
            if !self.owner.holds(record, *place) {
                continue;
            }
            let start = place.position();
            // Without encryption a directory may be forged, and name bytes beyond the segment.
            let sealed = buffer.get_mut(start..start + place.len() + seal.tail_bytes());
            if !sealed.is_some_and(|sealed| seal.unseal(self.file.nonce_of(*place), b"", sealed)) {
                // The object stays, and its reader gets the error.
                self.file.count(|counters| counters.reads_failed += 1);
                continue;
            }
            (live[count], records[count]) = (Some(*place), *record);
            count += 1;
        }
        let mut done = 0;
        while done < count {
            let (first, fitting) = self.make_room(&records[done..count])?;
            let pack = self.pack.as_mut().expect("made above");
            for (number, place) in live[done..done + fitting].iter().flatten().enumerate() {
                let start = place.position();
                pack.object_mut(first + number).copy_from_slice(&buffer[start..start + place.len()]);
                self.from.push(*place);
            }
            done += fitting;
        }
        Ok(())
    }

    /// Makes room for the first of a block's objects, at least one, and for all if possible.
    /// Returns the number of the first and how many fit.
    fn make_room(&mut self, records: &[Record]) -> Result<(usize, usize), WriteError> {
        if let Some(first) = self.pack.as_mut().and_then(|pack| pack.add(records)) {
            return Ok((first, records.len()));
        }
        self.flush()?;
        let pack = self.pack.insert(self.writer.pack(Age::Old)?);
        // Parts of a block that were stored together and alone can be longer than the rest of a
        // segment.
        let some = (1..=records.len()).rev().find_map(|count| Some((pack.add(&records[..count])?, count)));
        Ok(some.expect("an empty pack has room for an object"))
    }

    /// Writes the pack and tells the owner the new places.
    fn flush(&mut self) -> Result<(), WriteError> {
        let Some(pack) = self.pack.take() else { return Ok(()) };
        self.writer.submit(Age::Old, pack);
        let mut finished = self.writer.poll(true).expect("it is in flight");
        let result = std::mem::replace(&mut finished.result, Ok(()));
        if result.is_ok() {
            for ((record, to), from) in finished.objects().zip(&self.from) {
                let is_moved = self.owner.moved(&record, *from, to);
                self.file.free(if is_moved { *from } else { to });
                self.report.objects += u64::from(is_moved);
                self.file.count(|counters| counters.objects_moved += u64::from(is_moved));
            }
        }
        self.from.clear();
        self.writer.recycle(finished);
        result
    }
}
