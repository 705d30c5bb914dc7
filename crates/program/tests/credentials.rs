//! Programs that give up rights: all their threads do, and paging continues.
//!
//! The C library changes only the threads it knows, and not the agent's. Those kept root's rights
//! in daemons that had become another user, available to code that took over the daemon.

mod support;

use support::{is_root, managed, tests, workload, workload_with, Ran, WAYS};

const RAM_MIB: &str = "40";

fn run(program: Option<&str>, way: &[&str], mode: &str) -> Option<Ran> {
    let command = [program.filter(|_| is_root("give up rights"))?, mode, "64", RAM_MIB];
    let ran = managed(&format!("{RAM_MIB}M"), &[&["-q"], way].concat(), &command)?;
    ran.assert_paged().assert_all_managed();
    Some(ran)
}

fn in_all_ways(modes: &[&str]) {
    for way in WAYS {
        modes.iter().for_each(|mode| drop(run(workload("credentials"), way, mode)));
    }
}

tests! {
    fn rights_given_up_by_the_c_library() = in_all_ways(&["libc", "daemon", "capabilities"]);
    fn rights_given_up_by_system_calls_past_the_c_library() = in_all_ways(&["number", "bare"]);
    fn rights_given_up_while_other_threads_use_their_memory() = in_all_ways(&["thread"]);
    fn rights_given_up_by_a_forked_child_alone() = in_all_ways(&["child", "vfork"]);
    fn rights_given_up_before_anything_is_paged_and_after_paging_has_ended() =
        in_all_ways(&["early", "locked"]);
}

/// Servers change their effective user for each request.
#[test]
fn another_effective_user_to_and_fro_costs_nothing() {
    let Some(ran) = run(workload("credentials"), WAYS[0], "toggle") else { return };
    assert_eq!(ran.number("brought_in"), 0, "the agent was not to end: {ran}");
    let cpu_ms: u64 = ran.printed.trim().parse().expect("milliseconds");
    assert!(cpu_ms < 2000, "20,000 calls took {cpu_ms} ms of CPU time");
}

/// This path is not interposed.
#[test]
fn rights_given_up_by_a_static_program() {
    for way in WAYS {
        run(workload_with("credentials", &["-static"]), way, "bare");
    }
}

/// A program that renounces new rights had an agent that did not.
#[test]
fn the_agent_s_threads_gain_no_rights() {
    let script = "import glob, os\n\
                  a = bytearray(range(256)) * (300 << 10)\n\
                  parent = os.getppid()\n\
                  def look():\n  \
                    agents = 0\n  \
                    for t in glob.glob('/proc/[0-9]*/task/*/status'):\n    \
                      try: text = open(t).read()\n    \
                      except OSError: continue\n    \
                      name, gains = text.split()[1], 'NoNewPrivs:\\t0' in text\n    \
                      if f'PPid:\\t{parent}\\n' not in text or not name.startswith('uzswap'): continue\n    \
                      agents += name != 'uzswap-guardian'\n    \
                      if gains and name != 'uzswap-guardian': print(name, gains)\n  \
                    if not agents: print('no agent')\n\
                  print(sum(a[i + 7] for i in range(0, len(a), 4096)), flush=True)\n\
                  look()\n\
                  if os.fork() == 0:\n  look(); os._exit(0)\n\
                  os.wait()\n";
    let Some(ran) = managed("40M", &["-q"], &["python3", "-c", script]) else { return };
    assert_eq!(ran.printed, "134400\n", "{ran}");
    assert!(ran.number("zswpout") > 1000, "nothing was out: {ran}");
}

/// A program that restricts itself by Landlock had threads of the agent's that did not.
#[test]
fn the_agent_s_threads_share_the_restrictions_of_landlock() {
    let Some(workload) = workload("landlock") else { return };
    for how in ["refused", "write", "all"] {
        let Some(ran) = managed("40M", &["-q"], &[workload, how, "64"]) else { return };
        if ran.status == Some(2) {
            return testkit::skip!("kernel", "no Landlock here");
        }
        ran.assert_paged().assert_no_failure();
        // Without a sight of the process's own files there is no pager.
        let is_named = ran.text("unmanaged").contains("statm: permission denied");
        assert_eq!(is_named, how == "all", "{ran}");
    }
}

/// An agent outside of the profile that its program has from then on would be a way out.
#[test]
fn no_agent_is_left_when_a_program_changes_its_profile() {
    let Some(workload) = workload("landlock") else { return };
    let Some(ran) = managed("40M", &["-q"], &[workload, "profile", "64"]) else { return };
    if ran.status == Some(2) {
        return testkit::skip!("kernel", "no security module here");
    }
    ran.assert_paged().assert_no_failure();
    assert!(ran.text("unmanaged").contains("changes its security profile"), "{ran}");
}
