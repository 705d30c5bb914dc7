//! Programs that give up rights: all their threads do, and paging continues.
//!
//! The C library changes only the threads it knows, and not the agent's. Those kept root's rights
//! in daemons that had become another user, available to code that took over the daemon.

mod support;

use serde_json::Value;
use support::{can_link_statically, can_manage, compile_with, has, managed, workload_in, Scratch};

const RAM_MIB: &str = "40";

const WAYS: [&[&str]; 2] = [&[], &["--swap", "256M"]];

fn workload(scratch: &Scratch) -> Option<String> {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        testkit::skip!("root", "only root has rights to give up");
        return None;
    }
    workload_in(scratch, "credentials")
}

fn run(scratch: &Scratch, way: &[&str], command: &[&str]) -> (String, Value) {
    let ram = format!("{RAM_MIB}M");
    let options = [&["-q"], way].concat();
    let (output, report) = managed(&ram, scratch, &options, command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?} {way:?}: {said} {report}");
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{command:?} {way:?}: {report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{command:?} {way:?}: nothing was evicted: {report}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), report)
}

fn in_all_ways(modes: &[&str]) {
    let scratch = Scratch::new("credentials");
    let Some(workload) = workload(&scratch) else { return };
    for way in WAYS {
        for mode in modes {
            run(&scratch, way, &[&*workload, mode, "64", RAM_MIB]);
        }
    }
}

#[test]
fn rights_given_up_by_the_c_library() {
    in_all_ways(&["libc", "daemon", "capabilities"]);
}

#[test]
fn rights_given_up_by_system_calls_past_the_c_library() {
    in_all_ways(&["number", "bare"]);
}

#[test]
fn rights_given_up_while_other_threads_use_their_memory() {
    in_all_ways(&["thread"]);
}

#[test]
fn rights_given_up_by_a_forked_child_alone() {
    in_all_ways(&["child", "vfork"]);
}

#[test]
fn rights_given_up_before_anything_is_paged_and_after_paging_has_ended() {
    in_all_ways(&["early", "locked"]);
}

/// Servers change their effective user for each request.
#[test]
fn another_effective_user_to_and_fro_costs_nothing() {
    let scratch = Scratch::new("credentials-toggle");
    let Some(workload) = workload(&scratch) else { return };
    let (said, report) = run(&scratch, WAYS[0], &[&workload, "toggle", "64", RAM_MIB]);
    assert_eq!(report["brought_in"], 0, "the agent was not to end: {report}");
    let cpu_ms: u64 = said.trim().parse().expect("milliseconds");
    assert!(cpu_ms < 2000, "20,000 calls took {cpu_ms} ms of CPU time");
}

/// This path is not interposed.
#[test]
fn rights_given_up_by_a_static_program() {
    let scratch = Scratch::new("credentials-static");
    if workload(&scratch).is_none() || !can_link_statically(&scratch) {
        return;
    }
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/credentials.c");
    let program = scratch.path("static");
    if !compile_with(&["-static"], &source, &program) {
        return;
    }
    for way in WAYS {
        run(&scratch, way, &[program.to_str().unwrap(), "bare", "64", RAM_MIB]);
    }
}

/// A program that renounces new rights had threads of the agent's that did not.
#[test]
fn the_agent_s_threads_gain_no_rights() {
    if !can_manage() || !has("python3") {
        return;
    }
    let script = "import os\n\
                  a = bytearray(range(256)) * (300 << 10)\n\
                  def look():\n  \
                    agents = 0\n  \
                    for t in os.listdir('/proc/self/task'):\n    \
                      text = open(f'/proc/self/task/{t}/status').read()\n    \
                      name, gains = text.split()[1], 'NoNewPrivs:\\t0' in text\n    \
                      agents += name.startswith('uzswap')\n    \
                      if name.startswith('uzswap') == gains: print(name, gains)\n  \
                    if not agents: print('no agent')\n\
                  print(sum(a[i + 7] for i in range(0, len(a), 4096)), flush=True)\n\
                  look()\n\
                  if os.fork() == 0:\n  look(); os._exit(0)\n\
                  os.wait()\n";
    let scratch = Scratch::new("new-rights");
    let (output, report) = managed("40M", &scratch, &["-q"], &["python3", "-c", script]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "134400\n", "{output:?} {report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "nothing was out: {report}");
}
