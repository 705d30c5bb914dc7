//! Makes the built-in codebook sets: `cargo run --release -p uzswap-pagecodec --example
//! t16h_train -- OUT PAGE_OUT SAMPLES FILE...`
//!
//! OUT is for T16 objects, PAGE_OUT for pages as page LZ. A file is raw 4 KiB pages. Every file
//! contributes the same share of the SAMPLES of each: pages that T16 shrinks to half, and pages
//! with repeats for page LZ that T16 hardly shrinks. Files without such pages contribute none.

use pagecodec::t16h::{builtin, builtin_page, Coder, Trainer};
use pagecodec::{lz, t16, Isa, PAGE_SIZE};

/// Repeats from which on a page counts for page LZ.
const REPEATS_MIN: u32 = 16;

fn write(out: &str, trainer: &mut Trainer) {
    assert!(trainer.is_full());
    while !trainer.step() {}
    std::fs::write(out, trainer.lengths().pack()).unwrap_or_else(|error| panic!("{out}: {error}"));
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, out, page_out, samples, files @ ..] = &args[..] else {
        panic!("usage: t16h_train OUT PAGE_OUT SAMPLES FILE...")
    };
    let samples: usize = samples.parse().expect("a number of samples");
    let mut coder = Coder::new();
    let mut space = vec![0; pagecodec::t16h::OBJECT_MAX];
    let (mut usable, mut other) = (Vec::new(), Vec::new());
    for file in files {
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut encoder = t16::Encoder::new();
        let mut object = [0; t16::OBJECT_MAX];
        let (mut fits, mut fits_not) = (Vec::new(), Vec::new());
        for page in bytes.as_chunks::<PAGE_SIZE>().0 {
            if let Ok(len) = encoder.encode(page, &mut object[..PAGE_SIZE / 2]) {
                fits.push(object[..len].to_vec());
            } else if lz::repeats(Isa::best(), page) >= REPEATS_MIN {
                fits_not.push(*page);
            }
        }
        eprintln!("{file}: {} pages for T16, {} for page LZ", fits.len(), fits_not.len());
        usable.push(fits);
        other.push(fits_not);
    }
    usable.retain(|pages| !pages.is_empty());
    other.retain(|pages| pages.len() >= 16);
    let share = samples / usable.len();
    let mut trainer = Trainer::new(share * usable.len());
    for objects in &usable {
        for at in 0..share {
            let object = &objects[at * objects.len() / share];
            coder.encode(builtin(), object, &mut space).expect("a T16 object");
            trainer.add(&coder);
        }
    }
    write(out, &mut trainer);
    let share = samples / other.len();
    let mut trainer = Trainer::new(share * other.len());
    for pages in &other {
        for at in 0..share {
            coder.encode_page(builtin_page(), &pages[at * pages.len() / share], &mut space).expect("room");
            trainer.add(&coder);
        }
    }
    write(page_out, &mut trainer);
}
