//! Page LZ, numeric and sparse: round trips, damage, bounds, fixed bytes, by all instruction sets.

mod support;

use pagecodec::{lz, numeric, sparse, Isa};
use support::{Page, Random, CLASSES};

fn pages() -> impl Iterator<Item = (&'static str, Page)> {
    CLASSES.iter().flat_map(|(name, class)| {
        let mut random = Random(7);
        (0..4).map(move |_| (*name, class(&mut random)))
    })
}

fn lz_bytes(isa: Isa, input: &[u8]) -> Vec<u8> {
    // The worst case: all literals, 257 a length byte.
    let mut object = vec![0; 4200];
    let len = lz::Encoder::with_isa(isa).encode(input, &mut object).expect("room for the worst case");
    object.truncate(len);
    object
}

#[test]
fn lz_round_trips_with_identical_bytes() {
    for (name, page) in pages() {
        let reference = lz_bytes(Isa::Portable, &page);
        for isa in Isa::available() {
            assert!(lz_bytes(isa, &page) == reference, "{name}: {isa} encoded another object");
        }
        for isa in Isa::available() {
            let mut back = [1; 4096];
            lz::decode_with(isa, &reference, &mut back)
                .unwrap_or_else(|error| panic!("{name}, {isa}: {error}"));
            assert!(back == page, "{name}, {isa}");
        }
    }
}

#[test]
fn lz_at_even_places_round_trips_with_identical_bytes() {
    let mut encoders: Vec<_> = Isa::available().map(lz::Encoder::with_isa).collect();
    for (name, page) in pages() {
        // Includes lengths whose quarters start at odd places.
        for len in [4096, 4096 - 1, 2222, 131, 9, 5, 4, 3, 0] {
            let mut reference: Option<Vec<u8>> = None;
            for encoder in &mut encoders {
                let planned = encoder.plan_even(&page[..len]);
                let mut object = [0; 4096 + 64];
                assert_eq!(encoder.write(&mut object), Some(planned), "{name}, {len} bytes");
                let object = &object[..planned];
                let reference = reference.get_or_insert_with(|| object.to_vec());
                assert!(object == &reference[..], "{name}, {len} bytes: {} differs", encoder.isa());
                let mut back = vec![0; len];
                for isa in Isa::available() {
                    assert_eq!(lz::decode_with(isa, object, &mut back), Ok(()), "{name}, {len} bytes");
                    assert!(back == page[..len], "{name}, {len} bytes, {isa}");
                }
            }
        }
    }
}

#[test]
fn lz_tells_matches_at_odd_distances() {
    for ((period, odd), isa) in
        [(48, false), (33, true)].into_iter().flat_map(|case| Isa::available().map(move |isa| (case, isa)))
    {
        let mut encoder = lz::Encoder::with_isa(isa);
        let page: Page = std::array::from_fn(|at| (at % period * 5 + 1) as u8);
        encoder.plan(&page);
        let (matched, matched_odd) = encoder.matched();
        assert!(matched > 3800);
        assert_eq!(matched_odd, if odd { matched } else { 0 });
    }
}

#[test]
fn lz_takes_inputs_of_any_length() {
    let mut random = Random(3);
    let (_, class) = CLASSES[CLASSES.len() / 2];
    let page = class(&mut random);
    let mut periodic = [0u8; 4096];
    for (at, byte) in periodic.iter_mut().enumerate() {
        *byte = (at % 5) as u8;
    }
    for isa in Isa::available() {
        let mut encoder = lz::Encoder::with_isa(isa);
        for source in [&page, &periodic] {
            for len in (0..300).chain((300..4096).step_by(61)).chain([4095, 4096]) {
                let mut object = [0; 4200];
                let object_len = encoder.encode(&source[..len], &mut object).expect("room");
                let mut back = vec![0; len];
                lz::decode_with(isa, &object[..object_len], &mut back).expect("its own object");
                assert!(back == source[..len], "{isa}, {len} bytes");
            }
        }
    }
}

#[test]
fn lz_copies_every_short_distance() {
    for period in 1..300 {
        let mut page = [0u8; 4096];
        let mut random = Random(period as u64);
        random.fill(&mut page[..period]);
        for at in period..4096 {
            page[at] = page[at - period];
        }
        let object = lz_bytes(Isa::Portable, &page);
        assert!(object.len() < 120 + period, "period {period}: {} bytes", object.len());
        for isa in Isa::available() {
            let mut back = [1; 4096];
            lz::decode_with(isa, &object, &mut back).expect("its own object");
            assert!(back == page, "period {period}, {isa}");
        }
    }
}

#[test]
fn an_encoder_does_not_remember() {
    let all: Vec<_> = pages().map(|(_, page)| page).collect();
    for isa in Isa::available() {
        let mut used = lz::Encoder::with_isa(isa);
        for (at, page) in all.iter().enumerate() {
            let len = [4096, 700, 64, 1][at % 4];
            let mut object = [0; 4200];
            let object_len = used.encode(&page[..len], &mut object).expect("room");
            assert!(object[..object_len] == lz_bytes(isa, &page[..len]));
        }
    }
}

#[test]
fn numeric_round_trips_in_every_shape_with_identical_bytes() {
    for (name, page) in pages() {
        for shape in numeric::Shape::ALL {
            let mut reference = vec![0; numeric::OBJECT_MAX];
            let len = numeric::encode(Isa::Portable, &page, shape, &mut reference).expect("room");
            reference.truncate(len);
            for isa in Isa::available() {
                let mut object = vec![0; numeric::OBJECT_MAX];
                assert_eq!(numeric::encode(isa, &page, shape, &mut object), Some(len), "{name}, {isa}");
                assert!(object[..len] == reference, "{name}, {shape:?}: {isa} encoded another object");
                assert_eq!(numeric::encode(isa, &page, shape, &mut object[..len - 1]), None);
                let mut back = [1; 4096];
                numeric::decode(isa, &reference, &mut back).expect("its own object");
                assert!(back == page, "{name}, {shape:?}, {isa}");
                assert_eq!(numeric::estimate(isa, &page), numeric::estimate(Isa::Portable, &page));
                let below = numeric::estimate_below(isa, &page, 2048);
                assert_eq!(below, numeric::estimate_below(Isa::Portable, &page, 2048));
            }
        }
    }
}

#[test]
fn numeric_packs_what_it_is_made_for() {
    type Word = fn(u64) -> [u8; 8];
    let cases: [(&str, Word, usize); 3] = [
        ("an index", |at| (3 * at).to_le_bytes(), 100),
        ("ten bits", |at| (at * 77 % 1000).to_le_bytes(), 700),
        ("whole doubles", |at| ((at * 77 % 1000) as f64).to_bits().to_le_bytes(), 1500),
    ];
    for (name, word, limit) in cases {
        let mut page = [0; 4096];
        for (at, slot) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *slot = word(at as u64);
        }
        let (shape, estimate) = numeric::estimate(Isa::best(), &page);
        let len = numeric::encode(Isa::best(), &page, shape, &mut [0; numeric::OBJECT_MAX]).expect("room");
        assert!(len <= limit && len.abs_diff(estimate) < 200, "{name}: {len} bytes, {estimate} estimated");
    }
}

/// An array of numbers of any size, in a range of any width around any base, in any multiples, as
/// values or as differences between rows; sometimes with changed bytes.
fn numbers(random: &mut Random) -> Page {
    let size = 1 << random.below(4);
    let width = random.below(8 * size as u64 + 1);
    let shift = if random.below(2) == 0 { random.below(8 * size as u64) } else { 0 };
    let (base, sums) = (random.next(), random.below(2) == 0);
    let mut page = [0; 4096];
    let mut row = [0u64; 64];
    for at in 0..4096 / size {
        let small = if width == 0 { 0 } else { random.next() >> (64 - width) };
        let column = at % (64 / size);
        row[column] = if sums { row[column] } else { base }.wrapping_add(small << shift);
        page[at * size..][..size].copy_from_slice(&row[column].to_le_bytes()[..size]);
    }
    for _ in 0..random.below(12).saturating_sub(8) {
        page[random.below(4096) as usize] = random.next() as u8;
    }
    page
}

#[test]
fn estimates_below_a_limit_are_the_estimates() {
    let mut random = Random(8);
    let (mut spared, mut below) = (0, 0);
    let generated = (0..20_000).map(|_| numbers(&mut random));
    for page in pages().map(|(_, page)| page).chain(generated) {
        let whole = numeric::estimate(Isa::best(), &page);
        for limit in [500, 1000, 2000, 3000, 4000, whole.1.saturating_add(1)] {
            let (shape, len) = numeric::estimate_below(Isa::best(), &page, limit);
            assert!((shape, len) == whole || (len == usize::MAX && whole.1 >= limit), "{whole:?}, {limit}");
            spared += u32::from(len > whole.1);
            below += u32::from(whole.1 < limit);
        }
    }
    assert!(spared > 10_000 && below > 10_000, "{spared}, {below}");
}

#[test]
fn sparse_round_trips_or_declines() {
    let mut random = Random(11);
    for count in 0..=sparse::WORDS_MAX + 1 {
        let mut page = [0; 4096];
        let mut set = 0;
        while set < count {
            let at = 8 * random.below(512) as usize;
            if page[at..at + 8] == [0; 8] {
                let value = (random.next() >> random.below(64)).max(1);
                page[at..at + 8].copy_from_slice(&value.to_le_bytes());
                set += 1;
            }
        }
        let mut object = [0; sparse::OBJECT_MAX];
        match sparse::encode(&page, &mut object) {
            Some(len) => {
                assert!(count <= sparse::WORDS_MAX);
                let mut back = [1; 4096];
                sparse::decode(&object[..len], &mut back).expect("its own object");
                assert!(back == page);
                assert_eq!(sparse::encode(&page, &mut object[..len - 1]), None);
            }
            None => assert!(count > sparse::WORDS_MAX, "{count} words declined"),
        }
    }
}

/// Damaged objects: decoders return the same on all instruction sets, within their buffers.
#[test]
fn damage_is_an_error_or_some_page() {
    let mut random = Random(2026);
    let (mut refused, mut accepted) = (0, 0);
    for (_, page) in pages() {
        let (shape, _) = numeric::estimate(Isa::Portable, &page);
        let mut numbers = vec![0; numeric::OBJECT_MAX];
        let len = numeric::encode(Isa::Portable, &page, shape, &mut numbers).expect("room");
        numbers.truncate(len);
        let mut few = vec![0; sparse::OBJECT_MAX];
        let len = sparse::encode(&page, &mut few).unwrap_or(0);
        few.truncate(len);
        for (format, original) in [lz_bytes(Isa::Portable, &page), numbers, few].into_iter().enumerate() {
            if original.is_empty() {
                continue;
            }
            for _ in 0..60 {
                let mut object = original.clone();
                for _ in 0..1 + random.below(3) {
                    let range = if random.below(2) == 0 { 24 } else { object.len() as u64 };
                    let at = random.below(range) as usize % object.len();
                    object[at] = if random.below(3) == 0 { 255 } else { random.next() as u8 };
                }
                if random.below(4) == 0 {
                    object.truncate(random.below(object.len() as u64 + 1) as usize);
                }
                let mut space = [0xA5u8; 4096 + 64];
                let (back, guard) = space.split_first_chunk_mut::<4096>().expect("a page");
                let outcome = match format {
                    0 => {
                        let first = lz::decode_with(Isa::Portable, &object, back).is_ok();
                        for isa in Isa::available() {
                            let mut space = [0xA5u8; 4096 + 64];
                            let (other, guard) = space.split_first_chunk_mut::<4096>().expect("a page");
                            assert_eq!(lz::decode_with(isa, &object, other).is_ok(), first, "{isa}");
                            assert!(!first || other == back, "{isa} decoded another page");
                            assert!(guard.iter().all(|&byte| byte == 0xA5));
                        }
                        first
                    }
                    1 => {
                        let first = numeric::decode(Isa::Portable, &object, back).is_ok();
                        for isa in Isa::available() {
                            let mut other = [0; 4096];
                            assert_eq!(numeric::decode(isa, &object, &mut other).is_ok(), first);
                            assert!(!first || other == *back, "{isa} decoded another page");
                        }
                        first
                    }
                    _ => sparse::decode(&object, back).is_ok(),
                };
                assert!(guard.iter().all(|&byte| byte == 0xA5));
                if outcome {
                    accepted += 1;
                } else {
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100 && accepted > 100, "{refused} refused, {accepted} accepted");
}

#[test]
fn random_bytes_never_harm() {
    let mut random = Random(5);
    for round in 0..20_000 {
        let mut object = vec![0; random.below(300) as usize];
        random.fill(&mut object);
        if let Some(first) = object.get_mut(..4).filter(|_| round % 2 == 0) {
            // A plausible start: few sequences and literals, a known shape.
            first.copy_from_slice(&[random.below(12) as u8, 0, random.below(60) as u8, 0]);
        }
        let mut page = [0; 4096];
        let _ = sparse::decode(&object, &mut page);
        let verdict = lz::decode_with(Isa::Portable, &object, &mut page);
        for isa in Isa::available() {
            let _ = numeric::decode(isa, &object, &mut page);
            assert_eq!(lz::decode_with(isa, &object, &mut page), verdict, "{isa}");
        }
    }
}

/// Objects made by hand from the formats' descriptions.
#[test]
fn objects_by_hand() {
    let mut page = [0; 4096];
    // One sequence: 3 literals, a match of 4096 - 5 bytes at distance 3, then 2 literals.
    let rest = (4091 - 19u16).to_le_bytes();
    let object = [1, 0, 5, 0, b'a', b'b', b'c', b'x', b'y', 3, 0xf0, 3, 255, rest[0], rest[1]];
    for isa in Isa::available() {
        page.fill(0);
        lz::decode_with(isa, &object, &mut page).expect("a valid object");
        assert!(
            page[..4094].iter().enumerate().all(|(at, &byte)| byte == b"abc"[at % 3])
                && &page[4094..] == b"xy"
        );
    }
    assert_eq!(lz_bytes(Isa::Portable, b"abcd")[..], [0, 0, 4, 0, b'a', b'b', b'c', b'd']);

    // u32 differences, shift 1, base 2, all widths zero: each row is the first plus 2 for every row
    // before it.
    let mut object = vec![2 | 4, 1, 2, 0, 0, 0];
    object.extend((0..16u32).flat_map(|lane| (100 * lane).to_le_bytes()));
    object.extend([0; 16]);
    numeric::decode(Isa::Portable, &object, &mut page).expect("a valid object");
    for (at, value) in page.as_chunks::<4>().0.iter().enumerate() {
        assert_eq!(u32::from_le_bytes(*value), 100 * (at as u32 % 16) + 2 * (at as u32 / 16));
    }

    // Word 256 is 0x0102, word 257 is 7.
    sparse::decode(&[3, 255, 1, 0, 0x01, 2, 1, 7], &mut page).expect("a valid object");
    let mut expected = [0; 4096];
    expected[8 * 256..8 * 256 + 9].copy_from_slice(&[2, 1, 0, 0, 0, 0, 0, 0, 7]);
    assert!(page == expected);
    let mut object = [0; sparse::OBJECT_MAX];
    assert_eq!(sparse::encode(&expected, &mut object), Some(8));
    assert_eq!(object[..8], [3, 255, 1, 0, 0x01, 2, 1, 7]);
}
