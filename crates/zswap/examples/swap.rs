//! Costs of a swap file relative to its bare disk, in turns within one run:
//!
//! `cargo run --release -p uzswap-zswap --example swap -- [--dir DIR] [--mib N] [--rounds N]
//! [--plain] [--compressor NAME] [--pages FILE]...`
//!
//! - *fill*: one thread stores pages and another writes them, in a pool of an eighth of their
//!   bytes; baseline: a loop of pwrite(2), 1 MiB at a time, past the page cache, as `dd
//!   oflag=direct bs=1M`.
//! - *drain*: one thread writes the pool and does nothing else; the same baseline.
//! - *read back* in order, 64 pages a load; baseline: a loop of pread(2), 1 MiB at a time.
//! - *load*: one random page on disk; baseline: a pread(2) of 4 KiB, at random.
//! - *pool*: one page from the pool, of a store with a swap file; baseline: a store without one.
//!
//! Pages are random bytes, or with `--pages` those of captured heaps, repeated with variations.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use swapfile::Buffer;
use sys::files::Caching;
use zswap::{Config, Group, Keep, Page, SwapFile, Zswap};

const GROUP: Group = Group(0);
const FOLIO: usize = 16;
const MIB: usize = 1 << 20;

struct Options {
    directory: PathBuf,
    mib: usize,
    rounds: usize,
    plain: bool,
    compressor: String,
    pages: Vec<PathBuf>,
}

fn options() -> Options {
    let mut options = Options {
        directory: "/var/tmp".into(),
        mib: 512,
        rounds: 5,
        plain: false,
        compressor: "lz4".into(),
        pages: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().expect("a value behind it");
        match name.as_str() {
            "--dir" => options.directory = value().into(),
            "--mib" => options.mib = value().parse().expect("a number"),
            "--rounds" => options.rounds = value().parse().expect("a number"),
            "--plain" => options.plain = true,
            "--compressor" => options.compressor = value(),
            "--pages" => options.pages.push(value().into()),
            other => panic!("{other} is unknown; see the top of this example"),
        }
    }
    options
}

/// Pages to store, whose repetitions each differ in a word.
struct Corpus(Vec<Page>);

impl Corpus {
    fn new(options: &Options) -> Corpus {
        let mut pages: Vec<Page> = Vec::new();
        for path in &options.pages {
            let bytes = std::fs::read(path).expect("a corpus");
            pages.extend(bytes.chunks_exact(4096).map(|page| Page::try_from(page).expect("a page")));
        }
        if pages.is_empty() {
            pages = vec![[0; 4096]; 4096];
            let mut random = 0x1234_5678_9ABC_DEF1u64;
            for word in pages.iter_mut().flat_map(|page| page.chunks_exact_mut(8)) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                word.copy_from_slice(&random.to_le_bytes());
            }
        }
        Corpus(pages)
    }

    fn write(&self, number: usize, page: &mut Page) {
        *page = self.0[number % self.0.len()];
        page[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
}

fn spawn(work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    std::thread::Builder::new().spawn(work).map(|_| ())
}

fn store(options: &Options, max_pool_bytes: u64, with_swap: bool) -> Zswap {
    let mut registry = acomp::Registry::new();
    codecs::register_all(&mut registry);
    let config = swapfile::Config {
        directory: options.directory.clone(),
        size_bytes: (options.mib * MIB * 2) as u64,
        plain: options.plain,
        ..swapfile::Config::default()
    };
    let swap = with_swap.then(|| SwapFile::open(&config, &spawn).expect("a swap file"));
    let algorithm = registry.find(&options.compressor).expect("a compressor");
    let config = Config { max_pool_bytes, swap, verify: false, ..Config::default() };
    Zswap::new(config, algorithm).expect("a store")
}

/// Stores all pages while another thread writes the pool out, then writes the rest.
fn fill(zswap: &Zswap, corpus: &Corpus, count: usize) -> Duration {
    let done = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let limit = zswap_limit(count);
                if zswap.pool_bytes() > limit / 2 {
                    zswap.shrink(limit / 2 - limit / 8);
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let mut folio = [[0; 4096]; FOLIO];
        for first in (0..count).step_by(FOLIO) {
            folio.iter_mut().enumerate().for_each(|(n, page)| corpus.write(first + n, page));
            let pages: [&Page; FOLIO] = std::array::from_fn(|n| &folio[n]);
            while zswap.store(GROUP, first as u64, &pages).is_err() {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
    });
    assert!(zswap.shrink(0).reached);
    began.elapsed()
}

fn zswap_limit(count: usize) -> u64 {
    (count * 4096 / 8) as u64
}

/// A file written as dd does.
struct Bare {
    file: std::fs::File,
    buffer: Buffer,
    bytes: usize,
}

impl Bare {
    fn new(options: &Options) -> Bare {
        let file = sys::files::open_unnamed(&options.directory, Caching::Direct).expect("O_DIRECT");
        let mut buffer = Buffer::new(MIB);
        sys::files::random(&mut buffer).expect("random bytes");
        Bare { file, buffer, bytes: options.mib * MIB }
    }

    fn write(&mut self, bytes: usize) -> Duration {
        // As a new file: no blocks yet.
        self.file.set_len(0).expect("truncated");
        let began = Instant::now();
        for at in (0..bytes).step_by(MIB) {
            self.file.write_all_at(&self.buffer, at as u64).expect("written");
        }
        self.bytes = bytes;
        began.elapsed()
    }

    fn read(&mut self) -> Duration {
        let began = Instant::now();
        for at in (0..self.bytes).step_by(MIB) {
            self.file.read_exact_at(&mut self.buffer, at as u64).expect("read");
        }
        began.elapsed()
    }

    fn read_block(&mut self, block: usize) -> Duration {
        let began = Instant::now();
        self.file.read_exact_at(&mut self.buffer[..4096], (block * 4096) as u64).expect("read");
        began.elapsed()
    }
}

fn median(values: &mut [f64]) -> f64 {
    percent(values, 50)
}

fn percent(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * percent / 100]
}

fn main() {
    let options = options();
    let corpus = Corpus::new(&options);
    let count = options.mib * MIB / 4096;
    let mib_s = |bytes: usize, took: Duration| bytes as f64 / MIB as f64 / took.as_secs_f64();
    let mut random = 88_172_645_463_325_252u64;
    let mut below = |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) as usize % end
    };
    let (mut fills, mut drains, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ours, mut bares) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let zswap = store(&options, zswap_limit(count), true);
        let file = zswap.swap_file().expect("it has one").clone();
        let mut bare = Bare::new(&options);
        if round == 0 {
            let way = if file.is_direct() { "O_DIRECT" } else { "page cache" };
            let seal = if file.is_encrypted() { "AEGIS-128L" } else { "checksums" };
            println!("{way}, {seal}, {} MiB of pages, {}", options.mib, options.compressor);
        }
        let took = fill(&zswap, &corpus, count);
        let counters = file.counters();
        let bare_took = bare.write((counters.bytes_written as usize).next_multiple_of(MIB));
        let written = counters.bytes_written as usize;
        let (own, dd) = (mib_s(written, took), mib_s(bare.bytes, bare_took));
        fills.push(own / dd);
        println!(
            "fill: {:.0} MiB/s of pages, {own:.0} MiB/s to disk; bare {dd:.0} MiB/s; ratio {:.2}; {:.3} written a byte of \
             pages, {:.3} a byte of objects; {} KiB of memory, tables {} KiB",
            mib_s(count * 4096, took),
            own / dd,
            written as f64 / (count * 4096) as f64,
            counters.write_amplification_milli() as f64 / 1000.0,
            counters.memory_bytes >> 10,
            zswap.table_bytes() >> 10,
        );

        // A full pool, written by one thread.
        let some = count / 4;
        let zswap_full = store(&options, u64::MAX, true);
        let mut page = [0; 4096];
        for number in 0..some {
            corpus.write(number, &mut page);
            zswap_full.store(GROUP, number as u64, &[&page]).expect("stored");
        }
        let began = Instant::now();
        assert!(zswap_full.shrink(0).reached);
        let took = began.elapsed();
        let written = zswap_full.swap_file().expect("it has one").counters().bytes_written as usize;
        let bare_took = bare.write(written.next_multiple_of(MIB));
        let (own, dd) = (mib_s(written, took), mib_s(bare.bytes, bare_took));
        drains.push(own / dd);
        println!("drain: {own:.0} MiB/s to disk; bare {dd:.0} MiB/s; ratio {:.2}", own / dd);
        drop(zswap_full);
        bare.write((counters.bytes_written as usize).next_multiple_of(MIB));

        // Loads at random, in turns.
        let mut page = [0; 4096];
        let mut expected = [0; 4096];
        for _ in 0..2000 {
            let key = below(count);
            if zswap.on_disk(GROUP, key as u64, 1) == 1 {
                let began = Instant::now();
                zswap.load(GROUP, key as u64, &mut [&mut page], Keep::Shared).expect("a page on disk");
                ours.push(began.elapsed().as_nanos() as f64 / 1000.0);
                corpus.write(key, &mut expected);
                assert!(page == expected, "another page came back");
            }
            bares.push(bare.read_block(below(bare.bytes / 4096)).as_nanos() as f64 / 1000.0);
        }

        // Read back in order.
        let mut pages = vec![[0; 4096]; 64];
        let began = Instant::now();
        for first in (0..count).step_by(64) {
            let mut slots: Vec<&mut Page> = pages.iter_mut().collect();
            zswap.load(GROUP, first as u64, &mut slots, Keep::Exclusive).expect("pages on disk");
        }
        let took = began.elapsed();
        let read = file.counters().bytes_read as usize;
        let bare_took = bare.read();
        reads.push(mib_s(count * 4096, took) / mib_s(bare.bytes, bare_took));
        println!(
            "read back: {:.0} MiB/s of pages, {:.0} MiB/s from disk; bare {:.0} MiB/s; pages against bare {:.2}",
            mib_s(count * 4096, took),
            mib_s(read, took),
            mib_s(bare.bytes, bare_took),
            reads[round],
        );
    }
    println!("fill against bare, median of {}: {:.2}", options.rounds, median(&mut fills));
    println!("drain against bare, median: {:.2}", median(&mut drains));
    println!("pages read back against bare, median: {:.2}", median(&mut reads));
    println!(
        "load p50 {:.0} us, p99 {:.0} us; bare 4 KiB p50 {:.0} us, p99 {:.0} us; p50 ratio {:.2}",
        median(&mut ours),
        percent(&mut ours, 99),
        median(&mut bares),
        percent(&mut bares, 99),
        median(&mut ours) / median(&mut bares),
    );

    // From the pool, with and without a swap file, in turns.
    let stores = [store(&options, u64::MAX, true), store(&options, u64::MAX, false)];
    let some = 4096.min(corpus.0.len());
    for zswap in &stores {
        for (number, page) in corpus.0[..some].iter().enumerate() {
            if zswap.store(GROUP, number as u64, &[page]).is_err() {
                // Without a swap file an incompressible page is refused, so both stores get half of
                // it.
                let mut half = *page;
                half[1024..].fill(7);
                stores
                    .iter()
                    .for_each(|zswap| zswap.store(GROUP, number as u64, &[&half]).expect("it compresses"));
            }
        }
    }
    let mut times = [Vec::new(), Vec::new()];
    let mut page = [0; 4096];
    for _ in 0..200 {
        for (zswap, times) in stores.iter().zip(&mut times) {
            let began = Instant::now();
            for _ in 0..200 {
                let key = below(some) as u64;
                zswap.load(GROUP, key, &mut [&mut page], Keep::Shared).expect("a page in the pool");
            }
            times.push(began.elapsed().as_nanos() as f64 / 200.0);
        }
    }
    let [with, without] = &mut times;
    let (with, without) = (median(with), median(without));
    println!("pool: {with:.0} ns a page with a swap file, {without:.0} without; ratio {:.3}", with / without);
}
