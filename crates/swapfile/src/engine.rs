//! Engines move bytes between memory and the disk: their interface and shared code.

use std::io;

use crate::Buffer;

pub use sys::files::Room;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// One transfer of `buffer[start..end]`. Start, end and offset are multiples of 4096.
pub struct Transfer {
    /// Direction.
    pub kind: Kind,
    /// File offset of `buffer[start]`.
    pub offset: u64,
    /// The memory, which the engine owns until the transfer is done.
    pub buffer: Buffer,
    /// First byte.
    pub start: usize,
    /// End, exclusive.
    pub end: usize,
    /// The caller's mark.
    pub token: u64,
}

impl Transfer {
    /// Bytes to move.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn assert_valid(&self) {
        let block = crate::BLOCK_BYTES;
        assert!(self.start < self.end && self.end <= self.buffer.len());
        assert!(self.start.is_multiple_of(block) && self.end.is_multiple_of(block));
        assert!(self.offset.is_multiple_of(block as u64));
    }
}

/// A transfer that ended: whole, short or failed.
pub struct Done {
    /// The transfer, with its buffer.
    pub transfer: Transfer,
    /// Bytes moved.
    pub result: io::Result<usize>,
}

/// Moves bytes of one file, and requests room from its file system.
///
/// Each lane serves one thread at a time. Implementations hold no lock while they wait for the
/// disk, start threads only by the function they were given, and keep no global state.
pub trait Engine: Send + Sync {
    /// Whether transfers bypass the page cache.
    fn is_direct(&self) -> bool;

    /// Makes a lane, unless the kernel refuses a resource.
    fn lane(&self) -> io::Result<Box<dyn Lane>>;

    /// Allocates blocks for a range of the file.
    ///
    /// # Errors
    /// ENOSPC; EOPNOTSUPP if blocks cannot be allocated in advance.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Gives the blocks of a range back to the file system.
    ///
    /// # Errors
    /// EOPNOTSUPP if the file system cannot.
    fn release(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Room on the disk, as the file system reports it.
    fn room(&self) -> io::Result<Room>;

    /// Whether the engine's own threads are idle. An unused engine becomes idle soon, and stays so.
    fn is_idle(&self) -> bool {
        true
    }
}

/// Most transfers in flight per lane.
pub const LANE_DEPTH: usize = 8;

/// Transfers in flight, of one thread at a time. Dropping a lane waits for them.
pub trait Lane: Send {
    /// Transfers in flight.
    fn in_flight(&self) -> usize;

    /// Starts a transfer. A lane may defer reads until [`Lane::pop`].
    ///
    /// # Panics
    /// If [`LANE_DEPTH`] are in flight, or the transfer is not aligned.
    fn push(&mut self, transfer: Transfer);

    /// Waits for a transfer, in any order; `None` if none is in flight.
    fn pop(&mut self) -> Option<Done>;

    /// Returns a transfer that has already ended, if any.
    fn try_pop(&mut self) -> Option<Done>;
}

/// Outcome of a transfer; short transfers are continued.
pub(crate) enum Outcome {
    Whole(Transfer),
    /// The rest was restarted.
    Again,
    Failed(Transfer, io::Error),
}

/// Restarts the rest of a short transfer, and an interrupted one.
pub(crate) fn continued(lane: &mut dyn Lane, done: Done) -> Outcome {
    let Done { mut transfer, result } = done;
    match result {
        Ok(moved) if moved >= transfer.len() => {
            assert!(moved == transfer.len(), "no more is moved than was asked for");
            Outcome::Whole(transfer)
        }
        Ok(moved) => {
            // A partly transferred block is moved again as a whole.
            let moved = moved - moved % crate::BLOCK_BYTES;
            if moved == 0 {
                let kind = match transfer.kind {
                    Kind::Read => io::ErrorKind::UnexpectedEof,
                    Kind::Write => io::ErrorKind::WriteZero,
                };
                return Outcome::Failed(transfer, kind.into());
            }
            transfer.start += moved;
            transfer.offset += moved as u64;
            lane.push(transfer);
            Outcome::Again
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
            lane.push(transfer);
            Outcome::Again
        }
        Err(error) => Outcome::Failed(transfer, error),
    }
}
