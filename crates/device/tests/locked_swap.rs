//! A device with a swap file and preallocated, locked memory: one a process, so this is one test.
//! It runs without the harness, whose threads have heaps of their own.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use device::{Config, Device, Error, BLOCK_BYTES};
use support::{field, fill};
use swapfile::{OpenError, SwapFile};

/// Four clients fill, overwrite, discard and read a device whose data are several times its memory.
/// No request is refused or reads other bytes, no block is lost, and no memory is requested.
fn main() {
    const RAM: u64 = 32 << 20;
    const SIZE: u64 = 128 << 20;
    const CLIENTS: u64 = 4;
    const LEAF: u64 = 16 * BLOCK_BYTES as u64;
    sys::flusher::keep_heap(24 << 20);
    let of_file = swapfile::Config {
        directory: "/var/tmp".into(),
        size_bytes: 192 << 20,
        ..swapfile::Config::default()
    };
    let spawn = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().spawn(work).map(|_| ());
    let file = match SwapFile::open(&of_file, &spawn) {
        Ok(file) => file,
        Err(error @ OpenError::InMemory { .. }) => return testkit::skip!("disk", "{error}"),
        Err(error) => panic!("{error}"),
    };
    let config = Config {
        size_bytes: SIZE,
        ram_bytes: Some(RAM),
        compressor: "lz4".into(),
        is_locked: true,
        has_checksums: true,
        swap: Some(file.clone()),
        ..Config::default()
    };
    let too_small = Config { ram_bytes: Some(16 << 20), ..config.clone() };
    assert!(matches!(Device::new(too_small), Err(Error::Ram(least)) if least > 16 << 20 && least < RAM));
    let device = match Device::new(config) {
        Ok(device) => device,
        Err(error @ Error::Lock { .. }) => return testkit::skip!("mlock", "{error}"),
        Err(error) => panic!("{error}"),
    };
    assert!(field("VmLck:") >= RAM - file.memory_bytes_max());

    // Mostly incompressible: the data exceed memory and fill most of the file.
    let seed_of = |leaf: u64, version: u64, block: u64| match block % 4 {
        3 => (version << 32 | leaf << 4 | block) << 3 | 5,
        _ => (version << 32 | leaf << 4 | block) << 3 | 1,
    };
    let make = |leaf: u64, version: u64, bytes: &mut [u8]| {
        for (chunk, block) in bytes.chunks_mut(BLOCK_BYTES).zip(0..) {
            // Version 0 was never written, or was discarded.
            fill(chunk, if version == 0 { 0 } else { seed_of(leaf, version, block) });
        }
    };
    let before = AtomicU64::new(0);
    let barrier = std::sync::Barrier::new(CLIENTS as usize);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (device, barrier, before, make) = (&device, &barrier, &before, &make);
            scope.spawn(move || {
                let leaves = SIZE / LEAF / CLIENTS;
                let mut versions = vec![0u64; leaves as usize];
                let (mut bytes, mut wanted) = (vec![0u8; LEAF as usize], vec![0u8; LEAF as usize]);
                let mut state = client + 1;
                sys::flusher::touch_stack();
                for turn in 0..leaves * 4 {
                    // After the first pass, stacks and the compressor's contexts exist.
                    if turn == leaves {
                        barrier.wait();
                        if client == 0 {
                            before.store(field("RssAnon:"), Ordering::SeqCst);
                        }
                        barrier.wait();
                    }
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let own = if turn < leaves { turn } else { (state >> 33) % leaves };
                    let leaf = own * CLIENTS + client;
                    let version = &mut versions[own as usize];
                    let kind = if turn < leaves { 0 } else { state >> 61 };
                    match kind {
                        0..=2 => {
                            make(leaf, turn + 1, &mut bytes);
                            device.write(leaf * LEAF, &bytes).unwrap();
                            *version = turn + 1;
                        }
                        3 => {
                            device.discard(leaf * LEAF, LEAF).unwrap();
                            *version = 0;
                        }
                        _ => {
                            device.read(leaf * LEAF, &mut bytes).unwrap();
                            make(leaf, *version, &mut wanted);
                            assert!(bytes == wanted, "leaf {leaf}");
                        }
                    }
                }
                for (own, &version) in versions.iter().enumerate() {
                    let leaf = own as u64 * CLIENTS + client;
                    device.read(leaf * LEAF, &mut bytes).unwrap();
                    make(leaf, version, &mut wanted);
                    assert!(bytes == wanted, "leaf {leaf}");
                }
            });
        }
    });
    let grown = field("RssAnon:").saturating_sub(before.load(Ordering::SeqCst));
    device.settle();
    let statistics = device.statistics();
    let swap = statistics.swap.unwrap();
    println!("{grown} bytes more of memory; {statistics:?}");
    assert!(grown < 64 << 10, "{grown} bytes more of memory");
    assert_eq!((statistics.lost_blocks, statistics.refused_writes), (0, 0));
    assert!(swap.swap_live > 40 << 20 && statistics.bd_reads > 1000, "{statistics:?}");
    device.discard(0, SIZE).unwrap();
    assert_eq!((device.pool().objects(), device.statistics().swap.unwrap().swap_live), (0, 0));
}
