//! Programs with unusual threads, limits or times. Comments on tests tell the former failure.

mod support;

use support::{
    as_bare, as_bare_under, children_named, command, is_root, wait_until, workload, Started, PROGRAM, WAYS,
};

/// For 96 MiB that compress to 54 MiB: 60 MiB left hardly anything for pages in use.
const BUDGET: &str = "76M";

/// /proc/PID/statm of an ended first thread shows 0, and the budget was not kept.
#[test]
fn a_first_thread_that_ends_keeps_its_budget() {
    let Some(workload) = workload("process") else { return };
    for mode in ["leader_ends_early", "leader_ends_late"] {
        for ran in as_bare(BUDGET, &[workload, mode]) {
            let peak = ran.assert_paged().number("ram_peak_bytes");
            assert!(peak > 66 << 20, "a peak of {} MiB of 96: {ran}", peak >> 20);
        }
    }
}

/// The message about it needed a descriptor.
#[test]
fn few_descriptors_are_named_where_they_are_too_few() {
    let Some(workload) = workload("process") else { return };
    for most in ["0", "3", "4", "8", "16"] {
        for ran in as_bare(BUDGET, &[workload, "few_descriptors", most]) {
            let is_managed = ran.number("zswpout") > 1000;
            assert!(is_managed || ran.text("unmanaged").contains("RLIMIT_NOFILE"), "{ran}");
            assert!(is_managed || most != "16", "{ran}");
        }
    }
}

/// The agent's memory counted with the program's: every mmap() failed.
#[test]
fn a_limit_on_memory_is_the_program_s() {
    let Some(workload) = workload("process") else { return };
    for mode in ["address_limit", "data_limit"] {
        for ran in as_bare(BUDGET, &[workload, mode]) {
            ran.assert_paged();
        }
    }
}

#[test]
fn a_limit_set_before_the_start_leaves_the_program_managed() {
    let Some(workload) = workload("process") else { return };
    for limit in ["ulimit -S -v 4000000 -d 3000000", "ulimit -v 4000000 -d 3000000"] {
        for ran in as_bare_under(Some(limit), &WAYS, BUDGET, &[workload, "limits_before"]) {
            ran.assert_paged();
        }
    }
}

/// Agents had the highest priority in programs with the lowest, too.
#[test]
fn an_agent_is_as_nice_as_its_program_but_for_fifteen_levels() {
    let Some(workload) = workload("forks").filter(|_| is_root("raise priorities")) else { return };
    // SAFETY: takes numbers.
    let nice = |thread: u32| unsafe { libc::getpriority(libc::PRIO_PROCESS, thread) };
    for more in ["0", "5", "19"] {
        let program = ["nice", "-n", more, PROGRAM, "run", "-q", "--ram", "30M", "--", workload];
        let mut run = Started::new(&mut command(&[&program[..], &["storm", "400", "fork"]].concat()));
        assert_eq!(run.line(), "round", "it pages");
        let supervisor = children_named(run.pid(), "uzswap-serve").first().copied().unwrap_or(run.pid());
        let expected = (nice(supervisor) - 15).max(-20);
        // A thread that has just begun has its maker's.
        wait_until("all threads have it", || {
            let agents = children_named(supervisor, "uzswap");
            let tasks = agents.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok());
            let names = tasks.flatten().flatten().map(|task| task.file_name());
            let levels: Vec<i32> = names.map(|name| nice(name.to_str().unwrap().parse().unwrap())).collect();
            levels.len() > 3 && levels.iter().all(|level| *level == expected)
        });
        run.kill();
    }
}
