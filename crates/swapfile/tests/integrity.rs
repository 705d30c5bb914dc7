//! Attacks on the file in use, by writing to it: a read returns the written bytes or an error.

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use support::{object, World};
use swapfile::{engine_on, Caching, Config, Disk, ReadFault, Seal, BLOCK_BYTES, SEGMENT_BYTES};

/// Incompressible objects that fill more than three segments.
const OBJECTS: u64 = 900;

/// A file on a disk, its objects, and the attacker's view of the file.
struct Attacked {
    world: World,
    file: File,
}

/// The file with a set of objects; `None` without a disk.
fn attacked(seal: Seal) -> Option<Attacked> {
    let directory = Path::new("/var/tmp");
    let disk = match Disk::open(directory, Caching::Direct) {
        Ok(disk) => Arc::new(disk),
        Err(error) => {
            testkit::skip!("disk", "{error}");
            return None;
        }
    };
    let path = format!("/proc/self/fd/{}", disk.descriptor());
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let config = Config { threads: 1, ..Config::default() };
    let engine = engine_on(disk, &config, &support::spawn).unwrap();
    let mut attacked = Attacked { world: World::new(engine, seal, 16), file };
    attacked.write(0);
    Some(attacked)
}

fn both(attack: impl Fn(&mut Attacked)) {
    for seal in [Seal::Encrypted, Seal::Plain] {
        if let Some(mut attacked) = attacked(seal) {
            attacked.all_right();
            attack(&mut attacked);
        }
    }
}

impl Attacked {
    fn write(&mut self, seed: u64) {
        let objects: Vec<_> = (0..OBJECTS).map(|key| (1, key, object(seed + key, 4096))).collect();
        assert_eq!(self.world.write(&objects).unwrap(), OBJECTS as usize);
    }

    fn free(&mut self) {
        self.world.keys().into_iter().for_each(|key| self.world.free(key));
        self.world.writer.close_logs();
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset as u64).unwrap();
        bytes
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset as u64).unwrap();
        self.file.sync_all().unwrap();
    }

    fn segment(&self, number: usize) -> Vec<u8> {
        self.bytes(number * SEGMENT_BYTES, SEGMENT_BYTES)
    }

    fn put_segment(&self, number: usize, bytes: &[u8]) {
        self.put(number * SEGMENT_BYTES, bytes);
    }

    fn offset(&self, key: u64) -> usize {
        self.world.held.lock().unwrap()[&(1, key)].1.offset() as usize
    }

    /// The fault of reading the object, if any.
    fn fault(&self, key: u64) -> Option<ReadFault> {
        self.world.read(&[(1, key)]).err().map(|error| error.fault)
    }

    fn all_right(&self) {
        (0..OBJECTS).for_each(|key| assert_eq!(self.fault(key), None, "object {key}"));
    }

    /// Asserts that exactly the objects in these segments are refused.
    fn lost(&self, segments: &[usize]) {
        for key in 0..OBJECTS {
            let is_lost = segments.contains(&(self.offset(key) / SEGMENT_BYTES));
            assert_eq!(self.fault(key), is_lost.then_some(ReadFault::Damaged), "object {key}");
        }
    }
}

#[test]
fn a_flipped_bit_loses_its_object() {
    both(|attacked| {
        for key in (0..OBJECTS).step_by(50) {
            let at = attacked.offset(key) + key as usize;
            let byte = attacked.bytes(at, 1)[0];
            attacked.put(at, &[byte ^ 1 << (key % 8)]);
            assert_eq!(attacked.fault(key), Some(ReadFault::Damaged));
            attacked.put(at, &[byte]);
        }
        attacked.all_right();
    });
}

#[test]
fn replaced_segments_are_refused() {
    both(|attacked| {
        let before = attacked.segment(1);
        // Of another run, with the same objects at the same places.
        let other = self::attacked(Seal::Encrypted).unwrap();
        assert_eq!((0..OBJECTS).find(|key| attacked.offset(*key) != other.offset(*key)), None);
        for bytes in [other.segment(1), vec![0; SEGMENT_BYTES], object(5, SEGMENT_BYTES)] {
            attacked.put_segment(1, &bytes);
            attacked.lost(&[1]);
        }
        attacked.put_segment(1, &before);
        attacked.all_right();
    });
}

#[test]
fn exchanged_segments_blocks_and_objects_are_refused() {
    both(|attacked| {
        let [one, two] = [1, 2].map(|number| attacked.segment(number));
        attacked.put_segment(1, &two);
        attacked.put_segment(2, &one);
        attacked.lost(&[1, 2]);
        attacked.put_segment(1, &one);
        attacked.put_segment(2, &two);
        attacked.all_right();

        let [one, two] =
            [1 << 20, (1 << 20) + 8 * BLOCK_BYTES].map(|at| (at, attacked.bytes(at, BLOCK_BYTES)));
        attacked.put(one.0, &two.1);
        attacked.put(two.0, &one.1);
        assert!((0..OBJECTS).filter(|key| attacked.fault(*key).is_some()).count() >= 2);
        attacked.put(one.0, &one.1);
        attacked.put(two.0, &two.1);

        // With their seals, so that each is whole but misplaced.
        let sealed = attacked.offset(1) - attacked.offset(0);
        let [one, two] =
            [0, 1].map(|key| (attacked.offset(key), attacked.bytes(attacked.offset(key), sealed)));
        attacked.put(one.0, &two.1);
        attacked.put(two.0, &one.1);
        for key in 0..OBJECTS {
            assert_eq!(attacked.fault(key), (key < 2).then_some(ReadFault::Damaged), "object {key}");
        }
    });
}

#[test]
fn an_older_state_is_refused() {
    both(|attacked| {
        let older: Vec<_> = (0..4).map(|number| attacked.segment(number)).collect();
        for seed in [10_000, 0] {
            attacked.free();
            // The same places; in the last round the same bytes.
            let places: Vec<_> = (0..4).map(|number| attacked.segment(number)).collect();
            attacked.write(seed);
            assert!((0..OBJECTS).all(|key| attacked.offset(key) < 4 * SEGMENT_BYTES));
            assert!((0..3).all(|number| attacked.segment(number) != places[number]));
            let newer: Vec<_> = (0..4).map(|number| attacked.segment(number)).collect();
            attacked.put_segment(2, &older[2]);
            attacked.lost(&[2]);
            (0..4).for_each(|number| attacked.put_segment(number, &older[number]));
            attacked.lost(&[0, 1, 2, 3]);
            (0..4).for_each(|number| attacked.put_segment(number, &newer[number]));
            attacked.all_right();
        }
    });
}

#[test]
fn a_truncated_file_keeps_the_objects_before_its_end() {
    both(|attacked| {
        for end in [2 * SEGMENT_BYTES + 7 * BLOCK_BYTES, SEGMENT_BYTES, 0] {
            attacked.file.set_len(end as u64).unwrap();
            for key in 0..OBJECTS {
                let is_whole = attacked.offset(key) + 4096 + 16 <= end;
                let fault = attacked.fault(key);
                assert_eq!(fault.is_none(), is_whole, "object {key}, cut off at {end}: {fault:?}");
            }
        }
        // Later writes are whole.
        attacked.free();
        attacked.write(20_000);
        attacked.all_right();
    });
}
