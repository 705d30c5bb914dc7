//! A device with a kept swap file: after any operations and a power failure at any time, flushed
//! blocks are there.
//!
//! The disk is memory that forgets what was not synced, or any sectors of it. After a loss of power
//! a block may have any content that it had since the last flush that was answered, or then; never
//! another.
//!
//! `UZSWAP_TEST_KEPT_ROUNDS` has more rounds than the default.

mod support;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use device::{Config, Device, FileError, IoError, KeyChoice, BLOCK_BYTES};
use support::fill;
use swapfile::{Engine, Faults, FaultyEngine, KeptConfig, MemoryEngine, Rates, Room, SwapFile};

const BLOCKS: usize = 700;
const SIZE: usize = BLOCKS * BLOCK_BYTES;
/// Where objects begin in the file: the first segment has the headers.
const LOG_AT: u64 = 1 << 20;

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The key of all files here.
fn key() -> KeyChoice {
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::OnceLock;
    static KEY: OnceLock<std::path::PathBuf> = OnceLock::new();
    let path = KEY.get_or_init(|| {
        use std::io::Write;
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("key-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.write_all(&[7; 32]).unwrap();
        path
    });
    KeyChoice::File(path.clone())
}

#[derive(Clone, Copy)]
struct Kind {
    is_plain: bool,
    unit_bytes: usize,
    ram_bytes: u64,
}

impl Kind {
    fn of(seed: u64) -> Kind {
        Kind {
            is_plain: seed & 1 == 1,
            unit_bytes: if seed & 6 == 6 { 16 << 10 } else { BLOCK_BYTES },
            ram_bytes: if seed & 8 == 8 { 600 << 10 } else { 4 << 20 },
        }
    }

    fn kept(&self) -> KeptConfig {
        KeptConfig {
            device_bytes: SIZE as u64,
            unit_bytes: self.unit_bytes as u32,
            compressor: "lz4".into(),
            key: if self.is_plain { KeyChoice::Plain } else { key() },
        }
    }

    fn open(&self, engine: Arc<dyn Engine>, is_new: bool) -> Result<Device, device::Error> {
        let file = SwapFile::open_kept(engine, Path::new("a disk in memory"), is_new, &self.kept())?;
        let config = Config {
            size_bytes: SIZE as u64,
            ram_bytes: Some(self.ram_bytes + file.memory_bytes_max()),
            compressor: "lz4".into(),
            unit_bytes: self.unit_bytes,
            queues: 1,
            has_checksums: false,
            swap: Some(file),
            ..Config::default()
        };
        Device::new(config)
    }
}

fn disk() -> MemoryEngine {
    MemoryEngine::forgetful(Room { available: 1 << 40, total: 1 << 41 })
}

fn hash(block: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    block.hash(&mut hasher);
    hasher.finish()
}

struct Model {
    bytes: Vec<u8>,
    /// What each block may have after a loss of power.
    possible: Vec<Vec<u64>>,
}

impl Model {
    fn new() -> Model {
        let bytes = vec![0; SIZE];
        let possible = bytes.chunks(BLOCK_BYTES).map(|block| vec![hash(block)]).collect();
        Model { bytes, possible }
    }

    fn wrote(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        for block in at / BLOCK_BYTES..(at + bytes.len()).div_ceil(BLOCK_BYTES) {
            self.possible[block].push(hash(&self.bytes[block * BLOCK_BYTES..][..BLOCK_BYTES]));
        }
    }

    fn flushed(&mut self) {
        for possible in &mut self.possible {
            let last = possible.len() - 1;
            possible.swap(0, last);
            possible.truncate(1);
        }
    }

    /// Compares a device after a loss of power, and continues from what it has.
    fn take(&mut self, device: &Device, what: &str) {
        let mut bytes = vec![0; SIZE];
        device.read(0, &mut bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let possible = &self.possible[number];
            assert!(
                possible.contains(&hash(block)),
                "{what}: block {number} has something else than the {} contents that it may have",
                possible.len()
            );
        }
        self.bytes = bytes;
        for (possible, block) in self.possible.iter_mut().zip(self.bytes.chunks(BLOCK_BYTES)) {
            *possible = vec![hash(block)];
        }
    }
}

/// One request, or something that the device does by itself at some time.
fn step(device: &Device, model: &mut Model, random: &mut Random) {
    let kind = random.below(100);
    // Some blocks are written again and again, so that segments become empty.
    let first = if random.below(2) == 0 { random.below(60) } else { random.below(BLOCKS) };
    let most = if random.below(8) == 0 { 200 } else { 20 };
    let blocks = 1 + random.below(most);
    let (mut at, mut len) = (first * BLOCK_BYTES, blocks.min(BLOCKS - first) * BLOCK_BYTES);
    if random.below(5) == 0 && len > BLOCK_BYTES {
        at += random.below(BLOCK_BYTES);
        len -= BLOCK_BYTES + random.below(BLOCK_BYTES) / 2;
    }
    match kind {
        0..64 => {
            let mut bytes = vec![0; len];
            for (number, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
                fill(block, random.next() + number as u64);
            }
            // Whether it succeeds or not, some of it may be there.
            model.wrote(at, &bytes);
            device.write(at as u64, &bytes).unwrap();
        }
        64..72 => {
            model.wrote(at, &vec![0; len]);
            device.zero(at as u64, len as u64).unwrap();
        }
        72..80 => {
            let whole = at.next_multiple_of(BLOCK_BYTES)..(at + len) / BLOCK_BYTES * BLOCK_BYTES;
            if !whole.is_empty() {
                model.wrote(whole.start, &vec![0; whole.len()]);
            }
            device.discard(at as u64, len as u64).unwrap();
        }
        80..90 => {
            let mut bytes = vec![0; len];
            device.read(at as u64, &mut bytes).unwrap();
            assert!(bytes == model.bytes[at..at + len], "bytes {at} to {}", at + len);
        }
        90..96 => drop(device.pool().write_out(1 << random.below(22))),
        _ => drop(device.pool().clean_now(1 + random.below(8) as u64)),
    }
}

/// How much of what was not synced is there after a loss of power: nothing, all, or sectors by
/// chance.
fn keeps(random: &mut Random) -> impl FnMut() -> bool + Send + 'static {
    let percent = [0, 100, 50, 90, 10][random.below(5)];
    let mut random = Random::new(random.next());
    move || random.below(100) < percent
}

fn rounds(default: u64) -> u64 {
    std::env::var("UZSWAP_TEST_KEPT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn what_was_flushed_is_there_after_a_loss_of_power() {
    let mut lives = 0;
    for seed in 1..=rounds(60) {
        let (kind, mut random) = (Kind::of(seed), Random::new(seed));
        let mut engine = disk();
        let mut model = Model::new();
        // The making itself is synced; everything after it may be lost.
        let mut device = kind.open(Arc::new(engine.clone()), true).unwrap();
        for life in 0..12 {
            let what = format!("seed {seed}, life {life}");
            // In the middle of something, or between two requests.
            let is_sudden = random.below(3) > 0;
            if is_sudden {
                let most = if random.below(2) == 0 { 3000 } else { 200 };
                let changes = random.below(most) as u64;
                engine.lose_power_after(changes, keeps(&mut random));
            }
            let mut left = None;
            for _ in 0..random.below(60) {
                if random.below(10) == 0 {
                    device.flush().unwrap();
                    left = engine.left();
                    if left.is_some() {
                        break;
                    }
                    model.flushed();
                } else {
                    step(&device, &mut model, &mut random);
                    left = engine.left();
                    if left.is_some() {
                        break;
                    }
                }
            }
            engine = left.unwrap_or_else(|| {
                if random.below(4) == 0 {
                    device.close().unwrap();
                    if engine.left().is_none() {
                        model.flushed();
                    }
                }
                engine.left().unwrap_or_else(|| engine.after_power_loss(keeps(&mut random)))
            });
            drop(device);
            device =
                kind.open(Arc::new(engine.clone()), false).unwrap_or_else(|error| panic!("{what}: {error}"));
            model.take(&device, &what);
            lives += 1;
        }
    }
    println!("{lives} lives");
}

#[test]
fn a_disk_that_fails_loses_nothing_that_was_flushed() {
    for seed in 1..=rounds(60) {
        let (kind, mut random) = (Kind { ram_bytes: 8 << 20, ..Kind::of(seed) }, Random::new(seed + 7000));
        let memory = disk();
        let faults = Faults::new(seed);
        let engine = Arc::new(FaultyEngine::new(Arc::new(memory.clone()), faults.clone()));
        let mut model = Model::new();
        let device = kind.open(engine, true).unwrap();
        let (mut failed, mut flushed) = (0, 0);
        for round in 0..12 {
            let rates = match round % 3 {
                0 => Rates::default(),
                1 => Rates {
                    write_eio: 200,
                    write_enospc: 100,
                    write_short: 200,
                    interrupted: 100,
                    ..Rates::default()
                },
                _ => Rates {
                    sync_eio: if seed % 4 == 0 { 300 } else { 0 },
                    write_eio: 100,
                    ..Rates::default()
                },
            };
            for _ in 0..random.below(6) {
                step(&device, &mut model, &mut random);
            }
            faults.set_rates(rates);
            match device.flush() {
                Ok(()) => {
                    flushed += 1;
                    model.flushed();
                }
                Err(IoError::Flush(_)) => failed += 1,
                Err(other) => panic!("a flush answered {other}"),
            }
            faults.set_rates(Rates::default());
        }
        assert!(flushed > 0, "seed {seed}: {failed} failed");
        let left = memory.after_power_loss(keeps(&mut random));
        drop(device);
        let device = kind.open(Arc::new(left), false).unwrap();
        model.take(&device, &format!("seed {seed}, {failed} of {} flushes failed", failed + flushed));
    }
}

#[test]
fn damage_is_an_error_and_never_other_bytes() {
    for seed in 1..=rounds(60) {
        let (kind, mut random) = (Kind::of(seed), Random::new(seed + 9000));
        let engine = disk();
        let mut model = Model::new();
        let device = kind.open(Arc::new(engine.clone()), true).unwrap();
        for _ in 0..30 {
            step(&device, &mut model, &mut random);
        }
        device.close().unwrap();
        drop(device);
        let mut flips = 0;
        while flips < 40 {
            // Now and then a whole block that lies elsewhere.
            let at = LOG_AT + random.below(6 << 20) as u64;
            if random.below(10) == 0 {
                engine
                    .put(at / 4096 * 4096, &engine.get(LOG_AT + random.below(6 << 20) as u64 / 4096 * 4096));
                flips += 1;
            }
            flips += u64::from(engine.flip(at, 1 << random.below(8)));
        }
        let device = match kind.open(Arc::new(engine), false) {
            Ok(device) => device,
            Err(device::Error::File(FileError::Damaged { .. })) => continue,
            Err(other) => panic!("seed {seed}: {other}"),
        };
        for block in 0..BLOCKS {
            let mut bytes = [0; BLOCK_BYTES];
            match device.read((block * BLOCK_BYTES) as u64, &mut bytes) {
                Ok(()) => assert!(
                    bytes == model.bytes[block * BLOCK_BYTES..][..BLOCK_BYTES],
                    "seed {seed}, block {block}"
                ),
                Err(IoError::Disk { .. }) => {}
                Err(other) => panic!("seed {seed}, block {block}: {other}"),
            }
        }
        // It continues.
        let bytes = vec![9; SIZE];
        device.write(0, &bytes).unwrap();
        device.flush().unwrap();
    }
}

#[test]
fn what_a_failed_write_lost_stays_lost() {
    let kind = Kind { is_plain: true, unit_bytes: BLOCK_BYTES, ram_bytes: 4 << 20 };
    let engine = disk();
    let device = kind.open(Arc::new(engine.clone()), true).unwrap();
    let mut block = [0; BLOCK_BYTES];
    fill(&mut block, 1);
    for at in [0, 5, 6] {
        device.write(at * BLOCK_BYTES as u64, &block).unwrap();
    }
    device.pool().fail_objects_after(Some(0));
    fill(&mut block, 2);
    assert!(matches!(device.write(5 * BLOCK_BYTES as u64, &block), Err(IoError::Lost { .. })));
    device.pool().fail_objects_after(None);
    device.close().unwrap();
    drop(device);
    let device = kind.open(Arc::new(engine.after_power_loss(|| false)), false).unwrap();
    assert!(matches!(device.read(5 * BLOCK_BYTES as u64, &mut block), Err(IoError::Lost { .. })));
    device.read(6 * BLOCK_BYTES as u64, &mut block).unwrap();
    assert_eq!(device.statistics().lost_blocks, 1);
    // Until it is discarded.
    device.discard(5 * BLOCK_BYTES as u64, BLOCK_BYTES as u64).unwrap();
    device.read(5 * BLOCK_BYTES as u64, &mut block).unwrap();
    assert_eq!(block, [0; BLOCK_BYTES]);
}

#[test]
fn written_over_and_over_the_file_stays_small() {
    let kind = Kind { is_plain: false, unit_bytes: BLOCK_BYTES, ram_bytes: 1 << 20 };
    let engine = disk();
    let device = kind.open(Arc::new(engine.clone()), true).unwrap();
    let mut model = Model::new();
    let mut random = Random::new(5);
    let segments = device.config().swap.as_ref().unwrap().size_bytes() >> 20;
    // Many times what the file can be, with few flushes.
    for round in 0..2500 {
        let first = random.below(BLOCKS - 40);
        let mut bytes = vec![0; (1 + random.below(40)) * BLOCK_BYTES];
        fill(&mut bytes, 1 + 8 * round);
        let at = first * BLOCK_BYTES;
        model.wrote(at, &bytes);
        device.write(at as u64, &bytes).unwrap();
        if round % 500 == 0 {
            device.flush().unwrap();
            model.flushed();
        }
    }
    let written = device.statistics().swap.unwrap().swap_write_bytes >> 20;
    assert!(written > segments * 2, "{written} MiB were written to a file of {segments}");
    device.close().unwrap();
    model.flushed();
    drop(device);
    let device = kind.open(Arc::new(engine.after_power_loss(|| false)), false).unwrap();
    model.take(&device, "after all");
}

#[test]
fn writers_and_flushes_beside_each_other_lose_nothing() {
    const WRITERS: usize = 3;
    const PART: usize = BLOCKS / WRITERS;
    for seed in 1..=rounds(30) {
        let mut random = Random::new(seed + 3000);
        let (kind, engine) = (Kind::of(seed), disk());
        let device = kind.open(Arc::new(engine.clone()), true).unwrap();
        engine.lose_power_after(random.below(4000) as u64, keeps(&mut random));
        let possible: Vec<Vec<Vec<u64>>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let (device, engine) = (&device, &engine);
                    scope.spawn(move || {
                        let mut random = Random::new(seed * 10 + number as u64);
                        let zero = hash(&[0; BLOCK_BYTES]);
                        let mut possible = vec![vec![zero]; PART];
                        for _ in 0..150 {
                            let first = random.below(PART);
                            let count = (1 + random.below(24)).min(PART - first);
                            let at = ((number * PART + first) * BLOCK_BYTES) as u64;
                            if random.below(6) == 0 {
                                possible[first..first + count].iter_mut().for_each(|block| block.push(zero));
                                device.discard(at, (count * BLOCK_BYTES) as u64).unwrap();
                            } else {
                                let mut bytes = vec![0; count * BLOCK_BYTES];
                                for (block, possible) in
                                    bytes.chunks_mut(BLOCK_BYTES).zip(&mut possible[first..])
                                {
                                    fill(block, random.next());
                                    possible.push(hash(block));
                                }
                                device.write(at, &bytes).unwrap();
                            }
                            if random.below(12) == 0 {
                                device.flush().unwrap();
                                if engine.left().is_some() {
                                    break;
                                }
                                possible.iter_mut().for_each(|block| drop(block.drain(..block.len() - 1)));
                            }
                        }
                        possible
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let left = engine.left().unwrap_or_else(|| engine.after_power_loss(keeps(&mut random)));
        drop(device);
        let device = kind.open(Arc::new(left), false).unwrap();
        let mut block = [0; BLOCK_BYTES];
        for (number, possible) in possible.iter().flatten().enumerate() {
            device.read((number * BLOCK_BYTES) as u64, &mut block).unwrap();
            assert!(possible.contains(&hash(&block)), "seed {seed}, block {number}");
        }
    }
}
