//! Failing disks under `uzswap run --swap`: the program has the right bytes, or ends with a message
//! that names the page and the file. It never hangs and never reads zeroes or another page.

#[path = "support/between.rs"]
mod between;
mod support;
#[path = "support/tree.rs"]
mod tree;

use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

use between::{put_between, Answer, Call, Kind};
use support::{uzswap, workload_in, Scratch};
use tree::watch;

/// MiB of the workload's data, and its budget.
const DATA: &str = "64";
const RAM: &str = "32M";
/// Time limit; the slowest run takes seconds.
const LIMIT: Duration = Duration::from_secs(300);

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("swap-faults-workload");
        workload_in(&scratch, "swap").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

struct Ran {
    status: Option<i32>,
    said: String,
    report: serde_json::Value,
}

impl Ran {
    fn number(&self, name: &str) -> u64 {
        let value = self.report.pointer(name).and_then(serde_json::Value::as_u64);
        value.unwrap_or_else(|| panic!("{name}: {}; {}", self.report, self.said))
    }

    fn assert_right(&self) {
        assert_eq!(self.status, Some(0), "{}", self.said);
        assert_eq!(self.report["failures"], serde_json::json!([]), "{}", self.said);
    }

    /// uzswap ended the program, naming a page and the file, before it saw a wrong byte.
    fn assert_lost(&self) {
        assert_eq!(self.status, Some(125), "{}", self.said);
        let failure = self.report["failures"][0].as_str().unwrap_or_else(|| panic!("{}", self.report));
        assert!(failure.contains("is lost") && failure.contains("page 0x"), "{failure}");
        assert!(failure.contains("swap file"), "{failure}");
        assert!(!self.said.contains("wrong:"), "{}", self.said);
    }
}

/// Runs the workload's `mode`; `judge` decides about each transfer of its swap file. `None` where
/// that is impossible.
fn run(name: &str, mode: &[&str], judge: impl FnMut(&Call) -> Answer + Send + 'static) -> Option<Ran> {
    let workload = workload()?;
    let scratch = Scratch::new(&format!("swap-faults-{name}"));
    let (directory, report) = (scratch.path("swap"), scratch.path("report.json"));
    std::fs::create_dir_all(&directory).unwrap();
    if let Some(kind) = sys::files::memory_file_system(&std::fs::File::open(&directory).unwrap()).unwrap() {
        testkit::skip!("disk", "{} is in memory ({kind})", directory.display());
        return None;
    }
    let mut command = uzswap();
    command.args(["run", "--ram", RAM, "--swap", "512M", "--swap-dir"]).arg(&directory);
    command.arg("--report").arg(&report).arg("--").arg(workload).args(mode);
    let device = put_between(&mut command, directory, judge);
    let ended = watch(&mut command, &scratch.path(""), LIMIT);
    drop(command);
    if !device.join().unwrap() {
        testkit::skip!("kernel", "no seccomp listener can be had here");
        return None;
    }
    let status = ended.status.unwrap_or_else(|| panic!("{name}: it hung: {}", ended.errors));
    let report = std::fs::read_to_string(&report).unwrap_or_else(|_| "null".into());
    let report = serde_json::from_str(&report).expect("the report is JSON");
    Some(Ran { status: status.code(), said: ended.errors, report })
}

/// Returns whether a call transfers data, unlike the probes at the file's opening.
fn is_data(call: &Call, kind: Kind) -> bool {
    call.kind == kind && (call.offset, call.len) != (0, 4096)
}

#[test]
fn the_disk_is_full() {
    let judge = |call: &Call| match call.kind {
        Kind::Write | Kind::Blocks if call.offset >= 16 << 20 => Answer::Fail(libc::ENOSPC),
        _ => Answer::Go,
    };
    let Some(ran) = run("full", &["once", DATA], judge) else { return };
    ran.assert_right();
    assert!(ran.number("/zswpwb") > 1000 && ran.number("/swap/no_space") > 0, "{}", ran.report);
    assert!(ran.said.contains("the swap file is full, or its disk"), "{}", ran.said);
}

#[test]
fn the_disk_is_full_for_a_while() {
    let scratch = Scratch::new("swap-faults-room");
    let (room, mut refused) = (scratch.path("room"), 0);
    let path = room.to_str().unwrap().to_owned();
    // The program ends when a later write succeeds.
    let judge = move |call: &Call| match call.kind {
        Kind::Write if call.offset >= 16 << 20 && refused < 2 => {
            refused += 1;
            Answer::Fail(libc::ENOSPC)
        }
        Kind::Write if refused == 2 => {
            std::fs::write(&room, "").unwrap();
            Answer::Go
        }
        _ => Answer::Go,
    };
    let Some(ran) = run("full-for-a-while", &["until", DATA, &path], judge) else { return };
    ran.assert_right();
    assert!(ran.number("/swap/no_space") > 0, "{}", ran.report);
}

#[test]
fn nothing_can_be_written() {
    for error in [libc::EIO, libc::EROFS, libc::EPERM] {
        let judge = move |call: &Call| match is_data(call, Kind::Write) {
            true => Answer::Fail(error),
            false => Answer::Go,
        };
        let Some(ran) = run("unwritable", &["once", DATA], judge) else { return };
        ran.assert_right();
        assert_eq!(ran.number("/zswpwb"), 0, "{}", ran.report);
        assert!(ran.number("/swap/writes_failed") > 0, "{}", ran.report);
        let says = format!("the swap file cannot be written to (error {error})");
        assert!(ran.said.contains(&says), "{}", ran.said);
    }
}

#[test]
fn some_places_cannot_be_written_to() {
    let judge = |call: &Call| match is_data(call, Kind::Write) && call.offset >> 20 & 3 == 1 {
        true => Answer::Fail(libc::EIO),
        false => Answer::Go,
    };
    let Some(ran) = run("bad-places", &["once", DATA], judge) else { return };
    ran.assert_right();
    assert!(ran.number("/zswpwb") > 1000, "{}", ran.report);
}

#[test]
fn a_page_cannot_be_read() {
    let mut reads = 0;
    let judge = move |call: &Call| {
        reads += u32::from(is_data(call, Kind::Read));
        match is_data(call, Kind::Read) && reads > 20 {
            true => Answer::Fail(libc::EIO),
            false => Answer::Go,
        }
    };
    let Some(ran) = run("unreadable", &["once", DATA], judge) else { return };
    ran.assert_lost();
}

#[test]
fn other_bytes_come_back() {
    let mut reads = 0;
    let judge = move |call: &Call| {
        reads += u32::from(is_data(call, Kind::Read));
        if is_data(call, Kind::Read) && reads > 20 {
            let (file, mut bytes) = (call.file(), vec![0; call.len as usize]);
            let len = file.read_at(&mut bytes, call.offset).unwrap();
            bytes.iter_mut().for_each(|byte| *byte ^= 1);
            file.write_all_at(&bytes[..len], call.offset).unwrap();
            file.sync_all().unwrap();
        }
        Answer::Go
    };
    let Some(ran) = run("flipped", &["once", DATA], judge) else { return };
    ran.assert_lost();
}

#[test]
fn the_file_is_truncated() {
    let mut reads = 0;
    let judge = move |call: &Call| {
        reads += u32::from(is_data(call, Kind::Read));
        if is_data(call, Kind::Read) && reads > 20 {
            call.file().set_len(call.offset).unwrap();
        }
        Answer::Go
    };
    let Some(ran) = run("cut-off", &["once", DATA], judge) else { return };
    ran.assert_lost();
}

#[test]
fn a_disk_that_takes_its_time() {
    let judge = |call: &Call| {
        if call.kind == Kind::Write {
            std::thread::sleep(Duration::from_millis(20));
        }
        Answer::Go
    };
    let Some(ran) = run("slow", &["once", DATA], judge) else { return };
    ran.assert_right();
    assert!(ran.number("/zswpwb") > 1000, "{}", ran.report);
}

#[test]
fn interrupted_transfers_go_on() {
    let mut calls = 0u32;
    let judge = move |call: &Call| {
        calls = calls.wrapping_add(1);
        match call.kind != Kind::Blocks && calls.is_multiple_of(5) {
            true => Answer::Fail(if calls.is_multiple_of(2) { libc::EINTR } else { libc::EAGAIN }),
            false => Answer::Go,
        }
    };
    let Some(ran) = run("interrupted", &["once", DATA], judge) else { return };
    ran.assert_right();
    assert!(ran.number("/zswpwb") > 1000, "{}", ran.report);
}
