//! A watched program: if its processes do not end in time, prints what they wait for and kills all.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{read_dir, read_link, read_to_string, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{signal, text, Ran, Scratch};

/// Runs a command in a new process group, for at most `limit`. Its output goes to files, so that it
/// never waits for a reader.
pub fn watch(command: &mut Command, limit: Duration) -> Ran {
    let scratch = Scratch::new("watched");
    let (output, errors) = (scratch.path("output"), scratch.path("errors"));
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(File::create(&output).unwrap())
        .stderr(File::create(&errors).unwrap())
        .process_group(0)
        .spawn()
        .expect("the command starts");
    let mut waited_for = String::new();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if start.elapsed() > limit {
            waited_for = format!("hangs after {} s:\n{}", limit.as_secs(), threads_of(child.id()));
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let took = start.elapsed();
    for process in processes_of(child.id()) {
        signal(process, libc::SIGKILL);
    }
    child.wait().unwrap();
    let read = |path| text(&std::fs::read(path).unwrap());
    let (printed, said) = (read(output), read(errors) + &waited_for);
    Ran { command: format!("{command:?}"), status, printed, said, report: Value::Null, took }
}

fn processes_of(group: u32) -> Vec<u32> {
    super::processes(|_, fields| fields[2] == group.to_string())
}

/// Backtraces, if gdb can read the memory in time: the server of that memory may be stopped.
fn backtraces(process: u32) -> String {
    let mut gdb = Command::new("timeout");
    gdb.args(["-s", "KILL", "20", "gdb", "-batch", "-ex", "thread apply all backtrace 16"]);
    let output = gdb.arg("-p").arg(process.to_string()).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = output.map_or_else(|_| String::new(), |output| text(&output.stdout));
    let is_place = |line: &&str| line.starts_with('#') || line.starts_with("Thread ");
    text.lines().filter(is_place).map(|line| format!("    {line}\n")).collect()
}

fn threads_of(group: u32) -> String {
    let mut text = String::new();
    for process in processes_of(group) {
        let root = format!("/proc/{process}");
        let program = read_link(format!("{root}/exe")).unwrap_or_default();
        writeln!(text, "process {process}, {}", program.display()).unwrap();
        let mut alike = BTreeMap::<String, usize>::new();
        for task in read_dir(format!("{root}/task")).into_iter().flatten().flatten() {
            *alike.entry(thread(&task.path())).or_default() += 1;
        }
        for (thread, count) in alike {
            writeln!(text, "  {count} of {thread}").unwrap();
        }
        text += &backtraces(process);
    }
    text
}

fn thread(task: &Path) -> String {
    let read = |name: &str| read_to_string(task.join(name)).unwrap_or_default().trim().to_owned();
    let status = read("status");
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("gone").trim();
    // The call's number and first arguments: for futex(2) the word and its expected value.
    let call = read("syscall").split(' ').take(4).collect::<Vec<_>>().join(" ");
    let stack = read("stack").replace('\n', "\n      ");
    format!("{}: {state}, in {}, system call {call}\n      {stack}", read("comm"), read("wchan"))
}
