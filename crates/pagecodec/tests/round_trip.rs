//! Pages return by every pair of instruction sets, and all write the same bytes. T16 in detail.

mod support;

use pagecodec::{same_filled, t16, Isa};
use support::{decode, encode, page_of, pages, Page, Random, CLASSES};

#[test]
fn every_class_comes_back() {
    for (name, page) in pages(0, 40) {
        println!("{name}");
        encode::round_trip(&page);
    }
}

/// Words that vector encoders cannot tell apart by their mark: sums of even and of odd bytes.
#[test]
fn words_with_the_same_mark_keep_their_templates() {
    const ALIKE: [u64; 8] = [
        0x0005_0000,
        0x0005_0000_0000,
        0x0003_0002_0000,
        0x0004_0000_0001_0000,
        // Like zero.
        0x0080_0080_0000,
        0x0040_0080_0040_0000,
        0x8000_0000_8000_0000,
        0x4000_8000_4000_0000,
    ];
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut page = [0u8; 4096];
        for word in page.as_chunks_mut::<8>().0 {
            let number = random.next() as usize;
            let mut value = ALIKE[number % 8];
            match number >> 8 & 7 {
                // Shares its prefix, shares its upper half, zero.
                0 => value ^= (number >> 16) as u64 & 0xffff,
                1 => value ^= (number >> 16) as u64 & 0xffff_ffff,
                2 => value = 0,
                // Multiples of 16 with the same prefix.
                3 if seed % 2 == 0 => value ^= (number >> 16) as u64 & 0x70,
                _ => {}
            }
            *word = value.to_le_bytes();
        }
        let object = encode::round_trip(&page);
        let layout = t16::Layout::parse(&object).expect("an object");
        assert!(layout.exact >= 4, "seed {seed}: {} exact templates", layout.exact);
    }
}

#[test]
fn classes_made_for_t16_shrink_well() {
    for (name, most) in [
        ("zero", 91),
        ("sparse", 400),
        ("pointers", 1500),
        ("structures", 1900),
        ("tagged small integers", 1900),
    ] {
        for seed in 0..20 {
            let len = encode::t16(&page_of(name, seed)).len();
            assert!(len <= most, "{name}, seed {seed}: {len} bytes");
        }
    }
}

#[test]
fn buffers_need_no_alignment() {
    for (name, page) in pages(7, 1) {
        for isa in Isa::available() {
            let mut encoder = t16::Encoder::with_isa(isa);
            let mut object = vec![0; t16::OBJECT_MAX + 64];
            let len = encoder.encode(&page, &mut object).expect("room");
            for shift in [1, 3, 7, 8, 31, 33, 63] {
                let mut source = vec![0; 4096 + 64];
                source[shift..shift + 4096].copy_from_slice(&page);
                let shifted: &Page = source[shift..shift + 4096].try_into().expect("a page");
                let mut other = vec![0; t16::OBJECT_MAX + 64];
                let other_len = encoder.encode(shifted, &mut other[64 - shift..]).expect("room");
                let moved = &other[64 - shift..64 - shift + other_len];
                assert!(object[..len] == *moved, "{name}, {isa}, shift {shift}");
                let mut back = vec![0; 4096 + 64];
                let target: &mut Page = (&mut back[shift..shift + 4096]).try_into().expect("a page");
                t16::decode(isa, moved, target).expect("own object");
                assert!(*target == page, "{name}, {isa}, shift {shift}");
            }
        }
    }
}

#[test]
fn a_batch_gives_the_objects_of_single_pages() {
    let mut random = Random(11);
    for isa in Isa::available() {
        let mut encoder = t16::Encoder::with_isa(isa);
        for count in 1..=12 {
            let pages: Vec<Page> = (0..count)
                .map(|_| CLASSES[random.below(CLASSES.len() as u64) as usize].1(&mut random))
                .collect();
            let refs: Vec<&Page> = pages.iter().collect();
            let mut rooms = vec![vec![0; 4096]; count];
            let mut results = vec![Ok(0); count];
            encoder.encode_batch(
                &refs,
                &mut rooms.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
                &mut results,
            );
            for ((page, room), result) in pages.iter().zip(&rooms).zip(results) {
                let mut alone = vec![0; 4096];
                assert_eq!(encoder.encode(page, &mut alone), result);
                if let Ok(len) = result {
                    assert!(alone[..len] == room[..len]);
                }
            }
        }
    }
}

#[test]
fn too_little_room_is_refused_with_the_length() {
    for isa in Isa::available() {
        let mut encoder = t16::Encoder::with_isa(isa);
        let page = page_of("structures", 3);
        let mut object = vec![0; t16::OBJECT_MAX];
        let len = encoder.encode(&page, &mut object).expect("room");
        for room in [0, 1, 19, 20, 80, len - 1] {
            let mut short = vec![0x77; room];
            assert_eq!(encoder.encode(&page, &mut short), Err(t16::EncodeError::NoSpace(len)));
            assert!(short.iter().all(|&byte| byte == 0x77));
        }
        let mut exact = vec![0; len];
        assert_eq!(encoder.encode(&page, &mut exact), Ok(len));
        assert!(exact == object[..len]);
    }
}

#[test]
fn a_plan_tells_the_length_and_gives_up_on_raw_words() {
    for (name, page) in pages(5, 1) {
        let mut encoders: Vec<_> = Isa::available().map(t16::Encoder::with_isa).collect();
        let plans: Vec<_> =
            encoders.iter_mut().map(|encoder| encoder.plan(&page, 512).expect("no limit")).collect();
        assert!(plans.windows(2).all(|pair| pair[0] == pair[1]), "{name}");
        for encoder in &mut encoders {
            let plan = plans[0];
            encoder.plan(&page, 512).expect("no limit");
            let mut object = vec![0; plan.len];
            assert_eq!(encoder.write(&mut object), Ok(plan.len));
            let layout = t16::Layout::parse(&object).expect("own object");
            assert_eq!(layout.raw_len, plan.raw_len);
            if plan.unfit > 0 {
                assert_eq!(
                    encoder.plan(&page, plan.unfit - 1),
                    Err(t16::EncodeError::TooManyRaw(plan.unfit))
                );
            }
        }
        assert_eq!(
            same_filled(&page).is_some(),
            page.as_chunks::<8>().0.iter().all(|word| *word == page[..8])
        );
    }
}

/// Long objects: nothing fits a template; templates, distinct lines and references add up.
#[test]
fn the_longest_objects_stay_within_the_bound() {
    let mut longest = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        for (_, class) in CLASSES.iter().filter(|class| class.0.contains("random") || class.0.contains("raw"))
        {
            longest = longest.max(encode::round_trip(&class(&mut random)).len());
        }
        // Sampled lines full of pairs, so that 13 templates are chosen; random words elsewhere,
        // with zeros here and there, so that tag lines differ.
        let mut page = [0; 4096];
        let pool: [u64; 64] = std::array::from_fn(|_| random.next());
        for (number, slot) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let line = number / 8;
            let sampled = line % 4 == [0, 2, 1, 3][line / 4 % 4];
            let word =
                if sampled { pool[number % 64 / 2 % 12 + 12 * (seed as usize % 2)] } else { random.next() };
            let zero = number % 8 == line % 8 && line % 3 == 0;
            *slot = (if zero { 0 } else { word }).to_le_bytes();
        }
        longest = longest.max(encode::round_trip(&page).len());
    }
    println!("longest object: {longest} bytes");
    assert!(longest > 4096 && longest <= 4096 + 340);
}

/// Real pages: this process's memory, and `UZSWAP_TEST_PAGES=FILE:FILE..` of raw pages.
#[test]
#[cfg(target_os = "linux")]
fn captured_pages_come_back() {
    use std::os::unix::fs::FileExt;

    let mut count = 0;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps");
    let memory = std::fs::File::open("/proc/self/mem").expect("/proc/self/mem");
    for line in maps.lines().filter(|line| !line.contains("[v")) {
        let (range, rest) = line.split_once(' ').expect("a range and flags");
        let (start, end) = range.split_once('-').expect("two addresses");
        let parse = |address| u64::from_str_radix(address, 16).expect("an address");
        let (start, end) = (parse(start), parse(end));
        if !rest.starts_with('r') {
            continue;
        }
        for address in (start..end.min(start + (256 << 12))).step_by(4096) {
            let mut page = [0; 4096];
            // Other threads' stacks come and go.
            if memory.read_exact_at(&mut page, address).is_ok() {
                println!("{address:#x} of {rest}");
                encode::round_trip(&page);
                count += 1;
            }
        }
    }
    assert!(count > 200, "{count} pages");
    for file in std::env::var("UZSWAP_TEST_PAGES").iter().flat_map(|files| files.split(':')) {
        for (number, page) in
            std::fs::read(file).expect("a file of pages").as_chunks::<4096>().0.iter().enumerate()
        {
            println!("page {number} of {file}");
            encode::round_trip(page);
        }
    }
}

#[test]
fn only_planned_bytes_are_written() {
    let page = page_of("random", 1);
    for isa in Isa::available() {
        let mut object = vec![0; t16::OBJECT_MAX];
        let unplanned =
            std::panic::catch_unwind(|| t16::Encoder::with_isa(isa).write(&mut [0; t16::OBJECT_MAX]));
        assert!(unplanned.is_err(), "{isa}: wrote without a plan");
        let mut encoder = t16::Encoder::with_isa(isa);
        encoder.encode(&page, &mut object).expect("room");
        assert!(encoder.plan(&page, 100).is_err());
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| encoder.write(&mut object)));
        assert!(failed.is_err(), "{isa}: wrote after a failed plan");
    }
}

/// An object made by hand from the description in `docs/formats/t16.md`.
#[test]
fn an_object_by_hand() {
    let mut object = Vec::new();
    // Two exact templates (tags 1, 2), two prefix templates (tags 10, 11; 11 rotated), two wide
    // ones (12, 13; 12 rotated). Exact 1 is coded by prefix 10, exact 2 is raw. High halves: 10 ->
    // 1, 13 -> 2, others zero.
    let kinds: u64 = 2 // exact
        | 10 << 4 // exact 1: as tag 10
        | 15 << 8 // exact 2: raw
        | 1 << 40 // tag 10: high half 1
        | 8 << 44 // tag 11: rotated, no high half
        | 8 << 48 // tag 12: rotated, no high half
        | 2 << 52 // tag 13: high half 2
        | 2 << 56 // prefix
        | 2 << 60 // wide
        | 1 << 62; // version
    object.extend(kinds.to_le_bytes());
    // A: exact 1, then words 3, 4, 5, 6; B: words 5, 6; one reference; two high halves.
    object.extend((5u32 | 2 << 10 | 1 << 20 | 2 << 29).to_le_bytes());
    // Lines 0 and 1 are distinct, the others repeat line 1.
    object.extend(0b11u64.to_le_bytes());
    object.extend(0x7f12u32.to_le_bytes());
    object.extend(0x5555u32.to_le_bytes());
    object.extend(0x3456u16.to_le_bytes()); // middle of tag 10
    object.extend(0u16.to_le_bytes()); // middle of tag 11
    for a in [0x0008u16, 0x1111, 0x2222, 0x3333, 0x4444] {
        object.extend(a.to_le_bytes());
    }
    for b in [0xbbbbu16, 0xcccc] {
        object.extend(b.to_le_bytes());
    }
    object.extend(0xdead_beef_0123_4567u64.to_le_bytes()); // exact 2
    object.extend(0x8877_6655_4433_2211u64.to_le_bytes()); // word 7 of line 0
    object.push(1); // the reference: raw word 1
    object.extend([1; 62]); // lines 2 to 63
    object.extend(0xfdcb_a210u32.to_le_bytes()); // words 0 to 7: tags 0, 1, 2, 10, 11, 12, 13, 15
    object.extend(0x0000_000eu32.to_le_bytes());
    // The second line's repeats would need a reference each, so they take tags without literals.
    let at = object.len() - 4;
    let mut expected = [0u8; 4096];
    let words = expected.as_chunks_mut::<8>().0;
    let line = [
        0u64,
        0x0000_7f12_3456_0008,
        0xdead_beef_0123_4567,
        0x0000_7f12_3456_1111,
        0x0000_2222_0000_0000,
        0xbbbb_3333_0000_0000,
        0x0000_5555_cccc_4444,
        0x8877_6655_4433_2211,
    ];
    for (slot, word) in words.iter_mut().zip(line) {
        *slot = word.to_le_bytes();
    }
    // 63 lines need 63 references, and there is one.
    assert!(decode::t16(&object).is_none());
    // Three distinct lines instead: the third is empty and repeated.
    let mut object = object[..at - 62 - 4].to_vec();
    object[12] = 0b111;
    object.extend([2; 61]);
    object.extend(0xfdcb_a210u32.to_le_bytes());
    object.extend(0x0000_000eu32.to_le_bytes());
    object.extend(0x0000_0000u32.to_le_bytes());
    words[8] = line[7].to_le_bytes();
    assert_eq!(decode::t16(&object), Some(expected));
}
