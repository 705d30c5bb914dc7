//! Attacks on a run by outside processes, of other users and the same, and by hostile members.

mod support;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use support::{can_manage, compile, has, managed, uzswap, Scratch};

struct Programs {
    directory: PathBuf,
    intruder: String,
    workload: String,
}

const OTHER_USER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

impl Programs {
    fn new(name: &str) -> Option<Programs> {
        if !can_manage() || !has("cc") {
            return None;
        }
        let directory = std::env::temp_dir().join(format!("uzswap-intruders-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        let built = |name: &str| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/workloads/{name}.c"));
            let target = directory.join(name);
            assert!(compile(&source, &target));
            target.to_str().unwrap().to_owned()
        };
        let (intruder, workload) = (built("intruder"), built("traps"));
        Some(Programs { directory, intruder, workload })
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn can_become_another() -> bool {
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        testkit::skip!("root", "only root can become another user");
    }
    is_root && has("setpriv")
}

fn said(output: &Output) -> (String, String) {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).into()
}

fn busy(programs: &Programs, scratch: &Scratch) -> Child {
    let script = format!(
        "read go; i=0; while [ $i -lt 3 ]; do {} plain 64 || exit 9; i=$((i+1)); done",
        programs.workload
    );
    let mut run = uzswap();
    run.args(["run", "--ram", "40M", "--report"]).arg(scratch.path("report.json"));
    run.args(["--", "sh", "-c", &script]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait_for_address(run: &Child) {
    let address = format!("@uzswap-{}-", run.id());
    while !std::fs::read_to_string("/proc/net/unix").unwrap().contains(&address) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn report(scratch: &Scratch) -> Value {
    serde_json::from_str(&std::fs::read_to_string(scratch.path("report.json")).unwrap()).unwrap()
}

/// Ten thousand connections of all kinds, from another user and from a process of the same user
/// outside the tree, while the tree pages.
#[test]
fn strangers_get_nothing_and_leave_nothing() {
    let Some(programs) = Programs::new("strangers") else { return };
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("intruders-strangers");
    let mut run = busy(&programs, &scratch);
    let supervisor = run.id().to_string();
    let attack = |user: &[&str]| {
        let words = [user, &[&programs.intruder, "outside", &supervisor, "5000"]].concat();
        Command::new(words[0]).args(&words[1..]).stdout(Stdio::piped()).spawn().unwrap()
    };
    wait_for_address(&run);
    let mut attackers = vec![attack(&[])];
    if can_become_another() {
        attackers.push(attack(&OTHER_USER));
    }
    drop(run.stdin.take());
    let mut connections = 0;
    for attacker in attackers {
        let output = attacker.wait_with_output().unwrap();
        let (text, _) = said(&output);
        assert!(output.status.success(), "{text}");
        connections += text.split(' ').next().unwrap().parse::<u64>().unwrap();
    }
    let output = run.wait_with_output().unwrap();
    let (_, errors) = said(&output);
    let report = report(&scratch);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(!errors.contains("FORGED") && !errors.contains('\x1b'), "{errors}");
    assert!(!report.to_string().contains("FORGED"), "{report}");
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{report}");
    // Some connections may have waited when the run ended; the suite's own stranger makes others.
    let refused = report["refused_connections"].as_u64().unwrap();
    assert!(connections > 100 && refused + 1024 >= connections, "{connections}: {report}");
    let over = report["over_limit_peak_bytes"].as_u64().unwrap();
    assert!(over < 64 << 20, "{report}");
}

/// Descriptors that take an hour to close, from outside and inside the tree, and userfaultfds that
/// block their readers: the supervisor waits for none of them.
#[test]
fn the_supervisor_waits_for_no_descriptor() {
    let Some(programs) = Programs::new("linger") else { return };
    let scratch = Scratch::new("intruders-linger");
    let script = format!(
        "read go; {} hold > held & hostile=$!; until grep -q held held; do sleep 0.01; done; {} plain 64; end=$?; \
         kill $hostile; exit $end",
        programs.intruder, programs.workload
    );
    let mut run = uzswap();
    run.current_dir(scratch.path("")).args(["run", "--ram", "40M", "--report", "report.json"]);
    run.args(["--", "sh", "-c", &script]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_address(&run);
    let supervisor = run.id().to_string();
    let user = if can_become_another() { &OTHER_USER[..] } else { &[] };
    let words = [user, &[&programs.intruder, "linger", &supervisor]].concat();
    let mut stranger = Command::new(words[0]).args(&words[1..]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stranger.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "sent\n");
    drop(run.stdin.take());
    let began = std::time::Instant::now();
    while run.try_wait().unwrap().is_none() {
        if began.elapsed().as_secs() > 300 {
            run.kill().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{:?}", said(&output));
    let report = report(&scratch);
    assert!(report["refused_connections"].as_u64().unwrap() >= 100, "{report}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "{report}");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Returns the named sockets of a process's threads, from /proc/net/unix.
fn names_of(pid: i32) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let files =
        tasks.flat_map(|task| std::fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten());
    let links: Vec<PathBuf> = files.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    let named = sockets.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, _, _, inode, name] = fields[..] else { return None };
        links.contains(&PathBuf::from(format!("socket:[{inode}]"))).then(|| name.to_owned())
    });
    named.collect()
}

/// Regression: nine strangers connected to the address at which a program's agent listened for its
/// forks, and the next fork blocked for ever.
#[test]
fn a_program_that_forks_has_no_name_that_a_stranger_can_reach() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("intruders-names");
    let Some(workload) = support::workload_in(&scratch, "forks") else { return };
    let mut run = uzswap();
    run.args(["run", "-q", "--ram", "30M", "--", &workload, "storm", "60", "fork"]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(run.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "round", "it forks with pages out");
    let supervisor = children(run.id(), "uzswap-serve").first().copied().unwrap_or(run.id() as i32);
    let mut looked_at = 0;
    for line in lines {
        for program in children(supervisor as u32, "forks") {
            assert_eq!(names_of(program), [] as [&str; 0]);
            looked_at += 1;
        }
        assert!(["round", "right"].contains(&&*line.unwrap()));
    }
    assert!(looked_at > 10, "{looked_at}");
    assert_eq!(run.wait().unwrap().code(), Some(0));
}

/// A process that becomes another user receives that user's ledger, swap file and key, no other's.
#[test]
fn users_of_a_tree_share_nothing_writable() {
    let Some(programs) = Programs::new("users") else { return };
    if !can_become_another() {
        return;
    }
    let scratch = Scratch::new("intruders-users");
    let join = format!("{} join", programs.intruder);
    let script =
        format!("{join} && {join} && {} {join} && {} {join}", OTHER_USER.join(" "), OTHER_USER.join(" "));
    let (output, report) = managed("64M", &scratch, &["-q", "--swap", "64M"], &["sh", "-c", &script]);
    let (text, errors) = said(&output);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{text}");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!((&lines[0], &lines[2]), (&lines[1], &lines[3]), "{text}");
    for at in [3, 5, 7, 9] {
        assert_ne!(lines[0][at], lines[2][at], "{text}");
        assert_ne!(lines[0][at], "0", "{text}");
        assert_ne!(lines[2][at], "0", "{text}");
    }
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{report}");
}

/// Two users' processes page at the same time in one budget, each to a swap file of its own.
#[test]
fn users_of_a_tree_page_in_one_budget() {
    let Some(programs) = Programs::new("budget") else { return };
    if !can_become_another() || !can_manage() || !Path::new("/dev/userfaultfd").exists() {
        return;
    }
    for options in [&["-q"][..], &["-q", "--swap", "64M"]] {
        let scratch = Scratch::new("intruders-budget");
        let plain = format!("{} plain 64", programs.workload);
        let script = format!("{plain} & first=$!; {} {plain} & wait $! && wait $first", OTHER_USER.join(" "));
        let (output, report) = managed("60M", &scratch, options, &["sh", "-c", &script]);
        let (text, errors) = said(&output);
        assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{text} {report}");
        assert_eq!(report["unmanaged"], serde_json::json!([]), "{report}");
        assert!(report["zswpout"].as_u64().unwrap() > 2000, "{report}");
        // Either may fill its memory before the files for paging are open, but not later.
        let used = report["series"]["ram_used_bytes"].as_array().unwrap();
        let settled = used[used.len() / 2..].iter().map(|bytes| bytes.as_u64().unwrap());
        assert!(settled.max().unwrap() < 68 << 20, "{report}");
    }
}

/// A process of the tree writes random words into its shared ledger: its relatives' bytes stay
/// right, and the report mentions an exceeded budget.
#[test]
fn a_ledger_of_garbage_harms_no_relative() {
    let Some(programs) = Programs::new("garbage") else { return };
    for options in [&["--swap", "256M"][..], &[]] {
        let scratch = Scratch::new("intruders-garbage");
        let script = format!(
            "{} garbage & hostile=$!; {w} plain 64 && {w} threads 64 && {w} fork 64; end=$?; kill $hostile; exit $end",
            programs.intruder,
            w = programs.workload
        );
        let command = ["timeout", "300", "sh", "-c", &script];
        let (output, report) = managed("40M", &scratch, options, &command);
        let (_, errors) = said(&output);
        assert_eq!(output.status.code(), Some(0), "{options:?}: {errors}");
        assert_eq!(report["failures"], serde_json::json!([]), "{report}");
        assert!(report["corrected_totals"].as_u64().unwrap() > 10, "{report}");
        assert!(errors.contains("the shared total was corrected"), "{errors}");
        let over = report["over_limit_peak_bytes"].as_u64().unwrap();
        assert!(over < 16 << 20 || errors.contains("the budget was exceeded"), "{over}: {errors}");
    }
}

/// Of a thousand descriptors and a hundred thousand lines few are kept; a terminal obeys none.
#[test]
fn a_noisy_process_is_bounded() {
    let Some(programs) = Programs::new("noise") else { return };
    let scratch = Scratch::new("intruders-noise");
    let script = format!("timeout 300 {} noise $PPID", programs.intruder);
    let (output, report) = managed("64M", &scratch, &["-q"], &["sh", "-c", &script]);
    let (text, errors) = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text} {errors}");
    let more = text.strip_prefix("descriptors ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(more.parse::<i64>().unwrap() < 64, "{text}");
    assert!(errors.lines().count() <= 200, "{} lines", errors.lines().count());
    assert!(errors.lines().all(|line| line.starts_with("uzswap: process ")), "{errors}");
    let all = errors + &report.to_string();
    assert!(!all.contains(['\x1b', '\x07', '\r', '\u{9b}']), "{all}");
    assert!(all.contains("\\u{1b}[2J"), "{all}");
    assert!(report["unmanaged"].as_array().unwrap().len() <= 1000, "{report}");
}

#[test]
fn too_few_descriptors_are_reported() {
    if !can_manage() {
        return;
    }
    let scratch = Scratch::new("intruders-descriptors");
    let report = scratch.path("report.json");
    let inner = "i=0; while [ $i -lt 60 ]; do sleep 1 & i=$((i+1)); done; wait; ulimit -n";
    let script = format!(
        "ulimit -n 64; exec {} run -q --ram 64M --report {} -- sh -c '{inner}'",
        env!("CARGO_BIN_EXE_uzswap"),
        report.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let (text, errors) = said(&output);
    assert_eq!((output.status.code(), text.trim()), (Some(0), "64"), "{errors}");
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains("out of descriptors: raise `ulimit -n`"), "{report}");
}

#[test]
fn the_program_has_its_own_limit_of_descriptors() {
    if !can_manage() {
        return;
    }
    let inner = "ulimit -Sn; ulimit -Hn";
    let script =
        format!("ulimit -Sn 100; exec {} run -q --ram 64M -- sh -c '{inner}'", env!("CARGO_BIN_EXE_uzswap"));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let (text, errors) = said(&output);
    let bare = Command::new("sh").args(["-c", &format!("ulimit -Sn 100; {inner}")]).output().unwrap();
    assert_eq!((output.status.code(), text), (Some(0), said(&bare).0), "{errors}");
}

fn children(pid: u32, name: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |other: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{other}/stat")).unwrap_or_default();
        let Some((before, behind)) = stat.rsplit_once(')') else { return false };
        before.ends_with(&format!("({name}")) && behind.split(' ').nth(2) == Some(&pid.to_string())
    };
    numbers.filter(is_child).collect()
}

/// A killed supervisor's address is free, and its tree continues while the guardian is stopped.
/// Programs send descriptors of their memory there: a process that takes it must receive nothing.
#[test]
fn a_false_supervisor_hears_nothing() {
    if !can_manage() || !has("busybox") {
        return;
    }
    let mut run = uzswap();
    // The kernel ends the program with the supervisor, but not the program's child. That child is
    // static and small, so no agent ends it. Each program that it starts has an agent.
    run.args(["run", "-q", "--ram", "100M", "--", "busybox", "sh", "-c"]);
    run.arg(
        "busybox sh -c 'echo $$; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); /usr/bin/env true; done' & wait",
    );
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(run.stdout.take().unwrap()), &mut line).unwrap();
    let child: i32 = line.trim().parse().unwrap();
    let addresses = std::fs::read_to_string("/proc/net/unix").unwrap();
    let begin = format!("@uzswap-{}-", run.id());
    let name = addresses
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix('@').filter(|_| word.starts_with(&begin)));
    let name = name.expect("the supervisor listens").to_owned();
    let supervisor: u32 = name.split('-').nth(2).unwrap().parse().unwrap();
    let guardian = children(supervisor, "uzswap-guardian");
    assert_eq!(guardian.len(), 1);
    // The guardian holds the object that programs load, so it stays.
    for (pid, signal) in [(guardian[0], libc::SIGSTOP), (supervisor as i32, libc::SIGKILL)] {
        // SAFETY: signals to processes of this test's run.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
    let listener = loop {
        if let Ok(listener) = listen(&name) {
            break listener;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    for _ in 0..3 {
        let mut entry = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let (none, mut byte) = (std::ptr::null_mut(), 0u8);
        // SAFETY: valid addresses of those sizes; this function owns the accepted socket.
        let heard = unsafe {
            assert_eq!(libc::poll(&mut entry, 1, 60_000), 1, "programs still look for their supervisor");
            let socket = OwnedFd::from_raw_fd(libc::accept(listener.as_raw_fd(), none, none.cast()));
            libc::recv(socket.as_raw_fd(), std::ptr::from_mut(&mut byte).cast(), 1, 0)
        };
        assert!(heard <= 0, "it was told something");
    }
    for pid in [child, guardian[0]] {
        // SAFETY: signals to processes of this test's run.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    run.wait().unwrap();
}

fn listen(name: &str) -> std::io::Result<OwnedFd> {
    // SAFETY: plain numbers and bytes of the given length; the socket is new.
    unsafe {
        let socket =
            OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0));
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let len = (std::mem::size_of::<libc::sa_family_t>() + 1 + name.len()) as libc::socklen_t;
        let answer = libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len);
        match answer == 0 && libc::listen(socket.as_raw_fd(), 64) == 0 {
            true => Ok(socket),
            false => Err(std::io::Error::last_os_error()),
        }
    }
}
