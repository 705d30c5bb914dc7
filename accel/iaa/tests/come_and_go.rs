//! A control file removes and restores devices under a working driver. A plain model predicts the
//! attached queues, and pages are compared.

mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use common::*;
use iaa::Driver;
use idxd::emulated::{Control, Presence, QueueId};

struct ControlFile(PathBuf);

impl ControlFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uzswap-iaa-control-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        ControlFile(path)
    }

    fn driver(&self, spec: &str, settings: &str) -> Arc<Driver> {
        driver(&format!("{spec},control={}", self.0.display()), settings)
    }

    fn write(&self, control: &Control) {
        let next = self.0.with_extension("next");
        std::fs::write(&next, control.to_string()).unwrap();
        std::fs::rename(next, &self.0).unwrap();
    }
}

impl Drop for ControlFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn attached(driver: &Driver) -> Vec<String> {
    driver.statistics().devices.into_iter().flat_map(|device| device.queues).map(|queue| queue.name).collect()
}

/// Any sequence of removals, disablings and returns: after each look exactly the model's queues are
/// attached, in order, work goes to all of them and to no other, and pages return unchanged in
/// every state.
#[test]
fn attached_queues_follow_the_control_file() {
    const DEVICES: usize = 3;
    const QUEUES: usize = 2;
    let file = ControlFile::new("model");
    let driver = file.driver("devices=3,queues=2", "quarantine_ms=0,distribute_decomps=1");
    let machine = driver.machine().unwrap();
    let mut random = Random(11);
    let (mut removed, mut disabled) = ([false; DEVICES], [[false; QUEUES]; DEVICES]);
    let mut control = Control::default();
    for step in 0..300 {
        for _ in 0..1 + random.below(3) {
            let device = random.below(DEVICES);
            if random.below(2) == 0 {
                removed[device] = !removed[device];
                let presence = if removed[device] { Presence::Removed } else { Presence::Enabled };
                control.set(&format!("iax{device}"), presence).unwrap();
            } else {
                let queue = random.below(QUEUES);
                let is_disabled = &mut disabled[device][queue];
                *is_disabled = !*is_disabled;
                let presence = if *is_disabled { Presence::Disabled } else { Presence::Enabled };
                control.set(&format!("wq{device}.{queue}"), presence).unwrap();
            }
        }
        if step % 50 == 49 {
            let before = attached(&driver);
            std::fs::write(&file.0, "iax0 gone\n").unwrap();
            assert!(!driver.refresh());
            assert_eq!(attached(&driver), before);
        }
        file.write(&control);
        driver.refresh();
        let expected: Vec<String> = (0..DEVICES)
            .filter(|device| !removed[*device])
            .flat_map(|device| (0..QUEUES).map(move |queue| (device, queue)))
            .filter(|&(device, queue)| !disabled[device][queue])
            .map(|(device, queue)| format!("wq{device}.{queue}"))
            .collect();
        assert_eq!(attached(&driver), expected, "step {step}: {control}");
        assert!(!driver.refresh(), "there is nothing new");
        let accepted = |name: &str| {
            let (device, queue) = name.strip_prefix("wq").unwrap().split_once('.').unwrap();
            let id = QueueId { device: device.parse().unwrap(), queue: queue.parse().unwrap() };
            machine.statistics(id).accepted
        };
        let before: Vec<u64> = expected.iter().map(|name| accepted(name)).collect();
        let total = |driver: &Driver| {
            let counted = driver.statistics();
            counted.total_sw_comp_calls + counted.total_sw_decomp_calls
        };
        let in_software = total(&driver);
        let first = random.below(400) as u64;
        round_trip(&mut *fixed(&driver), first..first + 8);
        if expected.is_empty() {
            assert!(total(&driver) >= in_software + 8, "nothing else is left");
        } else {
            assert_eq!(total(&driver), in_software, "step {step}");
            for (name, before) in expected.iter().zip(before) {
                assert!(accepted(name) > before, "step {step}: {name} got nothing, of {expected:?}");
            }
        }
        assert_eq!(driver.outstanding(), 0);
    }
}

/// Devices go at any moment, with requests under way in other threads. Software does accepted jobs
/// that never complete, with the right bytes; afterwards all devices work again.
#[test]
fn devices_are_removed_under_load() {
    for spec in
        ["devices=2,queues=2,run=poll", "devices=2,queues=2", "devices=2,mode=shared,threads,engines=1"]
    {
        let file = ControlFile::new("load");
        // A removed device's jobs are lost, which polls detect by a timeout.
        let driver = file.driver(spec, "quarantine_ms=0,patience_ms=20");
        let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2u64)
                .map(|seed| {
                    let (driver, stop, requests) = (&driver, &stop, &requests);
                    scope.spawn(move || {
                        let mut random = Random(seed * 2 + 1);
                        while !stop.load(Ordering::Relaxed) {
                            let first = random.below(400) as u64;
                            let count = 1 + random.below(8) as u64;
                            round_trip(&mut *fixed(driver), first..first + count);
                            requests.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let mut random = Random(9);
            for _ in 0..60 {
                let mut control = Control::default();
                for device in 0..2 {
                    let presence =
                        [Presence::Removed, Presence::Disabled, Presence::Enabled][random.below(3)];
                    control.set(&format!("iax{device}"), presence).unwrap();
                }
                file.write(&control);
                driver.refresh();
                let before = requests.load(Ordering::Relaxed);
                while requests.load(Ordering::Relaxed) == before && !threads.iter().any(|t| t.is_finished()) {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        file.write(&Control::default());
        let all = driver.machine().unwrap().queues().count();
        // A dedicated queue is free once its last request has ended; a hung one is retried after a
        // while.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while attached(&driver).len() < all {
            driver.refresh();
            assert!(std::time::Instant::now() < until, "{:?}", attached(&driver));
            std::thread::yield_now();
        }
        let before = driver.statistics();
        assert!(before.total_sw_comp_calls > 0, "{spec}: {before:?}");
        for _ in 0..20 {
            round_trip(&mut *fixed(&driver), 0..8);
        }
        let after = driver.statistics();
        assert!(after.total_comp_calls >= before.total_comp_calls + 100, "{spec}: {after:?}");
        assert_eq!(driver.outstanding(), 0);
    }
}
