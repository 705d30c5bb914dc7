//! Objects' way out: packs are filled, sealed, written several at once, and tried elsewhere when
//! that fails.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use crate::engine::{continued, Kind, Lane, Outcome, Transfer};
use crate::pack::{Pack, Slot, PACK_BYTES_MAX, PACK_BYTES_MIN};
use crate::place::{GRAIN_BYTES, SEGMENT_BYTES};
use crate::swapfile::is_no_space;
use crate::{Place, Record, SwapFile, WriteError};

/// Places where a pack is tried.
const TRIES: u32 = 3;
/// Packs in flight at most: 2 MiB of buffers.
pub(crate) const PACKS_MAX: usize = 8;

/// Which log a pack belongs to: what was written once and lives on is apart from what is new, since
/// most of it will live on, and need not be moved again with what dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// Written for the first time.
    New,
    /// Moved by cleaning.
    Old,
}

/// A pack that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// What became of a pack.
pub struct Finished {
    /// Which.
    pub ticket: Ticket,
    /// Whether it is on disk. Each object then counts as live and is the caller's to free.
    pub result: Result<(), WriteError>,
    age: Age,
    pack: Pack,
}

impl Finished {
    /// The objects, and where they lie if they were written.
    pub fn objects(&self) -> impl Iterator<Item = (Record, Place)> + '_ {
        self.pack.records.iter().enumerate().map(|(number, record)| (*record, self.pack.place(number)))
    }
}

/// The part of a log that is written to.
#[derive(Debug, Clone, Copy)]
struct Open {
    segment: usize,
    generation: u32,
    filled: usize,
}

struct Flight {
    ticket: Ticket,
    age: Age,
    pack: Pack,
    tries: u32,
    began: Instant,
    /// Why it was never started.
    refused: Option<WriteError>,
}

/// The one who writes to a swap file.
pub struct Writer {
    file: Arc<SwapFile>,
    lane: Option<Box<dyn Lane>>,
    logs: [Option<Open>; 2],
    flights: [Option<Flight>; PACKS_MAX],
    spare: Vec<Pack>,
    next_ticket: u64,
    /// [`SwapFile::forks`] when the logs were opened.
    forks: usize,
}

impl SwapFile {
    /// The file's writer; `None` while there is one.
    pub fn writer(self: &Arc<Self>) -> Option<Writer> {
        (!self.has_writer.swap(true, Ordering::AcqRel)).then(|| Writer {
            file: self.clone(),
            lane: None,
            logs: [None; 2],
            flights: [const { None }; PACKS_MAX],
            spare: Vec::new(),
            next_ticket: 1,
            forks: self.forks.load(Ordering::Relaxed),
        })
    }
}

impl Writer {
    /// The file.
    pub fn file(&self) -> &Arc<SwapFile> {
        &self.file
    }

    /// Packs handed over and not yet finished.
    pub fn in_flight(&self) -> usize {
        self.flights.iter().flatten().count()
    }

    /// Whether another pack should be handed over now: [`SwapFile::limit_packs`] may have changed
    /// by then, which does no harm.
    pub fn is_ready(&self) -> bool {
        self.in_flight() < self.depth().min(self.file.packs())
    }

    /// Packs that can be in flight.
    fn depth(&self) -> usize {
        self.lane.as_ref().map_or(PACKS_MAX, |lane| lane.depth().min(PACKS_MAX))
    }

    /// A new pack, to be handed over by [`Writer::submit`] or back by [`Writer::abandon`] before
    /// the next one of its age.
    ///
    /// # Errors
    /// [`WriteError::NoSpace`].
    pub fn pack(&mut self, age: Age) -> Result<Pack, WriteError> {
        let slot = self.slot(age, PACK_BYTES_MIN)?;
        let buffer = self.file.buffers.take(PACK_BYTES_MAX);
        Ok(Pack::new(slot, &self.file.seal, buffer, self.spare.pop()))
    }

    /// Where the next pack of a log goes, of at least `bytes`.
    fn slot(&mut self, age: Age, bytes: usize) -> Result<Slot, WriteError> {
        let log = age as usize;
        // A child that was forked since has the keys of these segments: what is written from now on
        // gets other ones.
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
                let (segment, generation) =
                    self.file.take_segment(age).inspect_err(|_| self.file.counts.no_space.add(1))?;
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
                self.file.let_go(open.segment);
            }
        }
    }

    /// Closes the segments that are written to: they can be cleaned then, and go when they are
    /// empty.
    pub fn close_logs(&mut self) {
        self.close(Age::New);
        self.close(Age::Old);
    }

    /// Gives a pack up. What is in it was never handed over.
    pub fn abandon(&mut self, mut pack: Pack) {
        if let Some(buffer) = pack.buffer.take() {
            self.file.buffers.give(buffer);
        }
        self.spare.push(pack);
    }

    /// Keeps the memory of what is finished for later.
    pub fn recycle(&mut self, finished: Finished) {
        self.abandon(finished.pack);
    }

    /// Hands a pack over for writing.
    ///
    /// # Panics
    /// When as many are in flight as there can be, or the pack is empty.
    pub fn submit(&mut self, age: Age, mut pack: Pack) -> Ticket {
        assert!(self.in_flight() < self.depth() && pack.len() > 0);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let bytes: u64 = pack.records.iter().map(|record| u64::from(record.len)).sum();
        if age == Age::New {
            self.file.counts.object_bytes.add(bytes);
        }
        let is_here =
            |open: Open| (open.segment as u32, open.filled as u32) == (pack.slot.segment, pack.slot.start);
        let mut refused = None;
        if !self.logs[age as usize].is_some_and(is_here) {
            // An older write failed since, and the segment was closed.
            match self.slot(age, pack.bytes()) {
                Ok(slot) => pack.slot = slot,
                Err(error) => refused = Some(error),
            }
        }
        self.start(Flight { ticket, age, pack, tries: 0, began: Instant::now(), refused });
        ticket
    }

    /// Seals a pack for its slot and starts writing it.
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
        self.file.counts.live_bytes.add(u64::from(pack.grains()) * GRAIN_BYTES as u64);
        self.file.counts.writes.add(1);
        self.file.counts.bytes_written.add(bytes as u64);
        if flight.age == Age::Old {
            self.file.counts.bytes_cleaned.add(bytes as u64);
        }
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

    /// What became of a pack; waits for one when `wait` says so. `None` when nothing is in flight,
    /// or nothing is done.
    pub fn poll(&mut self, wait: bool) -> Option<Finished> {
        let is_refused =
            |flight: &Option<Flight>| flight.as_ref().is_some_and(|flight| flight.refused.is_some());
        if let Some(number) = self.flights.iter().position(is_refused) {
            let Flight { ticket, age, pack, refused, .. } =
                self.flights[number].take().expect("found just now");
            self.file.counts.writes_failed.add(1);
            return Some(Finished { ticket, result: Err(refused.expect("it was refused")), age, pack });
        }
        loop {
            let lane = self.lane.as_mut()?;
            let done = if wait { lane.pop() } else { lane.try_pop() }?;
            match continued(&mut **lane, done) {
                Outcome::Again => {}
                Outcome::Whole(transfer) => {
                    let mut flight = self.flights[transfer.token as usize].take().expect("it was in flight");
                    flight.pack.buffer = Some(transfer.buffer);
                    self.file.counts.write_ns.add(flight.began.elapsed().as_nanos() as u64);
                    let Flight { ticket, age, pack, .. } = flight;
                    return Some(Finished { ticket, result: Ok(()), age, pack });
                }
                Outcome::Failed(transfer, error) => {
                    let mut flight = self.flights[transfer.token as usize].take().expect("it was in flight");
                    flight.pack.buffer = Some(transfer.buffer);
                    if let Some(finished) = self.failed(flight, error) {
                        return Some(finished);
                    }
                }
            }
        }
    }

    /// Tries a pack elsewhere, unless there is no use in that.
    fn failed(&mut self, mut flight: Flight, error: std::io::Error) -> Option<Finished> {
        let slot = flight.pack.slot;
        flight.pack.unseal(&self.file.seal);
        let is_current =
            self.logs[flight.age as usize].is_some_and(|open| open.segment as u32 == slot.segment);
        if is_no_space(&error) {
            self.file.counts.no_space.add(1);
            if is_current {
                let filled = self.file.segments.filled(slot.segment as usize);
                if filled == slot.start + flight.pack.bytes() as u32 {
                    // Nothing lies behind it, so cleaning can find what lies before.
                    self.file.segments.set_filled(slot.segment as usize, slot.start);
                }
                self.close(flight.age);
            }
            return Some(self.give_up(flight, WriteError::NoSpace));
        }
        if is_of_place(&error) {
            self.file.space().retire(slot.segment as usize);
            self.file.counts.segments_retired.add(u64::from(is_current));
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
        self.file.counts.writes_retried.add(1);
        self.forget(&flight.pack);
        flight.pack.slot = elsewhere;
        self.start(flight);
        None
    }

    /// The pack's objects are not in its segment, after all.
    fn forget(&self, pack: &Pack) {
        (0..pack.len()).for_each(|number| self.file.free(pack.place(number)));
    }

    fn give_up(&mut self, flight: Flight, error: WriteError) -> Finished {
        self.file.counts.writes_failed.add(1);
        self.forget(&flight.pack);
        let Flight { ticket, age, pack, .. } = flight;
        Finished { ticket, result: Err(error), age, pack }
    }

    /// In a child after fork, when the file was inherited: what the parent was writing to is only
    /// its own to write.
    pub fn inherit(&mut self) {
        assert!(self.in_flight() == 0, "a fork happens between calls");
        if let Some(lane) = self.lane.take() {
            std::mem::forget(lane);
        }
        self.close_logs();
    }
}

/// Whether another place may be better: a file system that is read-only now, or gone, is so
/// everywhere, and its segments are good again when it is back.
fn is_of_place(error: &std::io::Error) -> bool {
    !matches!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied)
}

impl Finished {
    /// Which log it was for.
    pub fn age(&self) -> Age {
        self.age
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // What is not waited for here is waited for by the lane, but objects of packs that failed
        // would stay.
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
