//! The program's contract: arguments, exit statuses, untouched state and leftovers.

mod support;

use support::{
    can_link_statically, can_manage, command, has, is_alive, managed, printed, run, set_mode, signal, uzswap,
    uzswap_with, wait_until, Ran, Scratch, Started, PROGRAM,
};

/// As on a kernel without `UFFDIO_MOVE`: the program is not started.
#[test]
fn kernels_that_are_too_old_are_named_with_those_that_are_not() {
    if !can_manage() {
        return;
    }
    let ran = Ran::of(run("64M", &[], &["echo", "started"]).env("UZSWAP_WITHOUT", "move"));
    let release = format!("this is Linux {}", sys::kernel::release());
    ran.assert_status(125).assert_says(&["needs Linux 6.", &release, "uname -r", "Debian 13", "Fedora"]);
    assert_eq!(ran.printed, "", "{ran}");
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
        (&["top", "sort"], &["write a process id"]),
        (&["pause", "sort"], &["write a process id"]),
        (&["resume", "-1"], &["-1"]),
        (&["device", "ublk", "--size", "1G", "--unit", "5k"], &["--unit 5k: write 4k, 8k"]),
        (&["run", "--ram", "1G", "--swap", "5T", "true"], &["--swap 5T: the maximum is 2 TiB"]),
        (&["pages", "compress", "/tmp", "/dev/null"], &["/tmp is a directory"]),
        (&["pages", "capture", "--pid", "4194305", "-o", "/dev/null"], &["no process 4194305"]),
        (&["trial-task", "many"], &["many"]),
    ] {
        uzswap_with(arguments).assert_status(125).assert_says(words);
    }
}

#[test]
fn a_report_that_cannot_be_written_stops_the_program_from_starting() {
    let scratch = Scratch::new("unstarted");
    let mark = scratch.path("mark");
    let touch = ["touch", mark.to_str().unwrap()];
    Ran::of(&mut run("1G", &["--report", "/no/such/dir/r"], &touch)).assert_status(125);
    assert!(!mark.exists());
}

#[test]
fn exit_statuses_are_the_programs_own() {
    if !can_manage() {
        return;
    }
    for (command, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["no-such-program-anywhere"], 127),
        (&["/etc/passwd"], 126),
    ] {
        Ran::of(&mut run("1G", &["-q"], command)).assert_status(status);
    }
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
        let ran = uzswap_with(&[&["run", "-q", "--ram", "1G"], dashes, &arguments].concat());
        assert_eq!(ran.printed, "--ram;-q;--;x;", "{ran}");
    }
}

#[test]
fn a_budget_beyond_the_machine_is_warned_of() {
    let Some(ran) = managed("99999G", &[], &["true"]) else { return };
    ran.assert_status(0).assert_says(&["--ram 99999G", "below its budget"]);
}

#[test]
fn help_and_the_version_are_asked_for() {
    for arguments in [&["--help"][..], &["run", "--help"], &["help", "pages"], &["--version"]] {
        uzswap_with(arguments).assert_status(0).assert_prints(&["uzswap "]);
    }
}

/// Each has the shell's status, a cause and advice.
#[test]
fn programs_that_cannot_be_started_are_named_with_the_reason() {
    let scratch = Scratch::new("unstartable");
    let (closed, data) = (scratch.write("closed/program", ""), scratch.write("data", "text"));
    set_mode(scratch.path("closed"), 0);
    let mut cases = vec![
        ("no-such-program", 127, "not found: is it installed"),
        ("/no/such/program", 127, "not found: check the path"),
        ("/usr", 126, "is a directory: write the path"),
        (&data, 126, "found, but not executable: `chmod +x` it"),
    ];
    // Root may enter every directory.
    if std::fs::metadata(&closed).is_err() {
        cases.push((&closed, 126, "permission denied: a directory of its path"));
    }
    for (program, status, reason) in cases {
        let ran = uzswap_with(&["run", "-q", "--ram", "1G", "--", program]);
        ran.assert_status(status);
        assert!(ran.said.starts_with(&format!("uzswap: {program}: {reason}")), "{ran}");
    }
    let nameless = uzswap_with(&["run", "-q", "--ram", "1G", "--", ""]);
    nameless.assert_status(127).assert_says(&["uzswap: the program's name is empty: write"]);
}

/// A shell would interpret it, as execvp(3) has it, and its name would be said to run unmanaged.
#[test]
fn a_program_for_another_cpu_is_refused_by_name() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("foreign");
    let program = scratch.path("program");
    let machine = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    let mut head = vec![0u8; 64];
    head[..6].copy_from_slice(b"\x7fELF\x02\x01");
    (head[16], head[18]) = (2, machine);
    std::fs::write(&program, head).unwrap();
    set_mode(&program, 0o755);
    let ran = Ran::of(&mut run("1G", &[], &[program.to_str().unwrap()]));
    ran.assert_status(126).assert_says(&["for another kind of CPU", "uname -m"]);
    assert!(!ran.said.contains("unmanaged") && !ran.said.contains("not managed"), "{ran}");
}

#[test]
fn a_missing_interpreter_is_named() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("interpreter");
    let script = scratch.write("script", "#! /no/such/shell -e\n");
    set_mode(&script, 0o755);
    let ran = Ran::of(&mut run("1G", &["-q"], &[&script]));
    ran.assert_status(127).assert_says(&["its interpreter /no/such/shell is missing"]);
}

#[test]
fn files_of_pages_are_not_destroyed_by_a_slip() {
    let scratch = Scratch::new("slip");
    let pages = scratch.write("some.pages", [7; 8192]);
    uzswap_with(&["pages", "compress", &pages, &pages]).assert_status(125).assert_says(&["the same file"]);
    uzswap_with(&["pages", "capture", "--pid", "4194305", "--output", &pages]).assert_status(125);
    assert_eq!(std::fs::read(&pages).unwrap(), [7; 8192]);
    let (records, again) = (scratch.text("records"), scratch.text("again"));
    uzswap_with(&["pages", "compress", &pages, &records]).assert_status(0);
    uzswap_with(&["pages", "decompress", &records, &again]).assert_status(0);
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
        let ran = Ran::of(uzswap().args(arguments).stdout(unread()));
        assert_eq!((ran.status, &*ran.said), (Some(status), ""), "{ran}");
    }
    for arguments in [
        &["run", "--ram", "0", "true"][..],
        &["run", "--rma", "1G", "true"],
        &["run", "--ram", "1G", "/none"],
    ] {
        let silent = Ran::of(uzswap().args(arguments).stderr(unread()));
        assert_eq!(silent.status, uzswap_with(arguments).status, "{silent}");
    }
    if can_manage() {
        // The summary cannot be printed.
        Ran::of(run("64M", &[], &["sh", "-c", "exit 3"]).stderr(unread())).assert_status(3);
    }
}

#[test]
fn closed_standard_streams_stay_closed() {
    if !can_manage() {
        return;
    }
    let ran = |script: &str| Ran::of(&mut command(&["sh", "-c", script]));
    for redirection in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ""] {
        // A bit mask of open descriptors 0, 1 and 2.
        let look = "n=0; for i in 0 1 2; do [ -e /proc/$$/fd/$i ] && n=$((n * 2 + 1)) || n=$((n * 2)); done; exit $n";
        let bare = ran(&format!("sh -c '{look}' {redirection}"));
        let managed = ran(&format!("{PROGRAM} run -q --ram 1G -- sh -c '{look}' {redirection}"));
        assert_eq!(managed.status, bare.status, "{redirection}: {managed}");
    }
}

#[test]
fn standard_streams_are_the_programs() {
    if !can_manage() {
        return;
    }
    let mut run = Started::new(&mut run("1G", &["-q"], &["sh", "-c", "cat; echo err >&2"]));
    run.tell("through\n");
    let ran = run.end();
    assert_eq!((&*ran.printed, &*ran.said), ("through\n", "err\n"));
}

#[test]
fn signals_sent_to_uzswap_reach_the_program() {
    if !can_manage() {
        return;
    }
    let script = "trap 'echo got; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let mut run = Started::new(&mut run("1G", &["-q"], &["sh", "-c", script]));
    assert_eq!(run.line(), "ready");
    signal(run.pid(), libc::SIGUSR1);
    assert_eq!(run.line(), "got");
    run.end().assert_status(3);
}

#[test]
fn nothing_outlives_a_killed_supervisor() {
    if !can_manage() {
        return;
    }
    let script = "sleep 1000 & echo $! $$; wait";
    let mut run = Started::new(&mut run("1G", &["-q"], &["bash", "-c", script]));
    let pids: Vec<u32> = run.line().split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    // The sleep may still be before its exec, where only the guardian finds it.
    run.kill();
    wait_until("no process is there", || !pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn a_small_static_program_runs_unmanaged() {
    if !has("cc") || !can_link_statically() {
        return;
    }
    let scratch = Scratch::new("static");
    let target = scratch.text("s");
    let source = scratch.write("s.c", "int main(void) { return 5; }\n");
    printed(&mut command(&["cc", "-static", "-o", &target, &source]));
    let Some(ran) = managed("64M", &["-q"], &[&target]) else { return };
    ran.assert_status(5).assert_all_managed();
}

#[test]
fn the_report_has_every_key() {
    let Some(ran) = managed("1G", &[], &["true"]) else { return };
    ran.assert_status(0).assert_says(&["1 GiB allowed"]);
    let keys = "zswpout zswpin zswpwb stored_pages pool_total_size \
        reject_compress_poor reject_compress_fail reject_alloc_fail \
        ram_limit_bytes cgroup_limit_bytes ram_peak_bytes compression_ratio faults \
        fault_latency_us batches pages_per_batch \
        decompress_batches pages_per_decompress_batch";
    for key in keys.split(' ') {
        assert!(!ran.report[key].is_null(), "{key}: {ran}");
    }
}

#[test]
fn shared_memory_beside_the_budget_is_told() {
    // Strangers are searched twice a second; a busy machine may take longer.
    for seconds in [1, 4, 16] {
        let script = format!(
            "import mmap, time; m = mmap.mmap(-1, 48 << 20); [m.write(bytes(range(256)) * 4096) for _ in range(48)]; time.sleep({seconds})"
        );
        let Some(ran) = managed("128M", &[], &["python3", "-c", &script]) else { return };
        ran.assert_status(0);
        if ran.number("shared_peak_bytes") >= 48 << 20 {
            ran.assert_says(&[" of shared memory, which is not paged"]);
            assert!(ran.number("ram_peak_bytes") < 48 << 20, "{ran}");
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
        let mut run = run(ram, &["-q"], &["python3", &script]);
        let ran = Ran::of(run.current_dir(scratch.path("")));
        ran.assert_status(128 + libc::SIGABRT);
        let mut files = std::fs::read_dir(scratch.path("")).unwrap();
        if !files.any(|file| file.unwrap().file_name().to_string_lossy().starts_with("core")) {
            return testkit::skip!("kernel", "no core dump was left");
        }
        assert_eq!(ran.said.contains("the core dump reads as zeroes where"), !is_whole, "{ran}");
    }
}
