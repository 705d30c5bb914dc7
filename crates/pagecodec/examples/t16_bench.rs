//! Speed and ratio of T16 against LZ4 (the C library, acceleration 1) over files of raw 4 KiB
//! pages: `cargo run --release -p uzswap-pagecodec --example t16_bench -- FILE...`
//!
//! Pages filled with one word are left out. Each figure is the lowest of several passes; LZ4 and
//! all instruction sets of the machine (or those of the variable `ISA`, with commas) take turns
//! within a pass, so that a busy machine harms all. "hot" is the first 4 MiB, "large" up to 16 MiB,
//! "cold" the first 4 MiB with pages and objects flushed from the caches before each pass (x86-64
//! only). "limit" is what no codec goes below: two passes over the page to compress it, one that
//! reads it and one that writes another to decompress it.

use std::time::{Duration, Instant};

use pagecodec::{same_filled, t16, Isa, PAGE_SIZE};

type Page = [u8; PAGE_SIZE];

const BATCH: usize = 8;

/// Objects back to back, as a store would hold them.
struct Objects {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl Objects {
    fn new(pages: usize) -> Self {
        Objects { bytes: vec![0; (pages + 1) * t16::OBJECT_MAX], lens: Vec::with_capacity(pages) }
    }

    /// Bytes, with every object counted as a page when it is not shorter.
    fn size(&self) -> usize {
        self.lens.iter().map(|&len| len.min(PAGE_SIZE)).sum()
    }
}

/// Compresses with `compress`, which gets up to [`BATCH`] pages and as many outputs and lengths.
/// Only this is timed: not the copying to where the objects stay, which costs every codec the same.
fn compress(
    pages: &[Page],
    objects: &mut Objects,
    mut compress: impl FnMut(&[&Page], &mut [&mut [u8]], &mut [usize]),
) -> f64 {
    objects.lens.clear();
    let mut room = [[0u8; t16::OBJECT_MAX]; BATCH];
    let mut at = 0;
    let mut time = Duration::ZERO;
    for batch in pages.chunks(BATCH) {
        let refs: [&Page; BATCH] = std::array::from_fn(|k| &batch[k.min(batch.len() - 1)]);
        let mut outs = room.each_mut().map(|out| out.as_mut_slice());
        let mut lens = [0; BATCH];
        let start = Instant::now();
        compress(&refs[..batch.len()], &mut outs[..batch.len()], &mut lens[..batch.len()]);
        time += start.elapsed();
        for (&len, out) in lens.iter().zip(&room).take(batch.len()) {
            objects.bytes[at..at + len].copy_from_slice(&out[..len]);
            objects.lens.push(len);
            at += len;
        }
    }
    time.as_secs_f64()
}

fn compress_t16(encoder: &mut t16::Encoder, pages: &[Page], objects: &mut Objects) -> f64 {
    compress(pages, objects, |pages, outs, lens| {
        let mut results = [Ok(0); BATCH];
        encoder.encode_batch(pages, outs, &mut results[..pages.len()]);
        for (len, result) in lens.iter_mut().zip(results) {
            *len = result.expect("the room is the format's maximum");
        }
    })
}

fn decompress_t16(isa: Isa, objects: &Objects, out: &mut [Page; BATCH]) -> f64 {
    let mut at = 0;
    let start = Instant::now();
    for lens in objects.lens.chunks(BATCH) {
        let count = lens.len();
        let sources: [&[u8]; BATCH] = std::array::from_fn(|k| {
            let len = lens.get(k).copied().unwrap_or(0);
            at += len;
            &objects.bytes[at - len..at]
        });
        let mut pages = out.each_mut();
        let mut results = [Ok(()); BATCH];
        t16::decode_batch(isa, &sources[..count], &mut pages[..count], &mut results[..count]);
        assert!(results.iter().all(|result| result.is_ok()));
    }
    start.elapsed().as_secs_f64()
}

fn compress_lz4(state: &mut [u64], pages: &[Page], objects: &mut Objects) -> f64 {
    compress(pages, objects, |pages, outs, lens| {
        for ((page, out), len) in pages.iter().zip(outs).zip(lens) {
            // SAFETY: the pointers and lengths are those of live buffers; the state has
            // LZ4_sizeofState bytes, aligned to 8.
            *len = unsafe {
                LZ4_compress_fast_extState(
                    state.as_mut_ptr().cast(),
                    page.as_ptr().cast(),
                    out.as_mut_ptr().cast(),
                    PAGE_SIZE as i32,
                    out.len() as i32,
                    1,
                )
            } as usize;
        }
    })
}

/// Two passes that read each page, one after the other.
fn read_twice(pages: &[Page]) -> f64 {
    let start = Instant::now();
    for page in pages {
        for _ in 0..2 {
            let words = std::hint::black_box(page).as_chunks::<8>().0;
            let sum = words.iter().fold(0u64, |sum, word| sum ^ u64::from_le_bytes(*word));
            std::hint::black_box(sum);
        }
    }
    start.elapsed().as_secs_f64()
}

/// One pass that reads each page and writes another.
fn copy(pages: &[Page], out: &mut [Page; BATCH]) -> f64 {
    let start = Instant::now();
    for (number, page) in pages.iter().enumerate() {
        std::hint::black_box(&mut out[number % BATCH]).copy_from_slice(page);
    }
    start.elapsed().as_secs_f64()
}

/// Flushes bytes from all caches; returns whether this machine can.
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

extern "C" {
    fn LZ4_sizeofState() -> i32;
    fn LZ4_compress_fast_extState(
        state: *mut std::ffi::c_void,
        src: *const std::ffi::c_char,
        dst: *mut std::ffi::c_char,
        len: i32,
        room: i32,
        acceleration: i32,
    ) -> i32;
}

fn decompress_lz4(objects: &Objects, out: &mut [Page; BATCH]) -> f64 {
    let mut at = 0;
    let start = Instant::now();
    for (number, &len) in objects.lens.iter().enumerate() {
        let page = &mut out[number % BATCH];
        // SAFETY: the pointers and lengths are those of live buffers.
        let got = unsafe {
            lz4_sys::LZ4_decompress_safe(
                objects.bytes[at..].as_ptr().cast(),
                page.as_mut_ptr().cast(),
                len as i32,
                PAGE_SIZE as i32,
            )
        };
        assert_eq!(got, PAGE_SIZE as i32);
        at += len;
    }
    start.elapsed().as_secs_f64()
}

fn main() {
    // SAFETY: no arguments.
    let state_len = unsafe { LZ4_sizeofState() } as usize;
    let mut state = vec![0u64; state_len.div_ceil(8)];
    let only = std::env::var("ISA").ok();
    println!(
        "{:<10} {:<6} {:<9} {:>7} {:>9} {:>6} {:>9} {:>6}",
        "pages", "set", "codec", "ratio", "comp us", "x lz4", "deco us", "x lz4"
    );
    for file in std::env::args().skip(1) {
        let bytes = std::fs::read(&file).expect("a readable file of pages");
        let name = std::path::Path::new(&file).file_stem().unwrap_or_default().to_string_lossy();
        let all: Vec<Page> = bytes
            .as_chunks::<PAGE_SIZE>()
            .0
            .iter()
            .copied()
            .filter(|page| same_filled(page).is_none())
            .collect();
        let sets = [("hot", 1024, 15, false), ("large", 4096, 5, false), ("cold", 1024, 7, true)];
        for (set, pages_max, passes, cold) in sets {
            if cold && !flush(all[..1].as_flattened()) {
                continue;
            }
            let pages = &all[..all.len().min(pages_max)];
            let mut lz4 = Objects::new(pages.len());
            let mut out = Box::new([[0u8; PAGE_SIZE]; BATCH]);
            let isas: Vec<Isa> = Isa::available()
                .filter(|isa| only.as_ref().is_none_or(|only| only.split(',').any(|name| isa.name() == name)))
                .collect();
            let mut coded: Vec<Objects> = isas.iter().map(|_| Objects::new(pages.len())).collect();
            let mut encoders: Vec<t16::Encoder> =
                isas.iter().map(|&isa| t16::Encoder::with_isa(isa)).collect();
            let mut best = vec![(f64::MAX, f64::MAX); isas.len() + 1];
            let mut limit = (f64::MAX, f64::MAX);
            let chill = |bytes: &[u8]| cold && flush(bytes);
            for _ in 0..passes {
                chill(pages.as_flattened());
                let twice = read_twice(pages);
                chill(pages.as_flattened());
                limit = (limit.0.min(twice), limit.1.min(copy(pages, &mut out)));
                chill(pages.as_flattened());
                let compress = compress_lz4(&mut state, pages, &mut lz4);
                chill(&lz4.bytes[..lz4.lens.iter().sum()]);
                let times = (compress, decompress_lz4(&lz4, &mut out));
                best[0] = (best[0].0.min(times.0), best[0].1.min(times.1));
                for (at, &isa) in isas.iter().enumerate() {
                    chill(pages.as_flattened());
                    let compress = compress_t16(&mut encoders[at], pages, &mut coded[at]);
                    chill(&coded[at].bytes[..coded[at].lens.iter().sum()]);
                    let decompress = decompress_t16(isa, &coded[at], &mut out);
                    let slot = &mut best[at + 1];
                    *slot = (slot.0.min(compress), slot.1.min(decompress));
                }
            }
            // What was timed must also be right.
            for (&isa, objects) in isas.iter().zip(&coded) {
                let mut at = 0;
                for (page, &len) in pages.iter().zip(&objects.lens) {
                    t16::decode(isa, &objects.bytes[at..at + len], &mut out[0]).expect("own object");
                    assert_eq!(page, &out[0]);
                    at += len;
                }
            }
            let us = |seconds: f64| seconds * 1e6 / pages.len() as f64;
            let total = pages.len() * PAGE_SIZE;
            let line = |codec: &str, objects: &Objects, time: (f64, f64)| {
                println!(
                    "{name:<10} {set:<6} {codec:<9} {:>7.3} {:>9.3} {:>6.2} {:>9.3} {:>6.2}",
                    total as f64 / objects.size() as f64,
                    us(time.0),
                    best[0].0 / time.0,
                    us(time.1),
                    best[0].1 / time.1
                );
            };
            line("lz4", &lz4, best[0]);
            println!(
                "{name:<10} {set:<6} {:<9} {:>7} {:>9.3} {:>6.2} {:>9.3} {:>6.2}",
                "limit",
                "",
                us(limit.0),
                best[0].0 / limit.0,
                us(limit.1),
                best[0].1 / limit.1
            );
            for ((isa, objects), &time) in isas.iter().zip(&coded).zip(&best[1..]) {
                line(isa.name(), objects, time);
            }
        }
    }
}
