//! Ratio and time per page of compressors relative to the first, by file and by generated class.
//!
//! `cargo run --release -p uzswap-codecs --example page_bench -- [--compressor NAME]...
//! [--files-only] [--rounds N] FILE...` A file is raw pages; the generated classes follow the
//! files. The default compressors are zstd -1 and `auto` with every instruction set of the machine.
//! All take turns within each round; times are the minimum over the rounds. "warm" reads the part
//! of a file's 4 MiB that the caches still hold. "cold" flushes pages and objects from them before
//! each pass (x86-64 only). "limit" is a lower bound for any compressor: two passes that read the
//! page to compress it, one that copies it to decompress it.

#[path = "../tests/pages/mod.rs"]
mod pages;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use acomp::{
    Algorithm, CompressRequest, Context, DecompressRequest, Object, Page, Registry, MAX_BATCH, PAGE_SIZE,
};
use pagecodec::Isa;

const PAGES_MAX: usize = 1024;

type Contender = (Arc<dyn Algorithm>, Box<dyn Context>);

#[derive(Clone, Copy)]
struct Measured {
    bytes: usize,
    compress_ns: f64,
    decompress_ns: f64,
}

impl Measured {
    const NONE: Measured = Measured { bytes: 0, compress_ns: f64::MAX, decompress_ns: f64::MAX };

    fn keep_least(&mut self, compress_ns: f64, decompress_ns: f64) {
        self.compress_ns = self.compress_ns.min(compress_ns);
        self.decompress_ns = self.decompress_ns.min(decompress_ns);
    }
}

/// Flushes bytes from all caches. Returns whether this machine can.
fn flush(bytes: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        // SAFETY: the address is one of the slice; SSE2 is part of the architecture.
        unsafe { std::arch::x86_64::_mm_clflush(line.as_ptr()) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_mfence()
    };
    cfg!(target_arch = "x86_64") && !bytes.is_empty()
}

/// Runs all pages in batches of eight through both directions. Returns the pages of each form.
fn pass(
    algorithm: &dyn Algorithm,
    context: &mut dyn Context,
    pages: &[Page],
    space: &mut [[u8; PAGE_SIZE]],
    cold: bool,
    best: &mut Measured,
) -> Vec<u32> {
    let mut results: Vec<_> = pages.iter().map(|_| Ok(0)).collect();
    if cold {
        flush(pages.as_flattened());
    }
    let start = Instant::now();
    for (at, batch) in pages.chunks(MAX_BATCH).enumerate() {
        let at = at * MAX_BATCH;
        let sources: [&Page; MAX_BATCH] = std::array::from_fn(|k| &batch[k.min(batch.len() - 1)]);
        let mut outputs: Vec<&mut [u8]> =
            space[at..at + batch.len()].iter_mut().map(|slot| &mut slot[..]).collect();
        context.compress(&mut CompressRequest {
            pages: &sources[..batch.len()],
            unit_size: PAGE_SIZE,
            outputs: &mut outputs,
            results: &mut results[at..at + batch.len()],
        });
    }
    let compress_ns = start.elapsed().as_nanos() as f64 / pages.len() as f64;
    let mut back = [[0u8; PAGE_SIZE]; MAX_BATCH];
    if cold {
        flush(space.as_flattened());
    }
    let start = Instant::now();
    for (at, batch) in pages.chunks(MAX_BATCH).enumerate() {
        let at = at * MAX_BATCH;
        let mut objects = [Object::default(); MAX_BATCH];
        let mut stored = 0;
        for (slot, len) in space[at..].iter().zip(&results[at..at + batch.len()]) {
            if let Ok(len) = len {
                objects[stored] = Object::whole(&slot[..*len]);
                stored += 1;
            }
        }
        if stored > 0 {
            let mut outputs: Vec<&mut [u8]> = back[..stored].iter_mut().map(|page| &mut page[..]).collect();
            let mut results = [Ok(0); MAX_BATCH];
            context.decompress(&mut DecompressRequest {
                objects: &objects[..stored],
                outputs: &mut outputs,
                results: &mut results[..stored],
            });
            assert!(results[..stored].iter().all(|result| *result == Ok(PAGE_SIZE)));
        }
        for _ in stored..batch.len() {
            // A page without an object is stored raw.
            back[0].copy_from_slice(&space[at]);
        }
    }
    let decompress_ns = start.elapsed().as_nanos() as f64 / pages.len() as f64;
    let mut forms = vec![0; algorithm.forms().len()];
    for (slot, len) in space.iter().zip(&results) {
        if let Ok(len) = len {
            algorithm.count_forms(Object::whole(&slot[..*len]), 1, &mut forms);
            // A store does this when it frees an object.
            algorithm.forget(Object::whole(&slot[..*len]), 1);
        }
    }
    best.bytes = results.iter().map(|result| result.unwrap_or(PAGE_SIZE)).sum();
    best.keep_least(compress_ns, decompress_ns);
    forms
}

/// The lower bound for any compressor.
fn pass_limit(pages: &[Page], cold: bool, best: &mut Measured) {
    let mut back = [[0u8; PAGE_SIZE]; MAX_BATCH];
    let time = |work: &mut dyn FnMut(usize, &Page)| {
        if cold {
            flush(pages.as_flattened());
        }
        let start = Instant::now();
        for (number, page) in pages.iter().enumerate() {
            work(number, page);
        }
        start.elapsed().as_nanos() as f64 / pages.len() as f64
    };
    let twice = time(&mut |_, page| {
        for _ in 0..2 {
            let words = black_box(page).as_chunks::<8>().0;
            black_box(words.iter().fold(0u64, |sum, word| sum ^ u64::from_le_bytes(*word)));
        }
    });
    let copy = time(&mut |number, page| black_box(&mut back[number % MAX_BATCH]).copy_from_slice(page));
    best.keep_least(twice, copy);
}

fn report(name: &str, pages: &[Page], contexts: &mut [Contender], rounds: usize) {
    let mut space = vec![[0u8; PAGE_SIZE]; pages.len()];
    for cold in [false, true] {
        if cold && !flush(pages.as_flattened()) {
            continue;
        }
        let mut best = vec![Measured::NONE; contexts.len()];
        let mut limit = Measured::NONE;
        let mut forms = vec![Vec::new(); contexts.len()];
        for _ in 0..rounds {
            pass_limit(pages, cold, &mut limit);
            for (((algorithm, context), best), forms) in contexts.iter_mut().zip(&mut best).zip(&mut forms) {
                *forms = pass(algorithm.as_ref(), context.as_mut(), pages, &mut space, cold, best);
            }
        }
        let set = if cold { "cold" } else { "warm" };
        let base = best[0];
        let line = |compressor: &str, ratio: &str, Measured { compress_ns, decompress_ns, .. }: Measured| {
            println!(
                "{name:<20} {set} {compressor:<14} {ratio:>7} {compress_ns:>7.0} {:>5.2} {decompress_ns:>7.0} {:>5.2}",
                compress_ns / base.compress_ns,
                decompress_ns / base.decompress_ns
            );
        };
        for ((algorithm, _), &measured) in contexts.iter().zip(&best) {
            let ratio = (pages.len() * PAGE_SIZE) as f64 / measured.bytes as f64;
            line(algorithm.name(), &format!("{ratio:.3}"), measured);
        }
        line("limit", "", limit);
        for ((algorithm, _), counts) in contexts.iter().zip(&forms).filter(|(_, counts)| counts.len() > 1) {
            let shares = algorithm.forms().iter().zip(counts).filter(|(_, count)| **count > 0);
            let shares = shares.map(|(form, count)| {
                format!(" {form} {:.0}%", 100.0 * f64::from(*count) / pages.len() as f64)
            });
            println!("{name:<20} {} {} pages:{}", algorithm.name(), pages.len(), shares.collect::<String>());
        }
    }
}

fn main() {
    let mut names = vec!["lz4".to_owned()];
    let mut files = Vec::new();
    let mut classes = pages::CLASSES;
    let mut rounds = 5;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--compressor" {
            names.push(args.next().expect("--compressor NAME"));
        } else if arg == "--files-only" {
            classes = &[];
        } else if arg == "--rounds" {
            rounds = args.next().and_then(|count| count.parse().ok()).expect("--rounds N");
        } else {
            files.push(arg);
        }
    }
    if names.len() == 1 {
        names.push("zstd:1".to_owned());
        names.extend(Isa::available().map(|isa| format!("auto:{isa}")));
    }
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    let mut contexts: Vec<_> = names
        .into_iter()
        .map(|name| {
            let algorithm = registry.find(&name).unwrap_or_else(|error| panic!("{error}"));
            let context = algorithm.context().expect("a context");
            (algorithm, context)
        })
        .collect();
    println!("pages, set, compressor; ratio; ns to compress a page, share of LZ4's; to decompress it, share of LZ4's");
    for file in &files {
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let all = bytes.as_chunks::<PAGE_SIZE>().0;
        // Runs of 16 pages, spread over the file.
        let runs: Vec<_> = all.chunks_exact(16).collect();
        let wanted = runs.len().min(PAGES_MAX / 16);
        let sample: Vec<Page> =
            (0..wanted).flat_map(|at| runs[at * runs.len() / wanted].iter().copied()).collect();
        let name =
            std::path::Path::new(file).file_stem().map_or(file.as_str().into(), |n| n.to_string_lossy());
        report(&name, &sample, &mut contexts, rounds);
    }
    for class in classes {
        report(class.0, &pages::make(class, 256), &mut contexts, rounds);
    }
}
