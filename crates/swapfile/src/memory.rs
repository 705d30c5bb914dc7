//! For tests: an engine whose disk is memory.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use crate::engine::{Done, Engine, Kind, Lane, Room, Transfer, LANE_DEPTH};
use crate::sync::lock;
use crate::BLOCK_BYTES;

type Block = [u8; BLOCK_BYTES];

/// Blocks in memory, by number. Clones share one disk.
#[derive(Clone)]
pub struct MemoryEngine {
    blocks: Arc<Mutex<BTreeMap<u64, Box<Block>>>>,
    room: Room,
}

impl MemoryEngine {
    /// An empty disk that reports this room.
    pub fn new(room: Room) -> Self {
        MemoryEngine { blocks: Arc::default(), room }
    }

    /// Bytes of blocks written and not given back.
    pub fn bytes(&self) -> u64 {
        (lock(&self.blocks).len() * BLOCK_BYTES) as u64
    }

    /// Changes a byte of the disk; returns whether it was ever written.
    pub fn flip(&self, offset: u64, mask: u8) -> bool {
        let mut blocks = lock(&self.blocks);
        let block = blocks.get_mut(&(offset / BLOCK_BYTES as u64));
        block.map(|block| block[offset as usize % BLOCK_BYTES] ^= mask).is_some()
    }

    /// Writes a block directly to the disk.
    pub fn put(&self, offset: u64, block: &[u8; BLOCK_BYTES]) {
        lock(&self.blocks).insert(offset / BLOCK_BYTES as u64, Box::new(*block));
    }

    /// Reads a block directly from the disk.
    pub fn get(&self, offset: u64) -> [u8; BLOCK_BYTES] {
        lock(&self.blocks).get(&(offset / BLOCK_BYTES as u64)).map_or([0; BLOCK_BYTES], |block| **block)
    }

    fn run(&self, transfer: &mut Transfer) -> usize {
        let (start, end) = (transfer.start, transfer.end);
        let first = transfer.offset / BLOCK_BYTES as u64;
        let mut blocks = lock(&self.blocks);
        for (number, bytes) in (first..).zip(transfer.buffer[start..end].chunks_exact_mut(BLOCK_BYTES)) {
            match transfer.kind {
                Kind::Read => match blocks.get(&number) {
                    Some(block) => bytes.copy_from_slice(&**block),
                    None => bytes.fill(0),
                },
                Kind::Write => {
                    let block: &[u8] = bytes;
                    blocks.insert(number, Box::new(block.try_into().expect("a block")));
                }
            }
        }
        end - start
    }
}

impl Engine for MemoryEngine {
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
            blocks.remove(&number);
        }
        Ok(())
    }

    fn room(&self) -> io::Result<Room> {
        Ok(self.room)
    }
}

/// Executes transfers as late as possible.
struct MemoryLane {
    disk: MemoryEngine,
    waiting: VecDeque<Transfer>,
}

impl Lane for MemoryLane {
    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn push(&mut self, transfer: Transfer) {
        transfer.assert_valid();
        assert!(self.waiting.len() < LANE_DEPTH);
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
