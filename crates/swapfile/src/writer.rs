//! Writing objects: packs are filled, sealed, written several at once, and retried elsewhere on
//! failure.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use crate::engine::{continued, Kind, Lane, Outcome, Transfer, LANE_DEPTH};
use crate::pack::{Pack, Slot, PACK_BYTES_MAX, PACK_BYTES_MIN};
use crate::place::{GRAIN_BYTES, SEGMENT_BYTES};
use crate::swapfile::is_no_space;
use crate::{Location, Record, SwapFile, WriteError};

/// Attempts to write a pack, each in another place.
const TRIES: u32 = 3;
/// Most packs in flight: 2 MiB of buffers.
pub(crate) const PACKS_MAX: usize = 8;
const _: () = assert!(PACKS_MAX <= LANE_DEPTH);

/// The log of a pack. Objects that survived a cleaning are kept apart from new ones, since most
/// live on and need not be moved again with those that die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// Written for the first time.
    New,
    /// Moved by cleaning.
    Old,
}

/// The outcome of a pack.
pub struct Finished {
    /// Whether it is on disk. Then each object counts as live, and the caller frees it.
    pub result: Result<(), WriteError>,
    pack: Pack,
}

impl Finished {
    /// The objects, and their places if they were written.
    pub fn objects(&self) -> impl Iterator<Item = (Record, Location)> + '_ {
        self.pack.records.iter().enumerate().map(|(number, record)| (*record, self.pack.place(number)))
    }
}

/// The segment that a log writes to.
#[derive(Debug, Clone, Copy)]
struct Open {
    segment: usize,
    generation: u32,
    filled: usize,
}

struct Flight {
    age: Age,
    pack: Pack,
    tries: u32,
    began: Instant,
    /// Why it was never started.
    refused: Option<WriteError>,
}

/// Writes to a swap file.
pub struct Writer {
    file: Arc<SwapFile>,
    lane: Option<Box<dyn Lane>>,
    logs: [Option<Open>; 2],
    flights: [Option<Flight>; PACKS_MAX],
    spare: Vec<Pack>,
    /// [`SwapFile::forks`] when the logs were opened.
    forks: usize,
}

impl SwapFile {
    /// The file's writer; `None` while another exists.
    pub fn writer(self: &Arc<Self>) -> Option<Writer> {
        (!self.has_writer.swap(true, Ordering::AcqRel)).then(|| Writer {
            file: self.clone(),
            lane: None,
            logs: [None; 2],
            flights: [const { None }; PACKS_MAX],
            spare: Vec::new(),
            forks: self.forks.load(Ordering::Relaxed),
        })
    }
}

impl Writer {
    /// The file.
    pub fn file(&self) -> &Arc<SwapFile> {
        &self.file
    }

    /// Packs submitted and not yet finished.
    pub fn in_flight(&self) -> usize {
        self.flights.iter().flatten().count()
    }

    /// Whether to submit another pack now. [`SwapFile::limit_packs`] may change before, harmlessly.
    pub fn is_ready(&self) -> bool {
        self.in_flight() < self.file.packs()
    }

    /// A new pack, to pass to [`Writer::submit`] or [`Writer::abandon`] before the next one of its
    /// age.
    ///
    /// # Errors
    /// [`WriteError::NoSpace`].
    pub fn pack(&mut self, age: Age) -> Result<Pack, WriteError> {
        let slot = self.slot(age, PACK_BYTES_MIN)?;
        let buffer = self.file.buffers.take(PACK_BYTES_MAX);
        Ok(Pack::new(slot, &self.file.seal, buffer, self.spare.pop()))
    }

    /// The slot of a log's next pack, of at least `bytes`.
    fn slot(&mut self, age: Age, bytes: usize) -> Result<Slot, WriteError> {
        let log = age as usize;
        // A child forked since then has the keys of these segments: later writes use other keys.
        let forks = self.file.forks.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.forks, forks) != forks {
            self.close_logs();
        }
        if self.logs[log].is_some_and(|open| SEGMENT_BYTES - open.filled < bytes) {
            self.close(age);
        }
        let open = match self.logs[log] {
            Some(open) => open,
            None => {
                let (segment, generation) = self
                    .file
                    .take_segment(age)
                    .inspect_err(|_| self.file.count(|counters| counters.no_space += 1))?;
                *self.logs[log].insert(Open { segment, generation, filled: 0 })
            }
        };
        Ok(Slot {
            segment: open.segment as u32,
            generation: open.generation,
            start: open.filled as u32,
            capacity: (SEGMENT_BYTES - open.filled).min(PACK_BYTES_MAX) as u32,
        })
    }

    fn close(&mut self, age: Age) {
        if let Some(open) = self.logs[age as usize].take() {
            if self.file.segments.close(open.segment) {
                self.file.release_segment(open.segment);
            }
        }
    }

    /// Closes the open segments, so that they can be cleaned, and are freed when empty.
    pub fn close_logs(&mut self) {
        self.close(Age::New);
        self.close(Age::Old);
    }

    /// Discards a pack that was not submitted.
    pub fn abandon(&mut self, mut pack: Pack) {
        if let Some(buffer) = pack.buffer.take() {
            self.file.buffers.give(buffer);
        }
        self.spare.push(pack);
    }

    /// Keeps the memory of a finished pack for later.
    pub fn recycle(&mut self, finished: Finished) {
        self.abandon(finished.pack);
    }

    /// Submits a pack for writing.
    ///
    /// # Panics
    /// If the most packs are in flight, or the pack is empty.
    pub fn submit(&mut self, age: Age, mut pack: Pack) {
        assert!(self.in_flight() < PACKS_MAX && pack.len() > 0);
        if age == Age::New {
            let bytes = pack.records.iter().map(|record| u64::from(record.len)).sum::<u64>();
            self.file.count(|counters| counters.object_bytes += bytes);
        }
        let is_here =
            |open: Open| (open.segment as u32, open.filled as u32) == (pack.slot.segment, pack.slot.start);
        let mut refused = None;
        if !self.logs[age as usize].is_some_and(is_here) {
            // An older write has failed since, and the segment was closed.
            match self.slot(age, pack.bytes()) {
                Ok(slot) => pack.slot = slot,
                Err(error) => refused = Some(error),
            }
        }
        self.start(Flight { age, pack, tries: 0, began: Instant::now(), refused });
    }

    fn start(&mut self, mut flight: Flight) {
        let number = self.flights.iter().position(Option::is_none).expect("a flight is free");
        if self.lane.is_none() {
            match self.file.lane() {
                Ok(lane) => self.lane = Some(lane),
                Err(error) => {
                    flight.refused = Some(WriteError::Io { offset: flight.pack.slot.offset(), error })
                }
            }
        }
        if flight.refused.is_some() {
            self.flights[number] = Some(flight);
            return;
        }
        let slot = flight.pack.slot;
        let pack = &mut flight.pack;
        pack.seal(&self.file.seal);
        let bytes = pack.bytes();
        let open = self.logs[flight.age as usize].as_mut().expect("a log in use");
        assert!((open.segment as u32, open.filled as u32) == (slot.segment, slot.start));
        open.filled += bytes;
        self.file.segments.set_filled(open.segment, open.filled as u32);
        self.file.segments.add(open.segment, pack.grains());
        self.file.live_bytes.fetch_add(u64::from(pack.grains()) * GRAIN_BYTES as u64, Ordering::Relaxed);
        self.file.count(|counters| {
            counters.writes += 1;
            counters.bytes_written += bytes as u64;
            counters.bytes_cleaned += if flight.age == Age::Old { bytes as u64 } else { 0 };
        });
        let buffer = pack.buffer.take().expect("a pack that is written has its buffer");
        self.flights[number] = Some(flight);
        let transfer = Transfer {
            kind: Kind::Write,
            offset: slot.offset(),
            buffer,
            start: 0,
            end: bytes,
            token: number as u64,
        };
        self.lane.as_mut().expect("had above").push(transfer);
    }

    /// Returns a finished pack; waits for one if `wait`. `None` if none is in flight or done.
    pub fn poll(&mut self, wait: bool) -> Option<Finished> {
        let is_refused =
            |flight: &Option<Flight>| flight.as_ref().is_some_and(|flight| flight.refused.is_some());
        if let Some(number) = self.flights.iter().position(is_refused) {
            let Flight { pack, refused, .. } = self.flights[number].take().expect("found just now");
            self.file.count(|counters| counters.writes_failed += 1);
            return Some(Finished { result: Err(refused.expect("it was refused")), pack });
        }
        loop {
            let lane = self.lane.as_mut()?;
            let done = if wait { lane.pop() } else { lane.try_pop() }?;
            let (transfer, error) = match continued(&mut **lane, done) {
                Outcome::Again => continue,
                Outcome::Whole(transfer) => (transfer, None),
                Outcome::Failed(transfer, error) => (transfer, Some(error)),
            };
            let mut flight = self.flights[transfer.token as usize].take().expect("it was in flight");
            flight.pack.buffer = Some(transfer.buffer);
            let Some(error) = error else {
                let took = flight.began.elapsed().as_nanos() as u64;
                self.file.count(|counters| counters.write_ns += took);
                return Some(Finished { result: Ok(()), pack: flight.pack });
            };
            if let Some(finished) = self.failed(flight, error) {
                return Some(finished);
            }
        }
    }

    /// Retries a pack elsewhere, unless that is pointless.
    fn failed(&mut self, mut flight: Flight, error: std::io::Error) -> Option<Finished> {
        let slot = flight.pack.slot;
        flight.pack.unseal(&self.file.seal);
        let is_current =
            self.logs[flight.age as usize].is_some_and(|open| open.segment as u32 == slot.segment);
        if is_no_space(&error) {
            self.file.count(|counters| counters.no_space += 1);
            if is_current {
                let filled = self.file.segments.filled(slot.segment as usize);
                if filled == slot.start + flight.pack.bytes() as u32 {
                    // Nothing follows it, so cleaning can find the packs before.
                    self.file.segments.set_filled(slot.segment as usize, slot.start);
                }
                self.close(flight.age);
            }
            return Some(self.give_up(flight, WriteError::NoSpace));
        }
        if is_of_place(&error) {
            self.file.space().retire(slot.segment as usize);
            self.file.count(|counters| counters.segments_retired += u64::from(is_current));
        } else {
            flight.tries = TRIES;
        }
        if is_current {
            self.close(flight.age);
        }
        flight.tries += 1;
        if flight.tries >= TRIES {
            return Some(self.give_up(flight, WriteError::Io { offset: slot.offset(), error }));
        }
        let elsewhere = match self.slot(flight.age, flight.pack.bytes()) {
            Ok(elsewhere) => elsewhere,
            Err(error) => return Some(self.give_up(flight, error)),
        };
        self.file.count(|counters| counters.writes_retried += 1);
        self.forget(&flight.pack);
        flight.pack.slot = elsewhere;
        self.start(flight);
        None
    }

    /// Frees the objects of a pack that is not in its segment after all.
    fn forget(&self, pack: &Pack) {
        (0..pack.len()).for_each(|number| self.file.free(pack.place(number)));
    }

    fn give_up(&mut self, flight: Flight, error: WriteError) -> Finished {
        self.file.count(|counters| counters.writes_failed += 1);
        self.forget(&flight.pack);
        Finished { result: Err(error), pack: flight.pack }
    }

    /// In a child after fork that inherited the file: leaves the open segments to the parent.
    pub fn inherit(&mut self) {
        assert!(self.in_flight() == 0, "a fork happens between calls");
        if let Some(lane) = self.lane.take() {
            std::mem::forget(lane);
        }
        self.close_logs();
    }
}

/// Whether another place may be better: a read-only or missing file system fails everywhere, and
/// its segments are good again when it returns.
fn is_of_place(error: &std::io::Error) -> bool {
    !matches!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied)
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The lane would wait for these packs, but the objects of failed ones would stay.
        while let Some(finished) = self.poll(true) {
            if finished.result.is_ok() {
                self.forget(&finished.pack);
            }
        }
        self.close_logs();
        if let Some(lane) = self.lane.take() {
            self.file.give_lane(lane);
        }
        self.file.has_writer.store(false, Ordering::Release);
    }
}
