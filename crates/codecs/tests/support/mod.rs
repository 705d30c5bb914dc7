//! Pages like a program's heap, made from a seed.
#![allow(dead_code)]

use acomp::{
    Algorithm, CompressRequest, Context, DecompressRequest, Object, Page, UnitError, UnitResult, PAGE_SIZE,
};

/// A small generator: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Makes a page of pointers and counts, text, mostly zeroes, or noise.
pub fn page(kind: u64, random: &mut Random) -> Page {
    const WORDS: [&str; 8] = ["self", "return", "object", "value", "None", "import", "  ", "\n"];
    let mut page = [0; PAGE_SIZE];
    match kind % 4 {
        0 => {
            for word in page.chunks_exact_mut(8) {
                let value = match random.below(8) {
                    0..3 => 0,
                    3..6 => 0x7f12_3456_0000 + random.below(2048) * 16,
                    6 => random.below(300),
                    _ => random.next() >> 16,
                };
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        1 => {
            let text: Vec<u8> =
                (0..4096).flat_map(|_| WORDS[random.below(8) as usize].bytes()).take(PAGE_SIZE).collect();
            page.copy_from_slice(&text);
        }
        2 => (0..20).for_each(|_| page[random.below(4096) as usize] = random.next() as u8),
        _ => page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes())),
    }
    page
}

/// Compresses one unit through the whole interface.
pub fn compress(context: &mut dyn Context, unit: &[Page], room: usize) -> Result<Vec<u8>, UnitError> {
    let pages: Vec<&Page> = unit.iter().collect();
    let mut output = vec![0; room];
    let mut results: [UnitResult; 1] = [Err(UnitError::Failed)];
    context.compress(&mut CompressRequest {
        pages: &pages,
        unit_size: unit.len().next_power_of_two() * PAGE_SIZE,
        outputs: &mut [&mut output],
        results: &mut results,
    });
    output.truncate(results[0]?);
    Ok(output)
}

/// Decompresses one object, cut in two pieces at `cut`.
pub fn decompress(
    context: &mut dyn Context,
    object: &[u8],
    cut: usize,
    len: usize,
) -> Result<Vec<u8>, UnitError> {
    let (head, tail) = object.split_at(cut);
    let mut output = vec![0xEE; len];
    let mut results: [UnitResult; 1] = [Err(UnitError::Failed)];
    context.decompress(&mut DecompressRequest {
        objects: &[Object { head, tail }],
        outputs: &mut [&mut output],
        results: &mut results,
    });
    assert!(results[0].is_err() || results[0] == Ok(len));
    results[0].map(|_| output)
}

/// Every algorithm of this crate whose format others can read, by name.
pub fn find(name: &str) -> std::sync::Arc<dyn Algorithm> {
    let mut registry = acomp::Registry::new();
    codecs::register_all(&mut registry);
    registry.find(name).unwrap()
}
