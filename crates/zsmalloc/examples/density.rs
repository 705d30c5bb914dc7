//! How densely a pool holds real pages: `cargo run --release --example density -- FILE...`
//!
//! Each file is raw 4 KiB pages. Each page is compressed with LZ4 and stored once; then half of the
//! objects are freed at random. Prints one line per file, chain length and moment. Without files it
//! uses a synthetic set of sizes.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Random;
use zsmalloc::{Config, Handle, Pool};

fn main() {
    println!(
        "{:<24} {:>5} {:<12} {:>8} {:>12} {:>12} {:>7} {:>9} {:>8} {:>7}",
        "sizes", "chain", "moment", "objects", "payload", "pages", "pages%", "metadata", "meta/obj", "waste%"
    );
    let files: Vec<String> = std::env::args().skip(1).collect();
    for file in &files {
        let sizes = compressed_sizes(&std::fs::read(file).expect("a readable file"));
        let name = file.rsplit('/').next().unwrap_or(file);
        for chain in [4, 8, 16] {
            report(name, chain, &sizes);
        }
    }
    for count in [4_000, 40_000, 400_000] {
        let mut random = Random::new(1);
        let sizes: Vec<u32> = (0..count).map(|_| random.size()).collect();
        for chain in [8, 16] {
            report(&format!("synthetic {count}"), chain, &sizes);
        }
    }
}

/// Skips zero and same-filled pages, which need no object. A page that does not shrink is kept raw.
fn compressed_sizes(bytes: &[u8]) -> Vec<u32> {
    let pages = bytes.chunks_exact(4096).filter(|page| page[8..] != page[..4088]);
    pages.map(|page| lz4_flex::block::compress(page).len().min(4096) as u32).collect()
}

fn report(name: &str, chain: usize, sizes: &[u32]) {
    let pool = Pool::new(&Config { chain, nodes: 1 }).expect("memory");
    let mut handles = vec![Handle::DANGLING; sizes.len()];
    for (sizes, handles) in sizes.chunks(8).zip(handles.chunks_mut(8)) {
        pool.malloc_bulk(sizes, 0, handles).expect("memory");
    }
    let print = |moment: &str| {
        let stats = pool.stats();
        println!(
            "{name:<24} {chain:>5} {moment:<12} {:>8} {:>12} {:>12} {:>6.2}% {:>9} {:>8.2} {:>6.2}%",
            stats.objects,
            stats.payload_bytes,
            stats.pool_bytes,
            stats.waste_bytes() as f64 * 100.0 / stats.payload_bytes as f64,
            stats.metadata_bytes,
            stats.metadata_bytes as f64 / stats.objects as f64,
            stats.waste_percent(),
        );
    };
    print("stored");
    let mut random = Random::new(2);
    for index in (1..handles.len()).rev() {
        handles.swap(index, random.below(index + 1));
    }
    let rest = handles.split_off(handles.len() / 2);
    pool.free_bulk(&handles);
    print("half freed");
    pool.compact();
    print("compacted");
    // Steady state of a busy store: random frees and allocations, without compaction.
    let mut live = rest;
    for _ in 0..sizes.len() * 4 {
        let which = random.below(live.len());
        pool.free(live[which]);
        live[which] = pool.malloc(sizes[random.below(sizes.len())], 0).expect("memory");
    }
    print("after churn");
    pool.free_bulk(&live);
    pool.compact();
    assert_eq!(pool.bytes(), 0);
}
