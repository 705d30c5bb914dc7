//! Swap on the plugin, through a loop device on nbdfuse, against the kernel's zram, in a memory
//! cgroup:
//!
//! ```text
//! cargo build --release -p uzswap-nbdkit
//! sudo target/release/examples/swap_device HEAP.pages [OTHER.pages ...]      (cargo build --release -p uzswap-nbdkit --examples)
//! ```
//!
//! A process fills memory with the corpus, three times what its cgroup may have, reads it back in
//! order and touches pages at random, and checks every page. The devices take turns; figures are
//! medians of the turns, in MB/s of the process's memory. Memory is what the device's data takes,
//! for each byte swapped out. Everything is undone at the end.

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use support::swapped::{Cgroup, Swap};
use support::{has, may_mount, output, Fuse, Loop, Server};

const FILL: &str = "UZSWAP_EXAMPLE_FILL";
const SIZE: usize = 240 << 20;
const LIMIT: u64 = 80 << 20;
const TURNS: usize = 3;
const TOUCHES: usize = 20_000;
const PHASES: [&str; 3] = ["fill", "read in order", "touch at random"];

const DEVICES: [(&str, &str); 5] = [
    ("zram lzo-rle", "lzo-rle"),
    ("zram lz4", "lz4"),
    ("zram zstd", "zstd"),
    ("uzswap auto", "auto"),
    ("uzswap lz4", "lz4"),
];

/// The process in the cgroup: prints the seconds of each phase.
fn fill(file: &str) {
    let corpus = fs::read(file).expect("the corpus");
    let pages = corpus.len() / 4096;
    let mut memory = vec![0u8; SIZE];
    let check = |number: usize, page: &[u8]| {
        let from = number % pages * 4096;
        assert!(
            page[..8] == (number as u64).to_le_bytes() && page[8..] == corpus[from + 8..from + 4096],
            "page {number}"
        );
    };
    let start = Instant::now();
    for (number, page) in memory.chunks_mut(4096).enumerate() {
        let from = number % pages * 4096;
        page.copy_from_slice(&corpus[from..from + 4096]);
        page[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    let filled = start.elapsed().as_secs_f64();
    memory.chunks(4096).enumerate().for_each(|(number, page)| check(number, page));
    let read = start.elapsed().as_secs_f64() - filled;
    let mut state = 3u64;
    for _ in 0..TOUCHES {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let number = (state >> 33) as usize % (SIZE / 4096);
        check(number, &memory[number * 4096..][..4096]);
    }
    let touched = start.elapsed().as_secs_f64() - filled - read;
    println!("seconds {filled} {read} {touched}");
}

/// The kernel's device, removed on drop.
struct Zram;

impl Zram {
    fn new(algorithm: &str) -> Option<Self> {
        let sys = Path::new("/sys/block/zram0");
        if fs::read_to_string(sys.join("disksize")).ok()?.trim() != "0" {
            return None;
        }
        let algorithms = fs::read_to_string(sys.join("comp_algorithm")).ok()?;
        if !algorithms.split_whitespace().any(|name| name.trim_matches(['[', ']']) == algorithm) {
            return None;
        }
        fs::write(sys.join("comp_algorithm"), algorithm).ok()?;
        fs::write(sys.join("disksize"), (2 * SIZE).to_string()).ok()?;
        Some(Zram)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write("/sys/block/zram0/reset", "1");
    }
}

/// Runs the process on a device that is swapped on: MB/s of the phases.
fn job(file: &Path) -> Option<[f64; 3]> {
    let group = Cgroup::new(LIMIT)?;
    let own = std::env::current_exe().ok()?;
    let mut command = group.command(own.to_str()?);
    let said = output(command.env(FILL, file));
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stderr));
    let mut seconds = text.split_whitespace().skip(1).map(|word| word.parse::<f64>().expect("seconds"));
    let mut next = || seconds.next().expect("three phases");
    let bytes = SIZE as f64 / 1e6;
    Some([bytes / next(), bytes / next(), TOUCHES as f64 * 4096.0 / 1e6 / next()])
}

/// One turn of one device: the phases, and memory a byte swapped out.
fn turn(name: &str, compressor: &str, file: &Path) -> Option<([f64; 3], f64)> {
    if name.starts_with("zram") {
        let _zram = Zram::new(compressor)?;
        let disk = std::mem::ManuallyDrop::new(Loop("/dev/zram0".to_owned()));
        let swap = Swap::new(&disk);
        let rates = job(file)?;
        let figures = fs::read_to_string("/sys/block/zram0/mm_stat").ok()?;
        let mut figures = figures.split_whitespace().map(|word| word.parse::<f64>().unwrap_or(0.0));
        let (stored, _, _, _, most) =
            (figures.next()?, figures.next()?, figures.next()?, figures.next()?, figures.next()?);
        drop(swap);
        // Slots are freed when the process has ended; the peak is of the whole run.
        let _ = stored;
        return Some((rates, most / (SIZE as f64 - LIMIT as f64)));
    }
    let stats = std::env::temp_dir().join(format!("uzswap-example-{}", std::process::id()));
    let settings = [
        format!("size={}", 2 * SIZE),
        format!("ram={}", SIZE),
        format!("compressor={compressor}"),
        format!("stats={}", stats.display()),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let server = Server::start(&["-t", "8"], &settings);
    let fuse = Fuse::new(&server);
    let disk = Loop::new(&fuse.file());
    let swap = Swap::new(&disk);
    let rates = job(file)?;
    drop(swap);
    let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(&stats).ok()?).ok()?;
    let _ = fs::remove_file(&stats);
    Some((rates, figures["mem_used_max"].as_f64()? / (SIZE as f64 - LIMIT as f64)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    if let Ok(file) = std::env::var(FILL) {
        return fill(&file);
    }
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    assert!(!files.is_empty(), "which files of pages?");
    if !has(&["nbdkit", "nbdinfo", "nbdfuse", "losetup", "mkswap", "swapon"]) || !may_mount() {
        return;
    }
    for file in &files {
        let mut results = vec![Vec::new(); DEVICES.len()];
        for _ in 0..TURNS {
            for ((name, compressor), results) in DEVICES.iter().zip(&mut results) {
                results.extend(turn(name, compressor, file));
            }
        }
        println!("\n{}: MB/s, and times that of {}", file.display(), DEVICES[0].0);
        print!("{:20}", "");
        PHASES.iter().for_each(|phase| print!("{phase:>24}"));
        println!("{:>24}", "memory a byte out, most");
        let column = |results: &Vec<([f64; 3], f64)>, phase: usize| {
            median(results.iter().map(|(rates, memory)| *rates.get(phase).unwrap_or(memory)).collect())
        };
        for ((name, _), of_device) in DEVICES.iter().zip(&results) {
            if of_device.is_empty() {
                println!("{name:20} not here");
                continue;
            }
            print!("{name:20}");
            for phase in 0..=PHASES.len() {
                let (value, base) = (column(of_device, phase), column(&results[0], phase));
                let digits = if phase < PHASES.len() { 1 } else { 3 };
                print!("{value:>16.digits$} {:>6.2}x", value / base);
            }
            println!();
        }
    }
}
