//! Attacks on the swap file of `uzswap run --swap` by a writer through /proc while pages are in it:
//! the program has the right bytes, or is ended with status 125 and a message that names the page
//! and the file.

mod support;

use std::fs::{read_dir, read_link, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{children_of, on_disk, run as uzswap_run, wait_until, workload, Ran, Scratch, Started};

/// MiB of the workload's data, and its budget: more than half of the data is in the file.
const DATA: &str = "64";
const RAM: &str = "32M";
const SEGMENT_BYTES: usize = 1 << 20;

/// Opens a run's swap file as root does: the supervisor is the only child of the started process.
fn swap_file(run: u32, directory: &Path) -> File {
    let supervisor = children_of(run)[0];
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
fn run(plain: bool, attack: impl Fn(&File, &[Vec<u8>])) -> Option<Ran> {
    let workload = workload("swap")?;
    let scratch = Scratch::new("swap-integrity");
    let (directory, report) = (on_disk(&scratch)?, scratch.text("report.json"));
    let options = ["--report", &report, "--swap", "512M", "--swap-dir", &directory, "--swap-plain"];
    let options = &options[..options.len() - usize::from(!plain)];
    let mut run = Started::new(&mut uzswap_run(RAM, options, &[workload, "rest", DATA]));
    let mut older = Vec::new();
    for round in 0..2 {
        assert_eq!(run.line(), "filled");
        let file = swap_file(run.pid(), Path::new(&directory));
        if round == 0 {
            // The writer may be behind the program.
            let len = || file.metadata().unwrap().len() as usize;
            wait_until("more than 16 MiB are in the file", || len() > 16 * SEGMENT_BYTES);
            older = segments(&file);
        } else {
            attack(&file, &older);
        }
        run.tell("\n");
    }
    let ran = run.end().with_report(report);
    assert!(!ran.said.contains("wrong:"), "{ran}");
    Some(ran)
}

fn assert_lost(attack: impl Fn(&File, &[Vec<u8>])) {
    for plain in [false, true] {
        let Some(ran) = run(plain, &attack) else { return };
        ran.assert_status(125);
        let failure = ran.text("failures");
        let names = ["is lost", "page 0x", "swap file"];
        assert!(names.iter().all(|text| failure.contains(text)), "{ran}");
    }
}

#[test]
fn a_file_that_is_left_alone_is_right() {
    let Some(ran) = run(false, |_, _| {}) else { return };
    ran.assert_status(0).assert_no_failure();
}

#[test]
fn flipped_bits() {
    assert_lost(|file, _| {
        let mut now = segments(file);
        now.iter_mut().flat_map(|segment| segment.chunks_mut(4096)).for_each(|block| block[100] ^= 4);
        put(file, &now);
    });
}

#[test]
fn segments_replaced() {
    assert_lost(|file, _| {
        let now = segments(file);
        let zeroes: Vec<_> = now.iter().map(|segment| vec![0; segment.len()]).collect();
        put(file, &zeroes);
    });
}

#[test]
fn segments_exchanged() {
    assert_lost(|file, _| {
        let mut now = segments(file);
        now.retain(|segment| segment.len() == SEGMENT_BYTES);
        now.rotate_left(1);
        put(file, &now);
    });
}

#[test]
fn an_older_state() {
    assert_lost(put);
}

#[test]
fn cut_off() {
    assert_lost(|file, _| file.set_len(3 * SEGMENT_BYTES as u64).unwrap());
}
