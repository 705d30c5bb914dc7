//! `uzswap-lab bench store`: a corpus of raw pages through the whole store, every byte verified.
//!
//! A row is one file, compressor, batch, unit and number of threads. A call hands over `batch`
//! units: batch 1 measures a store without batches.
//!
//! The pool is full, and each call that loads pages is followed by one that stores pages loaded 64
//! calls before, in random order, as when a program runs at its budget. Passes of the codec alone,
//! over the same pages in the same order, alternate with passes of the store, so that disturbances
//! of the machine fall on both; a figure is the fastest round's, the least disturbed. With several
//! threads each has its own share of the corpus, and a figure is the slowest thread's: it stays the
//! same if threads do not hinder each other.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use anyhow::{ensure, Context as _, Result};
use pagecodec::t16::prefetch;
use uzswap::acomp::{CompressRequest, DecompressRequest, Object, UnitError, UnitResult, MAX_BATCH};
use uzswap::{Algorithm, Group, Keep, Page, Pool, PoolConfig, PAGE_SIZE};

pub struct Case<'a> {
    /// The corpus' name, as printed in the row.
    pub file: &'a str,
    pub pages: &'a [Page],
    pub algorithm: Arc<dyn Algorithm>,
    /// Units a call and a request.
    pub batch: usize,
    pub unit_size: usize,
    /// Most pages chained to one zspage.
    pub chain: usize,
    pub threads: usize,
    /// Rounds, of which the fastest counts.
    pub rounds: usize,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[allow(missing_docs)]
pub struct Row {
    pub file: String,
    pub compressor: String,
    pub batch: usize,
    pub unit: usize,
    pub threads: usize,
    pub pages: usize,
    pub ratio: f64,
    pub ratio_with_overhead: f64,
    pub compress_ns_page: f64,
    pub decompress_ns_page: f64,
    pub store_ns_page: f64,
    pub load_ns_page: f64,
    pub store_p50_ns_page: f64,
    pub store_p99_ns_page: f64,
    pub metadata_bytes_page: f64,
    pub zsmalloc_waste_percent: f64,
    /// An emulated device compressed.
    pub emulated: bool,
}

/// Nanoseconds a page of each pass, one number a round.
#[derive(Default)]
struct Passes {
    compress: Vec<f64>,
    decompress: Vec<f64>,
    store: Vec<f64>,
    load: Vec<f64>,
    /// Each store call by itself, of the round fastest at storing.
    calls: Vec<f64>,
}

/// Figures of the full store after the first fill: later the allocator keeps some memory of objects
/// freed in between.
#[derive(Default, Clone, Copy)]
struct Full {
    compressed_bytes: u64,
    pool_bytes: u64,
    metadata_bytes: u64,
    stored_pages: u64,
}

pub fn measure(case: &Case<'_>) -> Result<Row> {
    let call_pages = case.batch * case.unit_size / PAGE_SIZE;
    // Whole folios of 64 KiB for each thread, so that no two threads share a leaf.
    let share = case.pages.len() / case.threads / 16 * 16;
    ensure!(share > 0, "{}: {} pages are too few for {} threads", case.file, case.pages.len(), case.threads);
    let pool = Pool::new(
        PoolConfig {
            unit_size: case.unit_size,
            batch: case.batch,
            chain: case.chain,
            verify: false,
            contexts: case.threads,
            ..PoolConfig::default()
        },
        case.algorithm.clone(),
    )?;
    let barrier = Barrier::new(case.threads);
    let all = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let first = thread * share;
            let worker = Worker {
                case,
                pool: &pool,
                barrier: &barrier,
                thread,
                first,
                pages: &case.pages[first..first + share],
                call_pages,
            };
            worker.run()
        };
        let others: Vec<_> = (1..case.threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let first = run(0);
        let others = others.into_iter().map(|other| other.join().expect("no panic while measuring"));
        std::iter::once(first).chain(others).collect::<Result<Vec<(Passes, Full)>>>()
    })?;
    let full = all[0].1;
    // The slowest thread of each round; the fastest of the rounds.
    let figure = |of: fn(&Passes) -> &Vec<f64>| {
        let slowest =
            (0..case.rounds).map(|round| all.iter().map(|(passes, _)| of(passes)[round]).fold(0.0, f64::max));
        slowest.fold(f64::INFINITY, f64::min)
    };
    let mut calls: Vec<f64> = all.iter().flat_map(|(passes, _)| passes.calls.iter().copied()).collect();
    let bytes = full.stored_pages as f64 * PAGE_SIZE as f64;
    let overhead = full.pool_bytes as f64 - full.compressed_bytes as f64;
    Ok(Row {
        file: case.file.to_owned(),
        compressor: case.algorithm.name().to_owned(),
        emulated: case.algorithm.is_emulated(),
        batch: case.batch,
        unit: case.unit_size,
        threads: case.threads,
        pages: share * case.threads,
        ratio: bytes / full.compressed_bytes.max(1) as f64,
        ratio_with_overhead: bytes / (full.pool_bytes + full.metadata_bytes).max(1) as f64,
        compress_ns_page: figure(|passes| &passes.compress),
        decompress_ns_page: figure(|passes| &passes.decompress),
        store_ns_page: figure(|passes| &passes.store),
        load_ns_page: figure(|passes| &passes.load),
        store_p50_ns_page: quantile(&mut calls, 0.5),
        store_p99_ns_page: quantile(&mut calls, 0.99),
        metadata_bytes_page: full.metadata_bytes as f64 / full.stored_pages.max(1) as f64,
        zsmalloc_waste_percent: 100.0 * overhead / full.compressed_bytes.max(1) as f64,
    })
}

struct Worker<'a> {
    case: &'a Case<'a>,
    pool: &'a Pool,
    barrier: &'a Barrier,
    thread: usize,
    first: usize,
    pages: &'a [Page],
    call_pages: usize,
}

/// Bytes of each object that the store prefetches before it decompresses a batch. The codec alone
/// prefetches the same, so that the difference between the two is the store's work and not the
/// codec's wait.
const FETCHED: usize = 12 * 64;

/// Calls between a page's load and its next store.
const LAG: usize = 64;

impl Worker<'_> {
    fn run(&self) -> Result<(Passes, Full)> {
        let refs: Vec<&Page> = self.pages.iter().collect();
        let mut back = vec![[0u8; PAGE_SIZE]; self.pages.len()];
        let mut slots: Vec<&mut Page> = back.iter_mut().collect();
        let mut alone = Alone::new(self.case, self.pages)?;
        let mut order: Vec<usize> = (0..self.pages.len().div_ceil(self.call_pages)).collect();
        shuffle(&mut order);
        self.barrier.wait();
        for &call in &order {
            alone.compress(&refs, call);
            self.store(&refs, call, &mut Vec::new())?;
        }
        self.barrier.wait();
        let full = self.full();
        self.barrier.wait();
        let lag = LAG.min(order.len() / 2);
        let mut passes = Passes::default();
        for _ in 0..self.case.rounds {
            // The stores trail the loads; the pages still out at the end go back untimed.
            let (mut compress, mut decompress, mut store, mut load) = (0, 0, 0, 0);
            let mut calls = Vec::new();
            self.barrier.wait();
            for (at, &call) in order.iter().enumerate() {
                decompress += timed(|| alone.decompress(&mut slots, call));
                if let Some(at) = at.checked_sub(lag) {
                    compress += timed(|| alone.compress(&refs, order[at]));
                }
            }
            self.barrier.wait();
            for (at, &call) in order.iter().enumerate() {
                load += self.load(&mut slots, call)?;
                if let Some(at) = at.checked_sub(lag) {
                    store += self.store(&refs, order[at], &mut calls)?;
                }
            }
            let wrong = slots.iter().zip(self.pages).position(|(back, page)| **back != *page);
            ensure!(wrong.is_none(), self.wrong(wrong.unwrap_or(0)));
            slots.iter_mut().for_each(|slot| slot.fill(0xEE));
            for &call in &order[order.len() - lag..] {
                self.store(&refs, call, &mut Vec::new())?;
            }
            self.barrier.wait();
            let pages = self.pages.len() as f64;
            let out = pages - (lag * self.call_pages) as f64;
            let store = store as f64 / out;
            if passes.store.iter().all(|&other| store < other) {
                passes.calls = calls;
            }
            passes.compress.push(compress as f64 / out);
            passes.store.push(store);
            passes.decompress.push(decompress as f64 / pages);
            passes.load.push(load as f64 / pages);
        }
        Ok((passes, full))
    }

    fn group(&self) -> Group {
        Group(self.thread as u16)
    }

    fn range(&self, call: usize) -> std::ops::Range<usize> {
        call * self.call_pages..((call + 1) * self.call_pages).min(self.pages.len())
    }

    fn store(&self, refs: &[&Page], call: usize, calls: &mut Vec<f64>) -> Result<u64> {
        let range = self.range(call);
        let (at, len) = (range.start, range.len());
        let mut stored = Ok(());
        // Real memory has pages that do not shrink; they are kept, as with a swap file.
        let time =
            timed(|| stored = self.pool.store_any(self.group(), (self.first + at) as u64, &refs[range]));
        calls.push(time as f64 / len as f64);
        stored.with_context(|| format!("{}: page {} was refused", self.case.file, self.first + at))?;
        Ok(time)
    }

    fn load(&self, slots: &mut [&mut Page], call: usize) -> Result<u64> {
        let range = self.range(call);
        let at = range.start;
        let mut loaded = Ok(());
        let key = (self.first + at) as u64;
        let time = timed(|| loaded = self.pool.load(self.group(), key, &mut slots[range], Keep::Exclusive));
        ensure!(loaded.is_ok(), self.wrong(at));
        Ok(time)
    }

    fn wrong(&self, page: usize) -> String {
        format!("{}: page {} did not come back as it was", self.case.file, self.first + page)
    }

    fn full(&self) -> Full {
        Full {
            compressed_bytes: self.pool.compressed_bytes(),
            pool_bytes: self.pool.pool_bytes(),
            metadata_bytes: self.pool.metadata_bytes(),
            stored_pages: self.pool.stored_pages(),
        }
    }
}

/// Nanoseconds that `pass` takes. The clock's own 20 or so are in the codec's figures and in the
/// store's alike.
fn timed(pass: impl FnOnce()) -> u64 {
    let before = Instant::now();
    pass();
    before.elapsed().as_nanos() as u64
}

/// The same random order every time.
fn shuffle(order: &mut [usize]) {
    let mut state = 1u64;
    for at in (1..order.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
}

/// The codec without the store: the same requests over the same pages, objects kept packed one
/// after the other.
struct Alone<'a> {
    context: Box<dyn uzswap::acomp::Context>,
    unit_size: usize,
    batch: usize,
    rooms: Vec<u8>,
    /// Start and length in `objects`; `None` for units that did not shrink.
    spans: Vec<Option<(usize, usize)>>,
    objects: Vec<u8>,
    pages: &'a [Page],
}

impl<'a> Alone<'a> {
    fn new(case: &Case<'_>, pages: &'a [Page]) -> Result<Self> {
        Ok(Alone {
            context: case.algorithm.context_for(case.unit_size)?,
            unit_size: case.unit_size,
            batch: case.batch,
            rooms: vec![0; case.unit_size * MAX_BATCH],
            spans: vec![None; (pages.len() * PAGE_SIZE).div_ceil(case.unit_size)],
            objects: Vec::new(),
            pages,
        })
    }

    fn range(&self, call: usize) -> std::ops::Range<usize> {
        let pages = self.batch * self.unit_size / PAGE_SIZE;
        call * pages..((call + 1) * pages).min(self.pages.len())
    }

    fn compress(&mut self, refs: &[&Page], call: usize) {
        let request = &refs[self.range(call)];
        let len = request.len() * PAGE_SIZE;
        let mut results: [UnitResult; MAX_BATCH] = [Err(UnitError::Failed); MAX_BATCH];
        let units = len.div_ceil(self.unit_size);
        {
            let mut rooms = self.rooms[..len].chunks_mut(self.unit_size);
            let mut outputs: [&mut [u8]; MAX_BATCH] =
                std::array::from_fn(|_| rooms.next().unwrap_or_default());
            self.context.compress(&mut CompressRequest {
                pages: request,
                unit_size: self.unit_size,
                outputs: &mut outputs[..units],
                results: &mut results[..units],
            });
        }
        let spans = &mut self.spans[call * self.batch..][..units];
        for ((room, result), span) in self.rooms[..len].chunks(self.unit_size).zip(&results).zip(spans) {
            // Only while warming up, so that the copy is in no figure.
            if let (Ok(object), None) = (result, &span) {
                self.objects.extend_from_slice(&room[..*object]);
                *span = Some((self.objects.len() - object, *object));
            }
        }
    }

    fn decompress(&mut self, slots: &mut [&mut Page], call: usize) {
        let range = self.range(call);
        let units = (range.len() * PAGE_SIZE).div_ceil(self.unit_size);
        let spans = &self.spans[call * self.batch..][..units];
        let mut objects = [Object::default(); MAX_BATCH];
        let mut results: [UnitResult; MAX_BATCH] = [Err(UnitError::Failed); MAX_BATCH];
        let mut rooms = self.rooms.chunks_mut(self.unit_size);
        let mut pages = slots[range.clone()].chunks_mut(self.unit_size / PAGE_SIZE);
        let mut outputs: [&mut [u8]; MAX_BATCH] = std::array::from_fn(|_| &mut [][..]);
        let mut len = 0;
        for span in spans {
            let unit = pages.next().expect("a unit a span");
            let Some((start, object)) = *span else { continue };
            let object = &self.objects[start..start + object];
            prefetch(&object[..object.len().min(FETCHED)]);
            objects[len] = Object::whole(object);
            outputs[len] = match unit {
                [page] => page.as_mut_slice(),
                unit => &mut rooms.next().expect("a room a unit")[..unit.len() * PAGE_SIZE],
            };
            len += 1;
        }
        if len > 0 {
            self.context.decompress(&mut DecompressRequest {
                objects: &objects[..len],
                outputs: &mut outputs[..len],
                results: &mut results[..len],
            });
            assert!(results[..len].iter().all(Result::is_ok), "the codec reads what it wrote");
        }
    }
}

/// The value below which the share `part` of the values lies.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}
