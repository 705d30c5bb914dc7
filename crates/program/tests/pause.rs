//! Looking inside a managed process: `uzswap pause` and `uzswap resume`.

#[allow(dead_code)]
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use support::{can_manage, has, uzswap};

/// Prints its process and an address, and says what it has there when it is told to.
const SCRIPT: &str = "
import ctypes, os, sys
data = [bytes([n % 251]) * 4096 for n in range(24000)]
print(os.getpid(), id(data[7]), flush=True)
sys.stdin.readline()
print(sum(part[9] for part in data), flush=True)
sys.stdin.readline()
";

#[test]
fn a_paused_process_can_be_read_and_goes_on() {
    if !can_manage() || !has("python3") {
        return;
    }
    let mut run = uzswap();
    run.args(["run", "-q", "--ram", "50M", "--", "python3", "-c", SCRIPT]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let (pid, at) = first.split_once(' ').unwrap();
    let at: u64 = at.parse().unwrap();

    let paused = uzswap().args(["pause", pid, "--json"]).output().unwrap();
    assert!(paused.status.success(), "{}", String::from_utf8_lossy(&paused.stderr));
    assert!(String::from_utf8_lossy(&paused.stdout).contains("\"paused\":true"));
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut bytes = vec![0; 4096];
    memory.read_exact_at(&mut bytes, at + 40).expect("every page is in");
    assert!(bytes[..4000].iter().all(|byte| *byte == 7));
    if has("gdb") {
        let script = format!("x/1xb {}", at + 40);
        let gdb = Command::new("gdb").args(["-p", pid, "-batch", "-ex", &script]).output().unwrap();
        let text = String::from_utf8_lossy(&gdb.stdout).into_owned();
        assert!(text.contains("0x07"), "{text}");
    } else {
        println!("skipped: gdb is not installed");
    }
    // The whole tree by its supervisor.
    let resumed = uzswap().args(["resume", &child.id().to_string()]).output().unwrap();
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    assert!(String::from_utf8_lossy(&resumed.stdout).contains("goes on"));

    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    let expected: u64 = (0..24000u64).map(|n| n % 251).sum();
    assert_eq!(lines.next().unwrap().unwrap(), expected.to_string());
    stdin.write_all(b"\n").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_process_that_is_not_managed_is_named() {
    let answer = uzswap().args(["pause", "1"]).output().unwrap();
    assert_eq!(answer.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&answer.stderr).contains("no managed process 1"));
}
