//! Real swap on the device: over a loop device on nbdfuse, for a memory cgroup.
//!
//! Long version: `UZSWAP_TEST_SQUEEZE_SECONDS=600 cargo test --release -p uzswap-nbdkit --test swap
//! squeeze -- --nocapture` fills a cgroup to the brim, in random order, for ten minutes, without
//! and with a swap file; `UZSWAP_TEST_SQUEEZE_BYTES` sets the size (default 192 MiB, in a third of
//! the memory).

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use support::swapped::{Cgroup, Swap};
use support::{figures, has, may_mount, output, Directory, Fuse, Loop, Server};

/// Swap is the machine's: one test at a time, so that none swaps to another's device.
static ONE: Mutex<()> = Mutex::new(());

/// Set in the process that fills memory: bytes, seconds, and content.
const FILL: &str = "UZSWAP_TEST_FILL";

/// Whether swapping is possible; prints the missing requirement.
fn can_swap() -> bool {
    if !has(&["nbdkit", "nbdinfo", "nbdfuse", "losetup", "mkswap", "swapon", "swapoff"]) || !may_mount() {
        return false;
    }
    if !std::path::Path::new("/proc/swaps").exists() {
        testkit::skip!("swap", "the kernel has no swap");
        return false;
    }
    true
}

/// A word of a page after `round` writes.
fn word(content: &str, page: u64, round: u32, index: usize) -> u64 {
    let mixed = (page << 20 | u64::from(round)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    if content == "noise" {
        let mixed = (mixed ^ index as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        return (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }
    // Heap-like: small numbers, pointers that are close to each other, a fifth noise.
    match index % 5 {
        0 => mixed.rotate_left(index as u32),
        1 => 0x7F00_0000_0000 | mixed & 0xFFFF,
        _ => mixed & 0xFF,
    }
}

/// The process inside the cgroup writes, reads and checks pages in random order until the time is
/// over.
#[test]
fn fill_when_told_to() {
    let Ok(told) = std::env::var(FILL) else { return };
    let [bytes, seconds, content] = *told.split(' ').collect::<Vec<_>>() else { panic!("{told}") };
    let (pages, seconds) = (bytes.parse::<u64>().unwrap() / 4096, seconds.parse::<u64>().unwrap());
    let mut memory = vec![0u64; pages as usize * 512];
    let mut rounds = vec![0u32; pages as usize];
    let check = |page: usize, memory: &[u64], round: u32| {
        for (index, &found) in memory[page * 512..][..512].iter().enumerate() {
            let wanted = if round == 0 { 0 } else { word(content, page as u64, round, index) };
            assert!(found == wanted, "page {page}, round {round}, word {index}: {found:x}, not {wanted:x}");
        }
    };
    let (start, mut state, mut checked) = (Instant::now(), 1u64, 0u64);
    let end = Duration::from_secs(seconds);
    // All of it once, then random pages.
    for turn in 0u64.. {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let page = if turn < pages { turn } else { (state >> 33) % pages } as usize;
        check(page, &memory, rounds[page]);
        checked += 1;
        if turn < pages || state >> 62 != 0 {
            rounds[page] += 1;
            for index in 0..512 {
                memory[page * 512 + index] = word(content, page as u64, rounds[page], index);
            }
        }
        if turn >= pages * 2 && turn % 256 == 0 && start.elapsed() > end {
            break;
        }
    }
    (0..pages as usize).for_each(|page| check(page, &memory, rounds[page]));
    println!("checked {checked} pages and then all {pages}");
}

/// Runs a process in a group with limited memory that fills memory with `content` for some seconds,
/// over a device with these settings; returns its messages, or `None` if no group can be made. An
/// error is the kernel's: it gave up looking for a page to reclaim, which happens now and then
/// while all pages are on their way to or from the device.
fn squeeze(
    bytes: u64,
    memory_bytes: u64,
    seconds: u64,
    content: &str,
    settings: &[&str],
) -> Result<Option<String>, &'static str> {
    let size = format!("{}", bytes * 2);
    let server = Server::start(&["-t", "4"], &[&[&*size, "lock=try"], settings].concat());
    let fuse = Fuse::new(&server);
    let disk = Loop::new(&fuse.file());
    let swap = Swap::new(&disk);
    let Some(group) = Cgroup::new(memory_bytes) else {
        testkit::skip!("cgroup", "no memory cgroup can be made");
        return Ok(None);
    };
    let own = std::env::current_exe().unwrap();
    let mut filler = group
        .command(own.to_str().unwrap())
        .args(["--exact", "fill_when_told_to", "--nocapture"])
        .env(FILL, format!("{bytes} {seconds} {content}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut most = 0;
    while filler.try_wait().unwrap().is_none() {
        most = most.max(swap.used_bytes());
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = filler.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    if said.status.signal() == Some(libc::SIGKILL) && group.oom_kills() > 0 {
        return Err("the kernel's OOM killer ended it");
    }
    assert!(said.status.success(), "{}: {text}", said.status);
    let swapped = bytes - memory_bytes;
    assert!(most > swapped / 4 * 3, "{most} bytes were swapped out at most, {swapped} have no room");
    assert!(group.peak_bytes() <= memory_bytes + (1 << 20), "{} of {memory_bytes}", group.peak_bytes());
    drop(swap);
    Ok(Some(text))
}

#[test]
fn a_squeezed_group_finds_every_byte() {
    if !can_swap() {
        return;
    }
    let _only = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = squeezed_bytes();
    squeeze_somehow(bytes, "heap", &[&format!("ram={bytes}")]);
}

/// The same with incompressible data, of which a third fits in memory and the rest goes to the swap
/// file.
#[test]
fn a_squeezed_group_finds_every_byte_that_went_to_the_file() {
    if !can_swap() {
        return;
    }
    let Some(disk) = Directory::on_disk() else { return };
    let _only = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = squeezed_bytes();
    let directory = Directory::new();
    let file = directory.join("stats");
    let ram = format!("ram={}", bytes / 3);
    let swap = format!("swap={}", bytes * 2);
    let place = format!("swap-dir={}", disk.0.display());
    let stats = format!("stats={}", file.display());
    if !squeeze_somehow(bytes, "noise", &[&ram, &swap, &place, &stats]) {
        return;
    }
    let said = figures(&file);
    let number = |name: &str| said[name].as_u64().unwrap_or_else(|| panic!("{name} in {said}"));
    println!("{said}");
    assert!(number("bd_writes") * 4096 > bytes / 8 && number("bd_reads") * 4096 > bytes / 8, "{said}");
    assert_eq!((number("lost_blocks"), number("failed_reads"), number("failed_writes")), (0, 0, 0), "{said}");
    assert!(number("mem_used_total") <= bytes / 3 / 16 * 17, "{said}");
    assert!(disk.is_empty());
}

fn squeezed_bytes() -> u64 {
    let number = std::env::var("UZSWAP_TEST_SQUEEZE_BYTES").ok().and_then(|text| text.parse().ok());
    let bytes: u64 = number.unwrap_or(if cfg!(debug_assertions) { 96 << 20 } else { 192 << 20 });
    bytes / (12 * 4096) * (12 * 4096)
}

/// Squeezes a group into a third of its data, or into more if that fails; returns whether any limit
/// worked.
fn squeeze_somehow(bytes: u64, content: &str, settings: &[&str]) -> bool {
    let seconds =
        std::env::var("UZSWAP_TEST_SQUEEZE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    // With less memory the kernel gives up sooner, which says nothing about the device.
    for twelfths in [4, 5, 6, 8] {
        match squeeze(bytes, bytes / 12 * twelfths, seconds, content, settings) {
            Ok(Some(said)) => {
                let line = said.lines().find(|line| line.starts_with("checked"));
                println!("{bytes} bytes in {twelfths}/12: {}", line.expect("the filler's last line"));
                return true;
            }
            Ok(None) => return false,
            Err(reason) => println!("{bytes} bytes in {twelfths}/12: {reason}; again with more"),
        }
    }
    panic!("the kernel found no page to take away, however much memory there was");
}

#[test]
fn stress_ng_verifies() {
    if !can_swap() || !has(&["stress-ng"]) {
        return;
    }
    let _only = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::start(&["-t", "4"], &["256M", "ram=128M", "lock=try"]);
    let fuse = Fuse::new(&server);
    let disk = Loop::new(&fuse.file());
    let swap = Swap::new(&disk);
    let Some(group) = Cgroup::new(48 << 20) else {
        return testkit::skip!("cgroup", "no memory cgroup can be made");
    };
    let directory = support::Directory::new();
    let mut stress = group.command("stress-ng");
    stress.args([
        "--vm",
        "1",
        "--vm-bytes",
        "100M",
        "--vm-ops",
        "8",
        "--vm-method",
        "all",
        "--verify",
        "--oomable",
    ]);
    stress.args(["--timeout", "20", "--temp-path"]).arg(&directory.0).env("HOME", &directory.0);
    let said = output(&mut stress);
    let text = format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "{text}");
    assert!(!text.contains("fail:"), "{text}");
    drop(swap);
}
