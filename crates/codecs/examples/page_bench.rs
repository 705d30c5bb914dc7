//! Ratio and time a page of `auto` against LZ4 and zstd -1, by file and by class of generated pages.
//!
//! `cargo run --release -p uzswap-codecs --example page_bench -- [--compressor NAME]... [--files-only] [--rounds N] FILE...`
//! A file is raw pages; the generated classes come after the files. All compressors take turns within each round; times are the least of the rounds.

#[path = "../tests/pages/mod.rs"]
mod pages;

use std::sync::Arc;
use std::time::Instant;

use acomp::{
    Algorithm, CompressRequest, Context, DecompressRequest, Object, Page, Registry, MAX_BATCH, PAGE_SIZE,
};
use codecs::auto::{counts, Kind};

const PAGES_MAX: usize = 1024;

type Contender = (Arc<dyn Algorithm>, Box<dyn Context>);

struct Measured {
    bytes: usize,
    compress_ns: f64,
    decompress_ns: f64,
}

/// One pass in each direction over all pages, in batches of eight.
fn pass(
    algorithm: &dyn Algorithm,
    context: &mut dyn Context,
    pages: &[Page],
    space: &mut [[u8; PAGE_SIZE]],
    best: &mut Measured,
) {
    let mut results: Vec<_> = pages.iter().map(|_| Ok(0)).collect();
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
            // A page that was given up is kept as it is.
            back[0].copy_from_slice(&space[at]);
        }
    }
    let decompress_ns = start.elapsed().as_nanos() as f64 / pages.len() as f64;
    // As a store does with what it frees.
    for (slot, len) in space.iter().zip(&results) {
        if let Ok(len) = len {
            algorithm.forget(Object::whole(&slot[..*len]), 1);
        }
    }
    best.bytes = results.iter().map(|result| result.unwrap_or(PAGE_SIZE)).sum();
    best.compress_ns = best.compress_ns.min(compress_ns);
    best.decompress_ns = best.decompress_ns.min(decompress_ns);
}

fn report(name: &str, pages: &[Page], contexts: &mut [Contender], rounds: usize) {
    let mut space = vec![[0u8; PAGE_SIZE]; pages.len()];
    let mut best: Vec<_> = contexts
        .iter()
        .map(|_| Measured { bytes: 0, compress_ns: f64::MAX, decompress_ns: f64::MAX })
        .collect();
    let before = counts();
    for _ in 0..rounds {
        for ((algorithm, context), best) in contexts.iter_mut().zip(&mut best) {
            pass(algorithm.as_ref(), context.as_mut(), pages, &mut space, best);
        }
    }
    let after = counts();
    print!("{name:<20} {:5}", pages.len());
    for ((algorithm, _), measured) in contexts.iter().zip(&best) {
        let compressor = algorithm.name();
        let ratio = (pages.len() * PAGE_SIZE) as f64 / measured.bytes as f64;
        let (compress, decompress) = (measured.compress_ns, measured.decompress_ns);
        print!(" | {compressor} {ratio:7.3} {compress:6.0} {decompress:5.0}");
        let base = &best[0];
        print!(
            " ({:5.3} {:4.2} {:4.2})",
            base.bytes as f64 / measured.bytes as f64,
            compress / base.compress_ns,
            decompress / base.decompress_ns
        );
    }
    print!(" |");
    let total = pages.len() * rounds;
    for kind in Kind::ALL {
        let share = (after.of(kind) - before.of(kind)) as f64 / total as f64;
        if share > 0.0 {
            print!(" {} {:.0}%", kind.name(), 100.0 * share);
        }
    }
    if after.refused > before.refused {
        print!(" refused {:.0}%", 100.0 * (after.refused - before.refused) as f64 / total as f64);
    }
    println!();
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
        names.extend(["zstd:1".to_owned(), "auto".to_owned()]);
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
    println!("name, pages; for each compressor: ratio, ns to compress and to decompress a page (all against the first)");
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
