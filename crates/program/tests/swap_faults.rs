//! Failing disks under `uzswap run --swap`: the program has the right bytes, or ends with a message
//! that names the page and the file. It never hangs and never reads zeroes or another page.

#[path = "support/between.rs"]
mod between;
mod support;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use between::{put_between, Answer, Call, Kind};
use support::tree::watch;
use support::{on_disk, run as uzswap_run, workload, Ran, Scratch};

/// MiB of the workload's data, and its budget.
const DATA: &str = "64";
const RAM: &str = "32M";
/// Time limit; the slowest run takes seconds.
const LIMIT: Duration = Duration::from_secs(300);

fn assert_right(ran: &Ran) {
    ran.assert_status(0).assert_no_failure();
}

/// uzswap ended the program, naming a page and the file, before it saw a wrong byte.
fn assert_lost(ran: &Ran) {
    ran.assert_status(125);
    let failure = ran.text("failures");
    for part in ["is lost", "page 0x", "swap file"] {
        assert!(failure.contains(part), "{part}: {ran}");
    }
    assert!(!ran.said.contains("wrong:"), "{ran}");
}

/// Runs the workload's `mode`; `judge` decides about each transfer of its swap file. `None` where
/// that is impossible.
fn run(mode: &[&str], judge: impl FnMut(&Call) -> Answer + Send + 'static) -> Option<Ran> {
    let workload = workload("swap")?;
    let scratch = Scratch::new("swap-faults");
    let (directory, report) = (on_disk(&scratch)?, scratch.text("report.json"));
    let options = ["--swap", "512M", "--swap-dir", &directory, "--report", &report];
    let mut command = uzswap_run(RAM, &options, &[&[workload], mode].concat());
    let device = put_between(&mut command, directory.into(), judge);
    let ran = watch(&mut command, LIMIT);
    drop(command);
    if !device.join().unwrap() {
        testkit::skip!("kernel", "no seccomp listener can be had here");
        return None;
    }
    assert!(ran.status.is_some(), "it hung: {ran}");
    Some(ran.with_report(report))
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
    let Some(ran) = run(&["once", DATA], judge) else { return };
    assert_right(&ran);
    assert!(ran.number("zswpwb") > 1000 && ran.number("swap/no_space") > 0, "{ran}");
    assert!(ran.said.contains("the swap file is full, or its disk"), "{ran}");
}

#[test]
fn the_disk_is_full_for_a_while() {
    let scratch = Scratch::new("swap-faults-room");
    let (room, path, mut refused) = (scratch.path("room"), scratch.text("room"), 0);
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
    let Some(ran) = run(&["until", DATA, &path], judge) else { return };
    assert_right(&ran);
    assert!(ran.number("swap/no_space") > 0, "{ran}");
}

#[test]
fn nothing_can_be_written() {
    for error in [libc::EIO, libc::EROFS, libc::EPERM] {
        let judge = move |call: &Call| match is_data(call, Kind::Write) {
            true => Answer::Fail(error),
            false => Answer::Go,
        };
        let Some(ran) = run(&["once", DATA], judge) else { return };
        assert_right(&ran);
        assert_eq!(ran.number("zswpwb"), 0, "{ran}");
        assert!(ran.number("swap/writes_failed") > 0, "{ran}");
        let says = format!("the swap file cannot be written to (error {error})");
        assert!(ran.said.contains(&says), "{ran}");
    }
}

#[test]
fn some_places_cannot_be_written_to() {
    let judge = |call: &Call| match is_data(call, Kind::Write) && call.offset >> 20 & 3 == 1 {
        true => Answer::Fail(libc::EIO),
        false => Answer::Go,
    };
    let Some(ran) = run(&["once", DATA], judge) else { return };
    assert_right(&ran);
    assert!(ran.number("zswpwb") > 1000, "{ran}");
}

/// After twenty reads each is judged: the program is ended at the first.
fn is_lost_where_reads(judge: fn(&Call) -> Answer) {
    let mut reads = 0;
    let judge = move |call: &Call| {
        reads += u32::from(is_data(call, Kind::Read));
        match is_data(call, Kind::Read) && reads > 20 {
            true => judge(call),
            false => Answer::Go,
        }
    };
    let Some(ran) = run(&["once", DATA], judge) else { return };
    assert_lost(&ran);
}

#[test]
fn a_page_cannot_be_read() {
    is_lost_where_reads(|_| Answer::Fail(libc::EIO));
}

#[test]
fn other_bytes_come_back() {
    is_lost_where_reads(|call| {
        let (file, mut bytes) = (call.file(), vec![0; call.len as usize]);
        let len = file.read_at(&mut bytes, call.offset).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 1);
        file.write_all_at(&bytes[..len], call.offset).unwrap();
        file.sync_all().unwrap();
        Answer::Go
    });
}

#[test]
fn the_file_is_truncated() {
    is_lost_where_reads(|call| {
        call.file().set_len(call.offset).unwrap();
        Answer::Go
    });
}

#[test]
fn a_disk_that_takes_its_time() {
    let judge = |call: &Call| {
        if call.kind == Kind::Write {
            std::thread::sleep(Duration::from_millis(20));
        }
        Answer::Go
    };
    let Some(ran) = run(&["once", DATA], judge) else { return };
    assert_right(&ran);
    assert!(ran.number("zswpwb") > 1000, "{ran}");
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
    let Some(ran) = run(&["once", DATA], judge) else { return };
    assert_right(&ran);
    assert!(ran.number("zswpwb") > 1000, "{ran}");
}
