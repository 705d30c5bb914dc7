//! T16H: estimates, sets, training.

mod support;

use pagecodec::t16h::{builtin, Coder, Estimator, Lengths, Set, Trainer, BOOKS};
use pagecodec::{t16h, Isa};
use support::{decode, encode, page_of, pages, Page, Random};

fn dense(coder: &mut Coder, set: &Set, object: &[u8]) -> Vec<u8> {
    let mut out = vec![0; t16h::OBJECT_MAX];
    let len = coder.encode(set, object, &mut out).expect("a T16 object");
    assert_eq!(coder.encode(set, object, &mut out[..len - 1]), None);
    out.truncate(len);
    out
}

#[test]
fn lengths_are_estimated_to_four_bytes() {
    let mut estimators: Vec<_> = Isa::available().map(Estimator::with_isa).collect();
    for (name, page) in pages(17, 4) {
        let object = encode::t16(&page);
        let made = [encode::t16h(&object).expect("its own object").len(), encode::t16h_page(&page).len()];
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

/// Behind the streams a reader finds zeros, also after a longer object.
#[test]
fn a_shortened_object_yields_the_same_to_a_used_and_a_new_coder() {
    let longest = encode::t16h_page(&page_of("random", 47));
    let mut pages_read = 0;
    for (_, page) in pages(17, 4) {
        let coded = encode::t16h_page(&page);
        for cut in [1, 2, 9, 40] {
            decode::t16h(&longest);
            pages_read += u32::from(decode::t16h(&coded[..coded.len().saturating_sub(cut)])[1]);
        }
    }
    assert!(pages_read > 20, "{pages_read} shortened objects were read");
}

#[test]
fn another_set_is_refused() {
    let coded = encode::t16h(&encode::t16(&page_of("text", 17))).expect("its own object");
    assert_eq!(t16h::set_number(&coded), Some(0));
    let lengths = Lengths::unpack(&vec![0x88; Lengths::PACKED]).expect("eight bits for everything");
    assert!(Coder::new().decode(&Set::new(9, &lengths), &coded).is_err());
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
        objects.push(encode::t16(&page));
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
