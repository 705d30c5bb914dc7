//! The pool: allocate, write, read, free.

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sys::PAGE_SIZE;

use crate::blocks;
use crate::class::{ClassTable, CHAIN_MAX, CHAIN_MIN, OBJECT_BYTES_MAX};
use crate::entry::{Entry, Object, Place};
use crate::faults::Faults;
use crate::frame::{kind, Field, Frames, FRAME_BYTES};
use crate::handles::{FreeHandles, Handle, HandleTable};
use crate::lock::{Lock, Locked};
use crate::mixed::{self, MixedTotals, OpenSet};
use crate::read::ReadGuard;
use crate::supply::Supply;
use crate::uniform::{ClassList, Ground};

/// How a pool is made.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pages of the longest zspage, 4..=16. Unlike the kernel's, a longer chain costs no memory here, since pages that a
    /// zspage has not reached are not resident; it makes classes finer. Objects above `chain` pages get as many pages
    /// as they need.
    pub chain: usize,
    /// NUMA nodes, 1..=255: objects are kept apart by node. Node numbers at or above count as the last node.
    pub nodes: u8,
}

impl Default for Config {
    fn default() -> Self {
        Config { chain: CHAIN_MAX, nodes: 1 }
    }
}

/// Why there is no object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// Above [`OBJECT_BYTES_MAX`].
    #[error("an object of more than {OBJECT_BYTES_MAX} bytes")]
    TooBig,
    /// Zero bytes.
    #[error("an object of no bytes")]
    Empty,
    /// The house has no memory left.
    #[error("no memory for compressed objects")]
    NoMemory,
}

/// Payload of a class, in bytes, from which on the class starts zspages of its own; below, its objects go to mixed
/// zspages. A zspage's last page is half used on average: 2 KiB of 64 KiB are 3 % of the class at worst, and less with
/// every further zspage.
const UNIFORM_PAYLOAD_MIN: u64 = 64 * 1024;

/// Bytes of holes that are never worth a pass.
const HOLES_MIN: usize = 4 * FRAME_BYTES;

/// Sets of open zspages and free handles. Threads spread over them by the address of their stack.
const SHARDS: usize = 8;

/// What threads that allocate take turns on.
#[derive(Default)]
pub(crate) struct Shard {
    pub(crate) handles: FreeHandles,
    /// One a node.
    pub(crate) open: Vec<OpenSet>,
}

/// A shard alone on its cache lines: neighbours are used by other threads.
#[repr(align(128))]
struct Padded<T>(T);

/// Objects and payload bytes of a class, in one word: `objects << 38 | bytes`.
#[derive(Default)]
pub(crate) struct Tally(AtomicU64);

const TALLY_OBJECT: u64 = 1 << 38;

impl Tally {
    #[inline]
    fn add(&self, size: u32) {
        self.0.fetch_add(TALLY_OBJECT + u64::from(size), Ordering::Relaxed);
    }

    #[inline]
    fn sub(&self, size: u32) {
        self.0.fetch_sub(TALLY_OBJECT + u64::from(size), Ordering::Relaxed);
    }

    /// Objects and bytes.
    #[inline]
    pub(crate) fn get(&self) -> (u64, u64) {
        let word = self.0.load(Ordering::Relaxed);
        (word >> 38, word & (TALLY_OBJECT - 1))
    }
}

/// An allocator of compressed objects. See the crate's documentation for how it works.
pub struct Pool {
    pub(crate) table: &'static ClassTable,
    pub(crate) frames: Frames,
    pub(crate) handles: HandleTable,
    pub(crate) supplies: Vec<Supply>,
    pub(crate) mixed: MixedTotals,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) faults: Faults,
    /// Bytes of holes below which the next tidying is not worth it: the last one left this many, and some.
    pub(crate) tidy_above: AtomicUsize,
    /// Held by the one thread that compacts.
    pub(crate) compaction: Lock<()>,
    lists: Lists,
    shards: [Padded<Lock<Shard>>; SHARDS],
}

/// The class lists of all nodes: zeroes from the house, since most classes of a small pool are never touched.
struct Lists {
    at: NonNull<ClassList>,
    count: usize,
    owner: PhantomData<ClassList>,
}

// SAFETY: it is an array of `ClassList`, which may be sent and shared.
unsafe impl Send for Lists {}
// SAFETY: as above.
unsafe impl Sync for Lists {}

impl Lists {
    fn new(count: usize) -> io::Result<Self> {
        let at = blocks::take(Self::bytes_of(count))?;
        Ok(Lists { at: at.cast(), count, owner: PhantomData })
    }

    fn bytes_of(count: usize) -> usize {
        (count * size_of::<ClassList>()).next_multiple_of(PAGE_SIZE)
    }

    fn as_slice(&self) -> &[ClassList] {
        // SAFETY: the block holds `count` lists, zeroes are valid ones, and the block lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        // SAFETY: taken in `new` with this length; nobody borrows it any more.
        unsafe { blocks::give_back(self.at.cast(), Self::bytes_of(self.count)) };
    }
}

impl Pool {
    /// An empty pool.
    ///
    /// # Errors
    /// InvalidInput when the configuration is out of range; ENOMEM when the house is full.
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
        let shard = || Shard {
            handles: FreeHandles::default(),
            open: std::iter::repeat_with(OpenSet::default).take(nodes).collect(),
        };
        Ok(Pool {
            table,
            frames: Frames::new(),
            handles: HandleTable::new(),
            supplies: (0..config.nodes).map(|node| Supply::new(node, config.nodes > 1)).collect(),
            mixed: MixedTotals::default(),
            tallies: std::iter::repeat_with(Tally::default).take(table.len()).collect(),
            faults: Faults::new(),
            tidy_above: AtomicUsize::new(0),
            compaction: Lock::new(()),
            lists: Lists::new(table.len() * nodes)?,
            shards: std::array::from_fn(|_| Padded(Lock::new(shard()))),
        })
    }

    /// Allocates one object of `size` bytes. See [`malloc_bulk`](Self::malloc_bulk).
    ///
    /// # Errors
    /// As [`malloc_bulk`](Self::malloc_bulk).
    pub fn malloc(&self, size: u32, nid: u8) -> Result<Handle, AllocError> {
        let mut handle = [Handle::DANGLING];
        self.malloc_bulk(&[size], nid, &mut handle)?;
        Ok(handle[0])
    }

    /// Allocates one object a size, preferably in memory of node `nid`, all or none. Their content is unspecified
    /// until written.
    ///
    /// # Errors
    /// [`AllocError`]; `handles` is unchanged then and nothing is held.
    ///
    /// # Panics
    /// When there are not as many handles as sizes.
    pub fn malloc_bulk(&self, sizes: &[u32], nid: u8, handles: &mut [Handle]) -> Result<(), AllocError> {
        assert_eq!(sizes.len(), handles.len(), "one handle a size");
        for &size in sizes {
            match size as usize {
                0 => return Err(AllocError::Empty),
                1..=OBJECT_BYTES_MAX => {}
                _ => return Err(AllocError::TooBig),
            }
        }
        let node = nid.min(self.supplies.len() as u8 - 1);
        if self.has_many_holes() {
            self.tidy();
        }
        let mut shard = self.lock_shard();
        for done in 0..sizes.len() {
            match self.malloc_locked(&mut shard, sizes[done], node) {
                // The slots of `handles` filled so far are put back below when a later object fails.
                Some(handle) => handles[done] = handle,
                None => {
                    for slot in &mut handles[..done] {
                        let handle = std::mem::replace(slot, Handle::DANGLING);
                        self.free_object(handle);
                        shard.handles.push(handle, &self.handles);
                    }
                    return Err(AllocError::NoMemory);
                }
            }
        }
        Ok(())
    }

    /// Whether holes are a quarter of the mixed zspages, and weigh in the pool.
    #[inline]
    fn has_many_holes(&self) -> bool {
        let dead = self.mixed.dead_bytes.load(Ordering::Relaxed);
        dead > HOLES_MIN
            && dead > self.tidy_above.load(Ordering::Relaxed)
            && dead > self.mixed.zspages.load(Ordering::Relaxed) * FRAME_BYTES / 4
            && dead > self.bytes() / 32
    }

    fn malloc_locked(&self, shard: &mut Shard, size: u32, node: u8) -> Option<Handle> {
        if self.faults.object_fails() {
            return None;
        }
        let handle = self.take_handle(shard)?;
        let Some(place) = self.place(shard, size, node) else {
            shard.handles.push(handle, &self.handles);
            return None;
        };
        self.entry(handle).publish(Object { place, len: size });
        self.tallies[usize::from(self.table.class_of(size))].add(size);
        Some(handle)
    }

    fn take_handle(&self, shard: &mut Shard) -> Option<Handle> {
        if shard.handles.len() == 0 {
            self.find_handles(shard)?;
        }
        shard.handles.pop(&self.handles)
    }

    #[cold]
    fn find_handles(&self, shard: &mut Shard) -> Option<()> {
        for other in &self.shards {
            // Only tried, so that two shards that rob each other cannot wait for each other; this shard's own lock is
            // held and fails too.
            if let Some(mut other) = other.0.try_lock() {
                shard.handles.steal(&mut other.handles);
                if shard.handles.len() > 0 {
                    return Some(());
                }
            }
        }
        shard.handles.refill(&self.handles).then_some(())
    }

    /// Finds room for `size` bytes.
    pub(crate) fn place(&self, shard: &mut Shard, size: u32, node: u8) -> Option<Place> {
        let class = self.table.class_of(size);
        let list = self.class_list(node, class);
        let (_, payload) = self.tallies[usize::from(class)].get();
        let grow = payload >= UNIFORM_PAYLOAD_MIN;
        if grow || list.has_room() {
            let geometry = self.table.geometry(class);
            if let Some(place) = list.allocate(class, geometry, node, grow, self.ground()) {
                return Some(place);
            }
        }
        let found = shard.open[usize::from(node)].allocate(size, node, &self.mixed, self.ground());
        found.or_else(|| self.place_anywhere(shard, size, class))
    }

    /// The last resort when no frame can be had: whatever has room.
    #[cold]
    fn place_anywhere(&self, shard: &mut Shard, size: u32, class: u16) -> Option<Place> {
        let geometry = self.table.geometry(class);
        for node in 0..self.supplies.len() as u8 {
            let list = self.class_list(node, class);
            if list.has_room() {
                if let Some(place) = list.allocate(class, geometry, node, false, self.ground()) {
                    return Some(place);
                }
            }
            let found = shard.open[usize::from(node)].allocate(size, node, &self.mixed, self.ground());
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Frees one object. See [`free_bulk`](Self::free_bulk).
    pub fn free(&self, handle: Handle) {
        self.free_bulk(&[handle]);
    }

    /// Frees objects; their handles may be given out again at once.
    ///
    /// # Panics
    /// When a handle is not an object's, or the object is being read: broken invariants of the caller.
    pub fn free_bulk(&self, handles: &[Handle]) {
        for &handle in handles {
            self.free_object(handle);
        }
        let mut shard = self.lock_shard();
        for &handle in handles {
            shard.handles.push(handle, &self.handles);
        }
    }

    /// Frees the object and leaves the handle in the caller's hands.
    fn free_object(&self, handle: Handle) {
        let object = self.entry(handle).claim();
        self.tallies[usize::from(self.table.class_of(object.len))].sub(object.len);
        self.free_place(object);
    }

    /// Frees the memory of an object whose entry does not name it any more.
    pub(crate) fn free_place(&self, object: Object) {
        let frame = self.frames.get(object.place.frame);
        match frame.kind.get() {
            kind::FREE => unreachable!("an object in a free frame"),
            kind::MIXED => mixed::free(object, &self.mixed, self.ground()),
            class => {
                let class = class - kind::CLASS;
                let list = self.class_list(frame.node.get(), class);
                list.free(object.place, self.table.geometry(class), self.ground());
            }
        }
    }

    /// Writes the object from its start; `bytes` may be shorter than the object. Waits while compaction moves it.
    ///
    /// # Panics
    /// When the handle is not an object's, the object is shorter than `bytes`, or it is being read.
    pub fn write(&self, handle: Handle, bytes: &[u8]) {
        let entry = self.entry(handle);
        let object = entry.lock();
        if bytes.len() > object.len as usize {
            entry.unlock(object);
            panic!("writing {} bytes into an object of {}", bytes.len(), object.len);
        }
        let at = self.frames.address(object.place);
        // SAFETY: the object's bytes are in its frame and this thread's alone until `unlock`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        entry.unlock(object);
    }

    /// Writes several objects.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub fn write_bulk(&self, writes: &[(Handle, &[u8])]) {
        for &(handle, bytes) in writes {
            self.write(handle, bytes);
        }
    }

    /// Bytes of an object, as asked for when it was allocated.
    ///
    /// # Panics
    /// When the handle is not an object's.
    pub fn len_of(&self, handle: Handle) -> usize {
        self.entry(handle).peek().expect("a handle that is in use").len as usize
    }

    /// Borrows an object's bytes. The object stays where it is until the guard is dropped.
    ///
    /// # Panics
    /// When the handle is not an object's.
    #[inline]
    pub fn read(&self, handle: Handle) -> ReadGuard<'_> {
        let entry = self.entry(handle);
        let object = entry.pin();
        let at = self.frames.address(object.place);
        // SAFETY: the object's bytes are in its frame, which is mapped as long as the pool; while the entry is pinned
        // nobody writes, moves or frees them, and the guard unpins it when the borrow ends.
        let bytes = unsafe { std::slice::from_raw_parts(at, object.len as usize) };
        ReadGuard::new(entry, bytes)
    }

    #[inline]
    pub(crate) fn entry(&self, handle: Handle) -> &Entry {
        self.handles.get(handle)
    }

    #[inline]
    pub(crate) fn ground(&self) -> Ground<'_> {
        Ground { frames: &self.frames, supplies: &self.supplies, faults: &self.faults }
    }

    #[inline]
    pub(crate) fn class_list(&self, node: u8, class: u16) -> &ClassList {
        &self.lists.as_slice()[usize::from(node) * self.table.len() + usize::from(class)]
    }

    pub(crate) fn class_lists(&self) -> &[ClassList] {
        self.lists.as_slice()
    }

    /// Locks the shard of this thread, or another one that is free.
    pub(crate) fn lock_shard(&self) -> Locked<'_, Shard> {
        let home = shard_hint();
        for step in 0..SHARDS {
            if let Some(shard) = self.shards[(home + step) % SHARDS].0.try_lock() {
                return shard;
            }
        }
        self.shards[home].0.lock()
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Lock<Shard>> {
        self.shards.iter().map(|shard| &shard.0)
    }

    /// Pages resident for objects, as bytes: zspages and the few pages kept for the next ones.
    pub fn bytes(&self) -> usize {
        self.supplies.iter().map(Supply::pages).sum::<usize>() * PAGE_SIZE
    }

    /// Bytes of everything else: handle table, frame descriptors, class lists and tables, the pool itself.
    pub fn metadata_bytes(&self) -> usize {
        let lists = self.lists.as_slice();
        let page_lists = PAGE_SIZE / size_of::<ClassList>();
        let list_pages = lists.chunks(page_lists).filter(|page| page.iter().any(ClassList::was_used)).count();
        let open = SHARDS * self.supplies.len() * size_of::<OpenSet>();
        size_of::<Self>()
            + self.handles.bytes()
            + self.frames.bytes()
            + list_pages * PAGE_SIZE
            + self.table.bytes()
            + size_of_val(&self.tallies[..])
            + size_of_val(&self.supplies[..])
            + open
    }

    /// For tests: after `count` more objects, the allocation of one fails with [`AllocError::NoMemory`].
    pub fn fail_object_after(&self, count: Option<u32>) {
        self.faults.fail_object_after(count);
    }

    /// For tests: after `count` more frames no new zspage can be started, until `None`.
    pub fn fail_frames_after(&self, count: Option<u32>) {
        self.faults.fail_frames_after(count);
    }
}

/// A number below [`SHARDS`] that is mostly the same for a thread and mostly differs between threads. Stacks lie a
/// megabyte apart at least; thread-local storage is not to be touched here.
fn shard_hint() -> usize {
    let mark = 0u8;
    let stack = (&raw const mark as usize) >> 20;
    (stack.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) % SHARDS
}
