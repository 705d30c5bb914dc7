//! Requests, and the device's results for them.

use device::{Device, IoError};

use crate::abi::{self, IoDescriptor};

const SECTOR_BYTES: u64 = 512;

/// The operation. Sorted as a batch serves them: readers wait, writers seldom do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Reads bytes.
    Read,
    /// Makes earlier writes durable.
    Flush,
    /// Writes bytes, durable at once if `is_durable`.
    Write {
        /// The kernel's FUA.
        is_durable: bool,
    },
    /// Makes the range read as zeroes.
    WriteZeroes,
    /// Discards the range.
    Discard,
    /// An operation that the device does not offer.
    Unknown,
}

/// A request from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its number in the queue.
    pub tag: u16,
    /// The operation.
    pub operation: Operation,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: usize,
}

impl Request {
    pub(crate) fn new(tag: u16, descriptor: &IoDescriptor) -> Self {
        let operation = match descriptor.op_flags as u8 {
            abi::OP_READ => Operation::Read,
            abi::OP_WRITE => Operation::Write { is_durable: descriptor.op_flags & abi::F_FUA != 0 },
            abi::OP_FLUSH => Operation::Flush,
            abi::OP_DISCARD => Operation::Discard,
            abi::OP_WRITE_ZEROES => Operation::WriteZeroes,
            _ => Operation::Unknown,
        };
        Request {
            tag,
            operation,
            at: descriptor.start_sector.saturating_mul(SECTOR_BYTES),
            len: descriptor.nr_sectors as usize * SECTOR_BYTES as usize,
        }
    }

    /// Whether it is a read or a write.
    pub(crate) fn has_bytes(&self) -> bool {
        matches!(self.operation, Operation::Read | Operation::Write { .. })
    }

    /// Whether both can be done as one, this one first.
    pub(crate) fn is_followed_by(&self, next: &Request) -> bool {
        let end = self.at.checked_add(self.len as u64);
        self.has_bytes() && self.operation == next.operation && end == Some(next.at)
    }

    /// Serves the request. `bytes` are those that it writes or reads.
    pub(crate) fn serve(&self, device: &Device, bytes: &mut [u8]) -> Result<(), i32> {
        let done = match self.operation {
            Operation::Read => device.read(self.at, bytes),
            Operation::Write { is_durable } => device.write(self.at, bytes).map(|()| {
                if is_durable {
                    device.flush();
                }
            }),
            Operation::Flush => {
                device.flush();
                Ok(())
            }
            Operation::WriteZeroes => device.zero(self.at, self.len as u64),
            Operation::Discard => device.discard(self.at, self.len as u64),
            Operation::Unknown => return Err(-libc::EOPNOTSUPP),
        };
        done.map_err(|error: IoError| -error.errno())
    }

    /// The result for success: bytes of reads and writes, zero of all else.
    pub(crate) fn done(&self) -> i32 {
        if self.has_bytes() {
            self.len as i32
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_requests() {
        let descriptor = |op_flags| IoDescriptor { op_flags, nr_sectors: 9, start_sector: 3, addr: 0 };
        let read = Request::new(7, &descriptor(0));
        assert_eq!(read, Request { tag: 7, operation: Operation::Read, at: 1536, len: 4608 });
        assert_eq!(read.done(), 4608);
        let operation = |op_flags| Request::new(0, &descriptor(op_flags)).operation;
        assert_eq!(operation(1), Operation::Write { is_durable: false });
        assert_eq!(operation(1 | 1 << 13), Operation::Write { is_durable: true });
        // A write to swap.
        assert_eq!(operation(1 | 1 << 16), Operation::Write { is_durable: false });
        assert_eq!(operation(2), Operation::Flush);
        assert_eq!(operation(3), Operation::Discard);
        assert_eq!(operation(5 | 1 << 15), Operation::WriteZeroes);
        assert_eq!(operation(15), Operation::Unknown);
        assert_eq!(Request::new(0, &descriptor(3)).done(), 0);
    }

    #[test]
    fn only_neighbours_of_a_kind_are_done_as_one() {
        let request = |operation, at, len| Request { tag: 0, operation, at, len };
        let write = Operation::Write { is_durable: false };
        assert!(request(write, 0, 4096).is_followed_by(&request(write, 4096, 512)));
        assert!(!request(write, 0, 4096).is_followed_by(&request(write, 8192, 512)));
        assert!(!request(write, 0, 4096).is_followed_by(&request(Operation::Read, 4096, 512)));
        assert!(!request(write, 0, 512).is_followed_by(&request(
            Operation::Write { is_durable: true },
            512,
            512
        )));
        assert!(!request(Operation::Discard, 0, 512).is_followed_by(&request(Operation::Discard, 512, 512)));
    }

    #[test]
    fn the_last_sector_is_followed_by_none() {
        let descriptor = |start_sector| IoDescriptor { op_flags: 1, nr_sectors: 8, start_sector, addr: 0 };
        let last = Request::new(0, &descriptor(u64::MAX));
        assert_eq!(last.at, u64::MAX);
        // The sum if it wrapped.
        let first = Request { at: last.at.wrapping_add(last.len as u64), ..last };
        assert!(!last.is_followed_by(&first) && !last.is_followed_by(&last));
    }
}
