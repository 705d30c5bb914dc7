//! Swap files for tests, and holders of their objects.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use swapfile::{
    Age, CleanReport, Config, Engine, Faults, FaultyEngine, Location, MemoryEngine, Owner, Pack, ReadError,
    Record, Room, Seal, Space, SwapFile, WriteError, Writer,
};

/// A disk with ample room.
pub const ROOM: Room = Room { available: 1 << 40, total: 1 << 41 };

pub fn spawn(work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    std::thread::Builder::new().spawn(work).map(|_| ())
}

/// An engine on a real file; skips with the reason if the machine has none.
pub fn real_engine(direct: bool, threads: usize) -> Option<Arc<dyn Engine>> {
    let config = Config { directory: Path::new("/var/tmp").into(), direct, threads, ..Config::default() };
    match swapfile::open_engine(&config, &spawn) {
        Ok(engine) => Some(engine),
        Err(error) => {
            testkit::skip!("disk", "{error}");
            None
        }
    }
}

pub type Held = BTreeMap<(u16, u64), (Record, Location, Vec<u8>)>;

pub struct World {
    pub file: Arc<SwapFile>,
    pub writer: Writer,
    pub faults: Arc<Faults>,
    pub held: Mutex<Held>,
}

impl World {
    pub fn new(engine: Arc<dyn Engine>, seal: Seal, segments: usize) -> World {
        let faults = Faults::new(7);
        let engine = Arc::new(FaultyEngine::new(engine, faults.clone()));
        let file = SwapFile::with(engine, seal, Arc::new(Space::private(segments)), 1, 5).unwrap();
        let writer = file.writer().unwrap();
        World { file, writer, faults, held: Mutex::default() }
    }

    pub fn in_memory(segments: usize) -> (World, MemoryEngine) {
        let disk = MemoryEngine::new(ROOM);
        (World::new(Arc::new(disk.clone()), Seal::Encrypted, segments), disk)
    }

    /// Writes objects, each a block of its own unless its neighbours follow, and waits for them.
    /// Returns how many reached the disk; only these are held.
    pub fn write(&mut self, objects: &[(u16, u64, Vec<u8>)]) -> Result<usize, WriteError> {
        let (mut result, mut pack) = (Ok(0), None);
        for together in objects.chunk_by(|a, b| (a.0, a.1 >> 4) == (b.0, b.1 >> 4) && a.1 < b.1) {
            match self.fill(together, pack.take(), objects, &mut result) {
                Ok(filled) => pack = Some(filled),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if let Some(pack) = pack {
            self.writer.submit(Age::New, pack);
        }
        while self.writer.in_flight() > 0 {
            self.finish(objects, &mut result);
        }
        result
    }

    /// Adds objects to the pack, or to another one if it is full.
    fn fill(
        &mut self,
        together: &[(u16, u64, Vec<u8>)],
        pack: Option<Pack>,
        objects: &[(u16, u64, Vec<u8>)],
        result: &mut Result<usize, WriteError>,
    ) -> Result<Pack, WriteError> {
        let record = |(group, key, bytes): &(u16, u64, Vec<u8>)| Record {
            group: *group,
            key: *key,
            len: bytes.len() as u32,
            pages: 1,
            codec: 3,
            mark: 0,
        };
        let records: Vec<Record> = together.iter().map(record).collect();
        let mut pack = pack.map_or_else(|| self.writer.pack(Age::New), Ok)?;
        let mut first = pack.add(&records);
        if first.is_none() {
            self.writer.submit(Age::New, pack);
            while !self.writer.is_ready() {
                self.finish(objects, result);
            }
            pack = self.writer.pack(Age::New)?;
            first = pack.add(&records);
        }
        let first = first.expect("an empty pack has room for a block");
        for (number, (.., bytes)) in (first..).zip(together) {
            pack.object_mut(number).copy_from_slice(bytes);
        }
        Ok(pack)
    }

    fn finish(&mut self, objects: &[(u16, u64, Vec<u8>)], result: &mut Result<usize, WriteError>) {
        let mut finished = self.writer.poll(true).expect("in flight");
        match std::mem::replace(&mut finished.result, Ok(())) {
            Ok(()) => {
                for (record, place) in finished.objects() {
                    let key = (record.group, record.key);
                    let of_key = objects.iter().find(|(group, number, _)| (*group, *number) == key);
                    let bytes = of_key.expect("one of them").2.clone();
                    if let Some((_, old, _)) = self.held.lock().unwrap().insert(key, (record, place, bytes)) {
                        self.file.free(old);
                    }
                    result.iter_mut().for_each(|count| *count += 1);
                }
            }
            Err(error) => *result = Err(error),
        }
        self.writer.recycle(finished);
    }

    /// Reads objects and compares them; returns read errors to the caller.
    pub fn read(&self, keys: &[(u16, u64)]) -> Result<(), ReadError> {
        let held = self.held.lock().unwrap();
        let wanted: Vec<_> = keys.iter().map(|key| &held[key]).collect();
        let places: Vec<Location> = wanted.iter().map(|(_, place, _)| *place).collect();
        let objects = self.file.read(&places)?;
        for (index, (record, _, bytes)) in wanted.iter().enumerate() {
            assert!(objects.get(index) == &bytes[..], "{record:?} is another");
        }
        Ok(())
    }

    pub fn free(&self, key: (u16, u64)) {
        let (_, place, _) = self.held.lock().unwrap().remove(&key).unwrap();
        self.file.free(place);
    }

    pub fn clean(&mut self, segments: u64) -> Result<CleanReport, WriteError> {
        let (writer, held) = (&mut self.writer, &self.held);
        writer.clean(&Holder(held), segments)
    }

    pub fn keys(&self) -> Vec<(u16, u64)> {
        self.held.lock().unwrap().keys().copied().collect()
    }

    /// Frees everything and checks that nothing is left.
    pub fn end(mut self) {
        for key in self.keys() {
            self.free(key);
        }
        self.writer.close_logs();
        self.faults.set_rates(swapfile::Rates::default());
        self.file.trim(0);
        let counters = self.file.counters();
        assert_eq!((counters.live_bytes, counters.used_bytes, counters.kept_bytes), (0, 0, 0));
    }
}

struct Holder<'a>(&'a Mutex<Held>);

impl Owner for Holder<'_> {
    fn holds(&self, record: &Record, place: Location) -> bool {
        let held = self.0.lock().unwrap();
        held.get(&(record.group, record.key)).is_some_and(|(_, at, _)| *at == place)
    }

    fn moved(&self, record: &Record, from: Location, to: Location) -> bool {
        let mut held = self.0.lock().unwrap();
        match held.get_mut(&(record.group, record.key)) {
            Some((_, at, _)) if *at == from => {
                *at = to;
                true
            }
            _ => false,
        }
    }
}

/// Bytes unique to this object.
pub fn object(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
