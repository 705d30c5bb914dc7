//! Random operations against an ordered map, with faults of every kind, on every engine.
//!
//! Each engine runs for two seconds, or for `UZSWAP_TEST_SOAK_SECONDS`; `UZSWAP_TEST_SEED` selects
//! other steps.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use support::{object, real_engine, World, ROOM};
use swapfile::{Engine, MemoryEngine, Rates, ReadFault, Room, Seal, WriteError};

#[derive(Debug, Clone)]
enum Step {
    /// `count` objects from a key, of about this length.
    Write {
        group: u16,
        key: u64,
        count: u64,
        len: usize,
        raw: bool,
    },
    Read {
        first: usize,
        count: usize,
    },
    Free {
        first: usize,
        count: usize,
        step: usize,
    },
    Clean,
    Trim {
        keep: u64,
    },
    CloseLogs,
    Faults {
        which: u8,
    },
    Room {
        full: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u16..3, 0u64..600, 1u64..200, 1usize..3000, prop::bool::weighted(0.2))
            .prop_map(|(group, key, count, len, raw)| Step::Write { group, key, count, len, raw }),
        6 => (any::<usize>(), 1usize..64).prop_map(|(first, count)| Step::Read { first, count }),
        5 => (any::<usize>(), 1usize..200, 1usize..5)
            .prop_map(|(first, count, step)| Step::Free { first, count, step }),
        3 => Just(Step::Clean),
        1 => (0u64..4).prop_map(|keep| Step::Trim { keep }),
        1 => Just(Step::CloseLogs),
        2 => (0u8..6).prop_map(|which| Step::Faults { which }),
        1 => any::<bool>().prop_map(|full| Step::Room { full }),
    ]
}

fn rates(which: u8) -> Rates {
    match which {
        0 => Rates { write_eio: 150, ..Rates::default() },
        1 => Rates { write_enospc: 150, reserve_enospc: 150, release_fails: 300, ..Rates::default() },
        2 => Rates { write_short: 300, read_short: 300, interrupted: 200, ..Rates::default() },
        3 => Rates { read_eio: 150, read_flip: 150, ..Rates::default() },
        // All faults of an honest disk.
        4 => Rates {
            write_eio: 30,
            write_enospc: 30,
            write_short: 100,
            read_eio: 30,
            read_short: 100,
            read_flip: 30,
            interrupted: 60,
            reserve_enospc: 30,
            release_fails: 60,
            ..Rates::default()
        },
        _ => Rates::default(),
    }
}

struct Run {
    world: World,
    version: u64,
    /// Since the last change of faults.
    may_fail: bool,
    /// Whether the disk ever reported a write that it did not do.
    lied: bool,
}

impl Run {
    fn new(engine: Arc<dyn Engine>, seal: Seal) -> Run {
        Run { world: World::new(engine, seal, 24), version: 0, may_fail: false, lied: false }
    }

    fn step(&mut self, step: &Step) {
        let keys = self.world.keys();
        let some = |first: usize, count: usize| -> Vec<(u16, u64)> {
            let from = first.checked_rem(keys.len()).unwrap_or(0);
            keys[from..(from + count).min(keys.len())].to_vec()
        };
        match *step {
            Step::Write { group, key, count, len, raw } => {
                let objects: Vec<_> = (key..key + count)
                    .map(|key| {
                        self.version += 1;
                        let len = if raw { 4096 } else { 1 + (self.version as usize * 7919) % (2 * len) };
                        (group, key, object(self.version, len))
                    })
                    .collect();
                match self.world.write(&objects) {
                    Ok(written) => assert_eq!(written, objects.len()),
                    Err(WriteError::NoSpace) => {}
                    Err(WriteError::Io { .. }) => assert!(self.may_fail),
                }
            }
            Step::Read { first, count } => match self.world.read(&some(first, count)) {
                Ok(()) => {}
                Err(error) if error.fault == ReadFault::Damaged => assert!(self.may_fail || self.lied),
                Err(error) => assert!(self.may_fail, "{error}"),
            },
            Step::Free { first, count, step } => {
                some(first, count).into_iter().step_by(step).for_each(|key| self.world.free(key));
            }
            Step::Clean => match self.world.clean(4) {
                Ok(report) => assert!(self.may_fail || self.lied || report.unreadable == 0, "{report:?}"),
                Err(WriteError::NoSpace) => {}
                Err(WriteError::Io { .. }) => assert!(self.may_fail),
            },
            Step::Trim { keep } => {
                self.world.file.trim(keep);
            }
            Step::CloseLogs => self.world.writer.close_logs(),
            Step::Faults { which } => {
                self.world.faults.set_rates(rates(which));
                // Failed packs hinder cleaning for as long as their segments live.
                self.may_fail = self.may_fail || which < 5;
            }
            Step::Room { full } => {
                let none = Room { available: 1 << 20, ..ROOM };
                self.world.faults.set_room(full.then_some(none));
            }
        }
        let counters = self.world.file.counters();
        let held = self.world.held.lock().unwrap();
        let live: u64 = held.values().map(|(_, place, _)| self.world.file.stored_bytes(place.len())).sum();
        assert_eq!(counters.live_bytes, live);
        assert!(counters.used_bytes + counters.kept_bytes <= self.world.file.size_bytes());
        assert!(counters.used_bytes >= live);
    }

    fn end(self) {
        self.world.faults.set_rates(Rates::default());
        for keys in self.world.keys().chunks(64) {
            match self.world.read(keys) {
                Ok(()) => {}
                Err(error) => assert!(self.lied && error.fault == ReadFault::Damaged, "{error}"),
            }
        }
        self.world.end();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_agree_with_a_map(steps in prop::collection::vec(step(), 1..60), plain in any::<bool>()) {
        let disk = MemoryEngine::new(ROOM);
        let seal = if plain { Seal::Plain } else { Seal::Encrypted };
        let mut run = Run::new(Arc::new(disk.clone()), seal);
        steps.iter().for_each(|step| run.step(step));
        run.end();
        // Blocks of a retired segment stay.
        prop_assert!(disk.bytes() <= 24 << 20);
    }

    #[test]
    fn a_disk_that_lies_is_found_out(steps in prop::collection::vec(step(), 1..40), plain in any::<bool>()) {
        let seal = if plain { Seal::Plain } else { Seal::Encrypted };
        let mut run = Run::new(Arc::new(MemoryEngine::new(ROOM)), seal);
        run.lied = true;
        for step in &steps {
            run.world.faults.set_rates(Rates { write_lies: 200, ..Rates::default() });
            run.step(step);
        }
        run.end();
    }
}

fn soak(name: &str, engine: Option<Arc<dyn Engine>>) {
    let Some(engine) = engine else { return };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = number("UZSWAP_TEST_SOAK_SECONDS").unwrap_or(2u64);
    let seed = number("UZSWAP_TEST_SEED").unwrap_or(1u64).max(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    let random = TestRng::from_seed(RngAlgorithm::XorShift, &[seed.to_le_bytes(); 2].concat());
    let (mut runner, next) = (TestRunner::new_with_rng(ProptestConfig::default(), random), step());
    while Instant::now() < end {
        let mut run = Run::new(engine.clone(), Seal::Encrypted);
        let mut steps = 0u64;
        // Retired segments are lost to a file: start over before it runs out.
        while Instant::now() < end && run.world.file.counters().segments_retired < 12 {
            run.step(&next.new_tree(&mut runner).unwrap().current());
            steps += 1;
        }
        let counters = run.world.file.counters();
        println!(
            "{name}: {steps} steps, {} writes, {} loads, {} segments cleaned, {} retired, {} faults",
            counters.writes,
            counters.loads,
            counters.segments_cleaned,
            counters.segments_retired,
            run.world.faults.injected(),
        );
        run.end();
    }
}

#[test]
fn real_files_agree_with_a_map() {
    soak("threads", real_engine(true, 2));
    soak("threads by the page cache", real_engine(false, 2));
    soak("no threads", real_engine(true, 0));
}
