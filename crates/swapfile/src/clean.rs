//! Cleaning: what lives on of segments that are mostly dead moves together, and the segments are
//! free.

use std::time::Instant;

use crate::pack::last_directory;
use crate::place::{GRAIN_BYTES, SEGMENT_BYTES};
use crate::segments::Candidate;
use crate::writer::{Age, Writer};
use crate::{Pack, Place, Record, SwapFile, WriteError};

/// A segment that is live to more than this is left alone: moving it frees little.
const LIVE_PERCENT_MAX: u64 = 75;
/// What other processes hold too is only left by this process when little of its own is there.
const SHARED_PERCENT_MAX: u64 = 25;

/// Who knows which objects are needed, and where.
pub trait Owner {
    /// Whether the object at this place is needed.
    fn holds(&self, record: &Record, place: Place) -> bool;

    /// The object is at `to` as well, from now on instead of `from`; the answer is whether it is
    /// still needed. If it is, `from` is used no more and freed by the caller, else `to`. May wait
    /// for readers of the object.
    fn moved(&self, record: &Record, from: Place, to: Place) -> bool;
}

/// What cleaning did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments cleaned.
    pub segments: u64,
    /// Objects moved.
    pub objects: u64,
    /// Bytes of segments that came free by it.
    pub bytes_freed: u64,
    /// Segments that could not be read, or only in part.
    pub unreadable: u64,
}

impl SwapFile {
    /// Whether so much is dead that cleaning pays: a third of what this process has in use, or
    /// anything to speak of when the file is nearly full. What other processes have there is theirs
    /// to clean.
    pub fn wants_cleaning(&self) -> bool {
        let used = self.space().held_count(self.row()) * SEGMENT_BYTES as u64;
        let dead = used.saturating_sub(self.counts.live_bytes.get());
        let spare = 4 * SEGMENT_BYTES as u64;
        let is_nearly_full = self.free_bytes() < (self.size_bytes() / 16).max(spare);
        dead > spare && dead * if is_nearly_full { 8 } else { 3 } > used
    }

    /// The segment whose cleaning pays most: the room it gives for what has to be moved, and the
    /// longer nothing changed there, the better, since what lives then lives on.
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

/// Objects of a pack under way, with the places they come from.
#[derive(Default)]
struct Moving {
    pack: Option<Pack>,
    from: Vec<Place>,
}

impl Writer {
    /// Cleans up to `segments_max` segments; fewer when no other is worth it.
    ///
    /// # Errors
    /// [`WriteError`], when what lives on cannot be written; it stays where it is.
    ///
    /// # Panics
    /// When packs are in flight.
    pub fn clean(&mut self, owner: &dyn Owner, segments_max: u64) -> Result<CleanReport, WriteError> {
        assert!(self.in_flight() == 0);
        let began = Instant::now();
        let mut report = CleanReport::default();
        let mut tried = Vec::new();
        let mut result = Ok(());
        while report.segments + report.unreadable < segments_max && result.is_ok() {
            let file = self.file().clone();
            let Some(candidate) = file.best_candidate(&tried) else { break };
            tried.push(candidate.number);
            if !file.segments.begin_cleaning(candidate.number) {
                continue;
            }
            let cleaned = self.clean_segment(owner, &candidate, &mut report);
            if file.segments.end_cleaning(candidate.number) {
                file.let_go(candidate.number);
                report.segments += 1;
                report.bytes_freed += SEGMENT_BYTES as u64;
                file.counts.segments_cleaned.add(1);
            } else {
                report.unreadable += 1;
            }
            result = cleaned;
        }
        self.file().counts.clean_ns.add(began.elapsed().as_nanos() as u64);
        result.map(|()| report)
    }

    fn clean_segment(
        &mut self,
        owner: &dyn Owner,
        candidate: &Candidate,
        report: &mut CleanReport,
    ) -> Result<(), WriteError> {
        let file = self.file().clone();
        let Ok(mut lane) = file.lane() else { return Ok(()) };
        let read = file.read_segment(&mut *lane, candidate.number, candidate.filled as usize);
        file.give_lane(lane);
        let Ok(mut buffer) = read else {
            file.counts.reads_failed.add(1);
            return Ok(());
        };
        let mut moving = Moving::default();
        let moved = self.move_live(owner, candidate, &mut buffer, &mut moving, report);
        moved.and_then(|()| self.flush(owner, &mut moving, report)).inspect_err(|_| {
            if let Some(pack) = moving.pack.take() {
                self.abandon(pack);
            }
        })
    }

    /// Puts all that lives in a segment, which was read into `buffer`, under way; ends with the
    /// first block that cannot be.
    fn move_live(
        &mut self,
        owner: &dyn Owner,
        candidate: &Candidate,
        buffer: &mut [u8],
        moving: &mut Moving,
        report: &mut CleanReport,
    ) -> Result<(), WriteError> {
        let file = self.file().clone();
        let generation = file.space().generation(candidate.number);
        let mut end = candidate.filled as usize;
        while end > 0 {
            let segment = candidate.number as u32;
            let Some((start, records)) = last_directory(segment, generation, &mut buffer[..end], &file.seal)
            else {
                // A pack that could not be written, or damage: what lies before it can still be
                // found by who holds it.
                file.counts.reads_failed.add(1);
                break;
            };
            // Those of one block of pages lie side by side in the directory, and will again.
            for together in records.chunk_by(|(a, _), (b, _)| (a.group, a.key >> 4) == (b.group, b.key >> 4))
            {
                for together in together.chunks(crate::TOGETHER_MAX) {
                    self.move_block(owner, together, buffer, moving, report)?;
                }
            }
            end = start;
        }
        Ok(())
    }

    fn move_block(
        &mut self,
        owner: &dyn Owner,
        objects: &[(Record, Place)],
        buffer: &mut [u8],
        moving: &mut Moving,
        report: &mut CleanReport,
    ) -> Result<(), WriteError> {
        let file = self.file().clone();
        let mut live = [const { None }; crate::TOGETHER_MAX];
        let mut records = [objects[0].0; crate::TOGETHER_MAX];
        let mut count = 0;
        for (record, place) in objects {
            if !owner.holds(record, *place) {
                continue;
            }
            let start = place.position();
            // Without encryption a directory may be forged, and name bytes beyond the segment.
            let sealed = buffer.get_mut(start..start + place.len() + file.seal.tail_bytes());
            if !sealed.is_some_and(|sealed| file.seal.unseal(file.nonce_of(*place), b"", sealed)) {
                // It stays, and its reader will be told.
                file.counts.reads_failed.add(1);
                continue;
            }
            (live[count], records[count]) = (Some(*place), *record);
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        let mut first = moving.pack.as_mut().and_then(|pack| pack.add(&records[..count]));
        if first.is_none() {
            self.flush(owner, moving, report)?;
            let mut pack = self.pack(Age::Old)?;
            first = pack.add(&records[..count]);
            moving.pack = Some(pack);
        }
        let first = first.expect("an empty pack has room for a block");
        let pack = moving.pack.as_mut().expect("made above");
        for (number, place) in live.iter().flatten().enumerate() {
            let start = place.position();
            pack.object_mut(first + number).copy_from_slice(&buffer[start..start + place.len()]);
            moving.from.push(*place);
        }
        Ok(())
    }

    /// Writes what is under way and has its owner take it from there.
    fn flush(
        &mut self,
        owner: &dyn Owner,
        moving: &mut Moving,
        report: &mut CleanReport,
    ) -> Result<(), WriteError> {
        let Some(pack) = moving.pack.take() else { return Ok(()) };
        self.submit(Age::Old, pack);
        let finished = self.poll(true).expect("it is in flight");
        let file = self.file().clone();
        if finished.result.is_ok() {
            for ((record, to), from) in finished.objects().zip(&moving.from) {
                if owner.moved(&record, *from, to) {
                    file.free(*from);
                    file.counts.objects_moved.add(1);
                    report.objects += 1;
                } else {
                    file.free(to);
                }
            }
        }
        moving.from.clear();
        match finished.result {
            Ok(()) => {
                self.recycle(finished);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
