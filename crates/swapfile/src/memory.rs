//! An engine whose disk is memory: for tests.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use crate::engine::{Done, Engine, Kind, Lane, Room, Transfer};
use crate::sync::lock;
use crate::BLOCK_BYTES;

const DEPTH: usize = 8;

/// A sector: what a disk writes whole, or not at all.
const SECTOR_BYTES: usize = 512;

type Block = [u8; BLOCK_BYTES];

/// Blocks in memory, by number. Clones are the same disk.
#[derive(Clone)]
pub struct MemoryEngine {
    blocks: Arc<Mutex<Blocks>>,
    room: Room,
}

/// What is on the disk, and what a loss of power would leave.
#[derive(Default)]
struct Blocks {
    now: BTreeMap<u64, Arc<Block>>,
    durable: BTreeMap<u64, Arc<Block>>,
    /// What was written or given back since the last sync, in order; nothing is noted unless a loss
    /// of power is to come.
    since: Option<Vec<(u64, Option<Arc<Block>>)>>,
    /// After how many more changes power is lost, and what of them is kept then.
    trap: Option<(u64, Box<dyn FnMut() -> bool + Send>)>,
    /// What that left.
    left: Option<BTreeMap<u64, Arc<Block>>>,
}

impl Blocks {
    fn set(&mut self, number: u64, block: Option<Arc<Block>>) {
        self.step();
        if let Some(since) = &mut self.since {
            since.push((number, block.clone()));
        }
        put(&mut self.now, number, block);
    }

    /// A change is about to be made.
    fn step(&mut self) {
        match &mut self.trap {
            Some((0, _)) => {
                let (_, mut keeps) = self.trap.take().expect("it is there");
                self.left = Some(self.after_power_loss(&mut keeps));
            }
            Some((changes, _)) => *changes -= 1,
            None => {}
        }
    }

    fn after_power_loss(&self, keeps: &mut dyn FnMut() -> bool) -> BTreeMap<u64, Arc<Block>> {
        let mut left = self.durable.clone();
        for (number, block) in self.since.as_ref().expect("a forgetful disk") {
            match block {
                None if keeps() => drop(left.remove(number)),
                None => {}
                Some(block) => {
                    let mut torn = left.get(number).map_or([0; BLOCK_BYTES], |block| **block);
                    let sectors = torn.chunks_exact_mut(SECTOR_BYTES).zip(block.chunks_exact(SECTOR_BYTES));
                    for (to, from) in sectors.filter(|_| keeps()) {
                        to.copy_from_slice(from);
                    }
                    left.insert(*number, Arc::new(torn));
                }
            }
        }
        left
    }
}

fn put(blocks: &mut BTreeMap<u64, Arc<Block>>, number: u64, block: Option<Arc<Block>>) {
    match block {
        Some(block) => drop(blocks.insert(number, block)),
        None => drop(blocks.remove(&number)),
    }
}

impl MemoryEngine {
    /// An empty disk that says it has so much room.
    pub fn new(room: Room) -> Self {
        MemoryEngine { blocks: Arc::default(), room }
    }

    /// The same, but power may be lost.
    pub fn forgetful(room: Room) -> Self {
        let disk = MemoryEngine::new(room);
        lock(&disk.blocks).since = Some(Vec::new());
        disk
    }

    /// The disk as it is after a loss of power now: what was synced is there. Of what was written
    /// since each sector of 512 bytes is there if `keeps` says so, and what was given back since is
    /// gone if it does. This disk stays as it is.
    ///
    /// # Panics
    /// When the disk is not forgetful.
    pub fn after_power_loss(&self, mut keeps: impl FnMut() -> bool) -> MemoryEngine {
        let left = lock(&self.blocks).after_power_loss(&mut keeps);
        self.of(left)
    }

    /// Notes what a loss of power leaves in the middle of things: so many changes of blocks, and
    /// syncs, from now.
    pub fn lose_power_after(&self, changes: u64, keeps: impl FnMut() -> bool + Send + 'static) {
        lock(&self.blocks).trap = Some((changes, Box::new(keeps)));
    }

    /// What that loss of power left, if it came.
    pub fn left(&self) -> Option<MemoryEngine> {
        let left = lock(&self.blocks).left.clone();
        left.map(|left| self.of(left))
    }

    fn of(&self, left: BTreeMap<u64, Arc<Block>>) -> MemoryEngine {
        let blocks =
            Blocks { now: left.clone(), durable: left, since: Some(Vec::new()), trap: None, left: None };
        MemoryEngine { blocks: Arc::new(Mutex::new(blocks)), room: self.room }
    }

    /// Bytes of blocks written and not given back.
    pub fn bytes(&self) -> u64 {
        (lock(&self.blocks).now.len() * BLOCK_BYTES) as u64
    }

    /// Changes a byte of the disk; says whether it was ever written.
    pub fn flip(&self, offset: u64, mask: u8) -> bool {
        let mut blocks = lock(&self.blocks);
        let block = blocks.now.get_mut(&(offset / BLOCK_BYTES as u64));
        block.map(|block| Arc::make_mut(block)[offset as usize % BLOCK_BYTES] ^= mask).is_some()
    }

    /// Writes a block past the engine.
    pub fn put(&self, offset: u64, block: &[u8; BLOCK_BYTES]) {
        lock(&self.blocks).set(offset / BLOCK_BYTES as u64, Some(Arc::new(*block)));
    }

    /// The block at a place.
    pub fn get(&self, offset: u64) -> [u8; BLOCK_BYTES] {
        lock(&self.blocks).now.get(&(offset / BLOCK_BYTES as u64)).map_or([0; BLOCK_BYTES], |block| **block)
    }

    fn run(&self, transfer: &mut Transfer) -> usize {
        let (start, end) = (transfer.start, transfer.end);
        let first = transfer.offset / BLOCK_BYTES as u64;
        let mut blocks = lock(&self.blocks);
        for (number, bytes) in (first..).zip(transfer.buffer[start..end].chunks_exact_mut(BLOCK_BYTES)) {
            match transfer.kind {
                Kind::Read => match blocks.now.get(&number) {
                    Some(block) => bytes.copy_from_slice(&**block),
                    None => bytes.fill(0),
                },
                Kind::Write => {
                    let block: &[u8] = bytes;
                    blocks.set(number, Some(Arc::new(block.try_into().expect("a block"))));
                }
            }
        }
        end - start
    }
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        Ok(Box::new(MemoryLane { disk: self.clone(), waiting: VecDeque::new() }))
    }

    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, offset: u64, len: u64) -> io::Result<()> {
        let first = offset / BLOCK_BYTES as u64;
        let mut blocks = lock(&self.blocks);
        for number in first..first + len / BLOCK_BYTES as u64 {
            if blocks.now.contains_key(&number) {
                blocks.set(number, None);
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let blocks = &mut *lock(&self.blocks);
        blocks.step();
        if let Some(since) = &mut blocks.since {
            since.drain(..).for_each(|(number, block)| put(&mut blocks.durable, number, block));
        }
        Ok(())
    }

    fn room(&self) -> io::Result<Room> {
        Ok(self.room)
    }
}

/// Does everything as late as it can.
struct MemoryLane {
    disk: MemoryEngine,
    waiting: VecDeque<Transfer>,
}

impl Lane for MemoryLane {
    fn depth(&self) -> usize {
        DEPTH
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn push(&mut self, transfer: Transfer) {
        transfer.assert_valid();
        assert!(self.waiting.len() < DEPTH);
        self.waiting.push_back(transfer);
    }

    fn pop(&mut self) -> Option<Done> {
        let mut transfer = self.waiting.pop_front()?;
        let result = Ok(self.disk.run(&mut transfer));
        Some(Done { transfer, result })
    }

    fn try_pop(&mut self) -> Option<Done> {
        self.pop()
    }
}
