//! Codebook sets of any bytes: refused, or good for coding and for reading anything.

mod support;

use pagecodec::t16h::{self, Coder, Lengths, Set};
use pagecodec::{t16, Isa};
use support::{Random, CLASSES};

/// Lengths of a mostly complete prefix code of 256 symbols, by random splits.
fn prefix_code(random: &mut Random) -> Vec<u8> {
    let mut lens = vec![1u8, 1];
    while lens.len() < 256 {
        let at = random.below(lens.len() as u64) as usize;
        // At most ten bits.
        if lens[at] < 10 {
            lens[at] += 1;
            lens.push(lens[at]);
        }
    }
    // Some are longer than necessary.
    for _ in 0..random.below(20) {
        let at = random.below(256) as usize;
        lens[at] = (lens[at] + 1).min(10);
    }
    for at in (1..256).rev() {
        lens.swap(at, random.below(at as u64 + 1) as usize);
    }
    lens
}

#[test]
fn any_lengths_are_refused_or_work() {
    let mut random = Random(31);
    let (mut refused, mut accepted) = (0, 0);
    let mut coders: Vec<Coder> = Isa::available().map(Coder::with_isa).collect();
    for round in 0..60 {
        let lens: Vec<u8> = (0..Lengths::PACKED / 128).flat_map(|_| prefix_code(&mut random)).collect();
        let mut packed: Vec<u8> = lens.as_chunks::<2>().0.iter().map(|pair| pair[0] | pair[1] << 4).collect();
        let is_damaged = round % 3 == 0;
        if is_damaged {
            for _ in 0..1 + random.below(3) {
                let at = random.below(packed.len() as u64) as usize;
                packed[at] = random.next() as u8;
            }
        }
        let Some(lengths) = Lengths::unpack(&packed) else {
            assert!(is_damaged, "round {round}");
            refused += 1;
            continue;
        };
        accepted += 1;
        assert!(lengths.pack() == packed);
        let set = Set::new(random.next() as u16, &lengths);
        for (name, class) in CLASSES.iter().skip(round % 4).step_by(4) {
            let page = class(&mut random);
            let mut plain = vec![0; t16::OBJECT_MAX];
            let len = t16::Encoder::new().encode(&page, &mut plain).expect("room");
            let (plain, mut object) = (&plain[..len], vec![0; t16h::OBJECT_MAX]);
            let len = coders[0].encode(&set, plain, &mut object).expect("room");
            object.truncate(len);
            let mut damaged = object.clone();
            let at = random.below(len as u64) as usize;
            damaged[at] ^= 1 << random.below(8);
            let mut first = None;
            for coder in &mut coders {
                assert_eq!(coder.decode(&set, &object), Ok(plain), "{name}");
                // Includes bits that begin no code.
                let outcome = coder.decode(&set, &damaged).map(<[u8]>::to_vec);
                assert!(*first.get_or_insert_with(|| outcome.clone()) == outcome, "{name}");
            }
        }
    }
    assert!(refused >= 5 && accepted >= 40, "{refused} refused, {accepted} accepted");
    for len in [0, 1, Lengths::PACKED - 1, Lengths::PACKED + 1] {
        assert!(Lengths::unpack(&vec![0x88; len]).is_none());
    }
    assert!(Lengths::unpack(&vec![0x88; Lengths::PACKED]).is_some(), "eight bits each");
    assert!(Lengths::unpack(&vec![0x77; Lengths::PACKED]).is_none(), "too many codes of seven bits");
    assert!(Lengths::unpack(&vec![0; Lengths::PACKED]).is_none());
}
