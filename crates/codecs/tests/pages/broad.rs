//! Many more classes than [`super::CLASSES`]: what memory of programs looks like, one parameter after the other.

#![allow(dead_code)]

use acomp::{Page, PAGE_SIZE};

use super::{halves, shorts, text, words, Random, WORDS};

/// Makes the bytes of one page, at least 4096 of them; the number counts the pages of the class.
type Make = Box<dyn Fn(usize, &mut Random) -> Vec<u8>>;

/// One class of pages.
pub struct Class {
    /// What is in its pages.
    pub name: String,
    make: Make,
}

impl Class {
    fn new(name: impl Into<String>, make: impl Fn(usize, &mut Random) -> Vec<u8> + 'static) -> Self {
        Class { name: name.into(), make: Box::new(make) }
    }

    /// Page `number` of the class.
    pub fn page(&self, number: usize, random: &mut Random) -> Page {
        *(self.make)(number, random).first_chunk().expect("a page's bytes")
    }

    /// `count` pages, the same on every run.
    pub fn pages(&self, count: usize) -> Vec<Page> {
        let mut random = Random(seed(&self.name));
        (0..count).map(|number| self.page(number, &mut random)).collect()
    }
}

/// A seed of a name's own.
pub fn seed(name: &str) -> u64 {
    name.bytes().fold(1, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

/// All classes, the narrow ones of [`super::CLASSES`] among them.
pub fn classes() -> Vec<Class> {
    let mut all = Vec::new();
    for &(name, make) in super::CLASSES {
        all.push(Class::new(name, make));
    }
    periodic(&mut all);
    zeros(&mut all);
    structs(&mut all);
    heaps(&mut all);
    texts(&mut all);
    images(&mut all);
    numbers(&mut all);
    code(&mut all);
    all
}

/// Bytes of a pattern, by the sort of bytes.
fn pattern(sort: usize, len: usize, random: &mut Random) -> Vec<u8> {
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
fn periodic(all: &mut Vec<Class>) {
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
                all.push(Class::new(
                    format!("period {period} of {name}, {changed} changed"),
                    move |_, random| {
                        let mut page = pattern(sort, period, random).repeat(PAGE_SIZE / period + 1);
                        for _ in 0..changed {
                            page[random.below(4096) as usize] = random.next() as u8;
                        }
                        page
                    },
                ));
            }
        }
    }
    for (period, lines) in [(64, 8), (64, 32), (128, 16), (256, 8)] {
        // A pattern that stops and another that follows.
        all.push(Class::new(format!("patterns of {period}, {lines} times each"), move |_, random| {
            let mut page = Vec::new();
            while page.len() < PAGE_SIZE {
                page.extend(pattern(0, period, random).repeat(lines));
            }
            page
        }));
    }
}

/// Pages with hardly anything on them.
fn zeros(all: &mut Vec<Class>) {
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

/// Arrays of structs.
fn structs(all: &mut Vec<Class>) {
    for size in [12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96, 100, 112, 128, 144, 192, 256] {
        all.push(Class::new(format!("structs of {size} with a counter"), move |number, random| {
            let pattern = pattern(0, size, random);
            let mut page = pattern.repeat(PAGE_SIZE / size + 1);
            for (at, item) in page.chunks_exact_mut(size).enumerate() {
                item[..4].copy_from_slice(&((number * 100 + at) as u32).to_le_bytes());
            }
            page
        }));
        all.push(Class::new(
            format!("structs of {size}, a pointer, a length, flags"),
            move |number, random| {
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
            },
        ));
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

fn put(page: &mut [u8], at: usize, value: u64) {
    page[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// What allocators and run-time systems leave.
fn heaps(all: &mut Vec<Class>) {
    for size in [32, 48, 64, 96, 160, 272, 528, 1040] {
        all.push(Class::new(format!("freed chunks of {size}"), move |number, random| {
            let mut page = vec![0; PAGE_SIZE];
            let base = 0x5555_5580_0000 + 4096 * number as u64;
            let mut at = 8 * random.below(2) as usize;
            while at + size <= PAGE_SIZE {
                put(&mut page, at, size as u64 | 1);
                put(&mut page, at + 8, base + size as u64 * random.below(1000));
                put(&mut page, at + 16, base + size as u64 * random.below(1000));
                put(&mut page, at + size - 8, size as u64);
                at += size;
            }
            page
        }));
        all.push(Class::new(format!("freed chunks of {size}, text left over"), move |number, random| {
            let mut page =
                text(random, |random| format!("{} ", WORDS[random.below(WORDS.len() as u64) as usize]));
            page.truncate(PAGE_SIZE);
            let base = 0x5555_5580_0000 + 4096 * number as u64;
            for at in (0..=PAGE_SIZE - size).step_by(size) {
                put(&mut page, at, size as u64 | 1);
                put(&mut page, at + 8, base + size as u64 * random.below(1000));
                put(&mut page, at + 16, base + size as u64 * random.below(1000));
            }
            page
        }));
        all.push(Class::new(format!("short strings in chunks of {size}"), move |_, random| {
            let mut page = vec![0; PAGE_SIZE];
            for at in (0..=PAGE_SIZE - size).step_by(size) {
                put(&mut page, at, size as u64 | 1);
                let mut place = at + 8;
                while place + 12 < at + size {
                    let word = WORDS[random.below(WORDS.len() as u64) as usize].as_bytes();
                    page[place..place + word.len()].copy_from_slice(word);
                    place += word.len() + 1;
                    if random.below(3) == 0 {
                        break;
                    }
                }
            }
            page
        }));
    }
    for (bits, name) in [(47, "47"), (57, "57")] {
        let base = 1u64 << (bits - 1) | 0x1234_5670_0000;
        for span in [12, 16, 20, 24, 28, 32, 36] {
            all.push(Class::new(format!("pointers of {name} bits within 2^{span}"), move |_, random| {
                words(|_| base + (random.below(1 << span) & !15))
            }));
            all.push(Class::new(
                format!("pointers of {name} bits within 2^{span}, half null"),
                move |_, random| {
                    words(|_| if random.below(2) == 0 { 0 } else { base + (random.below(1 << span) & !15) })
                },
            ));
            all.push(Class::new(format!("lists of {name} bits within 2^{span}"), move |_, random| {
                words(|at| match at % 4 {
                    0 | 1 => base + (random.below(1 << span) & !31),
                    2 => random.below(1000),
                    _ => 0x7f00_1234_5678,
                })
            }));
        }
    }
    for regions in [2, 4, 8, 16, 32] {
        all.push(Class::new(format!("pointers into {regions} regions"), move |_, random| {
            let bases: Vec<u64> =
                (0..regions).map(|_| 0x7f00_0000_0000 + (random.below(1 << 24) << 16)).collect();
            words(|_| bases[random.below(regions) as usize] + 8 * random.below(1 << 13))
        }));
    }
    for span in [12, 16, 20, 24, 28] {
        all.push(Class::new(format!("compressed pointers within 2^{span}"), move |_, random| {
            halves(|_| 0xe000_0000 + (random.below(1 << span) as u32 & !7))
        }));
        all.push(Class::new(
            format!("objects with compressed pointers within 2^{span}"),
            move |_, random| {
                halves(|at| match at % 6 {
                    0 => 1,
                    1 => 0,
                    2 => 0x0018_2a40 + 0x48 * random.below(6) as u32,
                    5 => random.below(1000) as u32,
                    _ => 0xe000_0000 + (random.below(1 << span) as u32 & !7),
                })
            },
        ));
    }
    for slot in [8, 16, 24, 32] {
        for filled in [4, 8, 12] {
            all.push(Class::new(
                format!("hash table, slots of {slot}, {filled}/16 filled"),
                move |_, random| {
                    let mut page = vec![0; PAGE_SIZE + 32];
                    for at in (0..PAGE_SIZE).step_by(slot) {
                        if random.below(16) < filled {
                            put(&mut page, at, random.next());
                            if slot >= 16 {
                                put(&mut page, at + 8, 0x5581_0000_0000 + 16 * random.below(1 << 18));
                            }
                            if slot >= 24 {
                                put(&mut page, at + 16, random.below(100));
                            }
                        }
                    }
                    page
                },
            ));
            all.push(Class::new(
                format!("hash table of keys, slots of {slot}, {filled}/16 filled"),
                move |_, random| {
                    let mut page = vec![0xff; PAGE_SIZE + 32];
                    for at in (0..PAGE_SIZE).step_by(slot) {
                        if random.below(16) < filled {
                            put(&mut page, at, random.below(1 << 22));
                            if slot >= 16 {
                                put(&mut page, at + 8, random.below(1 << 12));
                            }
                        }
                    }
                    page
                },
            ));
        }
    }
    all.push(Class::new("control bytes of a hash table", |_, random| {
        (0..PAGE_SIZE).map(|_| if random.below(8) < 3 { 0xff } else { random.below(128) as u8 }).collect()
    }));
    all.push(Class::new("small tagged integers", |_, random| words(|_| random.below(1 << 31) << 32)));
    all.push(Class::new("boxed values, tags in the upper bits", |_, random| {
        words(|_| match random.below(4) {
            0 => 0xfff9_0000_0000_0000 + random.below(1 << 16),
            1 => 0xfffe_0000_0000_0000 + 0x7f00_1230_0000 + 16 * random.below(1 << 16),
            2 => (random.below(10_000) as f64).to_bits(),
            _ => random.unit().to_bits(),
        })
    }));
    all.push(Class::new("stack frames", |_, random| {
        let base = 0x7ffd_1234_0000;
        words(|at| match random.below(6) {
            0 => base + 8 * at as u64,
            1 => 0x5555_5555_0000 + random.below(1 << 18),
            2 => random.below(64),
            3 => 0x7f00_4000_0000 + 16 * random.below(1 << 14),
            4 => random.next() >> 32,
            _ => 0,
        })
    }));
    all.push(Class::new("gap buffer", |_, random| {
        let mut page =
            text(random, |random| format!("{} ", WORDS[random.below(WORDS.len() as u64) as usize]));
        let start = random.below(3000) as usize;
        let end = start + random.below((PAGE_SIZE - start) as u64) as usize;
        page[start..end].fill(0);
        page
    }));
    all.push(Class::new("gap buffer of noise", |_, random| {
        let mut page = pattern(0, PAGE_SIZE, random);
        let start = random.below(3000) as usize;
        let end = start + random.below((PAGE_SIZE - start) as u64) as usize;
        page[start..end].fill(0);
        page
    }));
    all.push(Class::new("strings with length and hash", |_, random| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE + 64 {
            let mut string = String::new();
            for _ in 0..1 + random.below(4) {
                string += WORDS[random.below(WORDS.len() as u64) as usize];
            }
            page.extend(1u64.to_le_bytes());
            page.extend(0x0090_a2c0u64.to_le_bytes());
            page.extend((string.len() as u64).to_le_bytes());
            page.extend(random.next().to_le_bytes());
            page.extend(string.bytes());
            page.resize(page.len().next_multiple_of(16), 0);
        }
        page
    }));
    all.push(Class::new("b-tree of keys and pointers", |_, random| {
        let mut key = random.below(1 << 30);
        words(|at| {
            if at % 16 == 0 {
                0x0007_0000_0000 + random.below(8)
            } else if at % 2 == 0 {
                key += random.below(1 << 10);
                key
            } else {
                0x7f12_3400_0000 + (random.below(1 << 22) << 6)
            }
        })
    }));
    all.push(Class::new("database page, cells at the end", |number, random| {
        let mut page = vec![0; PAGE_SIZE];
        let (mut front, mut back) = (8, PAGE_SIZE);
        page[0] = 13;
        for row in 0..random.below(70) as usize {
            let mut cell = vec![0x20, (row % 128) as u8, 4, 1, 33, 7];
            cell.extend(format!("name-{}-{}", number, random.below(100_000)).bytes());
            cell.extend(((number * 100 + row) as u32).to_be_bytes());
            cell.extend(random.unit().to_be_bytes());
            if back - cell.len() < front + 2 {
                break;
            }
            back -= cell.len();
            page[back..back + cell.len()].copy_from_slice(&cell);
            page[front..front + 2].copy_from_slice(&(back as u16).to_be_bytes());
            front += 2;
        }
        page
    }));
}

/// Text in many dresses.
fn texts(all: &mut Vec<Class>) {
    fn word(random: &mut Random) -> &'static str {
        WORDS[random.below(WORDS.len() as u64) as usize]
    }
    all.push(Class::new("log lines", |number, random| {
        let mut second = number as u64 * 60;
        text(random, |random| {
            second += random.below(3);
            let level = ["INFO", "INFO", "INFO", "WARN", "DEBUG"][random.below(5) as usize];
            format!(
                "2026-11-21T09:{:02}:{:02}.{:03}Z {level} worker-{} request id={:08x} took {} us\n",
                second / 60 % 60,
                second % 60,
                random.below(1000),
                random.below(8),
                random.next() as u32,
                random.below(5000)
            )
        })
    }));
    all.push(Class::new("access log", |_, random| {
        text(random, |random| {
            format!(
                "10.0.{}.{} - - [21/Nov/2026:09:0{}:{:02} +0000] \"GET /{}/{} HTTP/1.1\" 200 {}\n",
                random.below(256),
                random.below(256),
                random.below(10),
                random.below(60),
                word(random),
                random.below(1000),
                random.below(100_000)
            )
        })
    }));
    all.push(Class::new("xml", |_, random| {
        text(random, |random| {
            format!("  <item id=\"{}\"><name>{}</name></item>\n", random.below(10_000), word(random))
        })
    }));
    all.push(Class::new("source", |_, random| {
        text(random, |random| {
            format!(
                "    let {} = self.{}({}, {})?;\n",
                word(random),
                word(random),
                word(random),
                random.below(10)
            )
        })
    }));
    all.push(Class::new("paths", |_, random| {
        text(random, |random| format!("/usr/lib/{}/{}/{}.so\0", word(random), word(random), word(random)))
    }));
    all.push(Class::new("hex dump", |number, random| {
        let mut at = 4096 * number;
        text(random, |random| {
            at += 16;
            format!("{at:08x}  {:016x} {:016x}\n", random.next(), random.next())
        })
    }));
    all.push(Class::new("decimal numbers", |_, random| {
        text(random, |random| format!("{} ", random.below(1 << 32)))
    }));
    all.push(Class::new("dna", |_, random| {
        (0..PAGE_SIZE).map(|_| b"ACGT"[random.below(4) as usize]).collect()
    }));
    all.push(Class::new("words in lines of 80, padded", |_, random| {
        text(random, |random| {
            format!("{:<79}\n", format!("{} {} {}", word(random), word(random), random.below(1000)))
        })
    }));
    all.push(Class::new("json records", |number, random| {
        text(random, |random| {
            format!(
                "{{\"ts\":{},\"user\":\"{}\",\"ok\":{},\"tags\":[\"{}\",\"{}\"],\"v\":{:.4}}}\n",
                1_790_000_000_000u64 + number as u64 * 977 + random.below(1000),
                word(random),
                random.below(2) == 0,
                word(random),
                word(random),
                random.unit()
            )
        })
    }));
    for (name, base) in [("ascii", 0u32), ("greek", 0x0370), ("cjk", 0x4e00)] {
        let spread = if base == 0x4e00 { 2000 } else { 26 };
        all.push(Class::new(format!("utf-16, {name}"), move |_, random| {
            let letters: Vec<u32> = (0..WORDS.len()).map(|_| random.below(spread) as u32).collect();
            let mut page = Vec::new();
            while page.len() < PAGE_SIZE {
                let word = word(random);
                for byte in word.bytes().chain(*b" ") {
                    let unit = match base {
                        0 => u32::from(byte),
                        _ if byte == b' ' => 0x20,
                        _ => base + letters[(usize::from(byte) + word.len()) % letters.len()],
                    };
                    page.extend((unit as u16).to_le_bytes());
                }
            }
            page
        }));
        all.push(Class::new(format!("utf-32, {name}"), move |_, random| {
            let mut page = Vec::new();
            while page.len() < PAGE_SIZE {
                for byte in word(random).bytes().chain(*b" ") {
                    let unit = if byte == b' ' { 0x20 } else { base + u32::from(byte) % spread as u32 };
                    page.extend(unit.to_le_bytes());
                }
            }
            page
        }));
    }
    all.push(Class::new("utf-8, greek", |_, random| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            for byte in word(random).bytes() {
                page.extend([0xce, 0x80 + byte % 64]);
            }
            page.push(b' ');
        }
        page
    }));
    all.push(Class::new("cells of a terminal", |_, random| {
        let letters: Vec<u8> =
            text(random, |random| format!("{} ", word(random))).into_iter().take(PAGE_SIZE / 8).collect();
        words(|at| u64::from(letters[at]) | 0x0007_0000_0000_0000)
    }));
    all.push(Class::new("base64 in lines", |_, random| {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        (0..PAGE_SIZE)
            .map(|at| if at % 77 == 76 { b'\n' } else { DIGITS[random.below(64) as usize] })
            .collect()
    }));
    all.push(Class::new("varints and short strings", |_, random| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            page.extend([0x0a, 0x12, 0x08, random.below(128) as u8 | 0x80, random.below(100) as u8, 0x12]);
            let word = word(random);
            page.push(word.len() as u8);
            page.extend(word.bytes());
            page.extend([0x1d]);
            page.extend((random.unit() as f32).to_le_bytes());
        }
        page
    }));
}

/// Pictures and sound.
fn images(all: &mut Vec<Class>) {
    for noise in [0, 1, 2, 4, 16, 64] {
        all.push(Class::new(format!("gray rows, noise {noise}"), move |number, random| {
            (0..PAGE_SIZE)
                .map(|at| (at % 512 / 4 + at / 512 + number) as u8)
                .map(|level| level.wrapping_add(random.below(noise + 1) as u8))
                .collect()
        }));
        all.push(Class::new(format!("RGBA, noise {noise}"), move |_, random| {
            let mut level = 100;
            halves(|at| {
                if at % 40 == 0 {
                    level = 60 + random.below(100) as u32;
                }
                let mut channel = |base: u32| base + random.below(noise + 1) as u32;
                0xff00_0000 | channel(level) | channel(level + 10) << 8 | channel(level / 2) << 16
            })
        }));
        all.push(Class::new(format!("RGB, noise {noise}"), move |_, random| {
            let mut level = 100u8;
            (0..PAGE_SIZE)
                .map(|at| {
                    if at % 150 == 0 {
                        level = 60 + random.below(100) as u8;
                    }
                    level + (at % 3) as u8 * 10 + random.below(noise + 1) as u8
                })
                .collect()
        }));
    }
    all.push(Class::new("bitmap of letters", |_, random| {
        let glyphs: Vec<[u8; 8]> =
            (0..26).map(|_| std::array::from_fn(|_| (random.next() & random.next()) as u8)).collect();
        let line: Vec<usize> = (0..512).map(|_| random.below(26).min(random.below(26)) as usize).collect();
        (0..PAGE_SIZE).map(|at| glyphs[line[at % 64 + at / 512 * 64]][at / 64 % 8]).collect()
    }));
    all.push(Class::new("flat areas of a screen", |_, random| {
        let mut colour = 0;
        halves(|_| {
            if random.below(60) == 0 {
                colour = [0xff20_2020, 0xffff_ffff, 0xff30_60a0, 0xff00_0000][random.below(4) as usize];
            }
            colour
        })
    }));
    for loudness in [20.0, 300.0, 3000.0, 20_000.0] {
        all.push(Class::new(format!("sound, mono, {loudness}"), move |number, random| {
            shorts(|at| {
                let time = (2048 * number + at) as f64;
                let value = (time * 0.03).sin() + (time * 0.11).sin() * 0.4 + random.normal() * 0.02;
                (value * loudness) as i16 as u16
            })
        }));
        all.push(Class::new(format!("sound, stereo, {loudness}"), move |number, random| {
            shorts(|at| {
                let time = (1024 * number + at / 2) as f64;
                let value = (time * 0.03 + (at % 2) as f64).sin() + random.normal() * 0.02;
                (value * loudness) as i16 as u16
            })
        }));
    }
    all.push(Class::new("sound, float", |number, random| {
        halves(|at| {
            (((1024 * number + at) as f32 * 0.03).sin() * 0.3 + random.normal() as f32 * 0.01).to_bits()
        })
    }));
}

/// Arrays of numbers.
fn numbers(all: &mut Vec<Class>) {
    for step in [1, 2, 10, 100, 1000, 10_000, 100_000, 1 << 24] {
        all.push(Class::new(format!("sorted int32, steps below {step}"), move |_, random| {
            let mut value = random.below(1 << 28) as u32;
            halves(|_| {
                value = value.wrapping_add(random.below(step) as u32);
                value
            })
        }));
        all.push(Class::new(format!("sorted int64, steps below {step}"), move |_, random| {
            let mut value = random.below(1 << 40);
            words(|_| {
                value += random.below(step);
                value
            })
        }));
        all.push(Class::new(format!("int32 below {step}"), move |_, random| {
            halves(|_| random.below(step) as u32)
        }));
        all.push(Class::new(format!("int64 below {step}"), move |_, random| words(|_| random.below(step))));
    }
    for share in [2, 4, 8, 16, 32, 64] {
        all.push(Class::new(format!("float, one of {share} set"), move |_, random| {
            halves(|_| if random.below(share) == 0 { (random.normal() as f32).to_bits() } else { 0 })
        }));
        all.push(Class::new(format!("double, one of {share} set"), move |_, random| {
            words(|_| if random.below(share) == 0 { random.normal().to_bits() } else { 0 })
        }));
        all.push(Class::new(format!("int32, one of {share} set"), move |_, random| {
            halves(|_| if random.below(share) == 0 { random.below(1000) as u32 } else { 0 })
        }));
        all.push(Class::new(format!("bytes, one of {share} set"), move |_, random| {
            (0..PAGE_SIZE).map(|_| if random.below(share) == 0 { random.next() as u8 } else { 0 }).collect()
        }));
    }
    for count in [2, 4, 10, 50, 200] {
        all.push(Class::new(format!("one of {count} doubles"), move |_, random| {
            let values: Vec<u64> = (0..count).map(|_| random.normal().to_bits()).collect();
            words(|_| values[random.below(count) as usize])
        }));
        all.push(Class::new(format!("one of {count} floats"), move |_, random| {
            let values: Vec<u32> = (0..count).map(|_| (random.normal() as f32).to_bits()).collect();
            halves(|_| values[random.below(count) as usize])
        }));
        all.push(Class::new(format!("one of {count} strings of 16"), move |_, random| {
            let values: Vec<u128> =
                (0..count).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect();
            (0..PAGE_SIZE / 16).flat_map(|_| values[random.below(count) as usize].to_le_bytes()).collect()
        }));
    }
    all.push(Class::new("points of doubles", |_, random| {
        let mut at = [0.0, 0.0, 100.0];
        words(|number| {
            let axis = &mut at[number % 3];
            *axis += random.normal() * 0.01;
            axis.to_bits()
        })
    }));
    all.push(Class::new("points of floats", |_, random| {
        let mut at = [0.0f32, 0.0, 100.0];
        halves(|number| {
            let axis = &mut at[number % 3];
            *axis += random.normal() as f32 * 0.01;
            axis.to_bits()
        })
    }));
    all.push(Class::new("triangles", |number, random| {
        let mut vertex = 1000 * number as u32;
        halves(|at| {
            vertex += u32::from(at % 3 == 0);
            vertex + random.below(40) as u32
        })
    }));
    all.push(Class::new("weights, bfloat16", |_, random| {
        shorts(|_| ((random.normal() as f32 * 0.02).to_bits() >> 16) as u16)
    }));
    all.push(Class::new("records of int32, float and flags", |number, random| {
        halves(|at| match at % 5 {
            0 => (number * 205 + at / 5) as u32,
            1 => (random.unit() as f32 * 100.0).to_bits(),
            2 => random.below(5) as u32,
            3 => 1_790_000_000 + (number * 205 + at / 5) as u32,
            _ => 0,
        })
    }));
}

/// Machine code: made up from the openings that compilers use most.
fn code(all: &mut Vec<Class>) {
    const FORMS: &[(&[u8], usize)] = &[
        (&[0x48, 0x8b, 0x45], 1),
        (&[0x48, 0x89, 0x45], 1),
        (&[0x48, 0x8b, 0x05], 4),
        (&[0x48, 0x8d, 0x3d], 4),
        (&[0xe8], 4),
        (&[0x0f, 0x84], 4),
        (&[0x74], 1),
        (&[0x75], 1),
        (&[0xc3], 0),
        (&[0x55, 0x48, 0x89, 0xe5], 0),
        (&[0x48, 0x83, 0xec], 1),
        (&[0x31, 0xc0], 0),
        (&[0x85, 0xc0], 0),
        (&[0x4c, 0x89, 0xe7], 0),
        (&[0x41, 0x5c, 0x41, 0x5d], 0),
        (&[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00], 0),
        (&[0x90], 0),
    ];
    all.push(Class::new("x86-64 code", |_, random| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            let (opening, operand) = FORMS[random.below(FORMS.len() as u64) as usize];
            page.extend(opening);
            match operand {
                1 => page.push((random.below(32) * 8) as u8),
                4 => page.extend((random.below(1 << 17) as i32 - (1 << 16)).to_le_bytes()),
                _ => {}
            }
        }
        page
    }));
    all.push(Class::new("aarch64 code", |_, random| {
        const OPENINGS: [u32; 12] = [
            0xf940_0000,
            0xf900_0000,
            0x9100_0000,
            0x9400_0000,
            0xb400_0000,
            0xaa00_03e0,
            0xd65f_03c0,
            0xa9be_7bfd,
            0x5280_0000,
            0x3940_0000,
            0xeb00_001f,
            0x5400_0000,
        ];
        halves(|_| {
            let opening = OPENINGS[random.below(12).min(random.below(12)) as usize];
            opening | (random.below(32) << 5 | random.below(32)) as u32 | (random.below(16) << 10) as u32
        })
    }));
    all.push(Class::new("jump tables", |number, random| {
        halves(|_| (0xffff_0000u32 - 4096 * number as u32).wrapping_add(4 * random.below(4000) as u32))
    }));
    all.push(Class::new("relocations", |number, random| {
        words(|at| match at % 3 {
            0 => 0x003f_0000 + 8 * (170 * number + at / 3) as u64,
            1 => 8,
            _ => 0x0012_0000 + 16 * random.below(1 << 14),
        })
    }));
    all.push(Class::new("symbols", |_, random| {
        let mut name = 0;
        words(|at| match at % 3 {
            0 => {
                name += 5 + random.below(30);
                name | [0x0012, 0x0022, 0x0011][random.below(3) as usize] << 32 | (14 << 48)
            }
            1 => 0x0040_0000 + 16 * random.below(1 << 16),
            _ => random.below(600),
        })
    }));
    all.push(Class::new("byte code", |_, random| {
        (0..PAGE_SIZE)
            .map(|at| if at % 2 == 0 { 100 + random.below(20) as u8 } else { random.below(16) as u8 })
            .collect()
    }));
}

/// How [`mix`] joins two pages.
pub const MIXES: usize = 4;

/// A page of two: halves, a part at some place, lines or blocks in turn.
pub fn mix(how: usize, one: &Page, other: &Page, random: &mut Random) -> Page {
    let mut page = *one;
    let block = match how % MIXES {
        0 => PAGE_SIZE / 2,
        1 => {
            let at = random.below(PAGE_SIZE as u64) as usize;
            page[at..].copy_from_slice(&other[at..]);
            return page;
        }
        2 => 1024,
        _ => 256,
    };
    for at in (0..PAGE_SIZE).step_by(2 * block) {
        page[at..at + block].copy_from_slice(&other[at..at + block]);
    }
    page
}
