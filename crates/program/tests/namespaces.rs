//! Kernel operations for single-threaded processes only: uzswap's threads are not in the way.

mod support;

use std::process::Command;

use support::{can_manage, has, managed, uzswap, Scratch};

/// Python reads 75 MiB repeatedly, under the command before it.
const JOB: &str =
    "a = bytearray(range(256)) * (300 << 10)\nprint(sum(a[i + 7] for i in range(0, len(a), 4096)))";

fn is_refused_bare(command: &[&str]) -> bool {
    let bare = Command::new(command[0]).args(&command[1..]).output().unwrap();
    if !bare.status.success() {
        testkit::skip!("kernel", "{command:?} fails here: {}", String::from_utf8_lossy(&bare.stderr));
    }
    !bare.status.success()
}

/// Linux makes a user namespace for single-threaded processes only.
#[test]
fn a_user_namespace_of_its_own() {
    if !can_manage() || !has("unshare") || !has("python3") || is_refused_bare(&["unshare", "-r", "true"]) {
        return;
    }
    let scratch = Scratch::new("namespaces");
    for command in [
        &["unshare", "-r", "python3", "-c", JOB][..],
        &["unshare", "-r", "unshare", "-rm", "python3", "-c", JOB],
    ] {
        let (output, report) = managed("40M", &scratch, &["-q"], command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(0), &b"134400\n"[..]),
            "{said} {report}"
        );
        assert!(report["zswpout"].as_u64().unwrap() > 1000, "not paged: {report}");
        assert_eq!(report["unmanaged"].as_array().map(Vec::len), Some(0), "{report}");
    }
}

/// The supervisor's address exists in its own network namespace only: such programs were in no
/// book. Where the object cannot be loaded, the report says why they are not managed.
#[test]
fn a_network_namespace_of_its_own() {
    if !can_manage() || !has("unshare") || !has("python3") || is_refused_bare(&["unshare", "-rn", "true"]) {
        return;
    }
    let scratch = Scratch::new("network-namespaces");
    for (how, seconds) in [("-n", 60), ("-rn", 10), ("-rnpf", 10)] {
        if is_refused_bare(&["unshare", how, "true"]) {
            continue;
        }
        // The supervisor takes a while to find it.
        let job = format!(
            "import os, time\n{JOB}\nend = time.time() + {seconds}\n\
             resident = lambda: open('/proc/thread-self/statm').read().split()[1]\n\
             while int(resident()) > 15000 and time.time() < end: sum(a[i + 7] for i in range(0, len(a), 4096))\n\
             if os.fork() == 0:\n  print(sum(a[i + 7] for i in range(0, len(a), 4096)), flush=True)\n  \
             os._exit(0)\nos.wait()"
        );
        let (output, report) = managed("40M", &scratch, &["-q"], &["unshare", how, "python3", "-c", &job]);
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            (output.status.code(), &*printed),
            (Some(0), "134400\n134400\n"),
            "{how}: {said} {report}"
        );
        let is_paged = report["zswpout"].as_u64().unwrap() > 1000;
        let is_named = report["unmanaged"].as_array().is_some_and(|named| !named.is_empty());
        assert!(is_paged && !is_named || how != "-n" && is_named, "{how}: {report}");
    }
}

/// Chromium's first process ends when it is not single-threaded.
#[test]
fn threads_that_a_program_counts_are_its_own() {
    if !can_manage() || !has("python3") {
        return;
    }
    let script = "import os, threading, time\n\
                  proc = os.open('/proc', os.O_RDONLY)\n\
                  links = lambda: os.stat('self/task/', dir_fd=proc).st_nlink\n\
                  print(links())\n\
                  threading.Thread(target=time.sleep, args=[1]).start()\n\
                  print(links())\n";
    let output = uzswap().args(["run", "-q", "--ram", "1G", "--", "python3", "-c", script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "3\n4\n", "{}", String::from_utf8_lossy(&output.stderr));
}
