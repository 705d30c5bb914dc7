//! Makes the built-in codebook set: `cargo run --release -p pagecodec --example t16h_train -- OUT SAMPLES FILE...`
//!
//! A file is raw 4 KiB pages. Every file gives the same share of the SAMPLES; pages that T16 does not shrink to half are
//! left out, as they would be when pages are stored.

use pagecodec::t16h::Trainer;
use pagecodec::{t16, PAGE_SIZE};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, out, samples, files @ ..] = &args[..] else { panic!("usage: t16h_train OUT SAMPLES FILE...") };
    let samples: usize = samples.parse().expect("a number of samples");
    let share = samples / files.len();
    let mut trainer = Trainer::new(share * files.len());
    for file in files {
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut encoder = t16::Encoder::new();
        let mut object = [0; t16::OBJECT_MAX];
        let mut usable = Vec::new();
        for page in bytes.as_chunks::<PAGE_SIZE>().0 {
            if let Ok(len) = encoder.encode(page, &mut object[..PAGE_SIZE / 2]) {
                usable.push(object[..len].to_vec());
            }
        }
        assert!(!usable.is_empty(), "{file}: nothing that T16 shrinks");
        for at in 0..share {
            trainer.add(&usable[at * usable.len() / share]);
        }
        eprintln!("{file}: {share} of {} pages", usable.len());
    }
    assert!(trainer.is_full());
    while !trainer.step() {}
    std::fs::write(out, trainer.lengths().pack()).unwrap_or_else(|error| panic!("{out}: {error}"));
}
