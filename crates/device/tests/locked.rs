//! A device with preallocated, locked memory: one a process, so this is one test.

mod support;

use device::{Config, Device, Error, IoError, BLOCK_BYTES};
use support::{field, fill};

#[test]
fn all_memory_is_there_at_the_start() {
    const RAM: u64 = 48 << 20;
    const SIZE: u64 = 256 << 20;
    let config = Config {
        size_bytes: SIZE,
        ram_bytes: Some(RAM),
        compressor: "lz4".into(),
        is_locked: true,
        has_checksums: true,
        ..Config::default()
    };
    let without_bound = Config { ram_bytes: None, ..config.clone() };
    assert!(matches!(Device::new(without_bound), Err(Error::Unbounded)));
    let too_small = Config { ram_bytes: Some(1 << 20), ..config.clone() };
    assert!(matches!(Device::new(too_small), Err(Error::Ram(least)) if least > 16 << 20 && least < RAM));

    let with_threads = Config { compressor: "parallel:2,lz4".into(), ..config.clone() };
    let refused = Device::new(with_threads).err().expect("threads are refused").to_string();
    assert!(refused.contains("starts threads"), "{refused}");

    let before = field("RssAnon:");
    let device = match Device::new(config) {
        Ok(device) => device,
        Err(error @ Error::Lock { .. }) => {
            return testkit::skip!("mlock", "{error}");
        }
        Err(error) => panic!("{error}"),
    };
    let (start, locked) = (field("RssAnon:"), field("VmLck:"));
    assert!(start >= before + RAM && locked >= RAM, "{start} {locked}");

    // As much as fits, in pieces of all sizes, discarded and written again; then everything is
    // read.
    let mut bytes = vec![0; 64 << 10];
    let mut seeds = std::collections::BTreeMap::new();
    let mut refused = 0;
    let mut state = 7u64;
    for _ in 0..30_000u64 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let block = (state >> 30) % (SIZE / BLOCK_BYTES as u64);
        let count = ((state >> 20) % 16 + 1).min(SIZE / BLOCK_BYTES as u64 - block);
        let (at, len) = (block * BLOCK_BYTES as u64, count as usize * BLOCK_BYTES);
        if state >> 61 == 0 {
            device.discard(at, len as u64).unwrap();
            seeds.retain(|&written, _| !(block..block + count).contains(&written));
            continue;
        }
        // Heap-like bytes, and one piece in 32 that does not compress.
        let seed_of = |block: u64| {
            if (state >> 56).is_multiple_of(32) {
                block << 8 | 1
            } else {
                (state ^ block) << 3 | 5
            }
        };
        bytes[..len]
            .chunks_mut(BLOCK_BYTES)
            .zip(block..)
            .for_each(|(page, block)| fill(page, seed_of(block)));
        match device.write(at, &bytes[..len]) {
            Ok(()) => seeds.extend((block..block + count).map(|block| (block, seed_of(block)))),
            Err(IoError::NoSpace { at: failed }) => {
                let done = (failed - at) / BLOCK_BYTES as u64;
                seeds.extend((block..block + done).map(|block| (block, seed_of(block))));
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let statistics = device.statistics();
    assert!(refused > 0, "the device was filled");
    assert!(statistics.compr_data_size > RAM / 2, "{} of {RAM}", statistics.compr_data_size);
    assert_eq!(statistics.lost_blocks, 0);
    let end = field("RssAnon:");
    // The test's own table of its writes, and the compressor's contexts.
    let own = seeds.len() as u64 * 100 + (4 << 20);
    assert!(end < start + own, "{} more bytes of memory after {} blocks", end - start, seeds.len());
    println!(
        "{} blocks, {} bytes of objects in {RAM}, {refused} refused",
        seeds.len(),
        statistics.compr_data_size
    );

    let mut wanted = [0; BLOCK_BYTES];
    let mut back = [0; BLOCK_BYTES];
    for block in 0..SIZE / BLOCK_BYTES as u64 {
        device.read(block * BLOCK_BYTES as u64, &mut back).unwrap();
        match seeds.get(&block) {
            Some(&seed) => fill(&mut wanted, seed),
            None => wanted.fill(0),
        }
        assert!(back == wanted, "block {block}");
    }
    device.discard(0, SIZE).unwrap();
    assert_eq!(device.pool().objects(), 0);
}
