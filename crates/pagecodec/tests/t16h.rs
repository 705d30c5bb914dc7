//! T16H: round trips, damage, training.

mod support;

use pagecodec::t16h::{builtin, builtin_page, Coder, Estimator, Lengths, Set, Trainer, BOOKS};
use pagecodec::{t16, t16h, Isa};
use support::{Page, Random, CLASSES};

fn t16_of(page: &Page) -> Vec<u8> {
    let mut object = vec![0; t16::OBJECT_MAX];
    let len = t16::Encoder::new().encode(page, &mut object).expect("room");
    object.truncate(len);
    object
}

fn dense(coder: &mut Coder, set: &Set, object: &[u8]) -> Vec<u8> {
    let mut out = vec![0; t16h::OBJECT_MAX];
    let len = coder.encode(set, object, &mut out).expect("a T16 object");
    assert_eq!(coder.encode(set, object, &mut out[..len - 1]), None);
    out.truncate(len);
    out
}

fn pages() -> impl Iterator<Item = (&'static str, Page)> {
    CLASSES.iter().flat_map(|(name, class)| {
        let mut random = Random(17);
        (0..4).map(move |_| (*name, class(&mut random)))
    })
}

#[test]
fn every_class_returns_to_the_same_t16_object() {
    let mut coder = Coder::new();
    for (name, page) in pages() {
        let object = t16_of(&page);
        let coded = dense(&mut coder, builtin(), &object);
        assert_eq!(t16h::set_number(&coded), Some(0));
        let back = coder.decode(builtin(), &coded).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(back == object, "{name}");
        let mut decoded = [1; 4096];
        t16::decode(Isa::best(), back, &mut decoded).expect("a T16 object");
        assert!(decoded == page, "{name}");
    }
}

#[test]
fn lengths_are_estimated_to_four_bytes() {
    let mut coder = Coder::new();
    let mut estimators: Vec<_> = Isa::available().map(Estimator::with_isa).collect();
    for (name, page) in pages() {
        let object = t16_of(&page);
        let made = [dense(&mut coder, builtin(), &object).len(), dense_page(&mut coder, &page).len()];
        for estimator in &mut estimators {
            let told = [estimator.object_len(&object).expect("a T16 object"), estimator.page_len(&page)];
            assert!(
                made.iter().zip(told).all(|(made, told)| made.abs_diff(told) <= 4),
                "{name}: {told:?} {made:?}"
            );
        }
    }
    assert_eq!(estimators[0].object_len(&[0xff; 40]), None, "damaged");
}

fn dense_page(coder: &mut Coder, page: &Page) -> Vec<u8> {
    let mut out = vec![0; t16h::OBJECT_MAX];
    let len = coder.encode_page(builtin_page(), page, &mut out).expect("room for any page");
    assert_eq!(coder.encode_page(builtin_page(), page, &mut out[..len - 1]), None);
    out.truncate(len);
    out
}

#[test]
fn pages_as_page_lz_return() {
    let mut random = Random(43);
    let mut outcomes = [0u32; 2];
    let mut coders: Vec<_> = Isa::available().map(Coder::with_isa).collect();
    for (name, page) in pages() {
        let coded = dense_page(&mut coders[0], &page);
        for coder in &mut coders {
            assert!(dense_page(coder, &page) == coded, "{name}: encoded differently");
            let mut back = [1; 4096];
            coder.decode_page(builtin_page(), &coded, &mut back).expect("its own object");
            assert!(back == page, "{name}: decoded differently");
        }
        for _ in 0..100 {
            let mut object = coded.clone();
            let range = if random.below(2) == 0 { 20 } else { object.len() as u64 };
            let at = random.below(range) as usize % object.len();
            object[at] = random.next() as u8;
            if random.below(4) == 0 {
                object.truncate(random.below(object.len() as u64 + 1) as usize);
            }
            let decoded: Vec<_> = coders
                .iter_mut()
                .map(|coder| {
                    let mut back = [1; 4096];
                    coder.decode_page(builtin_page(), &object, &mut back).ok().map(|()| back)
                })
                .collect();
            assert!(decoded.windows(2).all(|pair| pair[0] == pair[1]), "{name}: damage differs");
            outcomes[usize::from(decoded[0].is_some())] += 1;
        }
    }
    assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
}

/// Behind the streams a reader finds zeros, also after a longer object.
#[test]
fn a_shortened_object_yields_what_it_yields_to_a_new_coder() {
    let mut random = Random(47);
    let mut used = Coder::new();
    let mut noise = [0; 4096];
    random.fill(&mut noise);
    let longest = dense_page(&mut used, &noise);
    let mut pages_read = 0;
    for (name, page) in pages() {
        let coded = dense_page(&mut used, &page);
        for cut in [1, 2, 9, 40] {
            let object = &coded[..coded.len().saturating_sub(cut)];
            let decoded = [&mut Coder::new(), &mut used].map(|coder| {
                let mut back = [1; 4096];
                coder.decode_page(builtin_page(), object, &mut back).ok().map(|()| back)
            });
            assert!(decoded[0] == decoded[1], "{name}, {cut} bytes less");
            pages_read += u32::from(decoded[0].is_some());
            let mut back = [1; 4096];
            used.decode_page(builtin_page(), &longest, &mut back).expect("its own object");
            assert!(back == noise, "{name}");
        }
    }
    assert!(pages_read > 20, "{pages_read} shortened objects were read");
}

#[test]
fn damage_is_an_error_or_some_object() {
    let mut random = Random(23);
    let mut coder = Coder::new();
    let mut outcomes = [0u32; 2];
    for (_, page) in pages() {
        let original = dense(&mut coder, builtin(), &t16_of(&page));
        for _ in 0..100 {
            let mut object = original.clone();
            for _ in 0..1 + random.below(3) {
                let range = if random.below(2) == 0 { 40 } else { object.len() as u64 };
                let at = random.below(range) as usize % object.len();
                object[at] = random.next() as u8;
            }
            if random.below(4) == 0 {
                object.truncate(random.below(object.len() as u64 + 1) as usize);
            }
            let outcome = match coder.decode(builtin(), &object) {
                Ok(object) => {
                    let mut back = [0; 4096];
                    t16::decode(Isa::best(), object, &mut back).is_ok()
                }
                Err(_) => false,
            };
            outcomes[usize::from(outcome)] += 1;
        }
    }
    for _ in 0..20_000 {
        let mut object = vec![0; random.below(400) as usize];
        random.fill(&mut object);
        if let Some(number) = object.get_mut(..2) {
            number.fill(0);
        }
        let _ = coder.decode(builtin(), &object);
        // And as a T16 object to encode.
        let _ = coder.encode(builtin(), &object, &mut [0; t16h::OBJECT_MAX]);
    }
    assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
}

#[test]
fn another_set_is_refused() {
    let mut coder = Coder::new();
    let (_, page) = pages().nth(20).expect("a page");
    let coded = dense(&mut coder, builtin(), &t16_of(&page));
    let lengths = Lengths::unpack(&vec![0x88; Lengths::PACKED]).expect("eight bits for everything");
    assert!(coder.decode(&Set::new(9, &lengths), &coded).is_err());
}

#[test]
fn training_beats_plain_bytes_and_survives_packing() {
    let mut random = Random(31);
    let mut trainer = Trainer::new(4 * BOOKS);
    let mut objects = Vec::new();
    // Objects at regular distances with a reference and a count each, as allocators place them.
    for number in 0..8 * BOOKS as u64 {
        let mut page: Page = [0; 4096];
        for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let value = match at % 4 {
                0 => 0x7f00_1000_0000 + 4096 * number + 32 * (at as u64 / 4),
                1 => random.below(20),
                2 => 0x5555_0000_0000 + 16 * random.below(600),
                _ => 0x0001_0000 * random.below(3),
            };
            *word = value.to_le_bytes();
        }
        objects.push(t16_of(&page));
    }
    let (samples, held_out) = objects.split_at(4 * BOOKS);
    assert!(!trainer.step(), "nothing to train on yet");
    let mut coder = Coder::new();
    for object in samples {
        dense(&mut coder, builtin(), object);
        trainer.add(&coder);
    }
    assert!(trainer.is_full());
    let mut steps = 1;
    while !trainer.step() {
        steps += 1;
        assert!(steps < 1000);
    }
    let packed = trainer.lengths().pack();
    let set = Set::new(1, &Lengths::unpack(&packed).expect("valid lengths"));
    assert!(trainer.bits(&set) < trainer.bits(builtin()));
    let mut total =
        |set: &Set| held_out.iter().map(|object| dense(&mut coder, set, object).len()).sum::<usize>();
    let (own, general) = (total(&set), total(builtin()));
    let plain: usize = held_out.iter().map(Vec::len).sum();
    assert!(own < general && own * 10 < plain * 9, "{own} trained, {general} built-in, {plain} T16");
    for object in held_out {
        let coded = dense(&mut coder, &set, object);
        assert!(coder.decode(&set, &coded).expect("its own object") == object);
    }
}

#[test]
fn lengths_that_are_no_code_are_refused() {
    assert!(Lengths::unpack(&[0x88; 100]).is_none());
    assert!(Lengths::unpack(&vec![0x11; Lengths::PACKED]).is_none(), "256 codes of one bit");
    assert!(Lengths::unpack(&vec![0xbb; Lengths::PACKED]).is_none(), "eleven bits");
    assert!(Lengths::unpack(&vec![0x00; Lengths::PACKED]).is_none(), "no code");
}

#[test]
fn every_instruction_set_writes_and_reads_the_same() {
    let mut random = Random(41);
    let mut coders: Vec<_> = Isa::available().map(Coder::with_isa).collect();
    for (name, page) in pages() {
        let original = t16_of(&page);
        for damage in 0..40 {
            let mut object = original.clone();
            if damage > 0 {
                let at = random.below(object.len() as u64) as usize;
                object[at] ^= 1 << random.below(8);
            }
            let coded: Vec<_> = coders
                .iter_mut()
                .map(|coder| {
                    let mut out = vec![0; t16h::OBJECT_MAX];
                    let len = coder.encode(builtin(), &object, &mut out)?;
                    out.truncate(len);
                    Some(out)
                })
                .collect();
            assert!(coded.windows(2).all(|pair| pair[0] == pair[1]), "{name}, {damage}: encoded differently");
            let Some(mut coded) = coded.into_iter().next().flatten() else { continue };
            let decoded: Vec<_> = coders
                .iter_mut()
                .map(|coder| coder.decode(builtin(), &coded).expect("its own object").to_vec())
                .collect();
            assert!(
                decoded.iter().all(|decoded| *decoded == object),
                "{name}, {damage}: decoded differently"
            );
            let at = random.below(coded.len() as u64) as usize;
            coded[at] ^= 1 << random.below(8);
            let decoded: Vec<_> = coders
                .iter_mut()
                .map(|coder| coder.decode(builtin(), &coded).ok().map(<[u8]>::to_vec))
                .collect();
            assert!(decoded.windows(2).all(|pair| pair[0] == pair[1]), "{name}, {damage}: damage differs");
        }
    }
}
