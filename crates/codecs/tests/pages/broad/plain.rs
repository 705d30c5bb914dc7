//! Pages of little variety: short periods, nearly empty pages, arrays of structs.

use acomp::PAGE_SIZE;

use super::Class;
use crate::pages::{words, Random};

/// Bytes of a pattern, by sort of bytes.
pub(super) fn pattern(sort: usize, len: usize, random: &mut Random) -> Vec<u8> {
    let byte = |at: usize, random: &mut Random| match sort {
        0 => random.next() as u8,
        1 => b" etaoinshrdlu,.\n"[random.below(16) as usize],
        2 => {
            if random.below(3) == 0 {
                random.next() as u8
            } else {
                0
            }
        }
        _ => {
            [0x40, 0x12, 0xab, 0x56, 0x55, 0x55, 0, 0][at % 8]
                ^ if at % 8 < 2 { random.next() as u8 } else { 0 }
        }
    };
    (0..len).map(|at| byte(at, random)).collect()
}

const SORTS: [&str; 4] = ["bytes", "text", "sparse", "pointers"];

/// Short periods, whole and with some bytes changed.
pub(super) fn periodic(all: &mut Vec<Class>) {
    let periods = [
        1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 16, 20, 24, 28, 32, 33, 40, 48, 56, 60, 61, 64, 65, 72, 80,
        88, 96, 100, 104, 112, 120, 127, 128, 129, 136, 144, 160, 176, 192, 200, 208, 224, 240, 250, 256,
        257, 272, 288, 300, 304, 320, 333, 336, 352, 376, 384, 400, 416, 444, 448, 480, 496, 500, 504, 509,
        511, 512, 640, 768, 1000, 1024, 1536, 2048,
    ];
    for period in periods {
        for (sort, name) in SORTS.iter().enumerate() {
            all.push(Class::new(format!("period {period} of {name}"), move |_, random| {
                let phase = random.below(period as u64) as usize;
                let pattern = pattern(sort, period, random);
                (phase..phase + PAGE_SIZE).map(|at| pattern[at % period]).collect()
            }));
        }
    }
    for period in [8, 16, 24, 37, 40, 48, 56, 64, 96, 100, 128, 192, 256, 320, 384, 500, 512] {
        for changed in [1, 4, 16, 64] {
            for (sort, name) in SORTS.iter().enumerate() {
                let name = format!("period {period} of {name}, {changed} changed");
                all.push(Class::new(name, move |_, random| {
                    let mut page = pattern(sort, period, random).repeat(PAGE_SIZE / period + 1);
                    for _ in 0..changed {
                        page[random.below(4096) as usize] = random.next() as u8;
                    }
                    page
                }));
            }
        }
    }
    for (period, lines) in [(64, 8), (64, 32), (128, 16), (256, 8)] {
        // A pattern that stops, followed by another.
        all.push(Class::new(format!("patterns of {period}, {lines} times each"), move |_, random| {
            let mut page = Vec::new();
            while page.len() < PAGE_SIZE {
                page.extend(pattern(0, period, random).repeat(lines));
            }
            page
        }));
    }
}

/// Nearly empty pages.
pub(super) fn zeros(all: &mut Vec<Class>) {
    for count in [1, 8, 20, 50, 100, 200, 400, 800, 1600] {
        for (sort, name) in SORTS.iter().enumerate() {
            all.push(Class::new(format!("{count} {name} in zeros"), move |_, random| {
                let mut page = vec![0; PAGE_SIZE];
                let at = random.below((PAGE_SIZE - count) as u64) as usize / 8 * 8;
                page[at..at + count].copy_from_slice(&pattern(sort, count, random));
                page
            }));
        }
    }
    for clusters in [2, 4, 8, 16, 32, 64] {
        for len in [2, 8, 17, 40] {
            all.push(Class::new(format!("{clusters} clusters of {len} bytes"), move |_, random| {
                let mut page = vec![0; PAGE_SIZE];
                for _ in 0..clusters {
                    let at = random.below((PAGE_SIZE - len) as u64) as usize;
                    page[at..at + len].copy_from_slice(&pattern(0, len, random));
                }
                page
            }));
        }
    }
    for (one, other) in [(0xff, 0), (0, 0xff), (0xcc, 0), (0x20, 0xff)] {
        for runs in [2, 8, 32, 128, 512] {
            all.push(Class::new(format!("{runs} runs of {one:#x} and {other:#x}"), move |_, random| {
                let mut page = Vec::new();
                let mut byte = one;
                while page.len() < PAGE_SIZE {
                    page.extend(vec![byte; 1 + random.below(2 * PAGE_SIZE as u64 / runs) as usize]);
                    byte ^= one ^ other;
                }
                page
            }));
        }
        all.push(Class::new(format!("bytes {one:#x} or {other:#x}"), move |_, random| {
            (0..PAGE_SIZE).map(|_| if random.below(2) == 0 { one } else { other }).collect()
        }));
        all.push(Class::new(format!("words of {one:#x} or {other:#x}"), move |_, random| {
            words(|_| u64::from(if random.below(2) == 0 { one } else { other }) * 0x0101_0101_0101_0101)
        }));
    }
    all.push(Class::new("all ones but the last word", |_, random| {
        words(|at| if at == 511 { random.next() } else { u64::MAX })
    }));
    for density in [2, 8, 64] {
        all.push(Class::new(format!("a bit of {density} set"), move |_, random| {
            (0..PAGE_SIZE)
                .map(|_| (0..8).fold(0, |byte, bit| byte | u8::from(random.below(density) == 0) << bit))
                .collect()
        }));
    }
}

pub(super) fn structs(all: &mut Vec<Class>) {
    for size in [12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96, 100, 112, 128, 144, 192, 256] {
        all.push(Class::new(format!("structs of {size} with a counter"), move |number, random| {
            let pattern = pattern(0, size, random);
            let mut page = pattern.repeat(PAGE_SIZE / size + 1);
            for (at, item) in page.chunks_exact_mut(size).enumerate() {
                item[..4].copy_from_slice(&((number * 100 + at) as u32).to_le_bytes());
            }
            page
        }));
        let name = format!("structs of {size}, a pointer, a length, flags");
        all.push(Class::new(name, move |number, random| {
            let mut page = vec![0; (PAGE_SIZE / size + 1) * size];
            for item in page.chunks_exact_mut(size) {
                let pointer = 0x7f12_0000_0000 + 4096 * number as u64 + 16 * random.below(1 << 14);
                item[..8].copy_from_slice(&pointer.to_le_bytes());
                item[8..10].copy_from_slice(&(random.below(300) as u16).to_le_bytes());
                if size > 16 {
                    item[size - 1] = random.below(4) as u8;
                    item[16..20].copy_from_slice(&(random.below(1 << 20) as u32).to_le_bytes());
                }
            }
            page
        }));
        all.push(Class::new(format!("structs of {size}, one of four kinds"), move |_, random| {
            let kinds: Vec<_> = (0..4).map(|sort| pattern(sort, size, random)).collect();
            let mut page = Vec::new();
            while page.len() < PAGE_SIZE {
                page.extend(&kinds[random.below(4) as usize]);
            }
            page
        }));
    }
}
