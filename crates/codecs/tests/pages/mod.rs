//! Generated pages by class, the same on every run.

// Each test and example uses some of it.
#![allow(dead_code)]

pub mod broad;

use std::sync::Arc;

use acomp::{
    Algorithm, CompressRequest, Context, DecompressRequest, Object, Page, Registry, UnitError, UnitResult,
    PAGE_SIZE,
};
use pagecodec::Isa;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normally distributed, deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let (a, b) = (self.unit().max(1e-300), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

pub fn words(mut word: impl FnMut(usize) -> u64) -> Vec<u8> {
    (0..PAGE_SIZE / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

fn halves(mut half: impl FnMut(usize) -> u32) -> Vec<u8> {
    (0..PAGE_SIZE / 4).flat_map(|at| half(at).to_le_bytes()).collect()
}

fn shorts(mut short: impl FnMut(usize) -> u16) -> Vec<u8> {
    (0..PAGE_SIZE / 2).flat_map(|at| short(at).to_le_bytes()).collect()
}

pub fn text(random: &mut Random, mut line: impl FnMut(&mut Random) -> String) -> Vec<u8> {
    let mut all = String::new();
    while all.len() < PAGE_SIZE {
        all += &line(random);
    }
    all.into_bytes()
}

const WORDS: &str = "page memory the of a compressor swap and to when folio is stored in batch heap \
    which kernel program read never cold before table offset for";

pub fn word(random: &mut Random) -> &'static str {
    WORDS.split(' ').nth(random.below(26) as usize).expect("that many words")
}

type Make = fn(usize, &mut Random) -> Vec<u8>;

/// Every class: its name, and a function that makes page `number`.
pub const CLASSES: &[(&str, Make)] = &[
    ("zero", |_, _| vec![0; PAGE_SIZE]),
    ("one word", |_, random| random.next().to_le_bytes().repeat(PAGE_SIZE / 8)),
    ("sparse", |_, random| {
        let start = random.below(23) as usize;
        words(|at| if at % 23 == start { 0x5500_0000_0000 | random.below(1 << 44) } else { 0 })
    }),
    ("sparse bytes", |_, random| {
        let mut page = vec![0; PAGE_SIZE];
        for _ in 0..40 {
            page[random.below(4096) as usize] = random.next() as u8;
        }
        page
    }),
    ("hash table", |_, random| words(|_| if random.below(4) > 0 { random.next() } else { 0 })),
    ("half zero", |_, random| words(|at| if at < 256 { random.next() } else { 0 })),
    ("prose", |_, random| text(random, |random| format!("{} ", word(random)))),
    ("csv", |_, random| {
        text(random, |random| {
            format!("{},{:.2},{}\n", random.below(100_000), random.unit() * 100.0, random.below(50))
        })
    }),
    ("json", |number, random| {
        text(random, |random| {
            let id = number as u64 * 100 + random.below(100);
            format!("{{\"id\": {id}, \"name\": \"item {id}\", \"price\": {:.2}}}, ", random.unit() * 50.0)
        })
    }),
    ("hex", |_, random| text(random, |random| format!("{:016x}", random.next()))),
    ("code", |_, random| {
        // Like machine code: a skewed choice of openings, then operands.
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            let opening = random.below(40).min(random.below(40)) as u32;
            page.extend_from_slice(&opening.wrapping_mul(0x9E37_79B9).to_le_bytes()[..3]);
            for _ in 0..random.below(4) {
                page.push(random.next() as u8);
            }
        }
        page
    }),
    ("int8 below 50", |_, random| (0..PAGE_SIZE).map(|_| random.below(50) as u8).collect()),
    ("int8 normal", |_, random| (0..PAGE_SIZE).map(|_| (random.normal() * 3.0) as i8 as u8).collect()),
    ("int16 below 1000", |_, random| shorts(|_| random.below(1000) as u16)),
    ("int16 wave", |number, random| {
        shorts(|at| {
            ((at as f64 * 0.05 + number as f64).sin() * 8000.0 + random.normal() * 20.0) as i16 as u16
        })
    }),
    ("int32 below 1000", |_, random| halves(|_| random.below(1000) as u32)),
    ("int32 index", |number, _| halves(|at| 3 * (1024 * number + at) as u32)),
    ("int32 signed", |_, random| halves(|_| (random.normal() * 500.0) as i32 as u32)),
    ("int32 zipf", |_, random| halves(|_| (1.0 / random.unit().max(1e-6)) as u32)),
    ("int32 below 200000", |_, random| halves(|_| random.below(200_000) as u32)),
    ("int32 random", |_, random| halves(|_| random.next() as u32)),
    ("int64 below 1000", |_, random| words(|_| random.below(1000))),
    ("int64 index", |number, _| words(|at| 3 * (512 * number + at) as u64)),
    ("int64 sorted", |_, random| {
        let mut value = random.below(1 << 30);
        words(|_| {
            value += random.below(4000);
            value
        })
    }),
    ("int64 time", |_, random| {
        let mut time = 1_600_000_000_000_000_000;
        words(|_| {
            time += 1_000_000_000 + random.below(5000);
            time
        })
    }),
    ("float uniform", |_, random| halves(|_| (random.unit() as f32).to_bits())),
    ("float smooth", |number, _| halves(|at| (((1024 * number + at) as f32 * 0.001).sin()).to_bits())),
    ("float 2 decimals", |_, random| halves(|_| ((random.below(10_000) as f64 / 100.0) as f32).to_bits())),
    ("double uniform", |_, random| words(|_| random.unit().to_bits())),
    ("double smooth", |number, _| words(|at| (((512 * number + at) as f64 * 0.001).sin()).to_bits())),
    ("double 2 decimals", |_, random| words(|_| (random.below(10_000) as f64 / 100.0).to_bits())),
    ("double whole", |_, random| words(|_| (random.below(1000) as f64).to_bits())),
    ("double from float", |_, random| words(|_| f64::from(random.unit() as f32).to_bits())),
    ("double mostly zero", |_, random| {
        words(|_| if random.below(5) == 0 { random.normal().to_bits() } else { 0 })
    }),
    ("pointers", |_, random| words(|_| 0x7f12_3400_0000 + (random.below(1 << 20) << 4))),
    ("pointers, 5 levels", |_, random| words(|_| 0xff_7f12_3400_0000 + (random.below(1 << 12) << 4))),
    ("objects", |number, random| {
        let start = 0x5555_0000_0000 + 4096 * number as u64;
        words(|at| match at % 6 {
            0 => 1 + random.below(3),
            1 => 0x7f00_1234_5680,
            2 => start + 48 * random.below(80),
            3 => random.below(100),
            4 => 0x7f00_4000_0000 + 64 * random.below(1 << 12),
            _ => 0,
        })
    }),
    ("pixels", |_, random| {
        let mut level = 128i32;
        halves(|at| {
            level += random.below(5) as i32 - 2;
            let channel = |offset: i32| (level + offset).clamp(0, 255) as u32;
            channel(0) | channel(20) << 8 | channel((at >> 6) as i32) << 16 | 255 << 24
        })
    }),
    ("base64", |_, random| {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        (0..PAGE_SIZE).map(|_| DIGITS[random.below(64) as usize]).collect()
    }),
    ("random", |_, random| words(|_| random.next())),
];

/// Returns `count` pages of a class.
pub fn make(class: &(&str, Make), count: usize) -> Vec<Page> {
    let mut random =
        Random(class.0.bytes().fold(1, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte)));
    (0..count).map(|number| *(class.1)(number, &mut random).first_chunk().expect("a page's bytes")).collect()
}

/// Returns a compressor of this crate.
pub fn algorithm(name: &str) -> Arc<dyn Algorithm> {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    registry.find(name).expect("registered")
}

/// Returns a context of a compressor for each instruction set of the machine, the portable one
/// first; of the compressor alone if it has no such parameter.
pub fn contexts(name: &str) -> Vec<Box<dyn Context>> {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    let names = Isa::available().map(|isa| format!("{name}:{isa}"));
    let found: Vec<_> = names.filter_map(|name| registry.find(&name).ok()).collect();
    let all = if found.is_empty() { vec![algorithm(name)] } else { found };
    all.iter().map(|algorithm| algorithm.context().expect("memory")).collect()
}

/// Returns `count` pages of the class of that name.
pub fn of_class(name: &str, count: usize) -> Vec<Page> {
    make(CLASSES.iter().find(|class| class.0 == name).expect(name), count)
}

/// Returns a page of pointers and counts, text, mostly zeroes, or noise.
pub fn any_kind(kind: usize, random: &mut Random) -> Page {
    let name = ["objects", "prose", "sparse bytes", "random"][kind % 4];
    let class = CLASSES.iter().find(|class| class.0 == name).expect(name);
    *(class.1)(random.below(100) as usize, random).first_chunk().expect("a page's bytes")
}

/// Returns the objects of units of `unit_size`, `None` for a unit without one.
pub fn compress(context: &mut dyn Context, pages: &[Page], unit_size: usize) -> Vec<Option<Vec<u8>>> {
    compress_into(context, pages, unit_size, unit_size).into_iter().map(Result::ok).collect()
}

/// [`compress`] into outputs of `room` bytes.
pub fn compress_into(
    context: &mut dyn Context,
    pages: &[Page],
    unit_size: usize,
    room: usize,
) -> Vec<Result<Vec<u8>, UnitError>> {
    let sources: Vec<&Page> = pages.iter().collect();
    let units = (pages.len() * PAGE_SIZE).div_ceil(unit_size);
    let mut space = vec![vec![0xEE; room + 64]; units];
    let mut results: Vec<UnitResult> = vec![Ok(0); units];
    context.compress(&mut CompressRequest {
        pages: &sources,
        unit_size,
        outputs: &mut space.iter_mut().map(|space| &mut space[..room]).collect::<Vec<_>>(),
        results: &mut results,
    });
    assert!(space.iter().all(|space| space[room..].iter().all(|&byte| byte == 0xEE)), "overrun");
    space.into_iter().zip(results).map(|(space, result)| result.map(|len| space[..len].to_vec())).collect()
}

/// Returns the `len` bytes of an object, `None` if it is damaged.
pub fn decompress(context: &mut dyn Context, object: &[u8], len: usize) -> Option<Vec<u8>> {
    rebuild(context, Object::whole(object), len)
}

/// An object in two pieces.
pub fn in_two(object: &[u8], cut: usize) -> Object<'_> {
    let (head, tail) = object.split_at(cut);
    Object { head, tail }
}

/// [`decompress`] for an object in two pieces.
pub fn rebuild(context: &mut dyn Context, object: Object<'_>, len: usize) -> Option<Vec<u8>> {
    let mut back = vec![0x77; len];
    let mut results = [Ok(0)];
    context.decompress(&mut DecompressRequest {
        objects: &[object],
        outputs: &mut [&mut back],
        results: &mut results,
    });
    assert!(results[0].is_err() || results[0] == Ok(len));
    results[0].ok().map(|_| back)
}
