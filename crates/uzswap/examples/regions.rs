//! A table of numbers larger than its memory budget: sorted in place, summed by several threads.
//!
//! `cargo run --release -p uzswap-lib --example regions [TABLE_MIB [RAM_MIB]]`

use std::time::Instant;

use uzswap::regions::Space;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let table = sizes.next().transpose()?.unwrap_or(192) << 20;
    let ram = sizes.next().transpose()?.unwrap_or(96) << 20;
    let space = Space::builder().ram(ram as u64).start()?;
    let mut region = space.region(table)?;
    let numbers = region.as_mut_slice_of::<u64>();

    let began = Instant::now();
    let mut state = 1u64;
    for number in numbers.iter_mut() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *number = state >> 44;
    }
    println!("filled {} MiB in {:.1?}", table >> 20, began.elapsed());

    let began = Instant::now();
    numbers.sort_unstable();
    println!("sorted in {:.1?}", began.elapsed());

    let began = Instant::now();
    let numbers = &*numbers;
    let sum: u64 = std::thread::scope(|scope| {
        let parts = numbers.chunks(numbers.len().div_ceil(2));
        let threads: Vec<_> = parts.map(|part| scope.spawn(|| part.iter().sum::<u64>())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    println!("summed to {sum} in {:.1?}", began.elapsed());
    assert!(numbers.is_sorted());

    let stats = space.stats();
    println!(
        "{} MiB of {} MiB used; {} pages out, {} in, {} faults of {:.1} us",
        stats.used_bytes >> 20,
        stats.ram_bytes >> 20,
        stats.pages_out,
        stats.pages_in,
        stats.faults,
        stats.fault_ns as f64 / stats.faults.max(1) as f64 / 1000.0
    );
    Ok(())
}
