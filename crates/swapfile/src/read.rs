//! Reading objects: adjacent ones with one transfer, others with parallel transfers.

use std::io;
use std::time::Instant;

use crate::engine::{continued, Kind, Lane, Outcome, Transfer, LANE_DEPTH};
use crate::place::SEGMENT_BYTES;
use crate::seal::Nonce;
use crate::{Buffer, Location, ReadError, ReadFault, SwapFile, BLOCK_BYTES};

/// Most objects of one request.
pub const READ_MAX: usize = 64;
/// Longest gap that is read along rather than split into two transfers.
const GAP_BYTES: usize = 4 * BLOCK_BYTES;
/// Most bytes of one transfer, unless one object is larger.
const SPAN_BYTES_MAX: usize = 256 << 10;

/// Objects that were read. Dropping this returns their buffers to the file.
pub struct Objects<'a> {
    file: &'a SwapFile,
    spans: Vec<Span>,
    /// Each object's span, its start in the span, and its length.
    found: Vec<(u16, u32, u32)>,
}

struct Span {
    segment: usize,
    /// In the segment.
    start: usize,
    end: usize,
    buffer: Option<Buffer>,
}

impl Objects<'_> {
    /// An object's bytes, as submitted.
    pub fn get(&self, index: usize) -> &[u8] {
        let (span, start, len) = self.found[index];
        let buffer = self.spans[span as usize].buffer.as_ref().expect("what was read has a buffer");
        &buffer[start as usize..start as usize + len as usize]
    }
}

impl Drop for Objects<'_> {
    fn drop(&mut self) {
        self.spans
            .iter_mut()
            .filter_map(|span| span.buffer.take())
            .for_each(|buffer| self.file.buffers.give(buffer));
    }
}

fn plan(places: &[Location], tail: usize) -> (Vec<Span>, Vec<(u16, u32, u32)>) {
    let mut order: Vec<u16> = (0..places.len() as u16).collect();
    order.sort_unstable_by_key(|&index| places[index as usize]);
    let mut spans: Vec<Span> = Vec::with_capacity(4);
    let mut found = vec![(0, 0, 0); places.len()];
    for index in order {
        let place = places[index as usize];
        let start = place.position() - place.position() % BLOCK_BYTES;
        let end = (place.position() + place.len() + tail).next_multiple_of(BLOCK_BYTES);
        match spans.last_mut() {
            Some(last)
                if last.segment == place.segment()
                    && start <= last.end + GAP_BYTES
                    && end - last.start <= SPAN_BYTES_MAX =>
            {
                last.end = last.end.max(end);
            }
            _ => spans.push(Span { segment: place.segment(), start, end, buffer: None }),
        }
        let number = spans.len() - 1;
        let at = place.position() - spans[number].start;
        found[index as usize] = (number as u16, at as u32, place.len() as u32);
    }
    (spans, found)
}

impl SwapFile {
    /// Reads up to 64 different objects, none of which is freed during the call.
    ///
    /// # Errors
    /// [`ReadError`] for one of the unreadable objects.
    ///
    /// # Panics
    /// If there are more objects.
    pub fn read(&self, places: &[Location]) -> Result<Objects<'_>, ReadError> {
        assert!(places.len() <= READ_MAX);
        let began = Instant::now();
        let (spans, found) = plan(places, self.seal.tail_bytes());
        let mut objects = Objects { file: self, spans, found };
        let read = self.read_spans(&mut objects.spans);
        let checked = read.map_err(|(span, fault)| {
            let index =
                objects.found.iter().position(|found| found.0 as usize == span).expect("spans have objects");
            ReadError { index, offset: places[index].offset(), fault }
        });
        if let Err(error) = checked.and_then(|()| self.unseal(places, &mut objects)) {
            self.count(|counters| counters.reads_failed += 1);
            return Err(error);
        }
        self.count(|counters| counters.loaded(places.len(), began.elapsed()));
        Ok(objects)
    }

    fn read_spans(&self, spans: &mut [Span]) -> Result<(), (usize, ReadFault)> {
        let mut lane = self.lane().map_err(|error| (0, fault_of(&error)))?;
        let mut result = Ok(());
        let mut next = 0;
        loop {
            while next < spans.len() && lane.in_flight() < LANE_DEPTH && result.is_ok() {
                lane.push(self.transfer(&spans[next], next));
                next += 1;
            }
            let Some(done) = lane.pop() else { break };
            match continued(&mut *lane, done) {
                Outcome::Again => {}
                Outcome::Whole(transfer) => spans[transfer.token as usize].buffer = Some(transfer.buffer),
                Outcome::Failed(transfer, error) => {
                    result = Err((transfer.token as usize, fault_of(&error)));
                    self.buffers.give(transfer.buffer);
                }
            }
        }
        self.give_lane(lane);
        result
    }

    fn transfer(&self, span: &Span, number: usize) -> Transfer {
        let len = span.end - span.start;
        self.count(|counters| {
            counters.reads += 1;
            counters.bytes_read += len as u64;
        });
        let offset = (span.segment * SEGMENT_BYTES + span.start) as u64;
        let buffer = self.buffers.take(len);
        Transfer { kind: Kind::Read, offset, buffer, start: 0, end: len, token: number as u64 }
    }

    fn unseal(&self, places: &[Location], objects: &mut Objects<'_>) -> Result<(), ReadError> {
        for (index, (place, &(span, start, len))) in places.iter().zip(&objects.found).enumerate() {
            let buffer = objects.spans[span as usize].buffer.as_mut().expect("all spans were read");
            let sealed = &mut buffer[start as usize..(start + len) as usize + self.seal.tail_bytes()];
            if !self.seal.unseal(self.nonce_of(*place), b"", sealed) {
                return Err(ReadError { index, offset: place.offset(), fault: ReadFault::Damaged });
            }
        }
        Ok(())
    }

    pub(crate) fn nonce_of(&self, place: Location) -> Nonce {
        Nonce {
            segment: place.segment() as u32,
            grain: (place.position() / crate::GRAIN_BYTES) as u32,
            is_directory: false,
        }
    }

    pub(crate) fn read_segment(
        &self,
        lane: &mut dyn Lane,
        segment: usize,
        len: usize,
    ) -> Result<Buffer, io::Error> {
        let buffer = Buffer::new(len);
        let offset = (segment * SEGMENT_BYTES) as u64;
        lane.push(Transfer { kind: Kind::Read, offset, buffer, start: 0, end: len, token: 0 });
        self.count(|counters| counters.bytes_read += len as u64);
        loop {
            let done = lane.pop().expect("it is in flight");
            match continued(lane, done) {
                Outcome::Again => {}
                Outcome::Whole(transfer) => return Ok(transfer.buffer),
                Outcome::Failed(_, error) => return Err(error),
            }
        }
    }
}

fn fault_of(error: &io::Error) -> ReadFault {
    match error.raw_os_error() {
        Some(errno) => ReadFault::Io(errno),
        None => ReadFault::Short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_objects_are_read_at_once() {
        let place = |segment, position, len| Location::new(segment, position, len);
        // A block's objects, unsorted; a neighbour within the gap; a distant one; another segment.
        let places = [
            place(1, 4096, 3000),
            place(1, 0, 4000),
            place(1, 8192 + 3 * 4096, 100),
            place(1, 500_000 / 16 * 16, 5000),
            place(2, 0, 16),
        ];
        let (spans, found) = plan(&places, 16);
        let spans: Vec<_> = spans.iter().map(|span| (span.segment, span.start, span.end)).collect();
        assert_eq!(spans, [(1, 0, 24576), (1, 499_712, 507_904), (2, 0, 4096)]);
        assert_eq!(found, [(0, 4096, 3000), (0, 0, 4000), (0, 20480, 100), (1, 288, 5000), (2, 0, 16)]);
    }
}
