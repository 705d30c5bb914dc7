//! The engine of io_uring: a ring a lane, so that no lane waits for another.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types, IoUring};

use crate::disk::Disk;
use crate::engine::{Done, Engine, Kind, Lane, Room, Transfer};

/// Transfers a lane has in flight at most.
const DEPTH: usize = 16;

/// The engine.
pub struct Uring {
    disk: Arc<Disk>,
}

impl Uring {
    /// An engine, if the kernel lets this process have rings: Docker's default profile and gVisor
    /// do not.
    ///
    /// # Errors
    /// EPERM or ENOSYS, and the caller takes [`Threads`](crate::Threads).
    pub fn new(disk: Arc<Disk>) -> io::Result<Uring> {
        let engine = Uring { disk };
        drop(engine.lane()?);
        Ok(engine)
    }
}

impl Engine for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn is_direct(&self) -> bool {
        self.disk.is_direct
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        let ring = IoUring::new(DEPTH as u32)?;
        Ok(Box::new(UringLane {
            ring: Some(ring),
            disk: self.disk.clone(),
            slots: [const { None }; DEPTH],
            in_flight: 0,
        }))
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.reserve(offset, len)
    }

    fn release(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.release(offset, len)
    }

    fn room(&self) -> io::Result<Room> {
        self.disk.room()
    }
}

struct UringLane {
    /// Always there but in the middle of a drop that failed.
    ring: Option<IoUring>,
    disk: Arc<Disk>,
    /// What the kernel works on, by the completion's mark.
    slots: [Option<Transfer>; DEPTH],
    in_flight: usize,
}

impl UringLane {
    fn ring(&mut self) -> &mut IoUring {
        self.ring.as_mut().expect("a lane in use has its ring")
    }

    fn completion(&mut self) -> Option<Done> {
        let entry = self.ring().completion().next()?;
        let transfer = self.slots[entry.user_data() as usize].take().expect("completions are of transfers");
        self.in_flight -= 1;
        let result = match entry.result() {
            moved if moved >= 0 => self.disk.settled(&transfer, moved as usize),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        Some(Done { transfer, result })
    }

    /// Hands over what was pushed, and waits for one completion if `wait` says so.
    fn enter(&mut self, wait: bool) -> io::Result<()> {
        loop {
            match self.ring().submit_and_wait(usize::from(wait)) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel is short of memory for a moment, or completions have to be fetched
                // first.
                Err(error) if matches!(error.raw_os_error(), Some(11 | 16)) => {
                    if !self.ring().completion().is_empty() {
                        return Ok(());
                    }
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Lane for UringLane {
    fn depth(&self) -> usize {
        DEPTH
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn push(&mut self, mut transfer: Transfer) {
        transfer.assert_valid();
        let slot =
            self.slots.iter().position(Option::is_none).expect("no more transfers than the lane is deep");
        let file = types::Fd(self.disk.file.as_raw_fd());
        let (start, len, offset) = (transfer.start, transfer.len() as u32, transfer.offset);
        let memory = transfer.buffer[start..].as_mut_ptr();
        let entry = match transfer.kind {
            Kind::Read => opcode::Read::new(file, memory, len).offset(offset).build(),
            Kind::Write => opcode::Write::new(file, memory, len).offset(offset).build(),
        };
        let starts_now = transfer.kind == Kind::Write;
        self.slots[slot] = Some(transfer);
        self.in_flight += 1;
        let entry = entry.user_data(slot as u64);
        // SAFETY: the buffer is `len` bytes from `start` on; its memory does not move with the
        // transfer, which stays in its slot until its completion was read, or is leaked with the
        // ring. The file is open as long as the lane.
        let pushed = unsafe { self.ring().submission().push(&entry) };
        pushed.expect("the ring has an entry for every slot");
        if starts_now {
            // When that fails it is tried again by `pop`, which waits.
            let _ = self.enter(false);
        }
    }

    fn pop(&mut self) -> Option<Done> {
        loop {
            if self.in_flight == 0 {
                return None;
            }
            if let Some(done) = self.completion() {
                return Some(done);
            }
            // A ring that cannot be entered is a descriptor closed by other code, or a bug: nothing
            // is known of the buffers any more, and no error of a transfer says that.
            self.enter(true).expect("the ring can be entered");
        }
    }

    fn try_pop(&mut self) -> Option<Done> {
        self.completion()
    }
}

impl Drop for UringLane {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.completion().is_none() && self.enter(true).is_err() {
                // The kernel may still write to the buffers: they stay, and the ring with them.
                self.slots.iter_mut().for_each(|slot| std::mem::forget(slot.take()));
                std::mem::forget(self.ring.take());
                return;
            }
        }
    }
}
