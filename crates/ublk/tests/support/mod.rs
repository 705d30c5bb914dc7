//! A queue without a kernel.
#![allow(dead_code)]

use std::io;

use device::{Config, Device};
use ublk::Transfer;

pub const REQUEST_BYTES: usize = 64 << 10;

pub struct Queue {
    pub bytes: Vec<Vec<u8>>,
    pub results: Vec<Option<i32>>,
    /// The kernel has copied to buffers, and will from them; else the server copies.
    pub has_buffers: bool,
    pub broken: Option<u16>,
    /// Tags in the order in which they ended, and how many had ended at the last report.
    pub ended: Vec<u16>,
    pub told: Vec<usize>,
}

impl Queue {
    pub fn new(depth: usize, has_buffers: bool) -> Self {
        Queue {
            bytes: vec![vec![0; REQUEST_BYTES]; depth],
            results: vec![None; depth],
            has_buffers,
            broken: None,
            ended: Vec::with_capacity(depth),
            told: Vec::with_capacity(depth),
        }
    }

    /// One without buffers, with different bytes for each tag.
    pub fn filled(depth: usize) -> Self {
        let mut queue = Queue::new(depth, false);
        queue.bytes.iter_mut().zip(1..).for_each(|(bytes, seed)| fill(bytes, seed));
        queue
    }

    fn whole(&mut self, tag: u16) -> io::Result<&mut [u8]> {
        match self.broken == Some(tag) {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(&mut self.bytes[usize::from(tag)]),
        }
    }
}

impl Transfer for Queue {
    fn take(&mut self, tag: u16, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.whole(tag)?[..into.len()]);
        Ok(())
    }

    fn give(&mut self, tag: u16, from: &[u8]) -> io::Result<()> {
        self.whole(tag)?[..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn buffer(&mut self, tag: u16) -> Option<&mut [u8]> {
        self.has_buffers.then(|| self.bytes[usize::from(tag)].as_mut_slice())
    }

    fn end(&mut self, tag: u16, result: i32) {
        assert_eq!(self.results[usize::from(tag)].replace(result), None, "tag {tag} has ended twice");
        self.ended.push(tag);
    }

    fn tell(&mut self) {
        self.told.push(self.ended.len());
    }
}

/// A small device.
pub fn device(size_bytes: u64, ram_bytes: Option<u64>) -> Device {
    let config = Config {
        size_bytes,
        ram_bytes,
        compressor: "lz4".into(),
        queues: 1,
        has_checksums: true,
        ..Config::default()
    };
    Device::new(config).unwrap()
}

/// Bytes that shrink to about a half; the seed determines the content.
pub fn fill(into: &mut [u8], seed: u64) {
    let mut state = seed | 1;
    for chunk in into.chunks_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        chunk.copy_from_slice(&(state >> 33).to_le_bytes()[..chunk.len()]);
    }
}
