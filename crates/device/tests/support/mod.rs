//! A failing swap file, a failing compressor, and test data.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use acomp::{Algorithm, CompressRequest, Context, ContextError, DecompressRequest, UnitError};
use device::Config;
use swapfile::{Faults, FaultyEngine, MemoryEngine, Room, Seal, Space, SwapFile};

/// A swap file on an in-memory disk with injected faults.
pub struct Swap {
    pub file: Arc<SwapFile>,
    pub faults: Arc<Faults>,
}

impl Swap {
    /// A device of `size_bytes` over the file, with 1 MiB of memory beside the file's own.
    pub fn config(&self, size_bytes: u64) -> Config {
        let ram_bytes = Some(self.file.memory_bytes_max() + (1 << 20));
        Config { size_bytes, ram_bytes, swap: Some(self.file.clone()), ..Config::default() }
    }

    /// A file of `segments` segments of 1 MiB.
    pub fn new(segments: usize) -> Swap {
        let disk = MemoryEngine::new(Room { available: 1 << 40, total: 1 << 41 });
        let faults = Faults::new(segments as u64);
        let engine = Arc::new(FaultyEngine::new(Arc::new(disk), faults.clone()));
        let space = Arc::new(Space::private(segments));
        Swap { file: SwapFile::with(engine, Seal::Encrypted, space, 1, 5).unwrap(), faults }
    }
}

/// An algorithm that fails on each n-th unit, or on none.
pub struct Failing {
    pub inner: Arc<dyn Algorithm>,
    pub every: Arc<AtomicU64>,
}

impl Failing {
    pub fn of(name: &str) -> (Arc<dyn Algorithm>, Arc<AtomicU64>) {
        let every = Arc::new(AtomicU64::new(0));
        let inner = uzswap::registry().find(name).unwrap();
        (Arc::new(Failing { inner, every: Arc::clone(&every) }), every)
    }
}

struct FailingContext {
    inner: Box<dyn Context>,
    every: Arc<AtomicU64>,
    units: u64,
}

impl Algorithm for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn batch_size(&self) -> usize {
        self.inner.batch_size()
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(FailingContext {
            inner: self.inner.context()?,
            every: Arc::clone(&self.every),
            units: 0,
        }))
    }
}

impl Context for FailingContext {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        self.inner.compress(request);
        let every = self.every.load(Ordering::Relaxed);
        for result in request.results.iter_mut() {
            self.units += 1;
            if every != 0 && self.units.is_multiple_of(every) {
                *result = Err(UnitError::Failed);
            }
        }
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        self.inner.decompress(request);
    }
}

/// Bytes of this process's memory of a kind, such as `RssAnon:`.
pub fn field(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of status");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Heap-like, incompressible, or zero bytes; the seed determines the content.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let kind = seed % 8;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let word = match kind {
            0 => 0,
            1 | 2 => state.rotate_left(29) ^ state >> 17,
            3 => 0x0101_0101_0101_0101 * (seed >> 3 & 0xFF),
            _ if state >> 62 == 0 => 0x0000_7F00_0000_0000 | state >> 40,
            _ => seed >> 3 & 0xFF,
        };
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}
