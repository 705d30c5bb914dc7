//! Mapped memory: a queue's descriptors, and room for requests' bytes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::abi::IoDescriptor;

/// A queue's descriptors, which the kernel writes.
pub(crate) struct Descriptors {
    at: NonNull<IoDescriptor>,
    bytes: usize,
    depth: u16,
}

impl Descriptors {
    pub(crate) fn new(device: &File, queue: u16, depth: u16) -> io::Result<Self> {
        let (offset, bytes) = crate::abi::descriptors(queue, depth);
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let (null, fd) = (std::ptr::null_mut(), device.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(null, bytes, libc::PROT_READ, flags, fd, offset as libc::off_t) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Descriptors {
            at: NonNull::new(at.cast()).expect("the kernel does not map page zero"),
            bytes,
            depth,
        })
    }

    /// The current request of a tag.
    pub(crate) fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "the kernel names tags of the queue");
        // SAFETY: within the mapping. The kernel wrote it before it completed the tag's command,
        // and does not change it until the request is committed.
        unsafe { self.at.as_ptr().add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped above, and the address is not shared.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

pub(crate) struct Room {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is the value's own.
unsafe impl Send for Room {}

impl Room {
    /// `bytes`, rounded up to pages; touched now if the kernel must not be asked later.
    pub(crate) fn new(bytes: usize, is_made_now: bool) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(sys::PAGE_SIZE);
        let mut room = Room { at: sys::memory::map(bytes)?, bytes };
        if is_made_now {
            // Written, since reading would map the page of zeroes.
            room.bytes_mut().iter_mut().step_by(sys::PAGE_SIZE).for_each(|byte| *byte = 1);
            std::hint::black_box(room.bytes_mut());
        }
        Ok(room)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this value's own, readable and writable, and zeroes at first.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }

    pub(crate) fn address(&self) -> u64 {
        self.at.as_ptr() as u64
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: mapped above, and the address is not shared.
        unsafe { sys::memory::unmap(self.at, self.bytes) };
    }
}
