//! One fault at a time, and the promised behaviour.

mod support;

use std::time::Duration;

use support::{object, World, ROOM};
use swapfile::{
    Age, Config, Fault, MemoryEngine, OpenError, Rates, ReadFault, Record, Room, Seal, SwapFile, WriteError,
    SEGMENT_BYTES,
};

fn objects(keys: std::ops::Range<u64>, len: usize) -> Vec<(u16, u64, Vec<u8>)> {
    keys.map(|key| (1, key, object(key + 1, len))).collect()
}

#[test]
fn a_disk_without_room_takes_nothing_until_it_has_some() {
    let (mut world, _) = World::in_memory(8);
    world.faults.set_room(Some(Room { available: ROOM.total / 20, ..ROOM }));
    let refused = world.write(&objects(0..64, 1000));
    assert!(matches!(refused, Err(WriteError::NoSpace)), "5 % stay free");
    assert_eq!(world.file.counters().bytes_written, 0);
    world.faults.set_room(Some(Room { available: ROOM.total / 20 + SEGMENT_BYTES as u64, ..ROOM }));
    assert_eq!(world.write(&objects(0..64, 1000)).unwrap(), 64);
    world.read(&(0..64).map(|key| (1, key)).collect::<Vec<_>>()).unwrap();
    world.end();
}

#[test]
fn a_write_that_finds_no_room_leaves_the_rest_as_it_was() {
    let (mut world, _) = World::in_memory(8);
    world.write(&objects(0..64, 1000)).unwrap();
    world.faults.next_write(Fault::Errno(28));
    assert!(matches!(world.write(&objects(100..164, 1000)), Err(WriteError::NoSpace)));
    assert_eq!(world.keys().len(), 64);
    assert_eq!((world.file.counters().no_space, world.file.counters().segments_retired), (1, 0));
    world.write(&objects(100..164, 1000)).unwrap();
    world.read(&world.keys()[60..70]).unwrap();
    // Cleaning finds the objects before the failed write.
    (0..60).for_each(|key| world.free((1, key)));
    world.writer.close_logs();
    let report = world.clean(8).unwrap();
    assert_eq!((report.unreadable, report.objects), (0, 4 + 64));
    world.end();
}

#[test]
fn a_write_that_fails_is_tried_elsewhere_and_its_segment_retired() {
    let (mut world, _) = World::in_memory(8);
    world.faults.next_write(Fault::Errno(5));
    world.faults.next_write(Fault::Errno(5));
    assert_eq!(world.write(&objects(0..64, 1000)).unwrap(), 64);
    let counters = world.file.counters();
    assert_eq!((counters.writes_retried, counters.segments_retired, counters.writes_failed), (2, 2, 0));
    world.read(&world.keys()).unwrap();
    // The third place was good. If all fail it is an error, and no object is held.
    (0..3).for_each(|_| world.faults.next_write(Fault::Errno(5)));
    match world.write(&objects(100..164, 1000)) {
        Err(WriteError::Io { error, .. }) => assert_eq!(error.raw_os_error(), Some(5)),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.file.counters().writes_failed, 1);
    world.read(&world.keys()).unwrap();
    world.end();
}

#[test]
fn a_file_system_that_became_read_only_costs_no_segment() {
    let (mut world, _) = World::in_memory(8);
    world.write(&objects(0..64, 1000)).unwrap();
    for round in 1..20 {
        world.faults.next_write(Fault::Errno(30));
        assert!(matches!(world.write(&objects(100..164, 1000)), Err(WriteError::Io { .. })));
        assert_eq!((world.file.counters().writes_failed, world.file.counters().segments_retired), (round, 0));
    }
    world.read(&world.keys()).unwrap();
    assert_eq!(world.write(&objects(100..164, 1000)).unwrap(), 64);
    world.end();
}

#[test]
fn short_and_interrupted_transfers_are_continued() {
    let (mut world, _) = World::in_memory(8);
    let rates = Rates { write_short: 600, read_short: 600, interrupted: 200, ..Rates::default() };
    world.faults.set_rates(rates);
    world.write(&objects(0..1000, 3000)).unwrap();
    for keys in world.keys().chunks(64) {
        world.read(keys).unwrap();
    }
    assert!(world.faults.injected() > 50);
    world.end();
}

#[test]
fn a_failed_read_reports_its_offset() {
    let (mut world, disk) = World::in_memory(8);
    world.write(&objects(0..20, 3000)).unwrap();
    world.faults.next_read(Fault::Errno(5));
    let error = world.read(&[(1, 3)]).unwrap_err();
    let place = world.held.lock().unwrap()[&(1, 3)].1;
    assert_eq!((error.index, error.offset, error.fault), (0, place.offset(), ReadFault::Io(5)));
    assert!(error.to_string().contains(&format!("byte {} of the swap file", place.offset())), "{error}");
    world.read(&[(1, 3)]).unwrap();
    // One flipped bit on the disk, in one object of many.
    for bit in [0, 1, 7] {
        assert!(disk.flip(place.offset() + 1234, 1 << bit));
        let keys: Vec<_> = (0..20).map(|key| (1, key)).collect();
        let error = world.read(&keys).unwrap_err();
        assert_eq!((error.index, error.offset, error.fault), (3, place.offset(), ReadFault::Damaged));
        assert!(disk.flip(place.offset() + 1234, 1 << bit));
        world.read(&keys).unwrap();
    }
    assert_eq!(world.file.counters().reads_failed, 4);
    world.end();
}

#[test]
fn a_write_that_was_lost_torn_or_changed_is_found_when_it_is_read() {
    for plain in [false, true] {
        for fault in [Fault::Lost, Fault::Torn, Fault::Flip] {
            let seal = if plain { Seal::Plain } else { Seal::Encrypted };
            let mut world = World::new(std::sync::Arc::new(MemoryEngine::new(ROOM)), seal, 4);
            // Raw pages fill the pack, so that a flipped bit hits one of them or the directory.
            world.faults.next_write(fault);
            assert_eq!(world.write(&objects(0..32, 4096)).unwrap(), 32, "the disk said so");
            let bad = (0..32).filter(|key| match world.read(&[(1, *key)]) {
                Ok(()) => false,
                Err(error) => error.fault == ReadFault::Damaged,
            });
            match (fault, bad.count()) {
                (Fault::Lost, count) => assert_eq!(count, 32),
                (Fault::Torn, count) => assert!((8..32).contains(&count), "{count}"),
                (_, count) => assert!(count <= 1),
            }
            world.end();
        }
    }
}

#[test]
fn objects_of_an_older_generation_are_refused() {
    let (mut world, _) = World::in_memory(1);
    world.write(&objects(0..32, 4096)).unwrap();
    (0..32).for_each(|key| world.free((1, key)));
    world.writer.close_logs();
    // The disk forgets to write the same segment again: it still has the same objects.
    world.faults.next_write(Fault::Lost);
    world.write(&objects(0..32, 4096)).unwrap();
    for key in 0..32 {
        assert_eq!(world.read(&[(1, key)]).unwrap_err().fault, ReadFault::Damaged);
    }
    world.end();
}

#[test]
fn a_full_file_is_full_and_cleaning_makes_room() {
    let (mut world, _) = World::in_memory(8);
    let mut key = 0;
    while world.write(&objects(key..key + 64, 4096)).is_ok() {
        key += 64;
    }
    assert!(key * 4096 > 6 << 20, "{key} pages of 7 MiB and one for cleaning");
    assert!(matches!(world.write(&objects(key..key + 64, 4096)), Err(WriteError::NoSpace)));
    // Three of four die, everywhere: no segment is empty.
    world.keys().into_iter().filter(|(_, key)| key % 4 != 0).for_each(|key| world.free(key));
    assert!(world.file.wants_cleaning());
    // Cleaning needs room itself, which was reserved for it.
    world.writer.close_logs();
    let report = world.clean(8).unwrap();
    assert!(report.segments >= 5 && report.unreadable == 0, "{report:?}");
    assert!(world.file.free_bytes() >= 4 << 20);
    world.keys().chunks(64).for_each(|keys| world.read(keys).unwrap());
    assert!(world.write(&objects(10_000..10_064, 4096)).is_ok());
    world.end();
}

/// The error was lost when a dead object followed an object that could not be moved.
#[test]
fn cleaning_that_finds_no_room_says_so_and_changes_nothing() {
    let (mut world, _) = World::in_memory(8);
    world.write(&objects(0..64, 1000)).unwrap();
    (48..64).for_each(|key| world.free((1, key)));
    world.writer.close_logs();
    world.faults.set_room(Some(Room { available: 0, ..ROOM }));
    assert!(matches!(world.clean(8), Err(WriteError::NoSpace)));
    assert_eq!((world.file.counters().no_space, world.file.counters().objects_moved), (1, 0));
    world.faults.set_room(None);
    let report = world.clean(8).unwrap();
    assert_eq!((report.segments, report.objects, report.unreadable), (1, 48, 0));
    world.read(&world.keys()).unwrap();
    world.end();
}

/// Regression: where a segment's rest was shorter than the objects of one block, cleaning panicked.
#[test]
fn a_block_that_is_longer_than_the_rest_of_a_segment_is_moved_in_parts() {
    let (mut world, _) = World::in_memory(64);
    for block in 0..48u64 {
        // Each in a segment of its own.
        world.writer.close_logs();
        let len = |part: u64| 30_000 + (block * 7919 + part * 104_729) as usize % 35_000;
        let parts: Vec<_> = (0..3).map(|part| (1, block * 16 + part, vec![block as u8; len(part)])).collect();
        assert_eq!(world.write(&parts).unwrap(), 3);
    }
    world.writer.close_logs();
    assert_eq!(world.clean(48).unwrap().objects, 3 * 48);
    world.keys().chunks(16).for_each(|keys| world.read(keys).unwrap());
    world.end();
}

#[test]
fn old_is_apart_from_new() {
    let (mut world, _) = World::in_memory(64);
    // Half of the objects die at once, the other half never.
    for round in 0..12u64 {
        world.write(&objects(round * 1000..round * 1000 + 512, 2000)).unwrap();
        (0..512).filter(|n| n % 2 == 1).for_each(|n| world.free((1, round * 1000 + n)));
    }
    world.writer.close_logs();
    let first = world.clean(64).unwrap();
    assert!(first.segments >= 10, "{first:?}");
    world.writer.close_logs();
    let again = world.clean(64).unwrap();
    assert!(again.segments <= 1, "what lived on lies densely: {again:?}");
    let counters = world.file.counters();
    assert!(counters.bytes_cleaned < counters.bytes_written && counters.write_amplification_milli() < 1700);
    world.keys().chunks(64).for_each(|keys| world.read(keys).unwrap());
    world.end();
}

#[test]
fn freed_room_goes_back_to_the_disk() {
    let (mut world, disk) = World::in_memory(16);
    world.write(&objects(0..2000, 4096)).unwrap();
    assert!(disk.bytes() >= 2000 * 4096);
    world.keys().into_iter().for_each(|key| world.free(key));
    world.writer.close_logs();
    let kept = world.file.counters().kept_bytes;
    assert!(kept >= 8 << 20);
    assert_eq!(world.file.trim(2), kept - (2 << 20));
    assert_eq!(world.file.counters().kept_bytes, 2 << 20);
    assert!(disk.bytes() <= 2 << 20);
    world.end();
    assert_eq!(disk.bytes(), 0);
}

#[test]
fn a_slow_disk_slows_and_nothing_else() {
    let (mut world, _) = World::in_memory(8);
    world.faults.hold(true);
    let faults = world.faults.clone();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| world.write(&objects(0..64, 1000)).unwrap());
        faults.wait_for_held(1);
        assert!(!writing.is_finished(), "what is not on disk is not said to be");
        faults.hold(false);
        assert_eq!(writing.join().unwrap(), 64);
    });
    world.faults.throttle(Duration::from_millis(20), 0);
    world.read(&[(1, 5)]).unwrap();
    let counters = world.file.counters();
    assert!(counters.load_ns >= 20_000_000 && counters.load_latency_us(50) >= 20_000);
    world.faults.throttle(Duration::ZERO, 0);
    world.end();
}

/// Another thread lowers the limit when processes start.
#[test]
fn a_lowered_limit_does_not_stop_a_pack_that_is_filled() {
    let (mut world, _) = World::in_memory(8);
    let pack_of = |world: &mut World, key: u64| {
        let mut pack = world.writer.pack(Age::New).unwrap();
        let record = Record { group: 1, key, len: 3000, pages: 1, codec: 0, mark: 0 };
        let number = pack.add(&[record]).unwrap();
        pack.object_mut(number).fill(key as u8);
        pack
    };
    for key in 0..2 {
        let pack = pack_of(&mut world, key * 16);
        world.writer.submit(Age::New, pack);
    }
    let pack = pack_of(&mut world, 32);
    assert!(world.writer.is_ready());
    world.file.limit_packs(1);
    world.writer.submit(Age::New, pack);
    assert!(!world.writer.is_ready());
    while let Some(finished) = world.writer.poll(true) {
        assert!(finished.result.is_ok());
        finished.objects().for_each(|(_, place)| world.file.free(place));
        world.writer.recycle(finished);
    }
    assert!(world.writer.is_ready());
    world.end();
}

#[test]
fn memory_is_refused_with_the_reason() {
    let config = Config { directory: "/dev/shm".into(), ..Config::default() };
    match SwapFile::open(&config, &support::spawn) {
        Err(error @ OpenError::InMemory { .. }) => {
            let text = error.to_string();
            assert!(text.contains("/dev/shm") && text.contains("tmpfs") && text.contains("disk"), "{text}");
        }
        Err(error) => testkit::skip!("disk", "{error}"),
        Ok(_) => testkit::skip!("kernel", "/dev/shm is on a disk here"),
    }
    let nowhere = Config { directory: "/nonexistent/here".into(), ..Config::default() };
    let error = SwapFile::open(&nowhere, &support::spawn).expect_err("there is no such directory");
    assert!(error.to_string().contains("/nonexistent/here"), "{error}");
    for bytes in [0, 4096, u64::MAX] {
        let config = Config { size_bytes: bytes, ..Config::default() };
        assert!(matches!(SwapFile::open(&config, &support::spawn), Err(OpenError::Size { .. })));
    }
}

#[test]
fn a_file_is_opened_and_has_one_writer() {
    for direct in [true, false] {
        let config = Config { size_bytes: 8 << 20, direct, ..Config::default() };
        let file = SwapFile::open(&config, &support::spawn).unwrap();
        assert!(file.is_encrypted() && (direct || !file.is_direct()));
        assert_eq!(file.size_bytes(), 8 << 20);
        let writer = file.writer().unwrap();
        assert!(file.writer().is_none());
        drop(writer);
        assert!(file.writer().is_some());
        println!("{}", if file.is_direct() { "O_DIRECT" } else { "page cache" });
    }
}

#[test]
fn memory_stays_within_a_hundredth_of_the_written_bytes() {
    let (mut world, _) = World::in_memory(1024);
    for round in 0..16u64 {
        world.write(&objects(round * 1000..round * 1000 + 1000, 4096)).unwrap();
    }
    let counters = world.file.counters();
    println!("{} bytes of memory for {} written", counters.memory_bytes, counters.bytes_written);
    assert!(counters.memory_bytes < counters.bytes_written / 100 + (2 << 20), "buffers are a constant");
    world.end();
}
