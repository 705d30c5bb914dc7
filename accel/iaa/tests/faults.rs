//! Each fault by itself: the caller's result and the counters.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use acomp::{Page, UnitError, PAGE_SIZE};
use common::*;
use iaa::{Device, Driver, Port, Settings, Topology};
use idxd::{Completion, Descriptor, Opcode, Portal, Record, Status, Submission};

#[test]
fn lost_completions_go_to_software_once_the_queue_is_settled() {
    let (mut drained, mut revoked) = (0, 0);
    for seed in 0..40 {
        for run in ["inline", "poll"] {
            let spec = format!("run={run},clock=steps,latency_ns=500,faults=lost:0.1,seed={seed}");
            let driver = driver(&spec, "patience_polls=200,quarantine_ms=0");
            let mut context = fixed(&driver);
            for _ in 0..5 {
                there_and_back(&mut *context);
            }
            let statistics = driver.statistics();
            let lost = statistics.total_completion_timeout_errors;
            // Software did all jobs that the device did not, and all lost jobs are counted.
            let in_software = statistics.total_sw_comp_calls + statistics.total_sw_decomp_calls;
            assert!(in_software >= lost && (lost > 0) == (statistics.quarantines > 0), "{statistics:?}");
            assert_eq!(driver.outstanding(), 0);
            revoked += statistics.revocations;
            drained += statistics.quarantines - statistics.revocations;
        }
    }
    // Both outcomes occurred: the drain is lost in one of ten as well.
    assert!(drained > 20 && revoked > 3, "{drained} {revoked}");
}

#[test]
fn page_faults_are_resubmitted_a_few_times() {
    let mut resubmissions = 0;
    for spec in [
        "faults=page:0.2",
        "faults=page:0.2,generation=2,mode=shared",
        "faults=page:0.2,run=poll,clock=steps",
    ] {
        let driver = driver(spec, "verify_compress=1");
        for mut context in [fixed(&driver), dynamic(&driver)] {
            for _ in 0..5 {
                there_and_back(&mut *context);
            }
        }
        let statistics = driver.statistics();
        assert_eq!(statistics.quarantines, 0);
        // One in 3000 jobs faults five times in a row.
        assert!(statistics.total_sw_comp_calls + statistics.total_sw_decomp_calls <= 3);
        resubmissions += statistics.page_fault_resubmissions;
    }
    assert!(resubmissions > 100);

    let driver = driver("faults=page:1", "");
    there_and_back(&mut *fixed(&driver));
    let statistics = driver.statistics();
    assert_eq!(
        (statistics.page_fault_resubmissions, statistics.total_completion_einval_errors),
        (16 * 5 - 16, 16)
    );
    assert_eq!((statistics.total_sw_comp_calls, statistics.total_sw_decomp_calls), (8, 8));
}

#[test]
fn queues_that_may_block_on_faults_do() {
    let driver = driver("faults=page:1,block_on_fault=1,clock=steps,run=poll", "patience_polls=1000");
    there_and_back(&mut *fixed(&driver));
    let statistics = driver.statistics();
    assert_eq!((statistics.page_fault_resubmissions, statistics.total_sw_comp_calls), (0, 0));
}

#[test]
fn hardware_errors_go_to_software_and_end_in_quarantine() {
    let driver = driver("faults=hardware:1,devices=2", "quarantine_ms=60000,distribute_decomps=1");
    let mut context = fixed(&driver);
    for _ in 0..3 {
        there_and_back(&mut *context);
    }
    let statistics = driver.statistics();
    assert_eq!((statistics.quarantines, statistics.total_completion_einval_errors), (2, 16));
    // Both queues had failed eight times after the first sixteen jobs; the other 32 went straight
    // to software.
    assert_eq!((statistics.total_comp_calls, statistics.total_decomp_calls), (8, 8));
    assert_eq!((statistics.total_sw_comp_calls, statistics.total_sw_decomp_calls), (24, 24));
}

#[test]
fn a_halted_device_is_left_and_comes_back_when_it_is_attached_again() {
    for mode in ["dedicated", "shared"] {
        let spec = format!("devices=2,mode={mode}");
        let driver = driver(&spec, "patience_polls=200,quarantine_ms=0,distribute_decomps=1");
        let machine = driver.machine().unwrap();
        let mut context = fixed(&driver);
        machine.halt(0);
        for _ in 0..3 {
            there_and_back(&mut *context);
        }
        let traffic = |name: &str| {
            let statistics = driver.statistics();
            let device = statistics.devices.into_iter().find(|device| device.name == name).unwrap();
            device.traffic.comp_calls + device.traffic.decomp_calls
        };
        assert!(traffic("iax1") >= 24, "{mode}: {:?}", driver.statistics());
        assert!(driver.detach("iax0"));
        machine.reset(0);
        driver.attach(Driver::emulated_device(machine, 0));
        let before = driver.statistics();
        there_and_back(&mut *context);
        let after = driver.statistics();
        assert_eq!((traffic("iax0"), driver.outstanding()), (8, 0));
        assert_eq!(before.total_sw_comp_calls, after.total_sw_comp_calls);
    }
}

#[test]
fn a_disabled_queue_is_passed_over_and_found_again_when_enabled() {
    let driver = driver("queues=1,devices=2", "quarantine_ms=0,distribute_decomps=1");
    let machine = driver.machine().unwrap();
    let first = machine.queues().next().unwrap();
    let mut context = fixed(&driver);
    machine.disable_queue(first);
    for _ in 0..4 {
        there_and_back(&mut *context);
    }
    let statistics = driver.statistics();
    assert_eq!((statistics.total_sw_comp_calls, statistics.total_sw_decomp_calls), (0, 0));
    assert_eq!(statistics.devices[0].traffic.comp_calls, 0);
    assert_eq!((statistics.devices[1].traffic.comp_calls, statistics.quarantines), (32, 1));
    machine.enable_queue(first);
    there_and_back(&mut *context);
    assert_eq!(driver.statistics().devices[0].traffic.comp_calls, 4);
    assert_eq!(driver.outstanding(), 0);
}

#[test]
fn without_any_queue_software_does_it_or_compression_fails() {
    for (text, succeeds) in [("", true), ("software_compress=0", false)] {
        let driver = driver("", text);
        let mut context = fixed(&driver);
        let streams = there_and_back(&mut *context);
        assert!(driver.detach("wq0.0"));
        assert!(!driver.detach("wq0.0"));
        let pages: Vec<Page> = shrinking(8).map(page).collect();
        let packed = compress(&mut *context, &pages.iter().collect::<Vec<_>>(), PAGE_SIZE, PAGE_SIZE - 1);
        assert!(packed.iter().all(|result| match result {
            Ok(_) => succeeds,
            Err(error) => !succeeds && *error == UnitError::Failed,
        }));
        // Decompression is done in any case.
        let plain = decompress(&mut *context, &[(&streams[3], PAGE_SIZE)]);
        assert!(*plain[0].as_ref().unwrap() == pages[3]);
        let statistics = driver.statistics();
        assert_eq!(
            (statistics.total_sw_comp_calls, statistics.total_sw_decomp_calls),
            (8 * u64::from(succeeds), 1)
        );
        // The queue's finished jobs still count.
        assert_eq!((statistics.total_comp_calls, statistics.total_decomp_calls), (8, 8));
    }
}

#[test]
fn retry_storms_are_sat_out() {
    let driver = driver("mode=shared,faults=retry:0.2,devices=2", "");
    let mut context = fixed(&driver);
    for _ in 0..20 {
        there_and_back(&mut *context);
    }
    let statistics = driver.statistics();
    assert_eq!((statistics.total_sw_decomp_calls, statistics.descriptor_shortages), (0, 0));
    let machine = driver.machine().unwrap();
    let retried: u64 = machine.queues().map(|id| machine.statistics(id).retried).sum();
    assert!(retried > 1000, "{retried}");
}

/// A driver of one queue with the test's own portal.
fn driver_of(portal: impl Portal + 'static, entries: u32, settings: Settings) -> Arc<Driver> {
    let port = Port { name: "wq0.0".to_owned(), entries, blocks_on_fault: false, portal: Box::new(portal) };
    let device = Device {
        name: "iax0".to_owned(),
        id: 0,
        package: 0,
        has_header_generation: true,
        queues: vec![port],
    };
    Arc::new(Driver::new(vec![device], Topology::regular(1, 2), settings))
}

struct Refusing(Arc<AtomicU64>);

impl Portal for Refusing {
    unsafe fn submit(&self, _: &Descriptor) -> Submission {
        self.0.fetch_add(1, Ordering::Relaxed);
        Submission::Retry
    }

    fn revoke(&self) {}
}

#[test]
fn tries_for_a_descriptor_are_bounded_as_in_the_series() {
    let tries = Arc::new(AtomicU64::new(0));
    let driver = driver_of(Refusing(tries.clone()), 16, Settings::default());
    let page = page(0);
    let mut taken = 0;
    let mut since = || {
        let now = tries.load(Ordering::Relaxed);
        now - std::mem::replace(&mut taken, now)
    };
    let packed = compress(&mut *fixed(&driver), &[&page], PAGE_SIZE, 4000);
    // One try on the quick path, then the bounded number.
    assert_eq!((packed[0].clone(), since()), (Err(UnitError::Failed), 1001));
    let packed = compress(&mut *dynamic(&driver), &[&page], PAGE_SIZE, 4000);
    assert_eq!((packed[0].clone(), since()), (Err(UnitError::Failed), 2001));
    let stream = miniz_oxide::deflate::compress_to_vec(&page, 6);
    let plain = decompress(&mut *fixed(&driver), &[(&stream, PAGE_SIZE)]);
    assert!(*plain[0].as_ref().unwrap() == page);
    assert_eq!(since(), 501);
    let statistics = driver.statistics();
    assert_eq!((statistics.descriptor_shortages, statistics.total_sw_decomp_calls), (3, 1));
    assert_eq!(driver.outstanding(), 0);
}

/// Takes and records everything; does it through an emulated queue when told to.
struct Noting {
    inner: idxd::emulated::EmulatedPortal,
    machine: idxd::emulated::Machine,
    noted: Arc<Mutex<Vec<Descriptor>>>,
    most: Arc<AtomicU64>,
    waiting: Mutex<Vec<Descriptor>>,
}

impl Noting {
    fn new(noted: Arc<Mutex<Vec<Descriptor>>>, most: Arc<AtomicU64>) -> Self {
        let machine = idxd::emulated::Machine::new(&"generation=2".parse().unwrap()).unwrap();
        let inner = machine.open(machine.queues().next().unwrap()).unwrap();
        Noting { inner, machine, noted, most, waiting: Mutex::default() }
    }
}

impl Portal for Noting {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submission {
        assert!(!self.machine.is_halted(0));
        self.noted.lock().unwrap().push(*descriptor);
        let mut waiting = self.waiting.lock().unwrap();
        waiting.push(*descriptor);
        self.most.fetch_max(waiting.len() as u64, Ordering::Relaxed);
        Submission::Accepted
    }

    fn progress(&self) {
        for descriptor in self.waiting.lock().unwrap().drain(..) {
            // SAFETY: the submitter's promise, which holds until the record is written.
            assert_eq!(unsafe { self.inner.submit(&descriptor) }, Submission::Accepted);
        }
    }

    fn revoke(&self) {
        self.waiting.lock().unwrap().clear();
    }
}

#[test]
fn a_batch_is_submitted_whole_and_the_two_largest_are_decompressed_first() {
    for (mode, under_way) in [("async", 8), ("sync", 1)] {
        let (noted, most) = (Arc::new(Mutex::default()), Arc::new(AtomicU64::new(0)));
        let portal = Noting::new(Arc::clone(&noted), most.clone());
        let driver = driver_of(portal, 16, settings(&format!("sync_mode={mode}")));
        let mut context = fixed(&driver);
        let streams = there_and_back(&mut *context);
        assert_eq!(most.load(Ordering::Relaxed), under_way);
        let sizes: Vec<u32> =
            noted.lock().unwrap()[8..].iter().map(|descriptor| descriptor.source_size).collect();
        let given: Vec<u32> = streams.iter().map(|stream| stream.len() as u32).collect();
        let mut expected = given.clone();
        if mode == "async" {
            let mut largest = given.clone();
            largest.sort_unstable();
            // The two largest are of different length, so that their order is known.
            let (second, first) = (largest[6], largest[7]);
            assert!(largest[5] < second && second < first);
            expected.retain(|&size| size < second);
            expected.splice(0..0, [first, second]);
        }
        assert_eq!(sizes, expected);
        let controls: Vec<(u32, u16)> = noted
            .lock()
            .unwrap()
            .iter()
            .map(|descriptor| (descriptor.control, descriptor.codec_flags))
            .collect();
        assert!(controls[..8].iter().all(|&words| words == (0x4301_010c, 0x0006)));
    }
}

#[test]
fn no_more_is_under_way_than_the_queue_has_entries() {
    let (noted, most) = (Arc::new(Mutex::default()), Arc::new(AtomicU64::new(0)));
    let driver = driver_of(Noting::new(noted, most.clone()), 3, Settings::default());
    let mut context = fixed(&driver);
    for _ in 0..3 {
        there_and_back(&mut *context);
    }
    assert_eq!(most.load(Ordering::Relaxed), 3);
    let statistics = driver.statistics();
    assert_eq!((statistics.total_sw_comp_calls, statistics.descriptor_shortages), (0, 0));
}

/// Takes jobs and completes none until it is revoked. Keeps the records it may still write.
struct Hanging {
    answers_drains: bool,
    revoked: Arc<AtomicBool>,
}

impl Portal for Hanging {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submission {
        if self.revoked.load(Ordering::Relaxed) {
            return Submission::Gone;
        }
        if descriptor.opcode() == Opcode::DRAIN && self.answers_drains {
            // SAFETY: the record is valid, by the submitter's promise.
            let completion = unsafe { &*(descriptor.completion as *const Completion) };
            completion.complete(&Record::of(Status::SUCCESS));
        }
        Submission::Accepted
    }

    fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
    }
}

#[test]
fn buffers_are_given_back_only_when_the_device_cannot_touch_them() {
    for patience in ["patience_polls=100", "patience_ms=5"] {
        for answers_drains in [true, false] {
            let revoked = Arc::new(AtomicBool::new(false));
            let portal = Hanging { answers_drains, revoked: revoked.clone() };
            let text = format!("{patience},quarantine_ms=60000");
            let driver = driver_of(portal, 128, settings(&text));
            let mut context = fixed(&driver);
            there_and_back(&mut *context);
            assert_eq!(revoked.load(Ordering::Relaxed), !answers_drains);
            let statistics = driver.statistics();
            assert_eq!((statistics.quarantines, statistics.revocations), (1, u64::from(!answers_drains)));
            assert_eq!((statistics.total_completion_timeout_errors, driver.outstanding()), (8, 0));
        }
    }
}

fn is_present(address: u64) -> bool {
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, address / 4096 * 8).unwrap();
    entry[7] & 0x80 != 0
}

/// Fails at the first absent page of an AECS, as devices do on queues that may not block. Drops the
/// pages of the first.
struct Absent(Noting, AtomicBool);

impl Portal for Absent {
    unsafe fn submit(&self, job: &Descriptor) -> Submission {
        let pages = || (job.source_2 & !4095..job.source_2 + u64::from(job.source_2_size)).step_by(4096);
        if job.source_2 != 0 && !self.1.swap(true, Ordering::Relaxed) {
            // Concurrent tests may make them present.
            while pages().all(is_present) {
                // SAFETY: whole pages of the program's file, which the kernel reads again.
                pages().for_each(|page| unsafe {
                    libc::madvise(page as *mut libc::c_void, 4096, libc::MADV_DONTNEED);
                });
            }
        }
        let Some(page) = pages().find(|&page| job.source_2 != 0 && !is_present(page)) else {
            // SAFETY: the caller's promise is passed on.
            return unsafe { self.0.inner.submit(job) };
        };
        // SAFETY: the record is valid, by the submitter's promise.
        let completion = unsafe { &*(job.completion as *const Completion) };
        let fault_address = page.max(job.source_2);
        completion.complete(&Record { fault_address, ..Record::of(Status::PAGE_FAULT) });
        Submission::Accepted
    }

    fn revoke(&self) {
        self.0.inner.revoke();
    }
}

#[test]
fn fixed_codes_that_are_absent_are_brought_in() {
    let portal = Absent(Noting::new(Arc::default(), Arc::default()), AtomicBool::new(false));
    let driver = driver_of(portal, 128, Settings::default());
    there_and_back(&mut *fixed(&driver));
    let statistics = driver.statistics();
    assert!(statistics.page_fault_resubmissions > 0, "{statistics:?}");
    assert_eq!((statistics.total_sw_comp_calls, statistics.total_completion_einval_errors), (0, 0));
}

struct Damaging(Noting);

impl Portal for Damaging {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submission {
        // SAFETY: the caller's promise is passed on.
        let submission = unsafe { self.0.inner.submit(descriptor) };
        if descriptor.opcode() == Opcode::COMPRESS {
            // SAFETY: the destination of a finished job, not yet read by its submitter.
            unsafe { *(descriptor.destination as *mut u8).add(5) ^= 0x10 };
        }
        submission
    }

    fn revoke(&self) {
        self.0.inner.revoke();
    }
}

#[test]
fn verification_finds_damaged_output() {
    let portal = Damaging(Noting::new(Arc::default(), Arc::default()));
    let driver = driver_of(portal, 128, settings("verify_compress=1"));
    there_and_back(&mut *fixed(&driver));
    there_and_back(&mut *dynamic(&driver));
    assert_eq!(driver.statistics().total_sw_comp_calls, 16);
}
