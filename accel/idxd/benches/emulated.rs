//! Speed and ratio of the emulated device's codec, page by page, beside zlib with the same window.
//!
//! `UZSWAP_TEST_PAGES=DIR cargo bench -p uzswap-idxd` reads every `*.pages` file in DIR (raw 4 KiB
//! pages); without it, the tests' generated pages are used. Ratios are plain bytes over compressed
//! bytes, all pages together; incompressible pages count as 4 KiB.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::*;

type Compress = fn(&Device, &[u8], &mut [u8]) -> idxd::Record;

/// Best of a few rounds over all pages, per page.
fn time(pages: usize, mut round: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed());
    }
    best / pages as u32
}

fn corpora() -> Vec<(String, Vec<[u8; 4096]>)> {
    let Ok(directory) = std::env::var("UZSWAP_TEST_PAGES") else {
        return vec![("generated".to_owned(), pages())];
    };
    let mut corpora = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "pages") {
            let bytes = std::fs::read(&path).unwrap();
            // Takes one page in four, in runs of 16.
            let pages = bytes
                .chunks_exact(4096)
                .enumerate()
                .filter(|(at, _)| at / 16 % 4 == 0)
                .map(|(_, page)| page.try_into().unwrap());
            corpora.push((path.file_stem().unwrap().to_string_lossy().into_owned(), pages.collect()));
        }
    }
    corpora.sort();
    corpora
}

fn main() {
    let devices = [Device::new("generation=1"), Device::new("generation=2")];
    let modes: [(&str, usize, Compress); 4] = [
        ("fixed", 0, Device::compress_fixed),
        ("dynamic, statistics", 0, Device::compress_by_statistics),
        ("dynamic, one pass", 1, Device::compress_one_pass),
        ("dynamic, two passes", 1, Device::compress_two_pass),
    ];
    for (name, pages) in corpora() {
        let plain = pages.len() * 4096;
        println!("{name}: {} pages", pages.len());
        let zlib = |level, strategy| {
            let total: usize =
                pages.iter().map(|page| zlib_deflate(page, level, strategy, 8).len().min(4096)).sum();
            plain as f64 / total as f64
        };
        let fixed = zlib(6, libz_sys::Z_FIXED);
        let dynamic = zlib(6, libz_sys::Z_DEFAULT_STRATEGY);
        println!("  zlib -6 fixed: ratio {fixed:.3}; zlib -1 fixed: {:.3}", zlib(1, libz_sys::Z_FIXED));
        println!("  zlib -6: ratio {dynamic:.3}");
        for (mode, device, compress) in modes {
            let device = &devices[device];
            let mut out = [0; 4096];
            let mut streams = Vec::new();
            let mut total = 0;
            for page in &pages {
                let record = compress(device, page, &mut out);
                if record.is_success() {
                    total += record.output_size as usize;
                    streams.push(out[..record.output_size as usize].to_vec());
                } else {
                    total += 4096;
                }
            }
            let ratio = plain as f64 / total as f64;
            let baseline = if mode == "fixed" { fixed } else { dynamic };
            let compress_time = time(pages.len(), || {
                for page in &pages {
                    compress(device, page, &mut out);
                }
            });
            let decompress_time = time(streams.len().max(1), || {
                for stream in &streams {
                    assert!(device.decompress(stream, &mut out).is_success());
                }
            });
            println!(
                "  {mode}: ratio {ratio:.3} ({:.1} % of zlib's), compress {:.2} us, decompress {:.2} us a page",
                ratio / baseline * 100.0,
                compress_time.as_secs_f64() * 1e6,
                decompress_time.as_secs_f64() * 1e6
            );
        }
    }

    let null = Device::new("work=null");
    let page = [0; 4096];
    let mut out = [0; 4096];
    let elapsed = time(100_000, || {
        for _ in 0..100_000 {
            assert!(null.compress_fixed(&page, &mut out).is_success());
        }
    });
    println!("null engine: {} ns a job", elapsed.as_nanos());
}
