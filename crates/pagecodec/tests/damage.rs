//! Any bytes: a decoder returns an error or some page, and all instruction sets return the same.
//! `UZSWAP_TEST_SOAK=100` generates a hundred times as many.

mod support;

use pagecodec::{t16, Isa};
use support::encode::{Objects, FORMATS};
use support::{decode, encode, pages, setting, Page, Random};

fn rounds() -> u64 {
    setting("UZSWAP_TEST_SOAK", 1)
}

#[test]
fn changed_bytes() {
    let (mut accepted, mut refused) = ([0; FORMATS], [0; FORMATS]);
    for round in 0..rounds() {
        let mut random = Random(100 + round);
        for (_, page) in pages(round, 1) {
            let objects = Objects::of(&page);
            for _ in 0..50 {
                let outcomes = objects.damaged(|object| {
                    for _ in 0..1 + random.below(4) {
                        // Half of the changes hit the header, which holds the structure.
                        let bound = if random.below(2) == 0 { 40.min(object.len()) } else { object.len() };
                        let at = random.below(bound as u64) as usize;
                        object[at] = match random.below(3) {
                            0 => object[at] ^ 1 << random.below(8),
                            1 => random.next() as u8,
                            _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                        };
                    }
                    if random.below(5) == 0 {
                        object.truncate(random.below(object.len() as u64 + 1) as usize);
                    }
                });
                for (format, outcome) in outcomes.into_iter().enumerate() {
                    let counts = if outcome { &mut accepted } else { &mut refused };
                    counts[format] += 1;
                }
            }
        }
    }
    // The test is meaningful only if both happen often.
    assert!(accepted.iter().chain(&refused).all(|&count| count > 100), "{accepted:?}, not {refused:?}");
}

#[test]
fn truncated_and_extended() {
    for (name, page) in pages(7, 1) {
        let mut object = encode::t16(&page);
        for len in (0..object.len().min(400)).chain(object.len() - 8..object.len()) {
            assert!(decode::t16(&object[..len]).is_none() || len > 400, "{name} cut to {len}");
        }
        for extra in 1..20u32 {
            object.push((extra * 13) as u8);
            decode::t16(&object);
        }
    }
}

#[test]
fn random_bytes() {
    let mut random = Random(3);
    for case in 0..4000 * rounds() {
        let most = if case % 2 == 0 { t16::OBJECT_MAX as u64 + 100 } else { 300 };
        let mut object = vec![0; random.below(most) as usize];
        random.fill(&mut object);
        if object.len() > 12 && random.below(4) != 0 {
            // Passes the first check of T16, the right version, or is a plausible start of page LZ:
            // few sequences and literals.
            object[7] = object[7] & 0x3f | 0x40;
            if case % 4 == 1 {
                object[..4].copy_from_slice(&[random.below(12) as u8, 0, random.below(60) as u8, 0]);
            }
        }
        decode::t16(&object);
        decode::t16h(&object);
        decode::lz(&object, 4096);
        decode::numeric(&object);
        decode::sparse(&object);
        // And as a T16 object to encode.
        encode::t16h(&object);
    }
}

/// Random streams under consistent headers reach furthest into the decoders.
#[test]
fn random_objects_with_fitting_headers() {
    let (mut accepted, mut refused) = (0, 0);
    for case in 0..20_000 * rounds() {
        let mut random = Random(case);
        let wide = random.below(4);
        let prefix = random.below(14 - wide);
        let exact = random.below(14 - wide - prefix);
        let first = 14 - wide - prefix;
        let mut kinds = exact | prefix << 56 | wide << 60 | 1 << 62;
        kinds |= random.next() & 0x00ff_ffff_ffff_fff0;
        let fresh = match random.below(3) {
            0 => random.next() & random.next() | 1,
            1 => random.next() | 1,
            _ => u64::MAX,
        };
        let distinct = fresh.count_ones() as usize;
        let mut lines = vec![0u32; distinct];
        let sparse = random.below(2) == 0;
        for line in &mut lines {
            *line = random.next() as u32;
            if sparse {
                *line &= random.next() as u32 & random.next() as u32;
            }
        }
        let index: Vec<u8> = (distinct..64).map(|_| random.below(distinct as u64) as u8).collect();
        let (mut a, mut b, mut refs, mut raw) = (0usize, 0usize, 0usize, 0usize);
        let mut take = |tag: u64, exact: bool| match tag {
            14 if exact => {}
            14 => refs += 1,
            15 => raw += 1,
            tag if tag >= first => {
                a += 1;
                b += usize::from(tag >= 14 - wide);
            }
            _ => {}
        };
        (1..=exact).for_each(|tag| take(kinds >> (4 * tag) & 15, true));
        let (mut next, mut repeat) = (0, index.iter());
        for line in 0..64 {
            let rank = if fresh >> line & 1 == 1 {
                next += 1;
                next - 1
            } else {
                usize::from(*repeat.next().expect("one for each repeat"))
            };
            (0..8).for_each(|k| take(u64::from(lines[rank]) >> (4 * k) & 15, false));
        }
        if refs > 511 {
            continue;
        }
        let highs = random.below(8) as usize;
        let mut object = Vec::new();
        object.extend(kinds.to_le_bytes());
        object
            .extend((a as u32 | (b as u32) << 10 | (refs as u32) << 20 | (highs as u32) << 29).to_le_bytes());
        object.extend(fresh.to_le_bytes());
        let body = object.len();
        object.resize(body + 4 * highs + 2 * prefix as usize + 2 * a + 2 * b + 8 * raw, 0);
        random.fill(&mut object[body..]);
        let good = random.below(4) != 0;
        object.extend((0..refs).map(|_| {
            if good {
                random.below(raw.clamp(1, 256) as u64) as u8
            } else {
                random.next() as u8
            }
        }));
        object.extend(&index);
        lines.iter().for_each(|line| object.extend(line.to_le_bytes()));
        let ok = decode::t16(&object).is_some();
        // Only a reference can be invalid.
        assert!(ok || refs > 0, "case {case}");
        *(if ok { &mut accepted } else { &mut refused }) += 1;
        if ok && random.below(4) == 0 {
            let at = random.below(object.len() as u64) as usize;
            object[at] ^= 1 << random.below(8);
            decode::t16(&object);
        }
    }
    assert!(accepted > 1000 && refused > 100, "{accepted} accepted, {refused} refused");
}

/// The object ends at the end of a mapping, so that an overrun faults.
#[test]
#[cfg(target_os = "linux")]
fn nothing_is_read_outside_the_object() {
    const ROOM: usize = 8192;
    extern "C" {
        fn mmap(at: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
        fn mprotect(at: *mut u8, len: usize, prot: i32) -> i32;
    }
    // SAFETY: a new private mapping of four pages, whose first and last are then made inaccessible.
    let room = unsafe {
        let start = mmap(std::ptr::null_mut(), ROOM + 8192, 3, 0x22, -1, 0);
        assert!(start as isize > 0, "mmap");
        assert!(mprotect(start, 4096, 0) == 0 && mprotect(start.add(4096 + ROOM), 4096, 0) == 0, "mprotect");
        std::slice::from_raw_parts_mut(start.add(4096), ROOM)
    };
    let mut out = vec![0; t16::OBJECT_MAX];
    for (name, page) in pages(9, 1) {
        let object = encode::t16(&page);
        for at in [ROOM - object.len(), 0] {
            let place = at..at + object.len();
            room[place.clone()].copy_from_slice(&object);
            for isa in Isa::available() {
                assert_eq!(t16::decode(isa, &room[place.clone()], &mut [0; 4096]), Ok(()), "{name}");
            }
        }
        // The encoder: its page and its output at either end.
        for isa in Isa::available() {
            let mut encoder = t16::Encoder::with_isa(isa);
            for at in [0, ROOM - 4096] {
                room[at..at + 4096].copy_from_slice(&page);
                let source: &Page = (&room[at..at + 4096]).try_into().expect("a page");
                assert_eq!(encoder.encode(source, &mut out), Ok(object.len()));
                assert!(out[..object.len()] == object);
            }
            for at in [0, ROOM - object.len()] {
                let place = at..at + object.len();
                assert_eq!(encoder.encode(&page, &mut room[place.clone()]), Ok(object.len()));
                assert!(room[place] == object);
            }
        }
        // Damaged, at the end of the mapping.
        let (mut random, mut back) = (Random(1), [0; 4096]);
        for _ in 0..300 {
            let place = ROOM - object.len()..ROOM;
            room[place.clone()].copy_from_slice(&object);
            for _ in 0..3 {
                let bound = if random.below(2) == 0 { 24 } else { object.len() };
                room[place.start + random.below(bound as u64) as usize] = random.next() as u8;
            }
            let verdicts: Vec<_> =
                Isa::available().map(|isa| t16::decode(isa, &room[place.clone()], &mut back)).collect();
            assert!(verdicts.windows(2).all(|pair| pair[0] == pair[1]), "{name}");
        }
    }
}
