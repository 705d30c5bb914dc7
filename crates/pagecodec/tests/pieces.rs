//! Pages combined from pieces of every class and of objects, like a program's heap: all formats and
//! instruction sets. `UZSWAP_TEST_ROUNDS` sets the number of pages, 2000 by default.

mod support;

use support::{encode, setting, Page, Random, CLASSES};

/// A piece of `object`, or of a page of any class.
fn piece(random: &mut Random, object: &[u8]) -> Page {
    match random.below(CLASSES.len() as u64 + 4) as usize {
        class if class < CLASSES.len() => CLASSES[class].1(random),
        _ if object.is_empty() => [0xaa; 4096],
        _ => std::array::from_fn(|at| object[at % object.len()]),
    }
}

/// One to twelve pieces, at words, lines or anywhere, over zeroes or another byte.
fn pieced(random: &mut Random, object: &[u8]) -> Page {
    let mut page = [[0, 0, 0, 0xaa][random.below(4) as usize]; 4096];
    for _ in 0..=random.below(12) {
        let source = piece(random, object);
        let most = [512, 4088][random.below(2) as usize];
        let len = 8 + random.below(most) as usize;
        let step = [1, 8, 8, 64][random.below(4) as usize];
        let mut place = || random.below(4096 - len as u64 + 1) as usize / step * step;
        let (from, to) = (place(), place());
        page[to..to + len].copy_from_slice(&source[from..from + len]);
    }
    page
}

#[test]
fn pages_of_many_pieces_come_back() {
    let seed = setting("UZSWAP_TEST_SEED", 1);
    let mut random = Random(seed);
    let mut object = Vec::new();
    for round in 0..setting("UZSWAP_TEST_ROUNDS", 2000) {
        println!("page {round} of seed {seed}");
        object = encode::round_trip(&pieced(&mut random, &object));
    }
}

/// A bucket of 64 samples or more has the highest score if its last sample, another word, shares no
/// prefix. The portable encoder once kept one template too many then, which overlapped the first
/// prefix.
#[test]
fn the_highest_score_takes_one_place() {
    let bucket = |word: u64| word.wrapping_mul(0x9_E377_9B97_F4A7) >> 44 & 255;
    let mut random = Random(23);
    let mut draw = |least: u64, most: u64| loop {
        let word = random.next();
        if (least..=most).contains(&bucket(word)) {
            return word;
        }
    };
    let (common, last) = (draw(1, 1), draw(1, 1));
    let pool: [u64; 24] = std::array::from_fn(|_| draw(2, 255));
    let mut page = [0u8; 4096];
    for sample in 0..128 {
        let line = 4 * (sample / 8) + [0, 2, 1, 3][sample / 8 % 4];
        let word = match sample {
            127 => last,
            64.. => pool[sample % 24],
            _ => common,
        };
        let at = 64 * line + 8 * (sample % 8);
        page[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    encode::round_trip(&page);
}
