//! Attaching and detaching queues, and the evenness of their use.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use acomp::{Page, PAGE_SIZE};
use common::*;
use iaa::Driver;

/// Compresses and decompresses until `stop`, and counts requests; panics at the first changed page.
fn load(driver: &Arc<Driver>, seed: u64, stop: &AtomicBool, requests: &AtomicU64) {
    let mut random = Random(seed * 2 + 1);
    let mut contexts = [fixed(driver), dynamic(driver)];
    while !stop.load(Ordering::Relaxed) {
        let context = &mut *contexts[usize::from(random.below(8) == 0)];
        let indices: Vec<u64> = (0..1 + random.below(8)).map(|_| random.below(500) as u64).collect();
        round_trip(context, indices);
        requests.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sets `stop` when dropped, including by a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `change` repeatedly under the load of three threads, with at least one request between two
/// changes.
fn under_load(driver: &Arc<Driver>, changes: u64, mut change: impl FnMut(u64)) {
    let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|seed| {
                let (stop, requests) = (&stop, &requests);
                scope.spawn(move || load(driver, seed, stop, requests))
            })
            .collect();
        let _stop = Stop(&stop);
        for at in 0..changes {
            change(at);
            let before = requests.load(Ordering::Relaxed);
            // A thread that ends before `stop` has found an error.
            while requests.load(Ordering::Relaxed) == before
                && !threads.iter().any(|thread| thread.is_finished())
            {
                // Asleep, so that the others get the processor.
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    });
}

#[test]
fn queues_are_disabled_and_enabled_a_thousand_times_under_load() {
    // Engine threads need processors too: on a busy machine a change takes many times as long.
    for (spec, changes) in
        [("devices=3,queues=2", 1000), ("devices=2,queues=2,threads,engines=1,mode=shared", 250)]
    {
        let driver = driver(spec, "quarantine_ms=0,patience_ms=2000");
        let machine = driver.machine().unwrap();
        let queues: Vec<_> = machine.queues().collect();
        let mut random = Random(77);
        under_load(&driver, changes, |_| {
            let id = queues[random.below(queues.len())];
            machine.disable_queue(id);
            // Some at once; others later, or only after all are disabled.
            if random.below(3) != 0 {
                machine.enable_queue(queues[random.below(queues.len())]);
                machine.enable_queue(id);
            }
            std::thread::yield_now();
        });
        queues.iter().for_each(|&id| machine.enable_queue(id));
        assert_eq!(driver.outstanding(), 0);
        // All queues return to work, in one round for each that was tried and failed.
        let mut context = fixed(&driver);
        let before = driver.statistics();
        for _ in 0..10 {
            round_trip(&mut *context, [0; 8]);
        }
        let after = driver.statistics();
        assert!(after.total_comp_calls - before.total_comp_calls >= 72, "{after:?}");
    }
}

#[test]
fn queues_and_devices_appear_and_disappear_under_load() {
    let driver = driver("devices=3,queues=2", "");
    let machine = driver.machine().unwrap();
    let mut random = Random(5);
    under_load(&driver, 100, |at| {
        let device = random.below(3);
        if at % 3 == 0 {
            // One of its queues now; the other at the next attach.
            driver.detach(&format!("wq{device}.{}", random.below(2)));
            std::thread::yield_now();
        }
        // Closed when this returns, or else a dedicated queue could not be opened again.
        assert!(driver.detach(&format!("iax{device}")));
        let attached = Driver::emulated_device(machine, device);
        assert_eq!(attached.queues.len(), 2);
        driver.attach(attached);
    });
    let statistics = driver.statistics();
    assert_eq!((driver.outstanding(), statistics.devices.len()), (0, 3));
    // The driver counts every job of the machine, including those of detached queues.
    assert_eq!(statistics.total_sw_decomp_calls, 0, "{statistics:?}");
    let accepted: u64 = machine.queues().map(|id| machine.statistics(id).accepted).sum();
    let calls = statistics.total_comp_calls + statistics.total_decomp_calls;
    // Dynamic compression on generation 1 is two jobs a call.
    assert!(calls > 0 && calls <= accepted && accepted < calls * 2, "{calls} {accepted} {statistics:?}");
}

#[test]
fn the_round_robin_is_even() {
    let driver = driver("work=null,sockets=1,devices=4,queues=2", "distribute_decomps=1");
    let mut context = fixed(&driver);
    let mut random = Random(3);
    for _ in 0..4000 {
        let pages = vec![[0; PAGE_SIZE]; 1 + random.below(8)];
        assert!(compress(&mut *context, &pages.iter().collect::<Vec<_>>(), PAGE_SIZE, 4000)
            .iter()
            .all(Result::is_ok));
        let objects = vec![([1u8; 100].as_slice(), PAGE_SIZE); 1 + random.below(8)];
        assert!(decompress(&mut *context, &objects).iter().all(Result::is_ok));
    }
    let statistics = driver.statistics();
    for (queue, kind) in [(0, "decompress"), (1, "compress")] {
        let calls: Vec<u64> = statistics
            .devices
            .iter()
            .map(|device| device.queues[queue].traffic)
            .map(|traffic| if kind == "compress" { traffic.comp_calls } else { traffic.decomp_calls })
            .collect();
        let (least, most) = (*calls.iter().min().unwrap(), *calls.iter().max().unwrap());
        assert!(most > 4000 && (most - least) * 100 <= most, "{kind}: {calls:?}");
    }
}

#[test]
fn statistics_have_the_kernels_names() {
    let driver = driver("devices=2,queues=2", "");
    let mut context = fixed(&driver);
    let pages: Vec<Page> = (0..7).map(page).collect();
    let packed = compress(&mut *context, &pages.iter().collect::<Vec<_>>(), PAGE_SIZE, PAGE_SIZE - 1);
    let bytes: usize = packed.iter().flatten().map(Vec::len).sum();
    let objects: Vec<_> = packed.iter().flatten().map(|stream| (stream.as_slice(), PAGE_SIZE)).collect();
    decompress(&mut *context, &objects);
    let statistics = driver.statistics();
    assert_eq!((statistics.total_comp_calls, statistics.total_decomp_calls), (7, 6));
    assert_eq!(statistics.total_comp_bytes_out, bytes as u64);
    assert_eq!(statistics.total_decomp_bytes_in, bytes as u64);
    assert_eq!(statistics.total_completion_comp_buf_overflow_errors, 1);
    let globals = statistics.globals();
    for (name, value) in [
        ("total_sw_comp_calls", 0),
        ("total_sw_decomp_calls", 0),
        ("total_completion_einval_errors", 0),
        ("total_completion_timeout_errors", 0),
        ("total_completion_comp_buf_overflow_errors", 1),
    ] {
        assert!(globals.contains(&(name, value)), "{name}: {globals:?}");
    }
    let device = &statistics.devices[1];
    assert_eq!((device.queues.len(), device.queues[1].name.as_str()), (2, "wq1.1"));
}
