//! Queues, engines, time and faults of emulated devices.

mod common;

use std::collections::BTreeMap;
use std::ptr;

use common::*;
use idxd::aecs::FIXED;
use idxd::emulated::{EmulateSpec, EmulatedPortal, Machine, QueueId, SoftwareError};
use idxd::{Completion, Descriptor, Portal, Record, Status, Submission};

const FIRST: QueueId = QueueId { device: 0, queue: 0 };

fn machine(spec: &str) -> Machine {
    Machine::new(&spec.parse::<EmulateSpec>().unwrap()).unwrap()
}

/// Jobs with buffers of their own, each at a fixed address.
struct Jobs {
    completions: Vec<Completion>,
    sources: Vec<[u8; 4096]>,
    outputs: Vec<[u8; 8192]>,
}

impl Jobs {
    fn new(count: usize) -> Self {
        let sources: Vec<_> = pages().into_iter().cycle().take(count).collect();
        let completions = (0..count).map(|_| Completion::new()).collect();
        Jobs { completions, sources, outputs: vec![[0; 8192]; count] }
    }

    fn submit(&mut self, portal: &EmulatedPortal, at: usize) -> Submission {
        self.completions[at].reset();
        let (data, out) = (source(&self.sources[at]), destination(&mut self.outputs[at]));
        let job = Descriptor::compress_fixed(&self.completions[at], data, out, &FIXED);
        // SAFETY: the buffers live as long as `self`, which outlives the machine's work in every
        // test.
        unsafe { portal.submit(&job) }
    }

    fn check(&self, at: usize) {
        let record = self.completions[at].poll().expect("done");
        assert!(record.is_success(), "{record:?}");
        let stream = &self.outputs[at][..record.output_size as usize];
        assert!(libdeflate_inflate(stream, 4096).is_some_and(|plain| plain == self.sources[at]));
    }

    fn done(&self) -> usize {
        self.completions.iter().filter(|completion| completion.is_done()).count()
    }
}

#[test]
fn a_dedicated_queue_has_one_opener_and_a_shared_one_many() {
    let dedicated = machine("queues=2");
    let first = dedicated.open(FIRST).unwrap();
    let refusal = |id| dedicated.open(id).err().unwrap().to_string();
    assert!(refusal(FIRST).contains("open already"));
    assert!(dedicated.open(QueueId { device: 0, queue: 1 }).is_ok());
    assert_eq!(refusal(QueueId { device: 0, queue: 2 }), "no such queue");
    drop(first);
    assert!(dedicated.open(FIRST).is_ok());
    let shared = machine("mode=shared");
    let _both = (shared.open(FIRST).unwrap(), shared.open(FIRST).unwrap());
}

#[test]
fn a_shared_queue_refuses_past_its_threshold_and_takes_again() {
    let machine = machine("mode=shared,queues=8,threshold=5,run=poll,engines=1");
    let portal = machine.open(FIRST).unwrap();
    let mut jobs = Jobs::new(7);
    for at in 0..5 {
        assert_eq!(jobs.submit(&portal, at), Submission::Accepted);
    }
    assert_eq!((jobs.submit(&portal, 5), machine.occupancy(FIRST)), (Submission::Retry, 5));
    portal.progress();
    assert_eq!((jobs.done(), machine.occupancy(FIRST)), (5, 0));
    assert_eq!(jobs.submit(&portal, 5), Submission::Accepted);
    portal.progress();
    (0..6).for_each(|at| jobs.check(at));
    assert_eq!(machine.statistics(FIRST).retried, 1);
}

#[test]
fn a_dedicated_queue_that_is_overfilled_loses_descriptors_and_says_so() {
    let machine = machine("queues=8,run=poll");
    let portal = machine.open(FIRST).unwrap();
    let mut jobs = Jobs::new(17);
    for at in 0..16 {
        assert_eq!(jobs.submit(&portal, at), Submission::Accepted);
    }
    assert_eq!(machine.take_software_error(0), None);
    assert_eq!(jobs.submit(&portal, 16), Submission::Accepted);
    assert_eq!(machine.take_software_error(0), Some(SoftwareError::QueueOverrun));
    portal.progress();
    (0..16).for_each(|at| jobs.check(at));
    assert!(!jobs.completions[16].is_done());
    let statistics = machine.statistics(FIRST);
    assert_eq!((statistics.accepted, statistics.completed, statistics.lost), (17, 16, 1));
}

#[test]
fn a_disabled_queue_finishes_its_work_and_takes_nothing() {
    let machine = machine("run=poll");
    let portal = machine.open(FIRST).unwrap();
    let mut jobs = Jobs::new(4);
    let _ = jobs.submit(&portal, 0);
    machine.disable_queue(FIRST);
    assert_eq!(jobs.submit(&portal, 1), Submission::Gone);
    portal.progress();
    jobs.check(0);
    machine.enable_queue(FIRST);
    assert_eq!(jobs.submit(&portal, 2), Submission::Accepted);
    portal.progress();
    jobs.check(2);
    assert_eq!((jobs.done(), machine.statistics(FIRST).lost), (2, 0));
}

#[test]
fn a_revoked_portal_touches_nothing_more_and_others_go_on() {
    for run in ["poll", "inline,latency_ns=1000,clock=steps", "threads,work=timed:200000,engines=1"] {
        let machine = machine(&format!("mode=shared,run={run}").replace("run=threads", "threads"));
        let [first, second] = [machine.open(FIRST).unwrap(), machine.open(FIRST).unwrap()];
        let mut jobs = Jobs::new(6);
        for at in 0..3 {
            assert_eq!(jobs.submit(&first, at), Submission::Accepted);
            assert_eq!(jobs.submit(&second, at + 3), Submission::Accepted);
        }
        first.revoke();
        let settled: Vec<_> = jobs.completions[..3].iter().map(Completion::poll).collect();
        assert_eq!(jobs.submit(&first, 0), Submission::Gone);
        for _ in 0..1_000_000_000u64 {
            if jobs.completions[3..].iter().all(Completion::is_done) {
                break;
            }
            second.progress();
        }
        assert!(jobs.completions[3..].iter().all(Completion::is_done), "{run}");
        // `submit` has reset the first record.
        assert!(!jobs.completions[0].is_done());
        let later: Vec<_> = jobs.completions[1..3].iter().map(Completion::poll).collect();
        assert_eq!(settled[1..], later);
        let statistics = machine.statistics(FIRST);
        assert_eq!(statistics.accepted, statistics.completed + statistics.lost);
    }
}

#[test]
fn a_halted_device_loses_everything_until_it_is_reset() {
    for mode in ["dedicated", "shared"] {
        let machine = machine(&format!("run=poll,mode={mode}"));
        let portal = machine.open(FIRST).unwrap();
        let mut jobs = Jobs::new(3);
        let _ = jobs.submit(&portal, 0);
        machine.halt(0);
        let expected = if mode == "shared" { Submission::Retry } else { Submission::Accepted };
        assert_eq!(jobs.submit(&portal, 1), expected);
        portal.progress();
        assert_eq!((jobs.done(), machine.is_halted(0)), (0, true));
        machine.reset(0);
        let _ = jobs.submit(&portal, 2);
        portal.progress();
        assert_eq!(jobs.done(), 1);
        jobs.check(2);
    }
}

/// Engines in parallel: in emulated time, jobs over engines times the page time.
#[test]
fn timed_engines_work_side_by_side() {
    for (engines, polls) in [(1, 16 * 10), (4, 4 * 10), (8, 2 * 10)] {
        let machine = machine(&format!("run=inline,clock=steps,work=timed:1000,engines={engines}"));
        let portal = machine.open(FIRST).unwrap();
        let mut jobs = Jobs::new(16);
        for at in 0..16 {
            assert_eq!(jobs.submit(&portal, at), Submission::Accepted);
        }
        let mut taken = 0;
        while jobs.done() < 16 {
            portal.progress();
            taken += 1;
            assert!(taken < 1000);
        }
        assert_eq!(taken, polls, "{engines} engines");
    }
    // The latency is added once, since jobs overlap in it.
    let machine = machine("run=inline,clock=steps,work=timed:1000,engines=1,latency_ns=700");
    let portal = machine.open(FIRST).unwrap();
    let mut jobs = Jobs::new(4);
    (0..4).for_each(|at| assert_eq!(jobs.submit(&portal, at), Submission::Accepted));
    let polls = (1..).find(|_| {
        portal.progress();
        jobs.done() == 4
    });
    assert_eq!(polls, Some(4 * 10 + 7));
}

#[test]
fn a_drain_completes_after_earlier_descriptors() {
    let machine = machine("run=inline,clock=steps,latency_ns=500,engines=2");
    let portal = machine.open(FIRST).unwrap();
    let mut jobs = Jobs::new(3);
    let drained = Completion::new();
    for at in 0..3 {
        let _ = jobs.submit(&portal, at);
        portal.progress();
    }
    // SAFETY: a drain has no buffers; its record lives to the end of the test.
    let _ = unsafe { portal.submit(&Descriptor::drain(&drained)) };
    for _ in 0..100 {
        if drained.is_done() {
            assert_eq!(jobs.done(), 3);
            return;
        }
        portal.progress();
    }
    panic!("not drained");
}

/// One schedule of faults: each job's fault, in order.
fn schedule(seed: u64) -> Vec<(Submission, Option<Record>)> {
    let faults = "lost:0.05/page:0.05/hardware:0.05/disable:0.01/retry:0.02/slow:0.05/halt:0.005";
    let machine =
        machine(&format!("run=inline,clock=steps,mode=shared,latency_ns=300,seed={seed},faults={faults}"));
    let portal = machine.open(FIRST).unwrap();
    let mut jobs = Jobs::new(1);
    let mut met = Vec::new();
    for _ in 0..1500 {
        let mut submission = jobs.submit(&portal, 0);
        met.push((submission, None));
        while submission == Submission::Retry && !machine.is_halted(0) {
            submission = jobs.submit(&portal, 0);
        }
        if machine.is_halted(0) {
            machine.reset(0);
        }
        if submission == Submission::Gone {
            machine.enable_queue(FIRST);
        }
        let mut record = None;
        for _ in 0..3000 {
            record = jobs.completions[0].poll();
            if record.is_some() || submission != Submission::Accepted {
                break;
            }
            portal.progress();
        }
        met.push((submission, record));
        if record.is_some_and(|record| record.is_success()) {
            jobs.check(0);
        }
    }
    let statistics = machine.statistics(FIRST);
    assert_eq!(statistics.accepted, statistics.completed + statistics.lost);
    met
}

#[test]
fn faults_follow_the_seed() {
    let first = schedule(7);
    let normal = |met: &[(Submission, Option<Record>)]| {
        // Only addresses differ from run to run.
        met.iter()
            .map(|(submission, record)| {
                (*submission, record.map(|record| Record { fault_address: 0, ..record }))
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(normal(&first), normal(&schedule(7)));
    assert_ne!(normal(&first), normal(&schedule(8)));
    let mut kinds = BTreeMap::new();
    for (submission, record) in &first {
        let kind = match (submission, record) {
            (Submission::Accepted, Some(record)) => record.status.meaning(),
            (Submission::Accepted, None) => "nothing",
            (Submission::Retry, _) => "retry",
            (Submission::Gone, _) => "gone",
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    for kind in ["success", "page fault", "hardware error", "nothing", "retry", "gone"] {
        assert!(kinds.get(kind).is_some_and(|&count| count > 5), "{kind}: {kinds:?}");
    }
}

#[test]
fn page_faults_name_an_address_of_the_job_or_block_where_allowed() {
    let device = Device::new("faults=page:1");
    let data = [3u8; 4096];
    let mut out = [0u8; 4096];
    let job = Descriptor::compress_fixed(ptr::null(), source(&data), destination(&mut out), &FIXED);
    let (mut reads, mut writes, mut tables) = (0, 0, 0);
    for _ in 0..100 {
        let record = device.run(job);
        assert!(record.status.is_page_fault() && record.status.code() == Status::PAGE_FAULT);
        if record.status.fault_was_write() {
            assert_eq!(record.fault_address, job.destination);
            writes += 1;
        } else if record.fault_address == job.source_2 {
            tables += 1;
        } else {
            assert_eq!(record.fault_address, job.source);
            reads += 1;
        }
    }
    assert!(reads > 10 && writes > 20 && tables > 10, "{reads} {writes} {tables}");
    // A job without an AECS cannot miss a page of one.
    let inflate = Descriptor::decompress(ptr::null(), source(&data), destination(&mut out));
    assert!((0..100).all(|_| device.run(inflate).fault_address != 0));
    // The queue does not allow blocking, so the flag changes nothing.
    assert!(device.run(job.blocking_on_fault()).status.is_page_fault());

    let blocking = Device::new("faults=page:1,block_on_fault=1,clock=steps,run=poll");
    assert!(blocking.run(job).status.is_page_fault());
    assert!(blocking.run(job.blocking_on_fault()).is_success());
}

#[test]
fn engines_that_are_threads_do_everything_once() {
    let machine = machine("sockets=1,devices=2,engines=3,queues=2,threads,mode=shared");
    let portals: Vec<_> = machine.queues().map(|id| machine.open(id).unwrap()).collect();
    let mut jobs = Jobs::new(400);
    for at in 0..400 {
        while jobs.submit(&portals[at % 4], at) != Submission::Accepted {
            std::thread::yield_now();
        }
    }
    let drained = Completion::new();
    // SAFETY: a drain has no buffers; its record lives until it is done.
    while unsafe { portals[3].submit(&Descriptor::drain(&drained)) } != Submission::Accepted {
        std::thread::yield_now();
    }
    while !drained.is_done() {
        std::thread::yield_now();
    }
    assert!((3..400).step_by(4).all(|at| jobs.completions[at].is_done()));
    while jobs.done() < 400 {
        std::thread::yield_now();
    }
    (0..400).for_each(|at| jobs.check(at));
    let completed: u64 = machine.queues().map(|id| machine.statistics(id).completed).sum();
    assert_eq!(completed, 401);
    drop(machine);
}

#[test]
fn inline_devices_serve_many_threads() {
    let machine = machine("mode=shared,devices=2");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let portal = machine.open(QueueId { device: thread % 2, queue: 0 }).unwrap();
            scope.spawn(move || {
                let mut jobs = Jobs::new(200);
                for at in 0..200 {
                    assert_eq!(jobs.submit(&portal, at), Submission::Accepted);
                    jobs.check(at);
                }
            });
        }
    });
}
