//! A backing in memory, a compressor that fails, and bytes to write.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use acomp::{Algorithm, CompressRequest, Context, ContextError, DecompressRequest, UnitError};
use device::Backing;
use uzswap::{Group, Page, Writeback, WritebackError};

/// Blocks kept in a table, as many as there is room for; told when to fail.
#[derive(Default)]
pub struct MemoryBacking {
    pub blocks_max: AtomicU64,
    pub writes_fail: AtomicBool,
    pub reads_fail: AtomicBool,
    pub flushes: AtomicU64,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    pending: BTreeMap<u64, Box<Page>>,
    home: BTreeMap<u64, Box<Page>>,
}

fn keys(key: u64, mask: u16) -> impl Iterator<Item = u64> {
    (0..16).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| key + bit)
}

impl MemoryBacking {
    pub fn new(blocks_max: u64) -> Arc<Self> {
        Arc::new(MemoryBacking { blocks_max: blocks_max.into(), ..Self::default() })
    }

    pub fn len(&self) -> usize {
        self.tables.lock().unwrap().home.len()
    }
}

impl Writeback for MemoryBacking {
    fn write(&self, group: Group, key: u64, mask: u16, pages: &[&Page]) -> Result<(), WritebackError> {
        assert_eq!((group, key % 16, mask.count_ones() as usize), (Group(0), 0, pages.len()));
        if self.writes_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EIO).into());
        }
        let mut tables = self.tables.lock().unwrap();
        if tables.home.len() + pages.len() > self.blocks_max.load(Ordering::Relaxed) as usize {
            return Err(WritebackError::Full);
        }
        for (key, page) in keys(key, mask).zip(pages) {
            assert!(!tables.home.contains_key(&key), "a block in the pool is not at home here");
            tables.pending.insert(key, Box::new(**page));
        }
        Ok(())
    }

    fn finish(&self, _group: Group, key: u64, claimed: u16, written: u16) {
        let mut tables = self.tables.lock().unwrap();
        for key_of_block in keys(key, claimed) {
            let page = tables.pending.remove(&key_of_block);
            if written >> (key_of_block - key) & 1 == 1 {
                tables.home.insert(key_of_block, page.expect("written before it is finished"));
            }
        }
    }
}

impl Backing for MemoryBacking {
    fn held(&self, key: u64, mask: u16) -> u16 {
        let tables = self.tables.lock().unwrap();
        let home = keys(key, mask).filter(|block| tables.home.contains_key(block));
        home.fold(0, |held, block| held | 1 << (block - key))
    }

    fn read(&self, key: u64, mask: u16, pages: &mut [&mut Page]) -> io::Result<()> {
        if self.reads_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EREMOTEIO));
        }
        let tables = self.tables.lock().unwrap();
        for (block, page) in keys(key, mask).zip(pages) {
            page.copy_from_slice(&tables.home[&block][..]);
        }
        Ok(())
    }

    fn forget(&self, key: u64, mask: u16) {
        let mut tables = self.tables.lock().unwrap();
        keys(key, mask).for_each(|block| drop(tables.home.remove(&block)));
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// An algorithm that fails on some units: each n-th, or none.
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

/// Bytes that compress about as a heap does, other ones for each seed; or do not compress; or are zeroes.
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
