//! The pool: its construction and access to objects' bytes.

use std::io;

use sys::PAGE_SIZE;

use crate::blocks::Block;
use crate::class::{ClassTable, CHAIN_MAX, CHAIN_MIN, OBJECT_BYTES_MAX};
use crate::compact::Scratch;
use crate::entry::Entry;
use crate::faults::Faults;
use crate::frame::{kind, Field, Frames, FRAME_BYTES};
use crate::handles::{Handle, HandleTable};
use crate::lock::Lock;
use crate::read::ReadGuard;
use crate::segment::Segments;
use crate::shard::{Shards, SHARDS};
use crate::supply::Supply;
use crate::tidy::Tidied;
use crate::uniform::{At, ClassList, Ground};

/// Configuration of a pool.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pages of the longest zspage, 4..=16. Unlike in the kernel, a longer chain costs no memory,
    /// since pages that a zspage has not reached are not resident; it makes classes finer. Objects
    /// above `chain` pages get as many pages as they need.
    pub chain: usize,
    /// NUMA nodes, 1..=255; objects of different nodes are kept apart. Node numbers at or above
    /// count as the last node.
    pub nodes: u8,
}

impl Default for Config {
    fn default() -> Self {
        Config { chain: CHAIN_MAX, nodes: 1 }
    }
}

/// Why an allocation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// Above [`OBJECT_BYTES_MAX`].
    #[error("an object of more than {OBJECT_BYTES_MAX} bytes")]
    TooBig,
    /// Zero bytes.
    #[error("an object of no bytes")]
    Empty,
    /// The arena has no memory left.
    #[error("no memory for compressed objects")]
    NoMemory,
}

/// An allocator of compressed objects. The crate's documentation explains how it works.
pub struct Pool {
    pub(crate) table: &'static ClassTable,
    pub(crate) frames: Frames,
    pub(crate) handles: HandleTable,
    pub(crate) supplies: Vec<Supply>,
    pub(crate) shards: Shards,
    pub(crate) faults: Faults,
    pub(crate) tidied: Tidied,
    pub(crate) segments: Segments,
    /// Held by the compacting thread.
    pub(crate) compaction: Lock<Scratch>,
    lists: Lists,
}

/// The class lists of all nodes: zeroes from the arena, since a small pool never touches most.
struct Lists {
    block: Block,
    count: usize,
}

impl Lists {
    fn new(count: usize) -> io::Result<Self> {
        let bytes = (count * size_of::<ClassList>()).next_multiple_of(PAGE_SIZE);
        Ok(Lists { block: Block::take(bytes)?, count })
    }

    fn as_slice(&self) -> &[ClassList] {
        // SAFETY: the block holds `count` lists, zeroes are valid ones, and it lives as long as
        // `self`.
        unsafe { std::slice::from_raw_parts(self.block.at().cast().as_ptr(), self.count) }
    }
}

impl Pool {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// InvalidInput if the configuration is out of range; ENOMEM if the arena is full.
    pub fn new(config: &Config) -> io::Result<Self> {
        if !(CHAIN_MIN..=CHAIN_MAX).contains(&config.chain) {
            let reason = format!("chains have {CHAIN_MIN} to {CHAIN_MAX} pages, not {}", config.chain);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        if config.nodes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a pool has one node at least"));
        }
        let table = ClassTable::of_chain(config.chain);
        let nodes = usize::from(config.nodes);
        Ok(Pool {
            table,
            frames: Frames::new(),
            handles: HandleTable::new(),
            supplies: (0..config.nodes).map(|node| Supply::new(node, config.nodes > 1)).collect(),
            shards: Shards::new(table.len(), nodes),
            faults: Faults::new(),
            tidied: Tidied::default(),
            segments: Segments::default(),
            compaction: Lock::new(Scratch::default()),
            lists: Lists::new(table.len() * nodes)?,
        })
    }

    /// Writes the object from its start; `bytes` may be shorter than the object. Waits while
    /// compaction moves the object.
    ///
    /// # Panics
    /// If the handle is not an object's, the object is shorter than `bytes`, or it is being read.
    pub fn write(&self, handle: Handle, bytes: &[u8]) {
        let entry = self.entry(handle);
        let object = entry.lock();
        if bytes.len() > object.len as usize {
            entry.unlock(object);
            panic!("writing {} bytes into an object of {}", bytes.len(), object.len);
        }
        let at = self.frames.address(object.place);
        // SAFETY: the object lies in its frame, and `lock` keeps other threads off it until
        // `unlock`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        entry.unlock(object);
    }

    /// Bytes of an object, as requested when it was allocated.
    ///
    /// # Panics
    /// If the handle is not an object's.
    pub fn len_of(&self, handle: Handle) -> usize {
        self.entry(handle).peek().expect("a handle that is in use").len as usize
    }

    /// Borrows an object's bytes. The object does not move until the guard is dropped.
    ///
    /// # Panics
    /// If the handle is not an object's.
    #[inline]
    pub fn read(&self, handle: Handle) -> ReadGuard<'_> {
        let entry = self.entry(handle);
        let object = entry.pin();
        let at = self.frames.address(object.place);
        // SAFETY: the object lies in its frame, which is mapped as long as the pool. While the
        // entry is pinned no thread writes, moves or frees it; the guard unpins it when the borrow
        // ends.
        let bytes = unsafe { std::slice::from_raw_parts(at, object.len as usize) };
        ReadGuard { entry, bytes }
    }

    #[inline]
    pub(crate) fn entry(&self, handle: Handle) -> &Entry {
        self.handles.get(handle)
    }

    #[inline]
    pub(crate) fn ground(&self) -> Ground<'_> {
        Ground {
            frames: &self.frames,
            supplies: &self.supplies,
            faults: &self.faults,
            totals: self.shards.totals(),
        }
    }

    #[inline]
    pub(crate) fn class_list(&self, node: u8, class: u16) -> (&ClassList, At) {
        let list = &self.lists.as_slice()[usize::from(node) * self.table.len() + usize::from(class)];
        (list, At { node, class, geometry: self.table.geometry(class) })
    }

    /// The list that a frame's zspage belongs to, if it is a class's.
    pub(crate) fn list_of(&self, frame: u32) -> Option<(&ClassList, At)> {
        let frame = self.frames.get(frame);
        Some(self.class_list(frame.node.get(), frame.kind.get().checked_sub(kind::CLASS)?))
    }

    pub(crate) fn class_lists(&self) -> &[ClassList] {
        self.lists.as_slice()
    }

    /// Bytes of pages resident for objects: zspages and the few cached pages, without segments.
    pub fn bytes(&self) -> usize {
        self.supplies.iter().map(Supply::pages).sum::<usize>() * PAGE_SIZE
    }

    /// Makes room for the handles of `objects` objects, and for the descriptors of `bytes` of
    /// frames and their compaction, so that later allocations take only frames.
    ///
    /// # Errors
    /// ENOMEM if the arena is full, or memory outside it is exhausted.
    pub fn make_room(&self, objects: usize, bytes: usize) -> io::Result<()> {
        // Each shard may keep a page of handles and a list too short for the depot.
        let count = objects.saturating_add(SHARDS * 1024).min(u32::MAX as usize);
        self.handles.reserve(count as u32)?;
        let frames = (bytes / FRAME_BYTES).min(u32::MAX as usize);
        self.frames.reserve(frames as u32)?;
        self.compaction.lock().reserve(frames).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// Bytes of memory cached for later objects; [`trim`](Self::trim) gives it back.
    pub fn cached_bytes(&self) -> usize {
        self.supplies.iter().map(|supply| supply.cached_pages()).sum::<usize>() * PAGE_SIZE
    }

    /// Bytes of address space in frames without a zspage: the room for new zspages in a full arena.
    pub fn free_frame_bytes(&self) -> usize {
        self.supplies.iter().map(Supply::free_frames).sum::<usize>() * FRAME_BYTES
    }

    /// Gives the pages that are in no zspage back to the system. Call it when the program is idle
    /// or short of memory; [`compact`](Self::compact) does it too.
    pub fn trim(&self) {
        for supply in &self.supplies {
            supply.trim(&self.frames, 0);
        }
    }

    /// Sets how many bytes of pages of empty zspages each node may cache; 8 MiB in a new pool.
    pub fn set_cached_bytes_max(&self, bytes: usize) {
        for supply in &self.supplies {
            supply.set_cached_pages_max(bytes / PAGE_SIZE);
        }
    }

    /// Bytes of the rest: handle table, frame descriptors, class lists and tables, the pool itself.
    pub fn metadata_bytes(&self) -> usize {
        let lists = self.lists.as_slice();
        let page_lists = PAGE_SIZE / size_of::<ClassList>();
        let list_pages = lists.chunks(page_lists).filter(|page| page.iter().any(ClassList::was_used)).count();
        size_of::<Self>() - size_of::<Shards>()
            + self.shards.bytes()
            + self.handles.bytes()
            + self.frames.bytes()
            + list_pages * PAGE_SIZE
            + self.table.bytes()
            + size_of_val(&self.supplies[..])
    }

    /// For tests: after `count` more objects, one allocation fails with [`AllocError::NoMemory`].
    pub fn fail_object_after(&self, count: Option<u32>) {
        self.faults.fail_object_after(count);
    }

    /// For tests: after `count` more frames no new zspage can start, until `None`.
    pub fn fail_frames_after(&self, count: Option<u32>) {
        self.faults.fail_frames_after(count);
    }
}
