//! Accelerators that appear and disappear under a running program.

mod support;

use std::time::{Duration, Instant};

use iaa::Published;
use idxd::emulated::{Control, Presence};
use support::{run, workload, Scratch, Started};

const LIMIT: Duration = Duration::from_secs(120);

fn counters(process: u32) -> Option<Published> {
    iaa::published(std::path::Path::new("/proc"))
        .into_iter()
        .filter_map(Result::ok)
        .find(|program| program.process == process)
}

fn process_of(workload: &str) -> Option<u32> {
    let is_it = |process: u32| {
        let exe = std::fs::read_link(format!("/proc/{process}/exe"));
        exe.is_ok_and(|exe| exe.to_str() == Some(workload))
    };
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|process| is_it(*process))
}

/// Two emulated devices compress a program's pages. One is disabled, then both are removed, then
/// one and then both are brought back, from outside while the program runs. Each time the work
/// moves to the available devices, and the program reads its own bytes.
#[test]
fn devices_go_and_return_under_a_program() {
    let Some(workload) = workload("devices") else { return };
    let workload = std::fs::canonicalize(workload).unwrap().into_os_string().into_string().unwrap();
    let scratch = Scratch::new("devices");
    let (control_file, stop) = (scratch.text("control"), scratch.text("stop"));
    let set = |states: &[(&str, Presence)]| {
        let mut control = Control::default();
        states.iter().for_each(|(name, presence)| control.set(name, *presence).unwrap());
        let next = scratch.path("next");
        std::fs::write(&next, control.to_string()).unwrap();
        std::fs::rename(next, &control_file).unwrap();
    };
    set(&[]);
    let compressor = format!("deflate-iaa:devices=2,mode=shared,control={control_file}");
    let options = ["-q", "--verify", "--compressor", &compressor];
    let mut run = Started::new(&mut run("40M", &options, &[&workload, &stop]));
    let end = |run: Started| {
        std::fs::write(&stop, "").unwrap();
        run.end().assert_status(0);
    };
    let begun = Instant::now();
    let process = loop {
        let found = process_of(&workload).filter(|process| counters(*process).is_some());
        if let Some(process) = found {
            break process;
        }
        if begun.elapsed() > LIMIT || run.child.try_wait().unwrap().is_some() {
            let unreadable =
                iaa::published(std::path::Path::new("/proc")).into_iter().any(|found| found.is_err());
            end(run);
            assert!(unreadable, "the program used no device");
            testkit::skip!("trace", "counters of other processes cannot be read");
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Waits until `is_so` holds for the counters now and at the step's begin.
    let mut wait = |what: &str, is_so: &dyn Fn(&Published, &Published) -> bool| {
        let begun = Instant::now();
        let before = counters(process).expect("the program runs");
        loop {
            assert!(run.child.try_wait().unwrap().is_none(), "{what}: the program has ended");
            let now = counters(process).expect("the program runs");
            if is_so(&before, &now) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{what}: {:?}", now.totals);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let calls = |program: &Published| program.totals.total_comp_calls + program.totals.total_decomp_calls;
    let in_software =
        |program: &Published| program.totals.total_sw_comp_calls + program.totals.total_sw_decomp_calls;
    let queue = |program: &Published, name: &str| {
        let line = program.queues.iter().find(|queue| queue.0 == name);
        line.map(|queue| queue.1.comp_calls + queue.1.decomp_calls)
    };
    wait("both work", &|_, now| {
        queue(now, "wq0.0").is_some_and(|calls| calls > 0)
            && queue(now, "wq1.0").is_some_and(|calls| calls > 0)
    });
    set(&[("wq0.0", Presence::Disabled)]);
    wait("one is closed", &|_, now| queue(now, "wq0.0").is_none());
    wait("the other works", &|before, now| calls(now) > calls(before) + 100);
    set(&[("iax0", Presence::Removed), ("iax1", Presence::Removed)]);
    wait("both are closed", &|_, now| queue(now, "wq0.0").is_none() && queue(now, "wq1.0").is_none());
    wait("software works", &|before, now| in_software(now) > in_software(before) + 100);
    set(&[("iax0", Presence::Removed)]);
    wait("one is back", &|before, now| calls(now) > calls(before) + 100);
    set(&[]);
    wait("both are back", &|_, now| {
        queue(now, "wq0.0").is_some_and(|calls| calls > 100)
            && queue(now, "wq1.0").is_some_and(|calls| calls > 100)
    });
    // Change quickly, so that devices disappear with requests in flight.
    for round in 0..20 {
        let presence = if round % 2 == 0 { Presence::Removed } else { Presence::Enabled };
        set(&[("iax0", presence), ("iax1", Presence::Enabled)]);
        std::thread::sleep(Duration::from_millis(150));
    }
    // Every page had its bytes.
    end(run);
}
