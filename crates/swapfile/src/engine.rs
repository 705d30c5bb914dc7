//! What moves bytes between memory and the disk: the interface of engines, and what all of them
//! share.

use std::io;

use crate::Buffer;

pub use sys::files::Room;

/// What a transfer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// One transfer of `buffer[start..end]`. Start, end and offset are multiples of 4096.
pub struct Transfer {
    /// Its direction.
    pub kind: Kind,
    /// Where in the file `buffer[start]` goes or comes from.
    pub offset: u64,
    /// The memory, which is the engine's until the transfer is done.
    pub buffer: Buffer,
    /// First byte.
    pub start: usize,
    /// Beyond the last byte.
    pub end: usize,
    /// The caller's own mark.
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

/// A transfer that ended, whole or short, or failed.
pub struct Done {
    /// The transfer, with its buffer.
    pub transfer: Transfer,
    /// Bytes moved.
    pub result: io::Result<usize>,
}

/// Moves bytes of one file, and asks its file system for room.
///
/// Callers go by lanes, one a thread at a time. Implementations hold no lock while they wait for
/// the disk, start no threads but by what they were given, and keep nothing outside of themselves.
pub trait Engine: Send + Sync {
    /// Whether data go past the page cache.
    fn is_direct(&self) -> bool;

    /// A new lane.
    ///
    /// # Errors
    /// When the kernel refuses what it needs.
    fn lane(&self) -> io::Result<Box<dyn Lane>>;

    /// Gives a range of the file blocks.
    ///
    /// # Errors
    /// ENOSPC; EOPNOTSUPP where that cannot be done in advance.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Gives the blocks of a range back to the file system.
    ///
    /// # Errors
    /// EOPNOTSUPP where that cannot be done.
    fn release(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Room on the disk.
    ///
    /// # Errors
    /// What the file system says.
    fn room(&self) -> io::Result<Room>;

    /// Whether none of the engine's own threads is at work. An unused engine becomes idle soon, and
    /// stays so.
    fn is_idle(&self) -> bool {
        true
    }
}

/// Transfers in flight, of one thread at a time. A lane that is dropped waits for what is in
/// flight.
pub trait Lane: Send {
    /// Most transfers in flight.
    fn depth(&self) -> usize;

    /// Transfers in flight.
    fn in_flight(&self) -> usize;

    /// Starts a transfer. Reads may be started as late as by [`Lane::pop`].
    ///
    /// # Panics
    /// When `depth` are in flight, or the transfer is not aligned.
    fn push(&mut self, transfer: Transfer);

    /// Waits for a transfer, in any order; `None` when nothing is in flight.
    fn pop(&mut self) -> Option<Done>;

    /// A transfer that ended already, if any did.
    fn try_pop(&mut self) -> Option<Done>;
}

/// What became of a transfer, made whole where it was short.
pub(crate) enum Outcome {
    /// All bytes were moved.
    Whole(Transfer),
    /// The rest was started again.
    Again,
    /// It failed, or moved nothing.
    Failed(Transfer, io::Error),
}

/// Starts what a short transfer left over, and what was interrupted.
pub(crate) fn continued(lane: &mut dyn Lane, done: Done) -> Outcome {
    let Done { mut transfer, result } = done;
    match result {
        Ok(moved) if moved >= transfer.len() => {
            assert!(moved == transfer.len(), "no more is moved than was asked for");
            Outcome::Whole(transfer)
        }
        Ok(moved) => {
            // What is left of a block is moved again with all of it.
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
