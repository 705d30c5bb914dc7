//! Page LZ, numeric and sparse: round trips, bounds, fixed bytes, by all instruction sets.

mod support;

use pagecodec::{lz, numeric, sparse, Isa};
use support::{decode, encode, page_of, pages, Page, Random};

#[test]
fn lz_takes_inputs_of_any_length() {
    let periodic: Page = std::array::from_fn(|at| (at % 5) as u8);
    for source in [page_of("structures", 3), periodic] {
        for len in (0..300).chain((300..4096).step_by(61)).chain([4095, 4096]) {
            encode::lz_round_trip(&source[..len]);
        }
    }
    for (_, page) in pages(7, 4) {
        // Includes lengths whose quarters start at odd places.
        for len in [4095, 2222, 131, 9, 5] {
            encode::lz_round_trip(&page[..len]);
        }
    }
}

#[test]
fn lz_copies_every_short_distance() {
    for period in 1..300 {
        let mut page = [0u8; 4096];
        Random(period as u64).fill(&mut page[..period]);
        for at in period..4096 {
            page[at] = page[at - period];
        }
        let object = encode::lz(&page);
        assert!(object.len() < 120 + period, "period {period}: {} bytes", object.len());
        assert!(decode::lz(&object, 4096).as_deref() == Some(&page[..]), "period {period}");
    }
}

#[test]
fn numbers_return_in_every_shape() {
    for (name, page) in pages(7, 4) {
        for shape in numeric::Shape::ALL {
            let object = encode::numeric(&page, shape);
            assert!(decode::numeric(&object) == Some(page), "{name}, {shape:?}");
        }
    }
}

#[test]
fn lz_tells_matches_at_odd_distances() {
    for isa in Isa::available() {
        for (period, odd) in [(48, false), (33, true)] {
            let mut encoder = lz::Encoder::with_isa(isa);
            let page: Page = std::array::from_fn(|at| (at % period * 5 + 1) as u8);
            encoder.plan(&page);
            let (matched, matched_odd) = encoder.matched();
            assert!(matched > 3800);
            assert_eq!(matched_odd, if odd { matched } else { 0 });
        }
    }
}

#[test]
fn an_encoder_does_not_remember() {
    for (at, (name, page)) in pages(7, 4).enumerate() {
        let input = &page[..[4096, 700, 64, 1][at % 4]];
        let mut fresh = [0; 4200];
        let len = lz::Encoder::new().encode(input, &mut fresh).expect("room");
        assert!(fresh[..len] == encode::lz(input), "{name}");
    }
}

#[test]
fn numeric_packs_the_pages_it_is_made_for() {
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
    for page in pages(7, 4).map(|(_, page)| page).chain(generated) {
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
        let object = encode::sparse(&page);
        assert_eq!(object.is_some(), count <= sparse::WORDS_MAX, "{count} words");
        assert!(object.is_none_or(|object| decode::sparse(&object) == Some(page)), "{count} words");
    }
}

/// Objects made by hand from the formats' descriptions.
#[test]
fn objects_by_hand() {
    // One sequence: 3 literals, a match of 4096 - 5 bytes at distance 3, then 2 literals.
    let rest = (4091 - 19u16).to_le_bytes();
    let object = [1, 0, 5, 0, b'a', b'b', b'c', b'x', b'y', 3, 0xf0, 3, 255, rest[0], rest[1]];
    let out = decode::lz(&object, 4096).expect("a valid object");
    assert!(out[..4094].iter().enumerate().all(|(at, &byte)| byte == b"abc"[at % 3]));
    assert_eq!(out[4094..], *b"xy");
    assert_eq!(encode::lz(b"abcd"), [0, 0, 4, 0, b'a', b'b', b'c', b'd']);

    // u32 differences, shift 1, base 2, all widths zero: each row is the first plus 2 for every row
    // before it.
    let mut object = vec![2 | 4, 1, 2, 0, 0, 0];
    object.extend((0..16u32).flat_map(|lane| (100 * lane).to_le_bytes()));
    object.extend([0; 16]);
    let page = decode::numeric(&object).expect("a valid object");
    for (at, value) in page.as_chunks::<4>().0.iter().enumerate() {
        assert_eq!(u32::from_le_bytes(*value), 100 * (at as u32 % 16) + 2 * (at as u32 / 16));
    }

    // Word 256 is 0x0102, word 257 is 7.
    let object = [3, 255, 1, 0, 0x01, 2, 1, 7];
    let mut expected = [0; 4096];
    expected[8 * 256..8 * 256 + 9].copy_from_slice(&[2, 1, 0, 0, 0, 0, 0, 0, 7]);
    assert_eq!(decode::sparse(&object), Some(expected));
    assert_eq!(encode::sparse(&expected).as_deref(), Some(&object[..]));
}
