//! Parent and child share a file: both read the old objects, each writes its own, the last one
//! frees.

mod support;

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use support::{object, real_engine, World};
use swapfile::{engine_on, Caching, Config, Disk, Faults, FaultyEngine, MemoryEngine, Seal, Space, SwapFile};

/// Zeroed memory that children share.
fn shared_words(len: usize) -> NonNull<AtomicU64> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place of the kernel's choosing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len * 8, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    NonNull::new(at.cast()).expect("not at zero")
}

fn objects(keys: std::ops::Range<u64>, seed: u64) -> Vec<(u16, u64, Vec<u8>)> {
    keys.map(|key| (1, key, object(seed + key, 3000))).collect()
}

/// Runs `child` in a child process, which exits with 0 unless it panics; returns its number.
fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `child` and calls _exit; the C library's memory is usable after fork.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        pid => pid,
    }
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

#[test]
fn both_are_whole_and_the_last_one_frees() {
    if real_engine(true, 0).is_some() {
        let config = Config { threads: 0, ..Config::default() };
        let disk = Arc::new(Disk::open(&config.directory, Caching::Direct).unwrap());
        let engine = || engine_on(disk.clone(), &config, &support::spawn).unwrap();
        let (segments, rows) = (32, 4);
        let len = Space::words(segments, rows);
        // SAFETY: mapped for as long as the process lives, zero, and used for nothing else.
        let space = Arc::new(unsafe { Space::shared(shared_words(len), len, segments, rows) });
        let faults = Faults::new(1);
        let faulty = Arc::new(FaultyEngine::new(engine(), faults.clone()));
        let file = SwapFile::with(faulty, Seal::Encrypted, space.clone(), 1, 5).unwrap();
        let writer = file.writer().unwrap();
        let mut world = World { file, writer, faults, held: Default::default() };
        world.write(&objects(0..1000, 0)).unwrap();
        let used = space.in_use();

        let row = world.file.fork_row(1).unwrap();
        assert_eq!(space.in_use(), used, "what both have counts once");
        let mut taken = Some(row);
        let pid = fork(|| {
            world.file.inherit(taken.take().unwrap(), 2, engine());
            world.writer.inherit();
            // Old objects, new ones, and cleaning of its own.
            world.keys().chunks(64).for_each(|keys| world.read(keys).unwrap());
            world.write(&objects(5000..5400, 77)).unwrap();
            world.keys().chunks(64).for_each(|keys| world.read(keys).unwrap());
            (0..900).for_each(|key| world.free((1, key)));
            world.writer.close_logs();
            world.clean(8).unwrap();
            world.keys().chunks(64).for_each(|keys| world.read(keys).unwrap());
            // The child dies without releasing anything.
        });
        taken.take().unwrap().leave_to_child();
        // The parent continues: the child keeps the objects that it frees.
        (500..1000).for_each(|key| world.free((1, key)));
        world.write(&objects(9000..9400, 99)).unwrap();
        assert_eq!(wait(pid), 0, "the child was content");
        world.keys().chunks(64).for_each(|keys| world.read(keys).unwrap());
        let with_child = space.in_use();
        assert!(space.reap(2) > 0);
        assert!(space.in_use() < with_child, "what only the dead one held is free");
        world.keys().chunks(64).for_each(|keys| world.read(keys).unwrap());
        world.end();
        assert_eq!(space.in_use(), 0);
    }
}

#[test]
fn a_fork_that_failed_leaves_nothing() {
    let len = Space::words(8, 2);
    // SAFETY: as above.
    let space = Arc::new(unsafe { Space::shared(shared_words(len), len, 8, 2) });
    let engine = Arc::new(swapfile::MemoryEngine::new(support::ROOM));
    let file = SwapFile::with(engine, Seal::Plain, space.clone(), 1, 5).unwrap();
    let writer = file.writer().unwrap();
    let mut world = World { file, writer, faults: Faults::new(1), held: Default::default() };
    world.write(&objects(0..100, 0)).unwrap();
    let row = world.file.fork_row(1).unwrap();
    assert!(world.file.fork_row(1).is_err(), "a row a process");
    drop(row);
    assert!(world.file.fork_row(1).is_ok());
    world.end();
    assert_eq!(space.in_use(), 0);
}

/// In a shared file each process took the others' objects for dead, and cleaned without end.
#[test]
fn objects_of_other_processes_are_not_dead() {
    let (segments, rows) = (64, 2);
    let len = Space::words(segments, rows);
    // SAFETY: mapped for as long as the process lives, zero, and used for nothing else.
    let space = Arc::new(unsafe { Space::shared(shared_words(len), len, segments, rows) });
    let disk = Arc::new(MemoryEngine::new(support::ROOM));
    let mut worlds = [1, 2].map(|owner| {
        let file = SwapFile::with(disk.clone(), Seal::Plain, space.clone(), owner, 5).unwrap();
        World { writer: file.writer().unwrap(), file, faults: Faults::new(1), held: Mutex::default() }
    });
    for world in &mut worlds {
        assert_eq!(world.write(&objects(0..4096, 1)).unwrap(), 4096);
    }
    assert!(worlds.iter().all(|world| !world.file.wants_cleaning()));
    let [one, other] = worlds;
    (0..4096).filter(|key| key % 16 < 8).for_each(|key| one.free((1, key)));
    assert!(one.file.wants_cleaning() && !other.file.wants_cleaning());
    one.keys().into_iter().for_each(|key| one.free(key));
    drop(one);
    other.end();
}
