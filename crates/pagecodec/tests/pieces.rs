//! Pages combined from pieces of every class and of objects, like a program's heap: all formats and
//! instruction sets. `UZSWAP_TEST_ROUNDS` sets the number of pages, 2000 by default.

mod support;

use pagecodec::t16h::{builtin, builtin_page, Coder};
use pagecodec::{lz, numeric, t16, t16h, Isa};
use support::{Page, Random, CLASSES};

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

fn agreed<W, T: PartialEq>(
    ways: impl IntoIterator<Item = W>,
    what: &str,
    mut of: impl FnMut(W) -> (Isa, T),
) -> T {
    let mut ways = ways.into_iter();
    let (first, expected) = of(ways.next().expect("the portable one is always there"));
    for way in ways {
        let (isa, other) = of(way);
        assert!(other == expected, "{what}: {isa} wrote other bytes than {first}");
    }
    expected
}

fn comes_back<E: std::fmt::Display>(
    page: &Page,
    what: &str,
    decode: impl Fn(Isa, &mut Page) -> Result<(), E>,
) {
    for isa in Isa::available() {
        let mut back = [0x55; 4096];
        decode(isa, &mut back).unwrap_or_else(|error| panic!("{what}, {isa}: {error}"));
        assert!(back == *page, "{what}: {isa} decoded other bytes");
    }
}

struct Formats {
    t16: Vec<t16::Encoder>,
    lz: Vec<lz::Encoder>,
    t16h: Vec<(Isa, Coder)>,
}

impl Formats {
    fn new() -> Self {
        Formats {
            t16: Isa::available().map(t16::Encoder::with_isa).collect(),
            lz: Isa::available().map(lz::Encoder::with_isa).collect(),
            t16h: Isa::available().map(|isa| (isa, Coder::with_isa(isa))).collect(),
        }
    }

    /// Encodes and decodes `page` in every way. Returns its T16 object.
    fn check(&mut self, page: &Page, what: &str) -> Vec<u8> {
        let object = agreed(&mut self.t16, what, |encoder| {
            let mut object = vec![0; t16::OBJECT_MAX];
            let len = encoder.encode(page, &mut object).expect("the room is the format's maximum");
            object.truncate(len);
            (encoder.isa(), object)
        });
        comes_back(page, &format!("{what}, T16"), |isa, back| t16::decode(isa, &object, back));

        let plain = agreed(&mut self.lz, what, |encoder| {
            let mut object = vec![0; 2 * lz::INPUT_MAX];
            let len = encoder.encode(page, &mut object);
            object.truncate(len.unwrap_or(0));
            (encoder.isa(), object)
        });
        if !plain.is_empty() {
            comes_back(page, &format!("{what}, page LZ"), |isa, back| lz::decode_with(isa, &plain, back));
        }

        let numbers = agreed(Isa::available(), what, |isa| {
            let (shape, _) = numeric::estimate(isa, page);
            let mut object = vec![0; 2 * 4096];
            let len = numeric::encode(isa, page, shape, &mut object);
            object.truncate(len.unwrap_or(0));
            (isa, object)
        });
        if !numbers.is_empty() {
            comes_back(page, &format!("{what}, numbers"), |isa, back| numeric::decode(isa, &numbers, back));
        }

        let dense = agreed(&mut self.t16h, what, |(isa, coder)| {
            let mut of_page = vec![0; t16h::OBJECT_MAX];
            let len = coder.encode_page(builtin_page(), page, &mut of_page).expect("room for any page");
            of_page.truncate(len);
            let mut of_object = vec![0; t16h::OBJECT_MAX];
            let len = coder.encode(builtin(), &object, &mut of_object).expect("a T16 object");
            of_object.truncate(len);
            (*isa, (of_page, of_object))
        });
        for (isa, coder) in &mut self.t16h {
            let mut back = [0x55; 4096];
            coder
                .decode_page(builtin_page(), &dense.0, &mut back)
                .unwrap_or_else(|error| panic!("{what}, T16H, {isa}: {error}"));
            assert!(back == *page, "{what}, T16H: {isa} decoded other bytes");
            let back = coder.decode(builtin(), &dense.1).expect("its own object");
            assert!(back == object, "{what}, T16H: {isa} decoded another object");
        }
        object
    }
}

#[test]
fn pages_of_many_pieces_come_back() {
    let rounds = std::env::var("UZSWAP_TEST_ROUNDS").map_or(2000, |rounds| rounds.parse().expect("a number"));
    let seed = std::env::var("UZSWAP_TEST_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut random = Random(seed);
    let mut formats = Formats::new();
    let mut object = Vec::new();
    for round in 0..rounds {
        let page = pieced(&mut random, &object);
        object = formats.check(&page, &format!("page {round} of seed {seed}"));
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
    Formats::new().check(&page, "a bucket of many");
}
