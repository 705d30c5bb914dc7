//! Processes that write anything into the shared table: others may lose their objects in the file,
//! and their reads report it. They read nothing else, break no invariant, and encrypt nothing twice
//! with one key and nonce.

mod support;

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use proptest::prelude::*;
use support::{object, World, ROOM};
use swapfile::{Config, Faults, MemoryEngine, OpenError, Seal, Shared, Space, SwapFile};

const SEGMENTS: usize = 12;
const ROWS: usize = 5;

/// A table, and all its words, which every process that has it can write.
struct Table {
    space: Arc<Space>,
    words: &'static [AtomicU64],
    disk: MemoryEngine,
}

impl Table {
    fn new() -> Table {
        let words: Box<[AtomicU64]> = (0..Space::words(SEGMENTS, ROWS)).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = Box::leak(words);
        // SAFETY: never freed, and used by this table alone.
        let space = unsafe { Space::shared(NonNull::from(&words[0]), words.len(), SEGMENTS, ROWS) };
        Table { space: Arc::new(space), words, disk: MemoryEngine::new(ROOM) }
    }

    fn process(&self, owner: u32) -> World {
        let file = SwapFile::with(Arc::new(self.disk.clone()), Seal::Encrypted, self.space.clone(), owner, 5)
            .unwrap();
        World { writer: file.writer().unwrap(), file, faults: Faults::new(1), held: Default::default() }
    }

    fn copy(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn put(&self, copy: &[u64]) {
        self.words.iter().zip(copy).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    }
}

fn objects(keys: std::ops::Range<u64>, seed: u64) -> Vec<(u16, u64, Vec<u8>)> {
    keys.map(|key| (1, key, object(seed + key, 4096))).collect()
}

#[test]
fn an_older_table_makes_no_nonce_come_twice() {
    let table = Table::new();
    let mut ours = table.process(1);
    let older = table.copy();
    let zeroes = || vec![(1, 1, vec![0; 4000])];
    let mut seen = Vec::new();
    let mut write = |world: &mut World| {
        world.write(&zeroes()).unwrap();
        assert_eq!(world.held.lock().unwrap()[&(1, 1)].1.offset(), 0);
        // The first bytes depend only on the key and the nonce, since the object is zeroes.
        let sealed = table.disk.get(0);
        assert!(!seen.contains(&sealed));
        seen.push(sealed);
    };
    for _ in 0..3 {
        write(&mut ours);
        ours.free((1, 1));
        ours.writer.close_logs();
        table.put(&older);
    }
    // Another process, with the same segment in the same generation.
    let mut other = table.process(2);
    write(&mut other);
}

#[test]
fn an_owner_does_not_write_to_segments_that_the_table_calls_free() {
    let table = Table::new();
    let mut ours = table.process(1);
    let empty = table.copy();
    ours.write(&objects(0..500, 0)).unwrap();
    table.put(&empty);
    ours.write(&objects(500..1500, 0)).unwrap();
    ours.keys().iter().for_each(|key| ours.read(&[*key]).unwrap());
}

#[test]
fn segments_overwritten_by_another_process_are_refused() {
    let table = Table::new();
    let mut ours = table.process(1);
    let before = table.copy();
    ours.write(&objects(0..500, 0)).unwrap();
    table.put(&before);
    let mut other = table.process(2);
    // The same objects at the same places.
    other.write(&objects(0..500, 0)).unwrap();
    assert!(ours.keys().iter().all(|key| ours.read(&[*key]).is_err()));
    other.keys().iter().for_each(|key| other.read(&[*key]).unwrap());
}

#[test]
fn writes_after_a_fork_have_other_keys() {
    let table = Table::new();
    let mut ours = table.process(1);
    ours.write(&objects(0..10, 0)).unwrap();
    let segment = |world: &World, key| world.held.lock().unwrap()[&(1, key)].1.segment();
    ours.write(&objects(10..20, 0)).unwrap();
    assert_eq!(segment(&ours, 0), segment(&ours, 10));
    ours.file.fork_row(1).unwrap().leave_to_child();
    ours.write(&objects(20..30, 0)).unwrap();
    assert_ne!(
        segment(&ours, 0),
        segment(&ours, 20),
        "the child has the keys of the segments that there were"
    );
    ours.keys().iter().for_each(|key| ours.read(&[*key]).unwrap());
}

#[test]
fn without_its_keys_a_process_reads_nothing() {
    let table = Table::new();
    let mut ours = table.process(1);
    ours.write(&objects(0..10, 0)).unwrap();
    ours.file.forget_keys();
    assert!(ours.keys().iter().all(|key| ours.read(&[*key]).is_err()));
}

#[derive(Debug, Clone)]
enum Step {
    /// A process writes objects with these keys.
    Write(bool, u64),
    Free(bool, u64),
    Clean(bool),
    Fork(bool),
    Trim,
    /// An ended process is reaped, as the supervisor does.
    Reap(u32),
    /// A word of the table changes.
    Word(prop::sample::Index, u64),
    /// The state of a segment changes.
    Segment(usize, u64),
    /// The table returns to an older state.
    Older,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (any::<bool>(), 0u64..20).prop_map(|(who, at)| Step::Write(who, at)),
        3 => (any::<bool>(), 0u64..20).prop_map(|(who, at)| Step::Free(who, at)),
        1 => any::<bool>().prop_map(Step::Clean),
        1 => any::<bool>().prop_map(Step::Fork),
        1 => Just(Step::Trim),
        1 => (0u32..4).prop_map(Step::Reap),
        2 => (any::<prop::sample::Index>(), any::<u64>()).prop_map(|(at, value)| Step::Word(at, value)),
        3 => (0..SEGMENTS, 0u64..8).prop_map(|(at, state)| Step::Segment(at, state << 24 | state & 1)),
        1 => Just(Step::Older),
    ];
    prop::collection::vec(step, 1..80)
}

/// A step of the supervisor or of one of two processes, or of an attacker on the table.
fn take(step: Step, table: &Table, worlds: &mut [World; 2], older: &[u64]) {
    match step {
        Step::Write(who, at) => {
            let world = &mut worlds[usize::from(who)];
            let _ = world.write(&objects(at * 40..at * 40 + 40, at * 7919));
        }
        Step::Free(who, at) => {
            let world = &mut worlds[usize::from(who)];
            let keys = world.keys().into_iter().filter(|key| key.1 / 40 == at);
            keys.for_each(|key| world.free(key));
        }
        Step::Clean(who) => drop(worlds[usize::from(who)].clean(3)),
        Step::Fork(who) => {
            if let Ok(row) = worlds[usize::from(who)].file.fork_row(3) {
                row.leave_to_child();
            }
        }
        Step::Trim => drop(worlds[0].file.trim(1)),
        Step::Reap(owner) => drop(table.space.reap(owner)),
        Step::Word(at, value) => at.get(table.words).store(value, Ordering::Relaxed),
        Step::Segment(at, word) => table.words[8 + at].store(word, Ordering::Relaxed),
        Step::Older => table.put(older),
    }
}

proptest! {
    #[test]
    fn with_any_table_reads_are_right_or_fail(steps in steps()) {
        let table = Table::new();
        let mut worlds = [1, 2].map(|owner| table.process(owner));
        let older = table.copy();
        for step in steps {
            take(step, &table, &mut worlds, &older);
            for world in &worlds {
                let _ = (world.file.counters(), world.file.free_bytes(), world.file.wants_cleaning());
                for key in world.keys().iter().step_by(17) {
                    let _ = world.read(&[*key]);
                }
            }
        }
    }

    #[test]
    fn the_supervisor_survives_any_table(words in prop::collection::vec(any::<u64>(), 1..400), at in 0usize..2000) {
        let config = Config { directory: "/var/tmp".into(), size_bytes: 70 << 20, ..Config::default() };
        let (shared, table) = match Shared::create(&config, ROWS) {
            Ok(created) => created,
            Err(error @ OpenError::InMemory { .. }) => {
                testkit::skip!("disk", "{error}");
                return Ok(());
            }
            Err(error) => panic!("{error}"),
        };
        let len = sys::shared::len_of(table.as_fd()).unwrap();
        let mapped = sys::shared::map(table.as_fd(), len).unwrap().cast::<AtomicU64>();
        // SAFETY: mapped for ever, and plain atomics.
        let mapped = unsafe { std::slice::from_raw_parts(mapped.as_ptr(), len / 8) };
        for (word, value) in mapped.iter().skip(at % mapped.len()).zip(&words) {
            word.store(*value, Ordering::Relaxed);
        }
        // Owners that the supervisor reaps.
        for row in 0..ROWS {
            let row_words = (Space::words(70, 2) - Space::words(70, 1)) * row;
            mapped[512 + Space::words(70, 0) + row_words].store(row as u64 + 1, Ordering::Relaxed);
        }
        prop_assert!(shared.used_bytes() <= 70 << 20);
        (0..=ROWS as u32).for_each(|owner| shared.reap(owner));
        prop_assert!(shared.used_bytes() <= 70 << 20);
        let file = File::from(shared.as_fd().try_clone_to_owned().unwrap());
        // Joined or refused.
        drop(Shared::join(file, table.as_fd(), &config));
    }
}
