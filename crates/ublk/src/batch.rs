//! The requests that a queue receives at once, served together.

use std::io;

use device::Device;

use crate::mapping::Room;
use crate::request::{Operation, Request};
use crate::transfer::Transfer;

/// The requests of a queue's turn.
///
/// Requests in flight together may be done in any order, as on any disk. Reads go first and
/// complete before the rest begins: a page that is swapped in does not wait for pages that are
/// swapped out beside it. Neighbours of a kind are one call of the device, so that its pool
/// compresses eight pages at once although each came as its own request.
pub struct Batch {
    requests: Vec<Request>,
    room: Room,
}

impl Batch {
    /// Room for `depth` requests of at most `request_bytes` each. With `is_made_now` the memory is
    /// touched now, so that the kernel need not provide it later.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(depth: u16, request_bytes: usize, is_made_now: bool) -> io::Result<Self> {
        let room = Room::new(request_bytes, is_made_now)?;
        Ok(Batch { requests: Vec::with_capacity(depth.into()), room })
    }

    /// Adds a request.
    ///
    /// # Panics
    /// If the batch is full, or the request larger than `request_bytes`.
    pub fn push(&mut self, request: Request) {
        assert!(self.requests.len() < self.requests.capacity(), "as many requests as the queue is deep");
        assert!(
            !request.has_bytes() || request.len <= self.room.bytes_mut().len(),
            "{request:?} is too large"
        );
        self.requests.push(request);
    }

    /// Whether the batch has no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Serves all requests and empties the batch. Allocates nothing.
    pub fn serve(&mut self, device: &Device, transfer: &mut impl Transfer) {
        self.requests.sort_unstable_by_key(|request| (request.operation, request.at));
        let mut first = 0;
        let mut were_reads = false;
        while first < self.requests.len() {
            let is_read = self.requests[first].operation == Operation::Read;
            if were_reads && !is_read {
                transfer.tell();
            }
            were_reads = is_read;
            let end = self.run_from(first);
            serve_run(&self.requests[first..end], device, transfer, self.room.bytes_mut());
            first = end;
        }
        self.requests.clear();
    }

    /// End of the run of neighbours that begins at `first`.
    fn run_from(&mut self, first: usize) -> usize {
        let room = self.room.bytes_mut().len();
        let mut bytes = self.requests[first].len;
        let mut end = first + 1;
        while let Some(next) = self.requests.get(end) {
            bytes += next.len;
            if bytes > room || !self.requests[end - 1].is_followed_by(next) {
                break;
            }
            end += 1;
        }
        end
    }
}

/// Serves neighbours as one. If that fails, each is served by itself, so that only the failing
/// requests fail.
fn serve_run(run: &[Request], device: &Device, transfer: &mut impl Transfer, room: &mut [u8]) {
    if let [request] = run {
        return serve_one(request, device, transfer, room);
    }
    let whole = Request { len: run.iter().map(|request| request.len).sum(), ..run[0] };
    let bytes = &mut room[..whole.len];
    let is_read = whole.operation == Operation::Read;
    if !is_read && each(run, bytes, |tag, part| transfer.take(tag, part)).is_err()
        || whole.serve(device, bytes).is_err()
        || is_read && each(run, bytes, |tag, part| transfer.give(tag, part)).is_err()
    {
        run.iter().for_each(|request| serve_one(request, device, transfer, room));
        return;
    }
    run.iter().for_each(|request| transfer.end(request.tag, request.done()));
}

fn each(
    run: &[Request],
    mut bytes: &mut [u8],
    mut step: impl FnMut(u16, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    for request in run {
        let (part, rest) = bytes.split_at_mut(request.len);
        step(request.tag, part)?;
        bytes = rest;
    }
    Ok(())
}

fn serve_one(request: &Request, device: &Device, transfer: &mut impl Transfer, room: &mut [u8]) {
    let result = match transfer.buffer(request.tag).filter(|_| request.has_bytes()) {
        Some(buffer) => request.serve(device, &mut buffer[..request.len]),
        None => serve_copied(request, device, transfer, room),
    };
    transfer.end(request.tag, result.map_or_else(|error| error, |()| request.done()));
}

fn serve_copied(
    request: &Request,
    device: &Device,
    transfer: &mut impl Transfer,
    room: &mut [u8],
) -> Result<(), i32> {
    let bytes = if request.has_bytes() { &mut room[..request.len] } else { &mut [] };
    if matches!(request.operation, Operation::Write { .. }) {
        transfer.take(request.tag, bytes).map_err(|_| -libc::EIO)?;
    }
    request.serve(device, bytes)?;
    if request.operation == Operation::Read {
        transfer.give(request.tag, bytes).map_err(|_| -libc::EIO)?;
    }
    Ok(())
}
