//! A compressor with faults on request, and pages for it.
#![allow(dead_code)]

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::Arc;

use swapfile::{Engine, Faults, FaultyEngine, MemoryEngine, Room, Seal, Space, SwapFile};

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, Page, PromoteRequest,
    Software, TierSample, Tiers, UnitCodec, UnitError, UnitResult,
};

/// Leaves out the zeroes at the end of a page, and keeps a sum to find damage. With two tiers its
/// objects end with [`PADDING`] unused bytes, until they are promoted.
pub struct Trim {
    name: String,
    batch: usize,
    tiers: bool,
    counts: Arc<Counts>,
}

/// What a [`Trim`] and its contexts count, and their faults.
#[derive(Default)]
pub struct Counts {
    /// Whether it passes for an emulated device.
    pub is_emulated: AtomicBool,
    /// Units until one fails to compress; negative for no failure.
    pub fail_after: AtomicI64,
    /// Objects until one fails to decompress; negative for no failure.
    pub damage_after: AtomicI64,
    /// Units compressed.
    pub units: AtomicU64,
    /// Compression requests of each size.
    pub requests: [AtomicU64; 9],
    /// Decompression requests of each size.
    pub decompressions: [AtomicU64; 9],
    /// Objects made and not yet forgotten.
    pub alive: AtomicI64,
    /// Whether dense objects were requested.
    pub dense: AtomicBool,
}

impl Trim {
    pub fn new(name: &str, batch: usize) -> Arc<Self> {
        Self::with_tiers(name, batch, false)
    }

    pub fn tiered(name: &str, batch: usize) -> Arc<Self> {
        Self::with_tiers(name, batch, true)
    }

    fn with_tiers(name: &str, batch: usize, tiers: bool) -> Arc<Self> {
        let (fail_after, damage_after) = (AtomicI64::new(-1), AtomicI64::new(-1));
        let counts = Arc::new(Counts { fail_after, damage_after, ..Counts::default() });
        Arc::new(Trim { name: name.to_owned(), batch, tiers, counts })
    }
}

impl Deref for Trim {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

/// Bytes that promotion saves.
pub const PADDING: usize = 64;
/// In the header of an object's first page: the object ends with padding.
const PADDED: u16 = 1 << 15;

/// An object without its padding, if any; `None` if it is damaged.
fn unpadded(object: &[u8]) -> Option<(&[u8], bool)> {
    let header = u16::from_le_bytes([*object.get(4)?, *object.get(5)?]);
    match header & PADDED {
        0 => Some((object, false)),
        _ => Some((object.get(..object.len().checked_sub(PADDING)?)?, true)),
    }
}

/// The second tier is for promotion alone: it only records the request.
impl Tiers for Trim {
    fn set_dense(&self, dense: bool) {
        self.dense.store(dense, Ordering::Relaxed);
    }

    fn sample(&self) -> TierSample {
        TierSample { pages: self.units.load(Ordering::Relaxed), ..TierSample::default() }
    }
}

impl Algorithm for Trim {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_emulated(&self) -> bool {
        self.is_emulated.load(Ordering::Relaxed)
    }

    fn batch_size(&self) -> usize {
        self.batch
    }

    fn keeps_account(&self) -> bool {
        true
    }

    fn forget(&self, object: Object<'_>, pages: usize) {
        // It is whole and of as many pages.
        let bytes = [object.head, object.tail].concat();
        assert_eq!(bytes[..4], sum(&bytes[4..]).to_le_bytes());
        let mut at = 4;
        for _ in 0..pages {
            at += 2 + ((u16::from_le_bytes([bytes[at], bytes[at + 1]]) & !PADDED) >> 1) as usize;
        }
        assert_eq!(at, unpadded(&bytes).unwrap().0.len());
        assert!(self.alive.fetch_sub(1, Ordering::Relaxed) > 0);
    }

    fn tiers(&self) -> Option<&dyn Tiers> {
        self.tiers.then_some(self)
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        let codec = TrimCodec { tiers: self.tiers, counts: self.counts.clone() };
        Ok(Box::new(Counting { inner: Software::new(codec), counts: self.counts.clone() }))
    }
}

struct Counting {
    inner: Software<TrimCodec>,
    counts: Arc<Counts>,
}

impl Context for Counting {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        self.counts.requests[request.units()].fetch_add(1, Ordering::Relaxed);
        self.inner.compress(request);
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        self.counts.decompressions[request.objects.len()].fetch_add(1, Ordering::Relaxed);
        self.inner.decompress(request);
    }

    fn promote(&mut self, request: &mut PromoteRequest<'_, '_>) {
        request.assert_valid();
        for ((object, output), result) in
            request.objects.iter().zip(request.outputs.iter_mut()).zip(request.results.iter_mut())
        {
            let bytes = [object.head, object.tail].concat();
            assert_eq!(bytes[..4], sum(&bytes[4..]).to_le_bytes());
            *result = match unpadded(&bytes) {
                Some((dense, true)) if dense.len() <= output.len() => {
                    let output = &mut output[..dense.len()];
                    output.copy_from_slice(dense);
                    output[5] &= 0x7f;
                    let sum = sum(&output[4..]);
                    output[..4].copy_from_slice(&sum.to_le_bytes());
                    self.counts.alive.fetch_add(1, Ordering::Relaxed);
                    Ok(dense.len())
                }
                _ => Err(UnitError::NoSpace),
            };
        }
    }
}

struct TrimCodec {
    tiers: bool,
    counts: Arc<Counts>,
}

/// Whether a fault is due after `left` more calls, which it counts; never if negative.
fn is_due(left: &AtomicI64) -> bool {
    left.load(Ordering::Relaxed) >= 0 && left.fetch_sub(1, Ordering::Relaxed) == 0
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(1, |sum: u32, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

impl UnitCodec for TrimCodec {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        self.counts.units.fetch_add(1, Ordering::Relaxed);
        if is_due(&self.counts.fail_after) {
            return Err(UnitError::Failed);
        }
        let mut at = 4;
        for page in unit.chunks(4096) {
            // Leaves out pages of one repeated byte, and the zeroes at the end of a page.
            let same = page.iter().all(|byte| *byte == page[0]);
            let len = if same { 1 } else { page.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1 };
            if at + len + 2 >= output.len() {
                return Err(UnitError::NoSpace);
            }
            let header = (len as u16) << 1 | u16::from(same);
            output[at..at + 2].copy_from_slice(&header.to_le_bytes());
            output[at + 2..at + 2 + len].copy_from_slice(&page[..len]);
            at += 2 + len;
        }
        if self.tiers && at + PADDING < output.len() {
            output[5] |= (PADDED >> 8) as u8;
            output[at..at + PADDING].fill(0xA5);
            at += PADDING;
        }
        let sum = sum(&output[4..at]);
        output[..4].copy_from_slice(&sum.to_le_bytes());
        self.counts.alive.fetch_add(1, Ordering::Relaxed);
        Ok(at)
    }

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        if is_due(&self.counts.damage_after) {
            return Err(UnitError::Failed);
        }
        let (stored, mut bytes) = object.split_at_checked(4).ok_or(UnitError::Failed)?;
        if stored != sum(bytes).to_le_bytes() {
            return Err(UnitError::Failed);
        }
        bytes = &unpadded(object).ok_or(UnitError::Failed)?.0[4..];
        for page in output.chunks_mut(4096) {
            let (header, rest) = bytes.split_at_checked(2).ok_or(UnitError::Failed)?;
            let header = u16::from_le_bytes([header[0], header[1]]) & !PADDED;
            let (content, rest) = rest.split_at_checked(header as usize >> 1).ok_or(UnitError::Failed)?;
            bytes = rest;
            page.fill(if header & 1 == 1 { content[0] } else { 0 });
            page[..content.len()].copy_from_slice(content);
        }
        Ok(())
    }
}

/// A compressor whose decompression returns other bytes.
pub struct Liar;

impl Algorithm for Liar {
    fn name(&self) -> &str {
        "liar"
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(Software::new(LiarCodec)))
    }
}

struct LiarCodec;

impl UnitCodec for LiarCodec {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        output[0] = unit[0];
        Ok(1)
    }

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        output.fill(object[0]);
        Ok(())
    }
}

/// A page of a kind: 0 same-filled, 1 incompressible, else about half full; `seed` makes it unique.
pub fn page(kind: u8, seed: u64) -> Page {
    let mut page = [0; 4096];
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    match kind {
        0 => {
            let byte = if seed.is_multiple_of(3) { 0 } else { next() as u8 };
            page.fill(byte);
        }
        1 => {
            page.chunks_exact_mut(8).for_each(|slot| slot.copy_from_slice(&(next() | 1 << 63).to_le_bytes()))
        }
        _ => {
            let words = 1 + (next() % 400) as usize;
            page.chunks_exact_mut(8).take(words).for_each(|slot| slot.copy_from_slice(&next().to_le_bytes()));
        }
    }
    page
}

/// Pages of a kind, unique to the seed.
pub fn pages_of(kind: u8, count: usize, seed: u64) -> Vec<Page> {
    (0..count as u64).map(|n| page(kind, seed * 1000 + n)).collect()
}

/// Pages that are about half full.
pub fn pages(count: usize, seed: u64) -> Vec<Page> {
    pages_of(2, count, seed)
}

pub fn refs(pages: &[Page]) -> Vec<&Page> {
    pages.iter().collect()
}

pub fn load(
    zswap: &zswap::Zswap,
    group: zswap::Group,
    key: u64,
    count: usize,
    keep: zswap::Keep,
) -> Result<Vec<Page>, zswap::LoadError> {
    let mut pages = vec![[0xEE; 4096]; count];
    zswap.load(group, key, &mut pages.iter_mut().collect::<Vec<_>>(), keep)?;
    Ok(pages)
}

/// The same configuration with a swap file: incompressible pages are kept raw.
pub fn with_swap(config: zswap::Config) -> zswap::Config {
    zswap::Config { swap: Some(Swap::new(8).file), ..config }
}

/// A swap file on a disk in memory, with faults on request.
pub struct Swap {
    pub file: Arc<SwapFile>,
    pub faults: Arc<Faults>,
    pub disk: MemoryEngine,
}

impl Swap {
    /// With `segments` segments of 1 MiB.
    pub fn new(segments: usize) -> Swap {
        let room = Room { available: 1 << 40, total: 1 << 41 };
        let disk = MemoryEngine::new(room);
        let (file, faults) = Swap::on(Arc::new(disk.clone()), segments);
        Swap { file, faults, disk }
    }

    /// A swap file on an engine, with injected faults.
    pub fn on(engine: Arc<dyn Engine>, segments: usize) -> (Arc<SwapFile>, Arc<Faults>) {
        let faults = Faults::new(3);
        let engine = Arc::new(FaultyEngine::new(engine, faults.clone()));
        let space = Arc::new(Space::private(segments));
        (SwapFile::with(engine, Seal::Encrypted, space, 1, 5).unwrap(), faults)
    }

    pub fn assert_empty(&self, zswap: &zswap::Zswap) {
        assert_empty(zswap);
        assert_file_empty(&self.file);
    }
}

pub fn assert_file_empty(file: &SwapFile) {
    let counters = file.counters();
    assert_eq!(counters.live_bytes, 0);
    // Except for segments open for writing.
    assert!(counters.used_bytes <= 2 << 20, "{} bytes in use", counters.used_bytes);
}

pub fn assert_empty(zswap: &zswap::Zswap) {
    let counters = zswap.counters();
    assert_eq!(counters.stored_pages, 0);
    assert_eq!(counters.stored_incompressible_pages, 0);
    assert_eq!(counters.same_filled_pages, 0);
    assert_eq!(counters.on_disk_pages, 0);
    assert_eq!(zswap.compressed_bytes(), 0);
    assert_eq!(zswap.objects(), 0);
    assert_eq!(zswap.table_bytes(), 0);
    zswap.compact();
    assert_eq!(zswap.pool_bytes(), 0);
}
