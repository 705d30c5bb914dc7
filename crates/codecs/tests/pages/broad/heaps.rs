//! Memory of allocators and run-time systems.

use acomp::PAGE_SIZE;

use super::{plain::pattern, put, Class};
use crate::pages::{halves, text, word, words};

pub(super) fn heaps(all: &mut Vec<Class>) {
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
            let mut page = text(random, |random| format!("{} ", word(random)));
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
                    let word = word(random).as_bytes();
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
            let half_null = format!("pointers of {name} bits within 2^{span}, half null");
            all.push(Class::new(half_null, move |_, random| {
                words(|_| if random.below(2) == 0 { 0 } else { base + (random.below(1 << span) & !15) })
            }));
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
        let name = format!("objects with compressed pointers within 2^{span}");
        all.push(Class::new(name, move |_, random| {
            halves(|at| match at % 6 {
                0 => 1,
                1 => 0,
                2 => 0x0018_2a40 + 0x48 * random.below(6) as u32,
                5 => random.below(1000) as u32,
                _ => 0xe000_0000 + (random.below(1 << span) as u32 & !7),
            })
        }));
    }
    for slot in [8, 16, 24, 32] {
        for filled in [4, 8, 12] {
            let name = format!("hash table, slots of {slot}, {filled}/16 filled");
            all.push(Class::new(name, move |_, random| {
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
            }));
            let name = format!("hash table of keys, slots of {slot}, {filled}/16 filled");
            all.push(Class::new(name, move |_, random| {
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
            }));
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
        let mut page = text(random, |random| format!("{} ", word(random)));
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
                string += word(random);
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
