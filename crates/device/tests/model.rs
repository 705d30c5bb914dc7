//! Random requests, with failures of every part, against plain bytes.

mod support;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use device::{Config, Device, IoError, BLOCK_BYTES};
use proptest::prelude::*;
use support::{fill, Failing, Swap};
use swapfile::Rates;

#[test]
fn a_device_that_does_no_work_holds_no_blocks() {
    let config = Config { compressor: "deflate-iaa:work=null".to_owned(), ..Config::default() };
    let Err(error) = Device::new(config) else { panic!("it was taken") };
    assert!(error.to_string().contains("leave out work="), "{error}");
}

const BLOCKS: usize = 200;
const SIZE: usize = BLOCKS * BLOCK_BYTES;
const LEAF: usize = 16 * BLOCK_BYTES;

#[derive(Debug, Clone)]
enum Op {
    Write { at: usize, len: usize, seed: u64 },
    Read { at: usize, len: usize },
    Discard { at: usize, len: usize },
    Zero { at: usize, len: usize },
    Extents { at: usize, len: usize },
    Beyond { at: u64, len: usize },
    Compact,
    Flush,
    FailObjects(u32),
    FailLeaves(u32),
    FailCompressor(u64),
    DiskFaults(DiskFaults),
    Settle,
}

/// The disk's behaviour from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskFaults {
    None,
    WritesFail,
    NoRoom,
    ReadsFail,
    Short,
    /// Reports success, but writes nothing or other bytes.
    Lies,
}

impl DiskFaults {
    fn rates(self) -> Rates {
        match self {
            DiskFaults::None => Rates::default(),
            DiskFaults::WritesFail => Rates { write_eio: 300, ..Rates::default() },
            DiskFaults::NoRoom => {
                Rates { write_enospc: 400, reserve_enospc: 400, release_fails: 300, ..Rates::default() }
            }
            DiskFaults::ReadsFail => Rates { read_eio: 250, read_flip: 250, ..Rates::default() },
            DiskFaults::Short => {
                Rates { write_short: 300, read_short: 300, interrupted: 200, ..Rates::default() }
            }
            DiskFaults::Lies => Rates { write_lies: 300, ..Rates::default() },
        }
    }
}

/// Offsets and lengths, mostly at the borders of blocks and leaves.
fn range() -> impl Strategy<Value = (usize, usize)> {
    let near = prop_oneof![4 => Just(0i64), 1 => -3i64..4, 1 => -5000i64..5000];
    let unit = prop::sample::select(vec![1usize, 512, BLOCK_BYTES, LEAF]);
    let len = prop_oneof![6 => 1usize..20_000, 3 => (1usize..17).prop_map(|n| n * BLOCK_BYTES), 1 => 1usize..400_000];
    (0..SIZE, unit, near, len).prop_map(|(at, unit, near, len)| {
        let at = ((at / unit * unit) as i64 + near).clamp(0, SIZE as i64 - 1) as usize;
        (at, len.min(SIZE - at))
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (range(), any::<u64>()).prop_map(|((at, len), seed)| Op::Write { at, len, seed }),
        8 => range().prop_map(|(at, len)| Op::Read { at, len }),
        2 => range().prop_map(|(at, len)| Op::Discard { at, len }),
        2 => range().prop_map(|(at, len)| Op::Zero { at, len }),
        1 => range().prop_map(|(at, len)| Op::Extents { at, len }),
        1 => (prop_oneof![SIZE as u64 - 100..SIZE as u64 + 2, any::<u64>()], 101usize..9000)
            .prop_map(|(at, len)| Op::Beyond { at, len }),
        1 => Just(Op::Compact),
        1 => Just(Op::Flush),
        1 => (0u32..20).prop_map(Op::FailObjects),
        1 => (0u32..3).prop_map(Op::FailLeaves),
        1 => (0u64..5).prop_map(Op::FailCompressor),
        2 => prop::sample::select(vec![
            DiskFaults::None, DiskFaults::None, DiskFaults::WritesFail, DiskFaults::NoRoom, DiskFaults::ReadsFail,
            DiskFaults::Short, DiskFaults::Lies,
        ])
        .prop_map(Op::DiskFaults),
        1 => Just(Op::Settle),
    ]
}

struct Model {
    bytes: Vec<u8>,
    lost: Vec<bool>,
}

impl Model {
    fn any_lost(&self, at: usize, len: usize) -> bool {
        len > 0 && self.lost[at / BLOCK_BYTES..=(at + len - 1) / BLOCK_BYTES].iter().any(|lost| *lost)
    }

    /// Records that `bytes` was written at `at`.
    fn wrote(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        let (first, end) = (at.div_ceil(BLOCK_BYTES), (at + bytes.len()) / BLOCK_BYTES);
        if first < end {
            self.lost[first..end].fill(false);
        }
    }
}

struct Run {
    device: Device,
    model: Model,
    swap: Option<Swap>,
    disk_faults: DiskFaults,
    /// The disk has lied: any block may be unreadable until it is written.
    has_lied: bool,
    compressor: Arc<std::sync::atomic::AtomicU64>,
    ram: Option<u64>,
}

impl Run {
    /// A device that may use `ram` bytes beside its swap file's own, which has `segments` segments.
    fn new(ram: Option<u64>, segments: Option<usize>, unit_bytes: usize, queues: usize) -> Self {
        let (algorithm, compressor) = Failing::of("lz4");
        let swap = ram.and(segments).map(Swap::new);
        let ram = ram.map(|ram| ram + swap.as_ref().map_or(0, |swap| swap.file.memory_bytes_max()));
        let config = Config {
            size_bytes: SIZE as u64,
            ram_bytes: ram,
            unit_bytes,
            queues,
            has_checksums: true,
            swap: swap.as_ref().map(|swap| swap.file.clone()),
            ..Config::default()
        };
        let device = Device::with_algorithm(config, algorithm).unwrap();
        let model = Model { bytes: vec![0; SIZE], lost: vec![false; BLOCKS] };
        Run { device, model, swap, disk_faults: DiskFaults::None, has_lied: false, compressor, ram }
    }

    fn reads_may_fail(&self) -> bool {
        self.has_lied || self.disk_faults == DiskFaults::ReadsFail
    }

    fn set_disk_faults(&mut self, faults: DiskFaults) {
        if let Some(swap) = &self.swap {
            swap.faults.set_rates(faults.rates());
            self.disk_faults = faults;
            self.has_lied |= faults == DiskFaults::Lies;
            // The disk's next behaviour applies at once.
            self.device.end_pauses();
        }
    }

    /// Where a write or a request for zeroes failed, and whether it may have lost blocks there.
    fn failure(&self, error: &IoError) -> (usize, bool) {
        match *error {
            IoError::NoSpace { at } => (at as usize, false),
            IoError::Lost { at } => (at as usize, true),
            IoError::Disk { at, .. } => {
                assert!(self.reads_may_fail());
                (at as usize, false)
            }
            ref other => panic!("a write answered {other}"),
        }
    }

    /// Applies a failed write: everything before the failed piece is written; that piece may have
    /// lost its blocks.
    fn after_failed_write(&mut self, at: usize, bytes: &[u8], error: &IoError) {
        let (failed, may_lose) = self.failure(error);
        let failed = failed.max(at);
        let piece_start = if failed / LEAF == at / LEAF { at } else { failed / LEAF * LEAF };
        assert!(piece_start <= failed && failed < at + bytes.len());
        self.model.wrote(at, &bytes[..piece_start - at]);
        if may_lose {
            let piece_end = (piece_start / LEAF * LEAF + LEAF).min(at + bytes.len());
            self.look_for_losses(piece_start / BLOCK_BYTES, piece_end.div_ceil(BLOCK_BYTES));
        }
    }

    /// Applies a failed request for zeroes: the parts of blocks at its pieces' ends fail one by
    /// one.
    fn after_failed_zero(&mut self, at: usize, len: usize, error: &IoError) {
        let (failed, may_lose) = self.failure(error);
        let done = failed.max(at) - at;
        assert!(done < len);
        self.model.wrote(at, &vec![0; done]);
        if may_lose {
            self.look_for_losses(failed / BLOCK_BYTES, failed / BLOCK_BYTES + 1);
        }
    }

    /// Checks that blocks are unchanged or lost, never anything else.
    fn look_for_losses(&mut self, first: usize, end: usize) {
        let mut page = [0; BLOCK_BYTES];
        for block in first..end {
            let at = block * BLOCK_BYTES;
            match self.device.read(at as u64, &mut page) {
                Ok(()) => {
                    assert!(!self.model.lost[block], "block {block} came back by itself");
                    assert!(page == self.model.bytes[at..at + BLOCK_BYTES], "block {block}");
                }
                Err(IoError::Lost { .. }) => self.model.lost[block] = true,
                Err(IoError::Disk { .. }) => assert!(self.reads_may_fail(), "block {block}"),
                Err(error) => panic!("block {block}: {error}"),
            }
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Write { at, len, seed } => {
                let mut bytes = vec![0; len];
                bytes.chunks_mut(BLOCK_BYTES).zip(seed..).for_each(|(chunk, seed)| fill(chunk, seed));
                match self.device.write(at as u64, &bytes) {
                    Ok(()) => self.model.wrote(at, &bytes),
                    Err(error) => self.after_failed_write(at, &bytes, &error),
                }
            }
            Op::Read { at, len } => {
                let mut bytes = vec![0xA5; len];
                match self.device.read(at as u64, &mut bytes) {
                    Ok(()) => {
                        assert!(!self.model.any_lost(at, len));
                        assert!(bytes == self.model.bytes[at..at + len], "{at} {len}");
                    }
                    Err(IoError::Lost { .. }) => assert!(self.model.any_lost(at, len)),
                    Err(error @ IoError::Disk { .. }) => {
                        assert!(self.reads_may_fail(), "{error}");
                        assert_eq!(error.errno(), libc::EIO);
                    }
                    Err(error) => panic!("a read answered {error}"),
                }
            }
            Op::Discard { at, len } => {
                self.device.discard(at as u64, len as u64).unwrap();
                let (first, end) = (at.next_multiple_of(BLOCK_BYTES), (at + len) / BLOCK_BYTES * BLOCK_BYTES);
                if first < end {
                    self.model.wrote(first, &vec![0; end - first]);
                }
            }
            Op::Zero { at, len } => match self.device.zero(at as u64, len as u64) {
                Ok(()) => {
                    self.model.wrote(at, &vec![0; len]);
                    // A part of a lost block stays lost, so the write must have been refused.
                    let edges = [at / BLOCK_BYTES, (at + len - 1) / BLOCK_BYTES];
                    assert!(edges.iter().all(|block| !self.model.lost[*block]));
                }
                Err(error) => self.after_failed_zero(at, len, &error),
            },
            Op::Extents { at, len } => self.check_extents(at, len),
            Op::Beyond { at, len } => {
                let mut bytes = vec![1; len];
                assert!(matches!(self.device.read(at, &mut bytes), Err(IoError::OutOfRange)));
                assert!(matches!(self.device.write(at, &bytes), Err(IoError::OutOfRange)));
                assert!(matches!(self.device.discard(at, len as u64), Err(IoError::OutOfRange)));
                assert!(matches!(self.device.zero(at, len as u64), Err(IoError::OutOfRange)));
                let extents = self.device.extents(at, len as u64, |_| ControlFlow::Continue(()));
                assert!(matches!(extents, Err(IoError::OutOfRange)));
            }
            Op::Compact => {
                self.device.compact();
            }
            Op::Flush => self.device.flush(),
            Op::FailObjects(after) => self.device.pool().fail_objects_after((after > 4).then_some(after)),
            Op::FailLeaves(after) => self.device.pool().fail_leaves_after((after > 1).then_some(after)),
            Op::FailCompressor(every) => self.compressor.store(every, Ordering::Relaxed),
            Op::DiskFaults(faults) => self.set_disk_faults(faults),
            Op::Settle => self.device.settle(),
        }
        // While objects are packed, some exist twice.
        self.device.settle();
        if let Some(ram) = self.ram {
            let statistics = self.device.statistics();
            assert!(statistics.mem_used_total <= ram, "{} of {ram}", statistics.mem_used_total);
        }
        assert_eq!(
            self.device.statistics().lost_blocks,
            self.model.lost.iter().filter(|lost| **lost).count() as u64
        );
    }

    /// Checks that extents cover the range in order and alternate, and that holes are zeroes.
    fn check_extents(&self, at: usize, len: usize) {
        let mut next = at as u64;
        let mut last = None;
        self.device
            .extents(at as u64, len as u64, |extent| {
                assert_eq!(extent.start, next);
                assert!(extent.len > 0 && last != Some(extent.is_data));
                last = Some(extent.is_data);
                let range = extent.start as usize..(extent.start + extent.len) as usize;
                if !extent.is_data {
                    assert!(!self.model.any_lost(range.start, range.len()));
                    assert!(self.model.bytes[range].iter().all(|byte| *byte == 0));
                }
                next += extent.len;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(next, (at + len) as u64);
    }

    fn end(mut self) {
        self.device.pool().fail_objects_after(None);
        self.device.pool().fail_leaves_after(None);
        self.compressor.store(0, Ordering::Relaxed);
        self.set_disk_faults(DiskFaults::None);
        self.look_for_losses(0, BLOCKS);
        self.check_extents(0, SIZE);
        self.device.discard(0, SIZE as u64).unwrap();
        let statistics = self.device.statistics();
        assert_eq!((statistics.orig_data_size, statistics.bd_count, statistics.lost_blocks), (0, 0, 0));
        assert_eq!(statistics.swap.map_or(0, |swap| swap.swap_live), 0);
        assert_eq!(self.device.pool().objects(), 0);
        assert_eq!(self.device.pool().table_bytes(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_requests_agree_with_plain_bytes(
        ops in prop::collection::vec(op(), 1..80),
        ram in prop::option::weighted(0.7, 300_000u64..1_200_000),
        segments in prop::option::weighted(0.7, prop::sample::select(vec![1usize, 2, 3, 5, 64])),
        unit_bytes in prop::sample::select(vec![4096usize, 4096, 16384, 65536]),
    ) {
        let mut run = Run::new(ram, segments, unit_bytes, 2);
        ops.iter().for_each(|op| run.step(op));
        run.end();
    }
}

/// Four clients write, read and discard interleaved pieces of the same blocks. Memory is too small
/// for all, blocks go to the swap file, which is cleaned, and the disk fails at random. Each client
/// reads its own bytes or an error.
#[test]
fn clients_share_blocks() {
    const CLIENTS: usize = 4;
    const STRIPE: usize = 1000;
    for (segments, faults) in [
        (None, DiskFaults::None),
        (Some(64), DiskFaults::None),
        (Some(16), DiskFaults::Short),
        (Some(64), DiskFaults::ReadsFail),
        (Some(16), DiskFaults::NoRoom),
        (Some(64), DiskFaults::Lies),
    ] {
        let mut run = Run::new(segments.map(|_| 350_000), segments, 4096, 2);
        run.set_disk_faults(faults);
        let device = &run.device;
        let failures: u64 = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    scope.spawn(move || {
                        let stripes = SIZE / STRIPE / CLIENTS;
                        // The possible contents of each block; `None` if unknown.
                        let mut written = vec![Some(None); stripes];
                        let mut state = client as u64 + 1;
                        let mut bytes = [0; STRIPE];
                        let mut failures = 0;
                        for _ in 0..4000 {
                            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                            let stripe = (state >> 33) as usize % stripes;
                            let at = ((stripe * CLIENTS + client) * STRIPE) as u64;
                            let done = if state >> 62 == 0 {
                                device.read(at, &mut bytes).inspect(|()| {
                                    let mut wanted = [0; STRIPE];
                                    if let Some(Some(seed)) = written[stripe] {
                                        fill(&mut wanted, seed);
                                    }
                                    let is_known = written[stripe].is_some();
                                    assert!(!is_known || bytes == wanted, "client {client}, stripe {stripe}");
                                })
                            } else if state >> 60 == 15 {
                                let done = device.zero(at, STRIPE as u64);
                                written[stripe] = done.is_ok().then_some(None);
                                done
                            } else {
                                fill(&mut bytes, state);
                                let done = device.write(at, &bytes);
                                written[stripe] = done.is_ok().then_some(Some(state));
                                done
                            };
                            if let Err(error) = done {
                                let is_of_the_disk = match faults {
                                    DiskFaults::ReadsFail | DiskFaults::Lies => {
                                        matches!(error, IoError::Disk { .. })
                                    }
                                    DiskFaults::NoRoom => matches!(error, IoError::NoSpace { .. }),
                                    _ => false,
                                };
                                assert!(is_of_the_disk, "client {client}, stripe {stripe}: {error}");
                                failures += 1;
                            }
                        }
                        failures
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        let statistics = device.statistics();
        assert_eq!(statistics.bd_writes > 0, segments.is_some(), "{faults:?}: some blocks were written out");
        // Unreadable blocks stay so if every write covers only a part of one.
        let are_read = segments.is_some() && faults != DiskFaults::Lies;
        assert!(statistics.bd_reads > 0 || !are_read, "{faults:?}: and read");
        println!("{segments:?} segments, {faults:?}: {failures} failures, {:?}", statistics.swap);
    }
}

/// A full device reports it, keeps its content, and takes writes again after discards.
#[test]
fn a_full_device_loses_nothing() {
    let run = Run::new(Some(400_000), None, 4096, 2);
    let mut noise = vec![0; 4 * BLOCK_BYTES];
    let mut written = Vec::new();
    let mut refused = 0;
    for block in (0..BLOCKS).step_by(4) {
        fill(&mut noise, block as u64 * 8 + 1);
        match run.device.write((block * BLOCK_BYTES) as u64, &noise) {
            Ok(()) => written.push(block),
            Err(IoError::NoSpace { at }) => {
                assert_eq!(at, (block * BLOCK_BYTES) as u64);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0 && written.len() > 10, "{refused} refused, {} written", written.len());
    assert_eq!(run.device.statistics().refused_writes, refused);
    // A refused overwrite keeps the old content.
    fill(&mut noise, 1 << 20 | 1);
    assert!(run.device.write((written[0] * BLOCK_BYTES) as u64, &noise).is_err());
    let mut back = vec![0; noise.len()];
    for &block in &written {
        fill(&mut noise, block as u64 * 8 + 1);
        run.device.read((block * BLOCK_BYTES) as u64, &mut back).unwrap();
        assert!(back == noise);
    }
    // Zeroes can always be written, and make room.
    for &block in &written[..written.len() / 2] {
        run.device.write((block * BLOCK_BYTES) as u64, &vec![0; back.len()]).unwrap();
    }
    run.device.write((written[0] * BLOCK_BYTES) as u64, &noise).unwrap();
}

/// Blocks that memory has no room for go to the swap file, by the device's thread or by the
/// request, and come back. When the file is full, too, writes are refused and nothing is lost.
#[test]
fn a_swap_file_takes_pages_beyond_the_memory_limit() {
    const SEGMENTS: usize = 16;
    let swap = Swap::new(SEGMENTS);
    let size = 32usize << 20;
    let config = Config { has_checksums: true, ..swap.config(size as u64) };
    let ram = config.ram_bytes.unwrap();
    let unbounded = Config { ram_bytes: None, ..config.clone() };
    assert!(matches!(Device::new(unbounded), Err(device::Error::SwapUnbounded)));
    let too_small = Config { ram_bytes: Some(1 << 20), ..config.clone() };
    assert!(matches!(Device::new(too_small), Err(device::Error::Ram(least)) if least < ram));
    let device = Device::new(config).unwrap();
    let noise = |leaf: usize, version: u64| {
        let mut bytes = vec![0; LEAF];
        let seeds = (leaf as u64 * 16..).map(|block| (version << 32 | block) << 3 | 1);
        bytes.chunks_mut(BLOCK_BYTES).zip(seeds).for_each(|(chunk, seed)| fill(chunk, seed));
        bytes
    };
    let check = |leaves: usize| {
        let mut back = vec![0; LEAF];
        for leaf in 0..leaves {
            device.read((leaf * LEAF) as u64, &mut back).unwrap();
            assert!(back == noise(leaf, 0), "leaf {leaf}");
        }
    };
    let mut written = 0;
    let full = loop {
        match device.write((written * LEAF) as u64, &noise(written, 0)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, IoError::NoSpace { at } if at == (written * LEAF) as u64), "{full}");
    assert_eq!(full.errno(), libc::ENOSPC);
    // Most of the file, without its reserve for cleaning, and of the memory.
    assert!(written * LEAF > ((SEGMENTS - 1) << 20) * 3 / 4 + (1 << 19), "{written} leaves");
    device.settle();
    let statistics = device.statistics();
    let figures = statistics.swap.unwrap();
    assert!(statistics.mem_used_total <= ram && statistics.refused_writes > 0, "{statistics:?}");
    assert_eq!(statistics.orig_data_size / 4096 + statistics.bd_count, written as u64 * 16);
    assert_eq!(statistics.bd_writes, statistics.bd_count);
    assert!(figures.swap_live > 14 << 20 && figures.swap_used <= figures.swap_limit, "{figures:?}");
    assert_eq!(figures.swap_limit, (SEGMENTS as u64) << 20);
    assert!((1.0..1.2).contains(&figures.swap_write_amplification), "{figures:?}");
    check(written);
    let statistics = device.statistics();
    assert_eq!(statistics.bd_reads, statistics.bd_count);
    assert!(statistics.swap.unwrap().swap_read_p99_us > 0);
    // Refused, with the old content intact.
    assert!(device.write(0, &noise(0, 7)).is_err());
    check(1);
    // Discards make room in memory and in the file, although no segment becomes free: every second
    // leaf is discarded, and three in eight are rewritten.
    (0..written).step_by(2).for_each(|leaf| device.discard((leaf * LEAF) as u64, LEAF as u64).unwrap());
    (0..written).filter(|leaf| leaf % 2 == 0 && leaf % 8 != 0).for_each(|leaf| {
        device.write((leaf * LEAF) as u64, &noise(leaf, 1)).unwrap();
    });
    let mut back = vec![0; LEAF];
    for leaf in 0..written {
        let wanted = match leaf % 8 {
            0 => vec![0; LEAF],
            number => noise(leaf, 1 - number as u64 % 2),
        };
        device.read((leaf * LEAF) as u64, &mut back).unwrap();
        assert!(back == wanted, "leaf {leaf}");
    }
    assert!(device.statistics().swap.unwrap().swap_clean_bytes > 0);
    device.discard(0, size as u64).unwrap();
    assert_eq!(device.statistics().swap.unwrap().swap_live, 0);
}

/// A block that the disk cannot return is EIO at every read; its neighbours are not. Writes of
/// parts of it fail, too, and leave it as it is. Written or discarded, it is good again.
#[test]
fn an_unreadable_block_is_an_error_until_it_is_written() {
    let swap = Swap::new(8);
    let device = Device::new(swap.config(8 << 20)).unwrap();
    let mut bytes = vec![0; 4 << 20];
    bytes.chunks_mut(BLOCK_BYTES).zip(0..).for_each(|(chunk, block)| fill(chunk, block << 3 | 1));
    swap.faults.set_rates(Rates { write_lies: 1024, ..Rates::default() });
    device.write(0, &bytes).unwrap();
    device.settle();
    swap.faults.set_rates(Rates::default());
    let mut back = vec![0; BLOCK_BYTES];
    let mut bad = Vec::new();
    for (block, wanted) in bytes.chunks(BLOCK_BYTES).enumerate() {
        match device.read((block * BLOCK_BYTES) as u64, &mut back) {
            Ok(()) => assert!(back == wanted, "block {block}"),
            Err(error @ IoError::Disk { .. }) => {
                assert_eq!(error.errno(), libc::EIO);
                assert!(
                    error.to_string().contains(&format!("block at byte {}", block * BLOCK_BYTES)),
                    "{error}"
                );
                bad.push(block);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(bad.len() > 100 && bad.len() < 1000, "{} of 1024 are bad", bad.len());
    let at = |block: usize| (block * BLOCK_BYTES) as u64;
    for &block in &bad {
        assert!(device.read(at(block) + 5, &mut back[..10]).is_err());
        assert!(matches!(device.write(at(block) + 5, b"part"), Err(IoError::Disk { .. })));
        assert!(matches!(device.zero(at(block) + 5, 100), Err(IoError::Disk { .. })));
        // The block exists although it cannot be read: it is not a hole.
        device
            .extents(at(block), 4096, |extent| {
                assert!(extent.is_data);
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    let (written, discarded) = bad.split_at(bad.len() / 2);
    for &block in written {
        device.write(at(block), &bytes[block * BLOCK_BYTES..][..BLOCK_BYTES]).unwrap();
        device.read(at(block), &mut back).unwrap();
        assert!(back == bytes[block * BLOCK_BYTES..][..BLOCK_BYTES], "block {block}");
    }
    for &block in discarded {
        device.discard(at(block), 4096).unwrap();
        device.read(at(block), &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 0));
    }
    assert_eq!(device.statistics().lost_blocks, 0);
}

/// A disk whose writes fail costs only the room it would have given. When it works again, so does
/// the device.
#[test]
fn a_disk_that_takes_nothing_is_no_room() {
    let swap = Swap::new(64);
    let device = Device::new(swap.config(8 << 20)).unwrap();
    let mut bytes = vec![0; 4 << 20];
    bytes.chunks_mut(BLOCK_BYTES).zip(0..).for_each(|(chunk, block)| fill(chunk, block << 3 | 1));
    swap.faults.set_rates(Rates { write_eio: 1024, ..Rates::default() });
    let Err(IoError::NoSpace { at }) = device.write(0, &bytes) else {
        panic!("more was taken than there is room")
    };
    let done = at as usize;
    assert!((512 << 10..=1 << 20).contains(&done), "{done} bytes");
    // Other writes are refused without another attempt, each of which costs segments.
    let retired = swap.file.counters().segments_retired;
    (0..100).for_each(|_| assert!(device.write(at, &bytes[done..]).is_err()));
    device.settle();
    assert!(
        swap.file.counters().segments_retired <= retired + 12,
        "{} then {retired}",
        swap.file.counters().segments_retired
    );
    assert_eq!(device.statistics().bd_count, 0);
    let mut back = vec![0; done];
    device.read(0, &mut back).unwrap();
    assert!(back == bytes[..done]);
    swap.faults.set_rates(Rates::default());
    device.end_pauses();
    device.write(at, &bytes[done..]).unwrap();
    let mut back = vec![0; bytes.len()];
    device.read(0, &mut back).unwrap();
    assert!(back == bytes);
    device.settle();
    let statistics = device.statistics();
    assert!(statistics.mem_used_total <= statistics.mem_limit);
}
