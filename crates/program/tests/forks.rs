//! Forks of programs larger than their budget, and processes stopped or killed during a fork.

mod support;

use std::time::Duration;

use support::{
    children_named, children_of, managed, signal, wait_until, workload, Ran, Scratch, Started, CANNOT, WAYS,
};

fn run(way: &[&str], mode: &[&str]) -> Option<Ran> {
    let ran = managed("30M", way, &[&[workload("forks")?], mode].concat())?;
    if ran.status == CANNOT {
        testkit::skip!("kernel", "{mode:?} cannot be done here");
        return None;
    }
    ran.assert_paged();
    assert_eq!(ran.printed, "right\n", "{ran}");
    Some(ran)
}

/// Where the kernel reports forks, no evicted page comes in.
fn leaves_everything_out(ran: &Ran) {
    assert_eq!(ran.number("brought_in"), 0, "{ran}");
}

/// Regression: with fewer than 256 descriptors everything came in, 60 to 115 MB over the budget.
#[test]
fn few_descriptors_are_enough_for_forks() {
    for way in WAYS {
        let Some(ran) = run(way, &["few", "64"]) else { return };
        leaves_everything_out(&ran);
    }
    // Too few for a child's pager: a message says so.
    let Some(ran) = run(WAYS[0], &["few", "16"]) else { return };
    ran.assert_says(&["RLIMIT_NOFILE"]);
}

/// Regression: everything came in, since a child's pager could not open its files.
#[test]
fn children_in_a_root_directory_without_proc_leave_everything_out() {
    let scratch = Scratch::new("forks-chroot");
    let root = scratch.directory("root");
    for way in WAYS {
        let Some(ran) = run(way, &["chroot", &root]) else { return };
        leaves_everything_out(&ran);
    }
}

/// Regression: the child returned through a frame of syscall() on the other stack: SIGSEGV.
#[test]
fn a_stack_of_its_own_is_returned_on() {
    for way in WAYS {
        run(way, &["stack"]);
    }
}

/// A run whose program forks all the time, and tells each round.
struct Storm {
    run: Started,
    supervisor: u32,
}

impl Storm {
    fn begin(way: &[&str], rounds: &str, how: &str) -> Option<Storm> {
        let command = [workload("forks")?, "storm", rounds, how];
        let mut run = Started::new(&mut support::run("30M", &[&["-q"], way].concat(), &command));
        assert_eq!(run.line(), "round");
        let supervisor = *children_of(run.pid()).first().expect("the front has a supervisor");
        Some(Storm { run, supervisor })
    }

    fn family(&self) -> (Option<u32>, Option<u32>) {
        let program = children_named(self.supervisor, "forks").first().copied();
        (program, program.and_then(|program| children_of(program).first().copied()))
    }
}

/// Parent, child and supervisor are stopped and continued at random moments: every byte is right.
#[test]
fn a_process_stopped_during_a_fork_continues_afterwards() {
    for (way, how) in WAYS.into_iter().flat_map(|way| ["fork", "bare"].map(|how| (way, how))) {
        let Some(storm) = Storm::begin(way, "40", how) else { return };
        for turn in 0..9 {
            let (program, child) = storm.family();
            let Some(stopped) = [program, child, Some(storm.supervisor)][turn % 3] else { continue };
            signal(stopped, libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(7 * turn as u64));
            signal(stopped, libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(3));
        }
        let ran = storm.run.end();
        ran.assert_status(0);
        assert_eq!(ran.printed.lines().last(), Some("right"), "{ran}");
    }
}

/// When the supervisor is killed during a fork, its whole tree ends.
#[test]
fn a_supervisor_that_is_killed_during_a_fork_takes_its_tree_along() {
    for (turn, way) in WAYS.into_iter().cycle().take(6).enumerate() {
        let Some(storm) = Storm::begin(way, "1000000", ["fork", "bare"][turn % 2]) else { return };
        std::thread::sleep(Duration::from_millis(5 * turn as u64));
        let (program, child) = storm.family();
        signal(storm.supervisor, libc::SIGKILL);
        // The pipe closes with the last process of the tree.
        let ran = storm.run.end();
        assert!(ran.printed.lines().all(|line| line == "round"), "{ran}");
        assert!(ran.status != Some(0) && !ran.said.contains("reads as"), "{ran}");
        let is_there = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            line.is_ok_and(|line| line.contains(workload("forks").unwrap()))
        };
        wait_until("nothing is left", || !program.iter().chain(&child).any(is_there));
    }
}
