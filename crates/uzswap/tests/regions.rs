//! Regions of three times the budget: bytes are compared, the budget is held, regions come and go.
//!
//! A process has one space, so this file is one program without the test harness's threads: each
//! step runs in a child made by starting this program again with the step's name.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use uzswap::regions::{Advice, Region, Space, SpaceError, SwapError};
use uzswap::PAGE_SIZE;

const BUDGET: u64 = 48 << 20;
const STEPS: [(&str, fn()); 16] = [
    ("bytes", bytes),
    ("budget", budget),
    ("given_back", given_back),
    ("reads", reads),
    ("many", many),
    ("resize", resize),
    ("discard", discard),
    ("pipe", pipe),
    ("fork", fork),
    ("fork_among_threads", fork_among_threads),
    ("fork_without_reports", fork_without_reports),
    ("started_during_a_fork", started_during_a_fork),
    ("closed", closed),
    ("swap", swap),
    ("swap_forks", swap_forks),
    ("refusals", refusals),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(step) = arguments.iter().skip_while(|word| *word != "--step").nth(1) {
        let (_, run) = STEPS.iter().find(|(name, _)| name == step).expect("a step's name");
        return run();
    }
    // As in the harness, `cargo test NAME` runs the steps whose names contain it.
    let wanted = arguments.iter().skip(1).find(|word| !word.starts_with('-'));
    if let Err(error) = Space::builder().start() {
        return testkit::skip!("userfaultfd", "{error}");
    }
    for (name, _) in
        STEPS.iter().filter(|(name, _)| wanted.is_none_or(|wanted| name.contains(wanted.as_str())))
    {
        let own = std::env::current_exe().unwrap();
        let status = Command::new(own).args(["--step", name]).status().unwrap();
        assert!(status.success(), "{name}: {status}");
        println!("test {name} ... ok");
    }
}

/// Whether a condition holds within ten seconds: figures are published every few milliseconds.
fn soon(holds: impl Fn() -> bool) -> bool {
    (0..2000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        holds()
    })
}

fn space() -> Space {
    Space::builder().ram(BUDGET).on_message(|text| eprintln!("{text}")).start().unwrap()
}

/// A space with a swap file; `None`, with the reason printed, if tests have no disk.
fn space_with_swap() -> Option<Space> {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let builder = Space::builder().ram(BUDGET).swap(8 * BUDGET).swap_directory(directory);
    match builder.on_message(|text| eprintln!("{text}")).start() {
        Ok(space) => Some(space),
        Err(SpaceError::Swap(error @ SwapError::InMemory { .. })) => {
            testkit::skip!("disk", "{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Incompressible numbers, different for each seed.
fn noise(memory: &mut [u64], seed: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed;
    memory.iter_mut().for_each(|number| *number = random(&mut state));
}

fn check_noise(memory: &[u64], seed: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed;
    for (at, number) in memory.iter().enumerate() {
        assert_eq!(*number, random(&mut state), "number {at} with seed {seed}");
    }
}

/// Incompressible data go to disk, within the budget, and come back; freed parts leave the disk.
fn swap() {
    let mut peak = Peak::new();
    let Some(space) = space_with_swap() else { return };
    let mut region = space.region(3 * BUDGET as usize).unwrap();
    for seed in 1..=2 {
        let numbers = region.as_mut_slice_of::<u64>();
        for (part, piece) in numbers.chunks_mut(1 << 17).enumerate() {
            noise(piece, seed * 1000 + part as u64);
            peak.note(0);
        }
        for (part, piece) in numbers.chunks(1 << 17).enumerate() {
            check_noise(piece, seed * 1000 + part as u64);
            peak.note(0);
        }
    }
    let stats = space.stats();
    assert!(stats.pages_written > 1000 && stats.disk_faults > 100 && stats.disk_bytes > 0, "{stats:?}");
    peak.check(&space);
    // At random, backwards, and after a part was discarded.
    let len = region.len();
    region.discard(..len / 2);
    assert!(region[..len / 2].iter().step_by(512).all(|byte| *byte == 0));
    let first = len / 8 / (1 << 17) / 2 + 1;
    for (part, piece) in region.as_slice_of::<u64>().chunks(1 << 17).enumerate().skip(first).rev() {
        check_noise(piece, 2000 + part as u64);
    }
    drop(region);
    assert!(space.region(BUDGET as usize).unwrap().iter().step_by(4096).all(|byte| *byte == 0));
}

/// A forked child has the data on disk, too.
fn swap_forks() {
    let Some(space) = space_with_swap() else { return };
    let mut region = space.region(2 * BUDGET as usize).unwrap();
    for round in 1..=2 {
        noise(region.as_mut_slice_of(), round);
        assert!(soon(|| space.stats().disk_pages > 0), "{:?}", space.stats());
        assert_eq!(in_child(|| check_noise(region.as_slice_of(), round)), 0);
        check_noise(region.as_slice_of(), round);
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The content of page `page` after `version` writes: compressible, and different everywhere.
fn word(page: usize, version: u64, index: usize) -> u64 {
    match index % 8 {
        0 => page as u64 * 1_000_003 + version,
        1 => index as u64,
        _ => (page as u64 + version) & 0xff,
    }
}

fn write_page(bytes: &mut [u8], page: usize, version: u64) {
    let words = bytemuck::cast_slice_mut(bytes).iter_mut();
    words.enumerate().for_each(|(index, at)| *at = word(page, version, index));
}

fn check_page(bytes: &[u8], page: usize, version: u64) {
    for (index, at) in bytemuck::cast_slice::<_, u64>(bytes).iter().enumerate() {
        let expected = if version == 0 { 0 } else { word(page, version, index) };
        assert_eq!(*at, expected, "word {index} of page {page}");
    }
}

/// Resident anonymous bytes, as the kernel counts them.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The most that was resident, over what was there before.
struct Peak {
    before: u64,
    bytes: u64,
}

impl Peak {
    fn new() -> Self {
        Peak { before: anonymous_bytes(), bytes: 0 }
    }

    /// Looks at every 64th step.
    fn note(&mut self, step: usize) {
        if step.is_multiple_of(64) {
            self.bytes = self.bytes.max(anonymous_bytes());
        }
    }

    /// Within 3 % and 8 MiB of the budget.
    fn check(&self, space: &Space) {
        let (peak, allowed) = (self.bytes, self.before + BUDGET + BUDGET * 3 / 100 + (8 << 20));
        assert!(peak <= allowed, "{peak} bytes are more than {allowed}: {:?}", space.stats());
    }
}

/// Several threads, each with pages of its own, read, check and write them at random.
fn bytes() {
    const THREADS: usize = 3;
    let space = space();
    let mut region = space.region(3 * BUDGET as usize).unwrap();
    let share = region.len() / THREADS / PAGE_SIZE * PAGE_SIZE;
    std::thread::scope(|scope| {
        for (thread, part) in region.chunks_exact_mut(share).take(THREADS).enumerate() {
            scope.spawn(move || {
                let mut state = 88172645463325252 + thread as u64;
                let mut versions = vec![0u64; part.len() / PAGE_SIZE];
                let steps = versions.len() * 3;
                for step in 0..steps {
                    // All pages once in order, then any.
                    let at = if step < versions.len() {
                        step
                    } else {
                        random(&mut state) as usize % versions.len()
                    };
                    let page = &mut part[at * PAGE_SIZE..][..PAGE_SIZE];
                    check_page(page, at, versions[at]);
                    if step < versions.len() || random(&mut state).is_multiple_of(2) {
                        versions[at] += 1;
                        write_page(page, at, versions[at]);
                    }
                }
                for (at, version) in versions.iter().enumerate() {
                    check_page(&part[at * PAGE_SIZE..][..PAGE_SIZE], at, *version);
                }
            });
        }
    });
    let stats = space.stats();
    assert!(stats.pages_out > stats.region_bytes / 4096 / 2, "{stats:?}");
    assert!(stats.pages_in > 0 && stats.faults > 0 && stats.stored_pages > 0, "{stats:?}");
}

/// The kernel's figure stays near the budget beside the process's other memory, which is not paged.
fn budget() {
    let mut own = vec![1u8; 64 << 20];
    let mut peak = Peak::new();
    let space = space();
    let mut region = space.region(3 * BUDGET as usize).unwrap();
    for (at, page) in region.chunks_exact_mut(PAGE_SIZE).enumerate() {
        write_page(page, at, 1);
        peak.note(at);
    }
    let mut state = 1;
    for step in 0..40_000 {
        let at = random(&mut state) as usize % (region.len() / PAGE_SIZE);
        check_page(&region[at * PAGE_SIZE..][..PAGE_SIZE], at, 1);
        peak.note(step);
    }
    let over = peak.bytes - peak.before;
    println!("peak {} MiB over what was there before, of {} MiB", over >> 20, BUDGET >> 20);
    peak.check(&space);
    // Other memory of the process grows and shrinks, and the regions keep theirs.
    own.extend(std::iter::repeat_n(2, 64 << 20));
    assert!(own.iter().rev().take(64 << 20).all(|byte| *byte == 2));
    drop(own);
    space.set_ram(BUDGET / 2).unwrap();
    let goal = BUDGET / 2 + BUDGET / 50 + (8 << 20);
    assert!(soon(|| space.stats().used_bytes <= goal), "{:?}", space.stats());
}

/// Freeing the process's own memory makes no room for regions.
fn given_back() {
    let own = vec![1u8; 4 * BUDGET as usize];
    let space = space();
    let mut region = space.region(3 * BUDGET as usize).unwrap();
    // The process's own memory has been measured by now.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(own.iter().step_by(4096).all(|byte| *byte == 1));
    drop(own);
    let mut peak = Peak::new();
    for (at, page) in region.chunks_exact_mut(PAGE_SIZE).enumerate() {
        write_page(page, at, 3);
        peak.note(at);
    }
    peak.check(&space);
}

/// Memory that is read before it is written: the kernel's page of zeroes takes no memory, its
/// replacement does.
fn reads() {
    let mut peak = Peak::new();
    let space = space();
    let mut region = space.region(3 * BUDGET as usize).unwrap();
    for (at, page) in region.chunks_exact_mut(PAGE_SIZE).enumerate() {
        assert_eq!(page[100], 0);
        write_page(page, at, 7);
        peak.note(at);
    }
    for (at, page) in region.chunks_exact(PAGE_SIZE).enumerate() {
        check_page(page, at, 7);
    }
    peak.check(&space);
}

/// Hundreds of regions of all sizes from several threads; each is zeroes at first.
fn many() {
    let space = space();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            scope.spawn(move || {
                let mut state = 7 + thread;
                let mut held: Vec<(Region, u64)> = Vec::new();
                let mut bytes = 0;
                for turn in 1..400u64 {
                    let len = 1 + (random(&mut state) % (1 << (12 + turn % 10))) as usize;
                    let mut region = space.region(len).unwrap();
                    assert!(
                        region.len() == len
                            && region.as_ptr().is_aligned()
                            && space.contains(region.as_ptr())
                    );
                    assert!(region.iter().all(|byte| *byte == 0));
                    region.as_mut_slice_of::<u64>().fill(turn * 3 + thread);
                    bytes += len;
                    held.push((region, turn * 3 + thread));
                    while bytes > BUDGET as usize || held.len() > 60 {
                        let (region, mark) = held.swap_remove(random(&mut state) as usize % held.len());
                        assert!(region.as_slice_of::<u64>().iter().all(|word| *word == mark));
                        bytes -= region.len();
                    }
                }
            });
        }
    });
    let stats = space.stats();
    assert_eq!((stats.regions, stats.region_bytes), (0, 0));
    assert!(soon(|| space.stats().stored_pages == 0), "{:?}", space.stats());
}

fn fill(region: &mut Region, version: u64) {
    for (at, page) in region.chunks_exact_mut(PAGE_SIZE).enumerate() {
        write_page(page, at, version);
    }
}

fn check(region: &[u8], version: u64) {
    for (at, page) in region.chunks_exact(PAGE_SIZE).enumerate() {
        check_page(page, at, version);
    }
}

fn resize() {
    let space = space();
    let len = 2 * BUDGET as usize;
    let mut region = space.region(len).unwrap();
    fill(&mut region, 1);
    let start = region.as_ptr();
    region.resize(len + (1 << 20)).unwrap();
    assert_eq!(region.as_ptr(), start);
    assert!(region[len..].iter().all(|byte| *byte == 0));
    let other = space.region(100).unwrap();
    region.resize(2 * len).unwrap();
    assert_ne!(region.as_ptr(), start);
    check(&region[..len], 1);
    assert!(region[len..].iter().all(|byte| *byte == 0));
    // Shorter, in the middle of a page, and longer again: zeroes.
    region.resize(len / 2 + 5).unwrap();
    region.resize(len / 2 + PAGE_SIZE * 40).unwrap();
    check(&region[..len / 2], 1);
    assert_eq!(region[len / 2..len / 2 + 5], word(len / 2 / PAGE_SIZE, 1, 0).to_le_bytes()[..5]);
    assert!(region[len / 2 + 5..].iter().all(|byte| *byte == 0));
    region.resize(0).unwrap();
    assert!(region.is_empty());
    assert_eq!(space.stats().region_bytes, 100);
    drop(other);
}

fn discard() {
    let space = space();
    let len = 2 * BUDGET as usize;
    let mut region = space.region(len).unwrap();
    fill(&mut region, 1);
    let before = space.stats().stored_pages;
    assert!(before > 0);
    let (start, end) = (PAGE_SIZE * 3 + 100, len / 2 + 7);
    region.discard(start..end);
    check(&region[..3 * PAGE_SIZE], 1);
    assert_eq!(region[3 * PAGE_SIZE + 99], word(3, 1, 12).to_le_bytes()[3]);
    assert!(region[start..end].iter().all(|byte| *byte == 0));

    fill(&mut region, 2);
    check(&region, 2);
    region.discard(..);
    assert!(region.iter().all(|byte| *byte == 0));
    region.advise(.., Advice::WillNeed);
    region.discard(10..10);
}

/// The kernel reads and writes regions like any memory.
fn pipe() {
    use std::io::{Read, Seek, Write};
    let space = space();
    let mut region = space.region(2 * BUDGET as usize).unwrap();
    fill(&mut region, 1);
    let path = std::env::temp_dir().join(format!("uzswap-regions-{}", std::process::id()));
    let mut file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(&region).unwrap();
    file.rewind().unwrap();
    let mut other = space.region(region.len()).unwrap();
    file.read_exact(&mut other).unwrap();
    check(&other, 1);
    assert!(region[..] == other[..]);
}

/// Forks with libc's fork() and returns the child's status.
fn in_child(act: impl FnOnce()) -> i32 {
    // SAFETY: the child calls `act` alone and ends.
    match unsafe { libc::fork() } {
        0 => {
            act();
            // SAFETY: ends the child without destructors.
            unsafe { libc::_exit(0) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

fn fork_and_check(space: Space, region: &mut Region) {
    for turn in 2..5 {
        let status = in_child(|| {
            check(region, turn - 1);
            fill(region, 99);
            check(region, 99);
            assert!(matches!(space.region(10), Err(SpaceError::Forked)));
            assert!(Space::current().is_none());
            let own = Space::builder().ram(BUDGET).start().unwrap();
            let mut second = own.region(2 * BUDGET as usize).unwrap();
            fill(&mut second, 5);
            check(&second, 5);
            check(region, 99);
        });
        assert_eq!(status, 0, "in turn {turn}");
        check(region, turn - 1);
        fill(region, turn);
    }
}

fn fork() {
    let space = space();
    let mut region = space.region(2 * BUDGET as usize).unwrap();
    fill(&mut region, 1);
    assert!(space.stats().stored_pages > 0);
    fork_and_check(space, &mut region);
    assert!(space.stats().used_bytes <= BUDGET * 103 / 100 + (8 << 20), "{:?}", space.stats());
}

/// Other threads use and make regions during forks.
fn fork_among_threads() {
    let space = space();
    let mut region = space.region(2 * BUDGET as usize).unwrap();
    fill(&mut region, 1);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut turn = thread;
                while !is_over.load(Ordering::Relaxed) {
                    let mut own = space.region(4 << 20).unwrap();
                    turn += 1;
                    fill(&mut own, turn);
                    check(&own, turn);
                }
            });
        }
        for _ in 0..6 {
            assert_eq!(in_child(|| check(&region, 1)), 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    check(&region, 1);
}

/// A thread forks, and before the fork another one starts the space: the first thread's handler
/// released locks that it never took, and the child could start none.
fn started_during_a_fork() {
    static STEP: AtomicU64 = AtomicU64::new(0);
    fn wait_for(step: u64) {
        while STEP.load(Ordering::Acquire) != step {
            std::thread::yield_now();
        }
    }
    unsafe extern "C" fn begun() {
        if STEP.load(Ordering::Acquire) == 1 {
            STEP.store(2, Ordering::Release);
            // As long as a fork of much memory takes.
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
    // Called after the space's handlers, which come last. SAFETY: a function that lives as long as
    // the process.
    assert_eq!(unsafe { libc::pthread_atfork(Some(begun), None, None) }, 0);
    assert!(Space::builder().swap(5).start().is_err(), "it has its handlers by now");
    STEP.store(1, Ordering::Release);
    let forks = std::thread::spawn(|| {
        in_child(|| {
            assert!(Space::current().is_none());
            space().region(100).unwrap();
        })
    });
    wait_for(2);
    let space = space();
    assert_eq!(forks.join().unwrap(), 0);
    let mut region = space.region(2 * BUDGET as usize).unwrap();
    fill(&mut region, 1);
    fork_and_check(space, &mut region);
}

/// Without CAP_SYS_PTRACE the kernel does not report forks.
fn fork_without_reports() {
    // SAFETY: plain structures for capset(2), version 3: two sets of 32.
    unsafe {
        let mut header = [0x2008_0522u32, 0];
        let mut sets = [[0u32; 3]; 2];
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()), 0);
        const SYS_PTRACE: u32 = 19;
        sets[0].iter_mut().for_each(|set| *set &= !(1 << SYS_PTRACE));
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()), 0);
    }
    let space = match Space::builder().ram(BUDGET).start() {
        Ok(space) => space,
        Err(error) => return testkit::skip!("userfaultfd", "{error}"),
    };
    let mut region = space.region(2 * BUDGET as usize).unwrap();
    fill(&mut region, 1);
    assert!(space.stats().stored_pages > 0);
    fork_and_check(space, &mut region);
    // Everything was in, and is evicted again.
    assert!(soon(|| space.stats().used_bytes <= BUDGET + (8 << 20)), "{:?}", space.stats());
    // Past the C library: the child lacks the range and does not read zeroes. SAFETY: as fork(2);
    // the child reads one byte and ends.
    unsafe {
        let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
        if child == 0 {
            let byte = std::ptr::read_volatile(region.as_ptr());
            libc::_exit(i32::from(byte));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    }
    check(&region, 4);
}

/// A process that closes every descriptor continues.
fn closed() {
    let space = space();
    let mut region = space.region(2 * BUDGET as usize).unwrap();
    fill(&mut region, 1);
    // SAFETY: no code of this program uses any other descriptor.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    check(&region, 1);
    fill(&mut region, 2);
    check(&region, 2);
}

fn refusals() {
    assert!(matches!(Space::builder().ram(1 << 20).start(), Err(SpaceError::Ram(_))));
    assert!(matches!(Space::builder().compressor("nonsense").start(), Err(SpaceError::Compressor(_))));
    // A device that does no work would lose every page.
    let idle = Space::builder().compressor("deflate-iaa:work=null").start();
    assert!(matches!(idle, Err(SpaceError::Compressor(error)) if error.reason.contains("leave out work=")));
    let nowhere = Space::builder().swap(1 << 30).swap_directory(std::path::Path::new("/no/such/directory"));
    assert!(matches!(nowhere.start(), Err(SpaceError::Swap(SwapError::Open { .. }))));
    assert!(matches!(Space::builder().swap(5).start(), Err(SpaceError::Swap(SwapError::Size { .. }))));
    let space = Space::builder().ram(BUDGET).address_space(1 << 30).compressor("lz4").start().unwrap();
    assert!(matches!(Space::builder().start(), Err(SpaceError::Started)));
    assert!(matches!(space.set_ram(5), Err(SpaceError::Ram(5))));
    assert!(matches!(space.region(2 << 30), Err(SpaceError::Full(_))));
    assert!(matches!(space.region(usize::MAX), Err(SpaceError::Full(_))));
    assert_eq!(space.stats().ram_bytes, BUDGET);
    let mut region = space.region(3 * BUDGET as usize).unwrap();
    fill(&mut region, 1);
    check(&region, 1);
    for len in [2 << 30, usize::MAX - (1 << 17), usize::MAX] {
        assert!(matches!(region.resize(len), Err(SpaceError::Full(_))), "{len}");
    }
    check(&region, 1);
}
