//! Pages of every class of program memory, from a seeded generator. The checks in `decode` and
//! `encode` are also those of the fuzz targets.
#![allow(dead_code, missing_docs)]

pub mod decode;
pub mod encode;

pub type Page = [u8; 4096];

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

fn words(random: &mut Random, mut word: impl FnMut(&mut Random, u64) -> u64) -> Page {
    let mut page = [0; 4096];
    for (number, slot) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *slot = word(random, number as u64).to_le_bytes();
    }
    page
}

fn records<const LEN: usize>(
    random: &mut Random,
    mut record: impl FnMut(&mut Random, u64) -> [u8; LEN],
) -> Page {
    let mut page = [0; 4096];
    for (number, slot) in page.as_chunks_mut::<LEN>().0.iter_mut().enumerate() {
        *slot = record(random, number as u64);
    }
    page
}

const VOCABULARY: &str =
    "the page of memory is cold and compressed in batches by a fast codec that vectorises";

/// Common shapes of x86-64 instructions, with random operands.
fn machine_code(random: &mut Random) -> Page {
    let mut page = [0; 4096];
    let mut at = 0;
    while at < 4096 {
        let operand = random.next().to_le_bytes();
        let shapes: [&[u8]; 8] = [
            &[0x48, 0x89, operand[0] & 0x3f | 0xc0],
            &[0x48, 0x8b, 0x44, 0x24, operand[1] & 0x78],
            &[0xe8, operand[0], operand[1], operand[2] & 3, 0],
            &[0x0f, 0x84, operand[3], operand[4] & 7, 0, 0],
            &[0x55, 0x48, 0x89, 0xe5],
            &[0x31, 0xc0, 0xc3],
            &[0x48, 0x83, 0xc4, operand[5] & 0x78],
            &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        ];
        for &byte in shapes[random.below(8) as usize] {
            if at < 4096 {
                page[at] = byte;
                at += 1;
            }
        }
    }
    page
}

pub type Class = (&'static str, fn(&mut Random) -> Page);

/// `count` pages of each class.
pub fn pages(seed: u64, count: usize) -> impl Iterator<Item = (&'static str, Page)> {
    CLASSES.iter().flat_map(move |(name, class)| {
        let mut random = Random(seed);
        (0..count).map(move |_| (*name, class(&mut random)))
    })
}

/// A page of the class of that name.
pub fn page_of(name: &str, seed: u64) -> Page {
    CLASSES.iter().find(|class| class.0 == name).expect("a class of that name").1(&mut Random(seed))
}

/// A number from the environment, for example of rounds.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

pub const CLASSES: &[Class] = &[
    ("zero", |_| [0; 4096]),
    ("one byte repeated", |random| [random.next() as u8; 4096]),
    ("one word repeated", |random| {
        let word = random.next();
        words(random, |_, _| word)
    }),
    ("one word set", |random| {
        let (place, value) = (random.below(512), random.next());
        words(random, |_, number| if number == place { value } else { 0 })
    }),
    ("sparse", |random| {
        words(random, |random, _| if random.below(23) == 0 { random.next() >> 20 } else { 0 })
    }),
    ("text", |random| {
        let mut page = [b' '; 4096];
        let mut at = 0;
        while at < 4096 {
            let word =
                VOCABULARY.split(' ').nth(random.below(16) as usize).expect("sixteen words").as_bytes();
            let len = word.len().min(4096 - at);
            page[at..at + len].copy_from_slice(&word[..len]);
            at += len + 1;
        }
        page
    }),
    ("machine code", machine_code),
    ("int8", |random| records(random, |random, _| [random.below(100) as u8])),
    ("int16", |random| records(random, |random, _| (random.below(2000) as i16 - 1000).to_le_bytes())),
    ("int32", |random| records(random, |random, _| (random.below(1000) as i32 - 500).to_le_bytes())),
    ("int32 counting", |random| {
        let base = random.next() as u32;
        records(random, |_, number| (base.wrapping_add(3 * number as u32)).to_le_bytes())
    }),
    ("int64", |random| words(random, |random, _| random.below(1_000_000))),
    ("int64 negative", |random| words(random, |random, _| (random.below(1000) as i64 - 500) as u64)),
    ("float", |random| records(random, |random, _| (random.below(10_000) as f32 / 100.0).to_le_bytes())),
    ("double", |random| words(random, |random, _| (random.below(10_000) as f64 / 100.0).to_bits())),
    ("double smooth", |random| {
        let phase = random.below(1000) as f64;
        words(random, |_, number| (phase + number as f64 / 50.0).sin().to_bits())
    }),
    ("pointers", |random| {
        let bases: [u64; 5] = std::array::from_fn(|_| 0x7f00_0000_0000 | random.next() >> 24 & !0xffff);
        words(random, |random, _| match random.below(8) {
            0 => 0,
            1 => random.below(64),
            kind => bases[kind as usize % 5] + (random.below(65536) & !15),
        })
    }),
    ("pointers, five levels", |random| {
        let bases: [u64; 5] = std::array::from_fn(|_| random.next() >> 8 & !0xffff);
        words(random, |random, _| bases[random.below(5) as usize] + (random.below(65536) & !7))
    }),
    ("kernel pointers", |random| {
        words(random, |random, _| 0xffff_8880_0000_0000 | random.below(1 << 24) << 3)
    }),
    ("tagged pointers", |random| {
        words(random, |random, _| random.below(4) << 62 | 0x55_5512_0000 | random.below(65536))
    }),
    ("tagged small integers", |random| {
        words(random, |random, _| match random.below(4) {
            0 => 0x1234_5678_9a01 + random.below(4096) * 8,
            1 => random.below(1 << 31) << 32,
            _ => random.below(5000) << 32,
        })
    }),
    ("boxed doubles", |random| {
        words(random, |random, _| match random.below(3) {
            0 => 0xfff9_8000_0000_0000 | random.below(100),
            1 => 0xfffa_0000_0000_0000 | 0x1234_5600_0000 | random.below(65536),
            _ => (random.below(100) as f64).to_bits(),
        })
    }),
    ("structures", |random| {
        let vtable = 0x5555_5678_0000 + random.below(4096) * 8;
        let size = 3 + random.below(9);
        words(random, |random, number| match number % size {
            0 => vtable,
            1 => 0x7fff_1200_0000 + random.below(1 << 20) * 16,
            2 => random.below(3),
            3 => 0xffff_ffff,
            4 => random.below(1 << 32),
            _ => 0,
        })
    }),
    ("raw words repeated", |random| {
        let pool: [u64; 40] = std::array::from_fn(|_| random.next());
        words(random, |random, _| if random.below(3) == 0 { 0 } else { pool[random.below(40) as usize] })
    }),
    ("random", |random| words(random, |random, _| random.next())),
    ("half random", |random| {
        words(random, |random, number| if number < 256 { random.next() } else { 0x1000 + number })
    }),
    // Adversarial: each targets one table or limit of the format or the encoder.
    ("every tag line distinct", |random| {
        words(random, |random, number| match (number / 8) >> (number % 8) & 1 {
            0 => 0,
            _ => 0x7000_0000_0000 + random.below(60000),
        })
    }),
    ("more than 255 raw words, all twice", |random| {
        let pool: [u64; 256] = std::array::from_fn(|_| random.next());
        words(random, |_, number| pool[number as usize % 256])
    }),
    ("raw words around the last referable", |random| {
        let pool: [u64; 250] = std::array::from_fn(|_| random.next());
        words(random, |random, number| {
            if number < 250 {
                pool[number as usize]
            } else {
                pool[230 + random.below(20) as usize]
            }
        })
    }),
    ("one hash bucket", |random| {
        // Words whose products agree in the hash's bits, found by search.
        let mut found = [0u64; 24];
        for slot in &mut found {
            loop {
                let word = random.next() >> 12;
                if word.wrapping_mul(0x9_E377_9B97_F4A7) >> 43 & 0x1ff == 0x155 {
                    *slot = word;
                    break;
                }
            }
        }
        words(random, |random, _| found[random.below(24) as usize])
    }),
    ("hash bucket of zero", |random| {
        words(random, |random, _| loop {
            let word = if random.below(2) == 0 { random.next() } else { random.next() >> 40 };
            if word.wrapping_mul(0x9_E377_9B97_F4A7) >> 44 & 0xff == 0 {
                return word << (16 * random.below(2));
            }
        })
    }),
    ("many prefixes, each often", |random| {
        let bases: [u64; 40] = std::array::from_fn(|_| random.next() << 16);
        words(random, |random, _| bases[random.below(40) as usize] + random.below(9))
    }),
    ("many exact words, each often", |random| {
        let pool: [u64; 24] = std::array::from_fn(|number| (number as u64 + 1) * 0x0101_0001_0101);
        words(random, |random, _| pool[random.below(24) as usize])
    }),
    ("32-bit values", |random| words(random, |random, _| random.next() >> 32)),
    ("upper halves", |random| words(random, |random, _| random.next() << 32)),
    ("upper quarters", |random| words(random, |random, _| random.next() << 48 | random.below(2) << 32)),
    ("borders of the classes", |random| {
        let edges = [
            0u64,
            1,
            0xffff,
            0x1_0000,
            0xffff_ffff,
            1 << 32,
            0xffff << 32,
            1 << 48,
            u64::MAX,
            u64::MAX << 16,
            u64::MAX << 32,
        ];
        words(random, |random, _| {
            edges[random.below(11) as usize].wrapping_add(random.below(3)).wrapping_sub(1)
        })
    }),
    ("a mixture by line", |random| {
        let kinds: [u64; 64] = std::array::from_fn(|_| random.below(6));
        words(random, |random, number| match kinds[number as usize / 8] {
            0 => 0,
            1 => random.next(),
            2 => 0x7f12_3456_0000 | random.below(65536),
            3 => 0x7f12_0000_0000 | random.next() >> 32,
            4 => random.below(65536) << 32,
            _ => 42,
        })
    }),
];
