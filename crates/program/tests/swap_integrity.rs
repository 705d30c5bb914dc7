//! Attacks on the swap file of `uzswap run --swap` by a writer through /proc while pages are in it:
//! the program has the right bytes, or is ended with status 125 and a message that names the page
//! and the file.

mod support;

use std::fs::{read_dir, read_link, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;

use support::{uzswap, workload_in, Scratch};

/// MiB of the workload's data, and its budget: more than half of the data is in the file.
const DATA: &str = "64";
const RAM: &str = "32M";
const SEGMENT_BYTES: usize = 1 << 20;

fn workload() -> Option<&'static str> {
    static WORKLOAD: OnceLock<Option<(Scratch, String)>> = OnceLock::new();
    let workload = WORKLOAD.get_or_init(|| {
        let scratch = Scratch::new("swap-integrity-workload");
        workload_in(&scratch, "swap").map(|workload| (scratch, workload))
    });
    workload.as_ref().map(|(_, program)| program.as_str())
}

/// Opens a run's swap file as root does: the supervisor is the only child of the started process.
fn swap_file(run: u32, directory: &Path) -> File {
    let children =
        std::fs::read_to_string(format!("/proc/{run}/task/{run}/children")).expect("the run's children");
    let supervisor = children.split_whitespace().next().expect("the supervisor");
    let descriptors = read_dir(format!("/proc/{supervisor}/fd")).expect("the supervisor's descriptors");
    let ours = |path: &Path| read_link(path).is_ok_and(|link| link.starts_with(directory));
    let path = descriptors.flatten().map(|entry| entry.path()).find(|path| ours(path));
    let path = path.expect("the supervisor has the swap file open");
    OpenOptions::new().read(true).write(true).open(path).expect("the swap file can be opened")
}

fn segments(file: &File) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    (&*file).read_to_end(&mut all).unwrap();
    all.chunks(SEGMENT_BYTES).map(<[u8]>::to_vec).collect()
}

fn put(file: &File, segments: &[Vec<u8>]) {
    for (number, segment) in segments.iter().enumerate() {
        file.write_all_at(segment, (number * SEGMENT_BYTES) as u64).unwrap();
    }
    file.sync_all().unwrap();
}

/// Runs the workload; `attack` changes the file after all pages were written twice. It also
/// receives the segments of the first time, all of which were rewritten since.
fn run(name: &str, plain: bool, attack: impl Fn(&File, &[Vec<u8>])) -> Option<(i32, String)> {
    let workload = workload()?;
    let scratch = Scratch::new(&format!("swap-integrity-{name}"));
    let (directory, report) = (scratch.path("swap"), scratch.path("report.json"));
    std::fs::create_dir_all(&directory).unwrap();
    if let Some(kind) = sys::files::memory_file_system(&File::open(&directory).unwrap()).unwrap() {
        testkit::skip!("disk", "{} is in memory ({kind})", directory.display());
        return None;
    }
    let mut command = uzswap();
    command.args(["run", "--ram", RAM, "--swap", "512M", "--swap-dir"]).arg(&directory);
    command.args(plain.then_some("--swap-plain"));
    command.arg("--report").arg(&report).arg("--").arg(workload).args(["rest", DATA]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut go = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut older = Vec::new();
    for round in 0..2 {
        assert_eq!(lines.next().unwrap().unwrap(), "filled", "{name}");
        let file = swap_file(child.id(), &directory);
        if round == 0 {
            older = segments(&file);
            assert!(older.len() > 16, "{name}: {} MiB are in the file", older.len());
        } else {
            attack(&file, &older);
        }
        go.write_all(b"\n").unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("wrong:"), "{name}: {said}");
    let report = std::fs::read_to_string(&report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("the report is JSON");
    let failure = report["failures"][0].as_str().unwrap_or_default().to_owned();
    Some((output.status.code().expect("it ended by itself"), failure))
}

fn assert_lost(name: &str, attack: impl Fn(&File, &[Vec<u8>])) {
    for plain in [false, true] {
        let Some((status, failure)) = run(name, plain, &attack) else { return };
        assert_eq!(status, 125, "{name} {plain}: {failure}");
        let names = ["is lost", "page 0x", "swap file"];
        assert!(names.iter().all(|text| failure.contains(text)), "{name} {plain}: {failure}");
    }
}

#[test]
fn a_file_that_is_left_alone_is_right() {
    let Some((status, failure)) = run("alone", false, |_, _| {}) else { return };
    assert_eq!((status, failure.as_str()), (0, ""));
}

#[test]
fn flipped_bits() {
    assert_lost("flipped", |file, _| {
        let mut now = segments(file);
        now.iter_mut().flat_map(|segment| segment.chunks_mut(4096)).for_each(|block| block[100] ^= 4);
        put(file, &now);
    });
}

#[test]
fn segments_replaced() {
    assert_lost("replaced", |file, _| {
        let now = segments(file);
        let zeroes: Vec<_> = now.iter().map(|segment| vec![0; segment.len()]).collect();
        put(file, &zeroes);
    });
}

#[test]
fn segments_exchanged() {
    assert_lost("exchanged", |file, _| {
        let mut now = segments(file);
        now.retain(|segment| segment.len() == SEGMENT_BYTES);
        now.rotate_left(1);
        put(file, &now);
    });
}

#[test]
fn an_older_state() {
    assert_lost("older", put);
}

#[test]
fn cut_off() {
    assert_lost("cut-off", |file, _| file.set_len(3 * SEGMENT_BYTES as u64).unwrap());
}
