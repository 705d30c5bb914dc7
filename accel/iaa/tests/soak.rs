//! Seeded schedules of device faults: pages return unchanged.
//!
//! Time is compressed: engines live by a clock of polls, completions count as lost after some
//! thousand polls, and failed queues are retried at once. A machine with a fault every 100 ms (a
//! lost completion, a hardware error, a halted device) has 72 000 in two hours.
//! `UZSWAP_TEST_IAA_SOAK_FAULTS=72000` sets that number; the default is some hundred.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use acomp::{Context, Page, UnitError, PAGE_SIZE};
use common::*;
use iaa::{Driver, Health};

fn faults_wanted(default: u64) -> u64 {
    match std::env::var("UZSWAP_TEST_IAA_SOAK_FAULTS") {
        Ok(text) => text.parse().expect("a number of faults"),
        Err(_) => default,
    }
}

/// Acts as a pool: stores, overwrites, loads and drops objects at random. Every loaded page is
/// checked.
struct Pool {
    context: Box<dyn Context>,
    objects: BTreeMap<u64, Vec<u8>>,
    random: Random,
    requests: u64,
    refused: u64,
}

impl Pool {
    fn new(driver: &Arc<Driver>, seed: u64) -> Self {
        let context = if seed.is_multiple_of(3) { dynamic(driver) } else { fixed(driver) };
        Pool { context, objects: BTreeMap::new(), random: Random(seed * 2 + 1), requests: 0, refused: 0 }
    }

    fn step(&mut self) {
        self.requests += 1;
        let count = 1 + self.random.below(8);
        if self.objects.len() < 16 || (self.objects.len() < 200 && self.random.below(2) == 0) {
            let keys: Vec<u64> = (0..count).map(|_| self.random.below(100_000) as u64).collect();
            let pages: Vec<Page> = keys.iter().map(|&key| page(key)).collect();
            let pages: Vec<&Page> = pages.iter().collect();
            let packed = compress(&mut *self.context, &pages, PAGE_SIZE, PAGE_SIZE - 1);
            for (key, result) in keys.into_iter().zip(packed) {
                match result {
                    Ok(stream) => drop(self.objects.insert(key, stream)),
                    Err(UnitError::NoSpace) => assert!(is_noise(key)),
                    // No descriptor in a thousand tries: the store fails, and the pool keeps the
                    // page.
                    Err(UnitError::Failed) => self.refused += 1,
                }
            }
            return;
        }
        let from = self.random.below(100_000) as u64;
        let mut keys: Vec<u64> = self.objects.range(from..).map(|(&key, _)| key).take(count).collect();
        if keys.is_empty() {
            keys.extend(self.objects.keys().next());
        }
        let objects: Vec<_> = keys.iter().map(|key| (self.objects[key].as_slice(), PAGE_SIZE)).collect();
        for (plain, &key) in decompress(&mut *self.context, &objects).iter().zip(&keys) {
            assert!(plain.as_ref().is_ok_and(|plain| *plain == page(key)), "page {key} is lost");
        }
        if self.random.below(2) == 0 {
            keys.iter().for_each(|key| drop(self.objects.remove(key)));
        }
    }
}

fn repair(driver: &Driver) {
    let machine = driver.machine().unwrap();
    for id in machine.queues() {
        if !machine.is_enabled(id) && !machine.is_halted(id.device) {
            machine.enable_queue(id);
        }
    }
    let broken: Vec<usize> = driver
        .statistics()
        .devices
        .iter()
        .filter(|device| {
            machine.is_halted(device.id as usize)
                || device.queues.iter().any(|queue| queue.health == Health::Revoked)
        })
        .map(|device| device.id as usize)
        .collect();
    for device in broken {
        // A request of another thread may still hold a queue; then the device waits for the next
        // repair.
        if driver.detach(&format!("iax{device}")) {
            machine.reset(device);
            driver.attach(Driver::emulated_device(machine, device));
        } else {
            driver.attach(Driver::emulated_device(machine, device));
        }
    }
}

/// Faults by the driver's own count, without refused or slow submissions.
fn faults_met(driver: &Driver) -> u64 {
    let statistics = driver.statistics();
    statistics.total_completion_timeout_errors
        + statistics.page_fault_resubmissions
        + statistics.total_completion_einval_errors
        + statistics.quarantines
}

/// Nothing is under way, and every submitted descriptor is accounted for.
fn assert_settled(driver: &Driver) {
    assert_eq!(driver.outstanding(), 0, "leaked descriptors");
    let machine = driver.machine().unwrap();
    for id in machine.queues() {
        let statistics = machine.statistics(id);
        assert_eq!(statistics.accepted, statistics.completed + statistics.lost, "{id:?}");
    }
}

const FAULTS: &str = "lost:0.003/page:0.01/hardware:0.005/halt:0.0005/disable:0.002/retry:0.005/slow:0.003";

#[test]
fn schedules_of_faults_lose_no_page() {
    let wanted = faults_wanted(600);
    let (mut met, mut requests, mut in_software, mut revocations) = (0, 0, 0, 0);
    for seed in 0.. {
        if met >= wanted {
            break;
        }
        let mode = ["dedicated", "shared"][seed as usize % 2];
        let run = ["inline", "poll"][seed as usize / 2 % 2];
        let generation = 1 + seed / 4 % 2;
        let (devices, queues) = (1 + seed / 8 % 3, 1 + seed / 3 % 3);
        let spec = format!(
            "run={run},clock=steps,latency_ns=500,mode={mode},generation={generation},devices={devices},\
             queues={queues},seed={seed},faults={FAULTS}"
        );
        let verify = seed / 5 % 2;
        // A slow engine takes 2000 polls; with six queues polled a round that is 334 rounds at
        // least.
        let driver = driver(&spec, &format!("patience_polls=2500,quarantine_ms=0,verify_compress={verify}"));
        let mut pool = Pool::new(&driver, seed);
        for _ in 0..400 {
            pool.step();
            assert_eq!(driver.outstanding(), 0, "leaked descriptors after {spec}");
            if pool.requests.is_multiple_of(20) {
                repair(&driver);
            }
        }
        let statistics = driver.statistics();
        assert!(pool.refused <= statistics.descriptor_shortages);
        met += faults_met(&driver);
        requests += pool.requests;
        in_software += statistics.total_sw_comp_calls + statistics.total_sw_decomp_calls;
        revocations += statistics.revocations;
        drop(pool);
        for device in 0..driver.machine().unwrap().devices() {
            assert!(driver.detach(&format!("iax{device}")));
        }
        assert_settled(&driver);
    }
    println!(
        "{met} faults in {requests} requests, {in_software} units in software, {revocations} revocations"
    );
    assert!(in_software > 0 && revocations > 0);
}

/// Engines and programs are threads, and time is real.
#[test]
fn threads_of_engines_and_programs_lose_no_page() {
    let wanted = faults_wanted(60) / 10;
    let mut met = 0;
    for seed in 0.. {
        if met >= wanted.max(30) {
            break;
        }
        let mode = ["dedicated", "shared"][seed as usize % 2];
        let spec = format!("threads,engines=2,devices=2,queues=2,mode={mode},seed={seed},faults={FAULTS}");
        let driver = driver(&spec, "patience_ms=20,quarantine_ms=0");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (driver, stop) = (&driver, &stop);
            let programs: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut pool = Pool::new(driver, seed * 10 + thread);
                        for _ in 0..150 {
                            pool.step();
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    repair(driver);
                    std::thread::yield_now();
                }
            });
            // Also ends if a program has found an error; the scope then passes its panic on.
            while !programs.iter().all(|program| program.is_finished()) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        });
        met += faults_met(&driver);
        assert_eq!(driver.outstanding(), 0, "leaked descriptors after {spec}");
        // All engine threads end here, or this does not return.
        drop(driver);
    }
    println!("{met} faults among threads");
}
