//! The program's contract: arguments, exit statuses, untouched state and leftovers.

mod support;

use std::process::{Command, Stdio};

use support::{can_manage, managed, uzswap, Scratch};

fn stderr_of(arguments: &[&str]) -> (Option<i32>, String) {
    let output = uzswap().args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// As on a kernel without `UFFDIO_MOVE`: the program is not started.
#[test]
fn kernels_that_are_too_old_are_named_with_those_that_are_not() {
    if !can_manage() {
        return;
    }
    let output = uzswap()
        .env("UZSWAP_WITHOUT", "move")
        .args(["run", "--ram", "64M", "--", "echo", "started"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(125), &b""[..]), "{said}");
    let release = sys::kernel::release();
    for word in ["needs Linux 6.", &format!("this is Linux {release}"), "uname -r", "Debian 13", "Fedora"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn bad_arguments_name_cause_and_fix() {
    for (arguments, words) in [
        (&["run", "--ram", "12Q", "--", "true"][..], &["12Q", "512M"][..]),
        (&["run", "--ram", "10K", "--", "true"], &["the minimum is 16 MiB"]),
        (&["run", "--ram", "200%", "--", "true"], &["200%", "up to 100"]),
        (&["run", "--ram", "0", "--", "true"], &["the minimum is 16 MiB"]),
        (&["run", "--ram", "99999999999T", "--", "true"], &["more than any machine can address"]),
        (&["run", "--rma", "64M", "--", "true"], &["--rma", "a similar argument exists: '--ram'"]),
        (&["run", "--rma", "64M", "true"], &["--rma", "a similar argument exists: '--ram'"]),
        (&["run", "--ram", "1G", "--compressor", "nope", "--", "true"], &["nope", "lz4", "zstd"]),
        (
            &["run", "--ram", "1G", "--report", "/no/such/dir/r.json", "--", "true"],
            &["/no/such/dir/r.json", "--report"],
        ),
        (&["run", "--ram", "-5", "--", "true"], &["--ram: \"-5\" is not a size", "512M"]),
        (&["run", "--ram", "-5G", "true"], &["--ram: \"-5G\" is not a size", "512M"]),
        (&["run", "--swap", "-1G", "true"], &["--swap: \"-1G\" is not a size", "512M"]),
        (
            &["run", "--cgroup-limit", "zzz", "true"],
            &["--cgroup-limit: \"zzz\" is not a size", "or write real"],
        ),
        (&["run", "--cgroup-limit", "0", "true"], &["--cgroup-limit 0", "real is the actual limit"]),
        (&["rnu", "--", "true"], &["rnu", "a similar subcommand exists: 'run'"]),
        (&["device", "swp"], &["swp", "a similar subcommand exists: 'swap'"]),
        (&["run"], &["<PROGRAM>"]),
        (&["frobnicate"], &["frobnicate"]),
        (&[], &["Usage: uzswap"]),
        (
            &["run", "--ram", "1G", "--compressor", "lz4:0", "--", "true"],
            &["lz4:0", "1 to 65537", "write lz4[:ACCEL]"],
        ),
        (&["top", "--interval", "0"], &["from 0.05"]),
        (&["pages", "compress", "/tmp", "/dev/null"], &["/tmp is a directory"]),
        (&["pages", "capture", "--pid", "4194305", "-o", "/dev/null"], &["no process 4194305"]),
        (&["trial-task", "many"], &["many"]),
    ] {
        let (status, said) = stderr_of(arguments);
        assert_eq!(status, Some(125), "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?} says {word:?}: {said}");
        }
    }
}

#[test]
fn a_report_that_cannot_be_written_stops_the_program_from_starting() {
    let scratch = Scratch::new("unstarted");
    let mark = scratch.path("mark");
    let (status, _) = stderr_of(&[
        "run",
        "--ram",
        "1G",
        "--report",
        "/no/such/dir/r",
        "--",
        "touch",
        mark.to_str().unwrap(),
    ]);
    assert_eq!(status, Some(125));
    assert!(!mark.exists());
}

#[test]
fn exit_statuses_are_the_programs_own() {
    if !can_manage() {
        return;
    }
    let run = |command: &[&str]| stderr_of(&[&["run", "-q", "--ram", "1G", "--"], command].concat()).0;
    assert_eq!(run(&["true"]), Some(0));
    assert_eq!(run(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(run(&["sh", "-c", "kill -TERM $$"]), Some(128 + 15));
    assert_eq!(run(&["sh", "-c", "kill -KILL $$"]), Some(128 + 9));
    assert_eq!(run(&["no-such-program-anywhere"]), Some(127));
    assert_eq!(run(&["/etc/passwd"]), Some(126));
}

/// As env(1), nice(1) and docker-run(1) do.
#[test]
fn two_dashes_before_the_program_are_optional() {
    if !can_manage() {
        return;
    }
    let script = "printf '%s;' \"$@\"";
    let arguments = ["sh", "-c", script, "sh", "--ram", "-q", "--", "x"];
    for dashes in [&["--"][..], &[]] {
        let output =
            uzswap().args(["run", "-q", "--ram", "1G"]).args(dashes).args(arguments).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "--ram;-q;--;x;", "{dashes:?}: {output:?}");
    }
}

#[test]
fn a_budget_beyond_the_machine_is_warned_of() {
    if !can_manage() {
        return;
    }
    let (status, said) = stderr_of(&["run", "--ram", "99999G", "--", "true"]);
    assert_eq!(status, Some(0));
    assert!(said.contains("--ram 99999G") && said.contains("below its budget"), "{said}");
}

#[test]
fn help_and_the_version_are_asked_for() {
    for arguments in [&["--help"][..], &["run", "--help"], &["help", "pages"], &["--version"]] {
        let output = uzswap().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("uzswap "), "{arguments:?}");
    }
}

/// Each has the shell's status, a cause and advice.
#[test]
fn programs_that_cannot_be_started_are_named_with_the_reason() {
    let scratch = Scratch::new("unstartable");
    let (closed, data) = (scratch.path("closed"), scratch.write("data", "text"));
    std::fs::create_dir(&closed).unwrap();
    std::fs::write(closed.join("program"), "").unwrap();
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
    let (closed, data) = (closed.join("program"), data.to_str().unwrap().to_owned());
    let mut cases = vec![
        ("", 127, "the program's name is empty: write"),
        ("no-such-program", 127, "not found: is it installed"),
        ("/no/such/program", 127, "not found: is it installed"),
        ("/usr", 126, "is a directory: write the path"),
        (&data, 126, "found, but not executable: `chmod +x` it"),
    ];
    // Root may enter every directory.
    if std::fs::metadata(&closed).is_err() {
        cases.push((closed.to_str().unwrap(), 126, "permission denied: a directory of its path"));
    }
    for (program, status, reason) in cases {
        let (ended, said) = stderr_of(&["run", "-q", "--ram", "1G", "--", program]);
        assert_eq!(ended, Some(status), "{program}: {said}");
        assert!(said.starts_with(&format!("uzswap: {program}: {reason}")), "{said}");
    }
}

#[test]
fn what_is_missing_behind_a_program_is_named() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("interpreter");
    let script = scratch.write("script", "#! /no/such/shell -e\n");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (status, said) = stderr_of(&["run", "-q", "--ram", "1G", "--", script.to_str().unwrap()]);
    assert_eq!(status, Some(127), "{said}");
    assert!(said.contains("its interpreter /no/such/shell is missing"), "{said}");
}

#[test]
fn files_of_pages_are_not_destroyed_by_a_slip() {
    let scratch = Scratch::new("slip");
    let pages = scratch.path("some.pages");
    std::fs::write(&pages, [7; 8192]).unwrap();
    let name = pages.to_str().unwrap();
    let (status, said) = stderr_of(&["pages", "compress", name, name]);
    assert!(status == Some(125) && said.contains("the same file"), "{said}");
    let (status, _) = stderr_of(&["pages", "capture", "--pid", "4194305", "--output", name]);
    assert_eq!(status, Some(125));
    assert_eq!(std::fs::read(&pages).unwrap(), [7; 8192]);
    let (records, again) = (scratch.path("records"), scratch.path("again"));
    let (records, again) = (records.to_str().unwrap(), again.to_str().unwrap());
    assert_eq!(stderr_of(&["pages", "compress", name, records]).0, Some(0));
    assert_eq!(stderr_of(&["pages", "decompress", records, again]).0, Some(0));
    assert_eq!(std::fs::read(again).unwrap(), [7; 8192]);
}

fn unread() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

/// Unwritable messages do not change the exit status; unread output ends the program quietly.
#[test]
fn broken_pipes_end_quietly() {
    for (arguments, status) in [
        (&["check"][..], 141),
        (&["check", "--json"], 141),
        (&["completions", "bash"], 141),
        (&["--help"], 0),
    ] {
        let output = uzswap().args(arguments).stdout(unread()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(status), ""), "{arguments:?}");
    }
    for arguments in [
        &["run", "--ram", "0", "true"][..],
        &["run", "--rma", "1G", "true"],
        &["run", "--ram", "1G", "/none"],
    ] {
        let silent = uzswap().args(arguments).stderr(unread()).output().unwrap();
        let output = uzswap().args(arguments).output().unwrap();
        assert_eq!(silent.status.code(), output.status.code(), "{arguments:?}");
    }
    if can_manage() {
        let run = ["run", "--ram", "64M", "sh", "-c", "exit 3"];
        let output = uzswap().args(run).stderr(unread()).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "the summary cannot be printed");
    }
}

#[test]
fn closed_standard_streams_stay_closed() {
    if !can_manage() || !support::has("sh") {
        return;
    }
    let program = env!("CARGO_BIN_EXE_uzswap");
    let status =
        |script: &str| Command::new("sh").args(["-c", script]).stderr(Stdio::null()).status().unwrap();
    for redirection in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ""] {
        // A bit mask of open descriptors 0, 1 and 2.
        let look = "n=0; for i in 0 1 2; do [ -e /proc/$$/fd/$i ] && n=$((n * 2 + 1)) || n=$((n * 2)); done; exit $n";
        let bare = status(&format!("sh -c '{look}' {redirection}"));
        let managed = status(&format!("{program} run -q --ram 1G -- sh -c '{look}' {redirection}"));
        assert_eq!(managed.code(), bare.code(), "{redirection}");
    }
}

#[test]
fn standard_streams_are_the_programs() {
    if !can_manage() {
        return;
    }
    let mut child = uzswap()
        .args(["run", "-q", "--ram", "1G", "--", "sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"through\n"[..], &b"err\n"[..]));
}

#[test]
fn signals_sent_to_uzswap_reach_the_program() {
    if !can_manage() {
        return;
    }
    let script = "trap 'echo got; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let mut child = uzswap()
        .args(["run", "-q", "--ram", "1G", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(Command::new("kill").args(["-USR1", &child.id().to_string()]).status().unwrap().success());
    line.clear();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "got\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn nothing_outlives_a_killed_supervisor() {
    if !can_manage() {
        return;
    }
    let script = "sleep 1000 & echo $! $$; wait";
    let mut child = uzswap()
        .args(["run", "-q", "--ram", "1G", "--", "bash", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let pids: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    assert_eq!(pids.len(), 2);
    // The sleep may still be before its exec, where only the guardian finds it.
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = |pid: &String| match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text.contains(") Z "),
        Err(_) => true,
    };
    for _ in 0..200 {
        if pids.iter().all(gone) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("processes {pids:?} are still there");
}

#[test]
fn a_small_static_program_runs_and_is_let_alone() {
    if !can_manage() || !support::has("cc") {
        return;
    }
    let scratch = Scratch::new("static");
    let source = scratch.write("s.c", "int main(void) { return 5; }\n");
    let target = scratch.path("s");
    let built = Command::new("cc").arg("-static").arg("-o").arg(&target).arg(&source).output().unwrap();
    if !built.status.success() {
        testkit::skip!("tool", "no static C library");
        return;
    }
    let (output, report) = managed("64M", &scratch, &["-q"], &[target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{report}");
}

#[test]
fn the_report_has_every_key() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("keys");
    let (output, report) = managed("1G", &scratch, &[], &["true"]);
    assert!(output.status.success());
    for key in [
        "zswpout",
        "zswpin",
        "zswpwb",
        "stored_pages",
        "pool_total_size",
        "stored_incompressible_pages",
        "reject_compress_poor",
        "reject_compress_fail",
        "reject_alloc_fail",
        "pool_limit_hit",
        "ram_limit_bytes",
        "cgroup_limit_bytes",
        "ram_peak_bytes",
        "compression_ratio",
        "faults",
        "fault_latency_us",
        "batches",
        "pages_per_batch",
    ] {
        assert!(!report[key].is_null(), "{key} in {report}");
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("1 GiB allowed"));
}

#[test]
fn shared_memory_beside_the_budget_is_told() {
    if !can_manage() || !support::has("python3") {
        return;
    }
    let scratch = Scratch::new("shared");
    // Strangers are searched twice a second; a busy machine may take longer.
    for seconds in [1, 4, 16] {
        let script = format!(
            "import mmap, time; m = mmap.mmap(-1, 48 << 20); [m.write(bytes(range(256)) * 4096) for _ in range(48)]; time.sleep({seconds})"
        );
        let (output, report) = managed("128M", &scratch, &[], &["python3", "-c", &script]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        if report["shared_peak_bytes"].as_u64().unwrap() >= 48 << 20 {
            assert!(said.contains(" of shared memory, which is not paged"), "{said}");
            assert!(report["ram_peak_bytes"].as_u64().unwrap() < 48 << 20, "{report:#}");
            return;
        }
    }
    panic!("shared memory was not seen");
}

/// A core dump lacks evicted pages: its reader must be told.
#[test]
fn a_core_dump_that_lacks_pages_is_named() {
    if !can_manage() {
        return;
    }
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('|') || pattern.contains('/') || pattern.trim().is_empty() {
        testkit::skip!("kernel", "core dumps do not go to the current directory here ({})", pattern.trim());
        return;
    }
    let scratch = Scratch::new("core");
    let script = scratch.write(
        "abort.py",
        "import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))\n\
         data = [b'%d ' % n * 900 for n in range(20000)]\nos.abort()\n",
    );
    for (ram, is_whole) in [("32M", false), ("1G", true)] {
        let output = uzswap()
            .current_dir(script.parent().unwrap())
            .args(["run", "-q", "--ram", ram, "--", "python3", script.to_str().unwrap()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(128 + libc::SIGABRT), "{said}");
        let is_there = std::fs::read_dir(script.parent().unwrap())
            .unwrap()
            .any(|file| file.unwrap().file_name().to_string_lossy().starts_with("core"));
        if !is_there {
            testkit::skip!("kernel", "no core dump was left");
            return;
        }
        assert_eq!(said.contains("the core dump reads as zeroes where"), !is_whole, "{ram}: {said}");
    }
}
