//! Any requests, with failures of every part, against plain bytes.

mod support;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use device::{Config, Device, IoError, BLOCK_BYTES};
use proptest::prelude::*;
use support::{fill, Failing, MemoryBacking};

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
    BackingFails { writes: bool, reads: bool },
    BackingRoom(u64),
}

/// Offsets and lengths that like blocks' and leaves' borders.
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
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(writes, reads)| Op::BackingFails { writes: writes && reads, reads: reads && !writes }),
        1 => (0u64..300).prop_map(Op::BackingRoom),
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

    /// Notes that `[at, at + len)` was written by `bytes`.
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
    backing: Option<Arc<MemoryBacking>>,
    compressor: Arc<std::sync::atomic::AtomicU64>,
    ram: Option<u64>,
}

impl Run {
    fn new(ram: Option<u64>, has_backing: bool, unit_bytes: usize, queues: usize) -> Self {
        let (algorithm, compressor) = Failing::of("lz4");
        let backing = has_backing.then(|| MemoryBacking::new(150));
        let config = Config {
            size_bytes: SIZE as u64,
            ram_bytes: ram,
            unit_bytes,
            queues,
            has_checksums: true,
            backing: backing.clone().map(|backing| backing as Arc<dyn device::Backing>),
            ..Config::default()
        };
        let device = Device::with_algorithm(config, algorithm).unwrap();
        let model = Model { bytes: vec![0; SIZE], lost: vec![false; BLOCKS] };
        Run { device, model, backing, compressor, ram }
    }

    fn backing_reads_fail(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.reads_fail.load(Ordering::Relaxed))
    }

    /// What a write that failed did: all before `failed` is written; the piece from there on may have lost its blocks.
    fn after_failed_write(&mut self, at: usize, bytes: &[u8], error: &IoError) {
        let (failed, may_lose) = match *error {
            IoError::NoSpace { at } => (at as usize, false),
            IoError::Lost { at: block } => ((block as usize).max(at), true),
            // The rest of a block could not be read.
            IoError::Backing { .. } => {
                assert!(self.backing_reads_fail());
                self.resync(at, bytes);
                return;
            }
            ref other => panic!("a write answered {other}"),
        };
        let piece_start = if failed / LEAF == at / LEAF { at } else { failed / LEAF * LEAF };
        assert!(piece_start <= failed && failed < at + bytes.len());
        self.model.wrote(at, &bytes[..piece_start - at]);
        if may_lose {
            let piece_end = (piece_start / LEAF * LEAF + LEAF).min(at + bytes.len());
            self.look_for_losses(piece_start / BLOCK_BYTES, piece_end.div_ceil(BLOCK_BYTES));
        }
    }

    /// Blocks are as they were, or lost; never anything else.
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
                Err(error) => assert!(self.backing_reads_fail(), "block {block}: {error}"),
            }
        }
    }

    /// A write of which any number of pieces, from the start on, may have been done: asks with a backing that works.
    fn resync(&mut self, at: usize, bytes: &[u8]) {
        let backing = self.backing.clone().unwrap();
        backing.reads_fail.store(false, Ordering::Relaxed);
        let mut from = at;
        while from < at + bytes.len() {
            let end = (from / LEAF * LEAF + LEAF).min(at + bytes.len());
            let wanted = &bytes[from - at..end - at];
            let mut now = vec![0; end - from];
            if self.device.read(from as u64, &mut now).is_ok() {
                if now == wanted {
                    self.model.wrote(from, wanted);
                } else {
                    assert!(now == self.model.bytes[from..end], "neither old nor new");
                }
            }
            from = end;
        }
        backing.reads_fail.store(true, Ordering::Relaxed);
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
                    Err(IoError::Backing { reason, .. }) => {
                        assert!(self.backing_reads_fail());
                        assert_eq!(reason.raw_os_error(), Some(libc::EREMOTEIO));
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
                    // A part of a lost block stays lost: it must have been refused.
                    let edges = [at / BLOCK_BYTES, (at + len - 1) / BLOCK_BYTES];
                    assert!(edges.iter().all(|block| !self.model.lost[*block]));
                }
                Err(_) => {
                    // Some of it was done, block by block.
                    let mut page = [0; BLOCK_BYTES];
                    let backing = self.backing.clone();
                    let failed = self.backing_reads_fail();
                    backing.iter().for_each(|backing| backing.reads_fail.store(false, Ordering::Relaxed));
                    for block in at / BLOCK_BYTES..(at + len).div_ceil(BLOCK_BYTES) {
                        let start = block * BLOCK_BYTES;
                        let (from, to) = (at.max(start), (at + len).min(start + BLOCK_BYTES));
                        match self.device.read(start as u64, &mut page) {
                            Ok(()) if page == self.model.bytes[start..start + BLOCK_BYTES] => {
                                let is_whole = to - from == BLOCK_BYTES && page == [0; BLOCK_BYTES];
                                assert!(is_whole || !self.model.lost[block]);
                                self.model.lost[block] = false;
                            }
                            Ok(()) => {
                                self.model.wrote(from, &vec![0; to - from]);
                                assert!(page == self.model.bytes[start..start + BLOCK_BYTES]);
                            }
                            Err(IoError::Lost { .. }) => self.model.lost[block] = true,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    backing.iter().for_each(|backing| backing.reads_fail.store(failed, Ordering::Relaxed));
                }
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
            Op::Flush => self.device.flush().unwrap(),
            Op::FailObjects(after) => self.device.pool().fail_objects_after((after > 4).then_some(after)),
            Op::FailLeaves(after) => self.device.pool().fail_leaves_after((after > 1).then_some(after)),
            Op::FailCompressor(every) => self.compressor.store(every, Ordering::Relaxed),
            Op::BackingFails { writes, reads } => {
                if let Some(backing) = &self.backing {
                    backing.writes_fail.store(writes, Ordering::Relaxed);
                    backing.reads_fail.store(reads, Ordering::Relaxed);
                }
            }
            Op::BackingRoom(blocks) => {
                if let Some(backing) = &self.backing {
                    backing.blocks_max.store(blocks, Ordering::Relaxed);
                }
            }
        }
        if let Some(ram) = self.ram {
            let statistics = self.device.statistics();
            assert!(statistics.mem_used_total <= ram, "{} of {ram}", statistics.mem_used_total);
        }
        assert_eq!(
            self.device.statistics().lost_blocks,
            self.model.lost.iter().filter(|lost| **lost).count() as u64
        );
    }

    /// Extents cover the range in order, alternate, and no byte of a hole is other than zero.
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
        if let Some(backing) = &self.backing {
            backing.reads_fail.store(false, Ordering::Relaxed);
        }
        self.look_for_losses(0, BLOCKS);
        self.check_extents(0, SIZE);
        self.device.discard(0, SIZE as u64).unwrap();
        let statistics = self.device.statistics();
        assert_eq!((statistics.orig_data_size, statistics.lost_blocks), (0, 0));
        assert_eq!(self.backing.map_or(0, |backing| backing.len()), 0);
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
        has_backing in any::<bool>(),
        unit_bytes in prop::sample::select(vec![4096usize, 4096, 16384, 65536]),
    ) {
        let mut run = Run::new(ram, has_backing, unit_bytes, 2);
        ops.iter().for_each(|op| run.step(op));
        run.end();
    }
}

/// Four clients write, read and discard interleaved pieces of the same blocks, while memory is too small for all and blocks
/// go to the backing: each finds its own bytes.
#[test]
fn clients_share_blocks() {
    const CLIENTS: usize = 4;
    const STRIPE: usize = 1000;
    for has_backing in [false, true] {
        let ram = if has_backing { Some(350_000) } else { None };
        let run = Run::new(ram, has_backing, 4096, 2);
        if let Some(backing) = &run.backing {
            backing.blocks_max.store(BLOCKS as u64, Ordering::Relaxed);
        }
        let device = &run.device;
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let stripes = SIZE / STRIPE / CLIENTS;
                    let mut seeds = vec![None; stripes];
                    let mut state = client as u64 + 1;
                    let mut bytes = [0; STRIPE];
                    for _ in 0..4000 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let stripe = (state >> 33) as usize % stripes;
                        let at = ((stripe * CLIENTS + client) * STRIPE) as u64;
                        if state >> 62 == 0 {
                            device.read(at, &mut bytes).unwrap();
                            let mut wanted = [0; STRIPE];
                            if let Some(seed) = seeds[stripe] {
                                fill(&mut wanted, seed);
                            }
                            assert!(bytes == wanted, "client {client}, stripe {stripe}");
                        } else if state >> 60 == 15 {
                            device.zero(at, STRIPE as u64).unwrap();
                            seeds[stripe] = None;
                        } else {
                            fill(&mut bytes, state);
                            device.write(at, &bytes).unwrap();
                            seeds[stripe] = Some(state);
                        }
                    }
                });
            }
        });
        if let Some(backing) = &run.backing {
            assert!(backing.len() > 0, "some blocks were moved");
        }
    }
}

/// A device that is full says so, keeps what it had, and takes writes again when something went.
#[test]
fn a_full_device_loses_nothing() {
    let run = Run::new(Some(400_000), false, 4096, 2);
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
    // A refused overwrite leaves what was there.
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
