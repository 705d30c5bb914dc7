//! A queue: a thread with a ring, bound to the CPUs whose requests it gets.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Sender;

use device::Device;
use io_uring::{opcode, types, IoUring};

use crate::abi::{self, IoCommand};
use crate::batch::Batch;
use crate::mapping::{Descriptors, Room};
use crate::request::Request;
use crate::transfer::Transfer;

#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueSettings {
    pub(crate) id: u16,
    pub(crate) depth: u16,
    pub(crate) request_bytes: usize,
    pub(crate) is_bare: bool,
    /// The server reads and writes bytes at the character device when needed; else the kernel
    /// copies each request's bytes to or from a buffer.
    pub(crate) copies_itself: bool,
    /// All memory is touched at the start; the kernel must not be asked later.
    pub(crate) is_made_now: bool,
    /// Threads that are not marked as swap's own are an error.
    pub(crate) must_be_marked: bool,
    pub(crate) cpus: libc::cpu_set_t,
}

pub(crate) struct Queue {
    settings: QueueSettings,
    ring: IoUring,
    descriptors: Descriptors,
    buffers: Option<Room>,
    /// Dropped last, since the ring's commands concern it.
    node: File,
}

/// Runs a queue until the device is stopped. Reports once on `begun`, when all its tags wait for
/// requests.
pub(crate) fn run(settings: QueueSettings, node: File, device: &Device, begun: Sender<io::Result<()>>) {
    let made = Queue::new(settings, node).and_then(|mut queue| {
        let batch = Batch::new(settings.depth, settings.request_bytes, settings.is_made_now)?;
        queue.fetch_all()?;
        Ok((queue, batch))
    });
    let (mut queue, mut batch) = match made {
        Ok(made) => made,
        Err(error) => {
            let _ = begun.send(Err(error));
            return;
        }
    };
    let _ = begun.send(Ok(()));
    drop(begun);
    // A thread that waits for a request of an ended queue would wait forever; if the server dies,
    // it gets an error.
    let guard = Abort;
    if let Err(error) = queue.serve(device, &mut batch) {
        eprintln!("ublk: queue {}: {error}", settings.id);
        return;
    }
    std::mem::forget(guard);
}

/// Aborts the process if a queue ends by an error or a panic.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        eprintln!("ublk: a queue has ended: so does the server");
        std::process::abort();
    }
}

impl Queue {
    fn new(settings: QueueSettings, node: File) -> io::Result<Self> {
        bind(&settings.cpus)?;
        if settings.is_made_now {
            sys::flusher::touch_stack();
        }
        if settings.must_be_marked && !sys::flusher::is_marked() {
            return Err(io::Error::other(sys::flusher::FlusherError::Unmarked));
        }
        let descriptors = Descriptors::new(&node, settings.id, settings.depth)?;
        let buffers = match settings.copies_itself {
            true => None,
            false => {
                let bytes = settings.request_bytes * usize::from(settings.depth);
                Some(Room::new(bytes, settings.is_made_now)?)
            }
        };
        Ok(Queue { settings, ring: ring(settings.depth.into())?, descriptors, buffers, node })
    }

    /// Queues the first fetch of every tag.
    fn fetch_all(&mut self) -> io::Result<()> {
        let code = abi::fetch(self.settings.is_bare);
        (0..self.settings.depth).for_each(|tag| self.push(code, tag, 0));
        self.enter(0)
    }

    /// Serves until every tag was told that the device is stopped.
    fn serve(&mut self, device: &Device, batch: &mut Batch) -> io::Result<()> {
        let mut aborted = 0;
        while aborted < self.settings.depth {
            self.enter(1)?;
            for entry in self.ring.completion() {
                let tag = entry.user_data() as u16;
                match entry.result() {
                    abi::RESULT_OK => batch.push(Request::new(tag, &self.descriptors.get(tag))),
                    abi::RESULT_ABORT => aborted += 1,
                    error => return Err(io::Error::from_raw_os_error(-error)),
                }
            }
            if !batch.is_empty() {
                batch.serve(device, self);
            }
        }
        Ok(())
    }

    fn push(&mut self, code: u32, tag: u16, result: i32) {
        let addr = match &self.buffers {
            Some(buffers) => buffers.address() + (usize::from(tag) * self.settings.request_bytes) as u64,
            None => 0,
        };
        let command = IoCommand { q_id: self.settings.id, tag, result, addr };
        // SAFETY: the type's fields take all of its 16 bytes.
        let bytes = unsafe { abi::bytes_of::<_, 16>(&command) };
        let node = types::Fd(self.node.as_raw_fd());
        let entry = opcode::UringCmd16::new(node, code).cmd(bytes).build().user_data(tag.into());
        // SAFETY: the node and the buffers live longer than the ring.
        unsafe { self.ring.submission().push(&entry) }.expect("an entry for each tag");
    }

    /// Submits the pushed entries, and waits for `wanted` completions.
    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(wanted) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel is briefly short of memory, or completions must be fetched first.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    if !self.ring.completion().is_empty() {
                        return Ok(());
                    }
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Transfer for Queue {
    fn take(&mut self, tag: u16, into: &mut [u8]) -> io::Result<()> {
        match self.buffer(tag) {
            Some(buffer) => into.copy_from_slice(&buffer[..into.len()]),
            None => self.node.read_exact_at(into, abi::data_offset(self.settings.id, tag))?,
        }
        Ok(())
    }

    fn give(&mut self, tag: u16, from: &[u8]) -> io::Result<()> {
        match self.buffer(tag) {
            Some(buffer) => buffer[..from.len()].copy_from_slice(from),
            None => self.node.write_all_at(from, abi::data_offset(self.settings.id, tag))?,
        }
        Ok(())
    }

    fn buffer(&mut self, tag: u16) -> Option<&mut [u8]> {
        let bytes = self.settings.request_bytes;
        let first = usize::from(tag) * bytes;
        self.buffers.as_mut().map(|buffers| &mut buffers.bytes_mut()[first..first + bytes])
    }

    fn end(&mut self, tag: u16, result: i32) {
        self.push(abi::commit_and_fetch(self.settings.is_bare), tag, result);
    }

    fn tell(&mut self) {
        // An error here recurs at the next wait.
        let _ = self.ring.submit();
    }
}

/// A ring of this thread's own. Completions are delivered only when the thread asks (Linux 6.1), so
/// that all requests that came while it worked are one batch.
fn ring(depth: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(depth)
        .or_else(|_| IoUring::builder().setup_coop_taskrun().build(depth))
        .or_else(|_| IoUring::new(depth))
}

/// Binds the calling thread to CPUs. Does nothing if the mask is empty.
fn bind(cpus: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: a mask of the given size.
    unsafe {
        if libc::CPU_COUNT(cpus) == 0 {
            return Ok(());
        }
        match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cpus) {
            0 => Ok(()),
            // A cpuset excludes all of them: the thread runs where it may.
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
