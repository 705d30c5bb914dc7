//! Allocating and freeing, in bulk.

use sys::PAGE_SIZE;

use crate::class::OBJECT_BYTES_MAX;
use crate::entry::{FrameOffset, Object};
use crate::frame::{kind, Field};
use crate::handles::Handle;
use crate::mixed;
use crate::pool::{AllocError, Pool};
use crate::shard::Shard;
use crate::supply::Taker;

/// Objects for which one lock of a shard, and of a class if they share it, is taken.
const BATCH: usize = 8;
/// An object may take a free slot that is longer by up to 1/16.
const LARGER_DIVISOR: u32 = 16;

impl Pool {
    /// Allocates one object of `size` bytes, with the errors of [`malloc_bulk`](Self::malloc_bulk).
    pub fn malloc(&self, size: u32, nid: u8) -> Result<Handle, AllocError> {
        let mut handle = [Handle::DANGLING];
        self.malloc_bulk(&[size], nid, &mut handle)?;
        Ok(handle[0])
    }

    /// Allocates one object per size, preferably in memory of node `nid`, all or none. Their
    /// content is unspecified until written.
    ///
    /// # Errors
    /// [`AllocError`]; then nothing is allocated and `handles` is unspecified.
    ///
    /// # Panics
    /// If there are not as many handles as sizes.
    pub fn malloc_bulk(&self, sizes: &[u32], nid: u8, handles: &mut [Handle]) -> Result<(), AllocError> {
        self.allocate(sizes, nid, handles, |_| {})
    }

    /// Allocates and writes one object for each of `contents`, with the errors of
    /// [`malloc_bulk`](Self::malloc_bulk). Cheaper than both in turn: an object becomes visible
    /// only with its bytes.
    ///
    /// # Panics
    /// If there are more than eight, or not as many handles.
    pub fn put_bulk(&self, contents: &[&[u8]], nid: u8, handles: &mut [Handle]) -> Result<(), AllocError> {
        let mut sizes = [0; BATCH];
        let sizes = &mut sizes[..contents.len()];
        for (size, bytes) in sizes.iter_mut().zip(contents) {
            *size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        }
        self.allocate(sizes, nid, handles, |handles| {
            for (&handle, bytes) in handles.iter().zip(contents) {
                let object = self.entry(handle).reserved();
                debug_assert_eq!(object.len as usize, bytes.len());
                let at = self.frames.address(object.place);
                // SAFETY: the object is as long as `bytes`. Until it is published no other thread
                // knows its handle, and compaction moves only live objects.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
            }
        })
    }

    /// Allocates objects, lets `fill` write them, and makes them visible.
    #[inline]
    fn allocate(
        &self,
        sizes: &[u32],
        nid: u8,
        handles: &mut [Handle],
        fill: impl FnOnce(&[Handle]),
    ) -> Result<(), AllocError> {
        assert_eq!(sizes.len(), handles.len(), "one handle a size");
        for &size in sizes {
            match size as usize {
                0 => return Err(AllocError::Empty),
                1..=OBJECT_BYTES_MAX => {}
                _ => return Err(AllocError::TooBig),
            }
        }
        let node = nid.min(self.supplies.len() as u8 - 1);
        self.tidy();
        let mut shard = self.shards.lock();
        let mut done = 0;
        while done < sizes.len() {
            let end = sizes.len().min(done + BATCH);
            let (count, whole) = self.reserve(&mut shard, &sizes[done..end], node, &mut handles[done..end]);
            done += count;
            if !whole {
                self.unreserve(&mut shard, &mut handles[..done]);
                return Err(AllocError::NoMemory);
            }
        }
        fill(handles);
        // Compaction sees the objects only now: until here, releasing them needs no wait for it.
        for &handle in &*handles {
            self.entry(handle).publish();
        }
        Ok(())
    }

    /// Allocates objects that are not visible yet: the first, and those after it of the same class,
    /// while there is memory. Returns how many, and whether memory sufficed for all of them.
    #[inline]
    fn reserve(&self, shard: &mut Shard, sizes: &[u32], node: u8, handles: &mut [Handle]) -> (usize, bool) {
        let class = self.table.class_of(sizes[0]);
        let run = sizes.iter().take_while(|&&size| self.table.class_of(size) == class).count();
        let mut places = [FrameOffset::NOWHERE; BATCH];
        let allowed = (0..run).take_while(|_| !self.faults.object_fails()).count();
        let placed = self.place(shard, &sizes[..allowed], class, node, &mut places[..allowed]);
        for index in 0..placed {
            let object = Object { place: places[index], len: sizes[index] };
            let Some(handle) = shard.handles.pop(&self.handles) else {
                for index in index..placed {
                    let object = Object { place: places[index], len: sizes[index] };
                    self.free_places(shard, &[object]);
                }
                return (index, false);
            };
            self.entry(handle).reserve(object);
            shard.ledger.count(class, 1, object.len as i32, self.shards.totals());
            handles[index] = handle;
        }
        (placed, placed == run)
    }

    #[cold]
    fn unreserve(&self, shard: &mut Shard, handles: &mut [Handle]) {
        for slot in handles {
            let handle = std::mem::replace(slot, Handle::DANGLING);
            let object = self.entry(handle).reserved();
            self.free_objects(shard, &[object]);
            shard.handles.push(handle, &self.handles);
        }
    }

    /// Finds room for objects of `class`, in order, while there is memory. Returns for how many.
    #[inline]
    fn place(
        &self,
        shard: &mut Shard,
        sizes: &[u32],
        class: u16,
        node: u8,
        places: &mut [FrameOffset],
    ) -> usize {
        let (list, at) = self.class_list(node, class);
        // A class may have one zspage less than its objects would fill, so the slots of its zspages
        // are always in demand and objects beyond that number live elsewhere.
        let payload = self.shards.totals().payload_bytes(class);
        let zspages_max = (payload / (u64::from(at.geometry.pages) * PAGE_SIZE as u64)).saturating_sub(1);
        let mut done = 0;
        if list.has_room() || u64::from(list.zspages()) < zspages_max {
            done = list.allocate(at, zspages_max, places, self.ground());
        }
        for (place, &size) in places.iter_mut().zip(sizes).skip(done) {
            let found = self.place_in_larger(size, class, node);
            let found = found.or_else(|| self.place_mixed(shard, size, node, Taker::Allocation));
            match found.or_else(|| self.place_anywhere(shard, size, class)) {
                Some(found) => *place = found,
                None => break,
            }
            done += 1;
        }
        done
    }

    pub(crate) fn free_slot(&self, class: u16, node: u8) -> Option<FrameOffset> {
        let (list, at) = self.class_list(node, class);
        let mut place = [FrameOffset::NOWHERE];
        (list.has_room() && list.allocate(at, 0, &mut place, self.ground()) == 1).then_some(place[0])
    }

    /// Finds a free slot of a slightly larger class. Otherwise a change of sizes leaves half a
    /// zspage per class free for good.
    #[inline]
    pub(crate) fn place_in_larger(&self, size: u32, class: u16, node: u8) -> Option<FrameOffset> {
        let fits = |class: &u16| self.table.geometry(*class).slot_bytes <= size + size / LARGER_DIVISOR;
        let mut larger = (class + 1..self.table.len() as u16).take_while(fits);
        larger.find_map(|class| self.free_slot(class, node))
    }

    #[inline]
    pub(crate) fn place_mixed(
        &self,
        shard: &mut Shard,
        size: u32,
        node: u8,
        taker: Taker,
    ) -> Option<FrameOffset> {
        let open = &mut shard.open[usize::from(node)];
        open.allocate(size, node, taker, &mut shard.ledger, self.ground())
    }

    /// The last resort when there is no free frame: any zspage of the class, or mixed, with room.
    #[cold]
    fn place_anywhere(&self, shard: &mut Shard, size: u32, class: u16) -> Option<FrameOffset> {
        for node in 0..self.supplies.len() as u8 {
            if let Some(place) = self.free_slot(class, node) {
                return Some(place);
            }
            let found = self.place_mixed(shard, size, node, Taker::Allocation);
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

    /// Frees objects; their handles may be reused at once.
    ///
    /// # Panics
    /// If a handle is not an object's, or the object is being read.
    pub fn free_bulk(&self, handles: &[Handle]) {
        for handles in handles.chunks(BATCH) {
            // Claims all entries first: a thread that waits for compaction to finish a move must
            // not hold a lock that compaction may need.
            let mut objects = [Object::NOWHERE; BATCH];
            for (object, &handle) in objects.iter_mut().zip(handles) {
                *object = self.entry(handle).claim();
            }
            let mut shard = self.shards.lock();
            self.free_objects(&mut shard, &objects[..handles.len()]);
            for &handle in handles {
                shard.handles.push(handle, &self.handles);
            }
        }
    }

    #[inline]
    fn free_objects(&self, shard: &mut Shard, objects: &[Object]) {
        for object in objects {
            if self.frames.get(object.place.frame).kind.get() == kind::SEGMENT {
                continue;
            }
            let class = self.table.class_of(object.len);
            shard.ledger.count(class, -1, -(object.len as i32), self.shards.totals());
        }
        self.free_places(shard, objects);
    }

    /// Frees the memory of at most [`BATCH`] objects whose entries are already cleared.
    #[inline]
    pub(crate) fn free_places(&self, shard: &mut Shard, objects: &[Object]) {
        let mut rest = objects;
        while let Some((&object, others)) = rest.split_first() {
            let frame = self.frames.get(object.place.frame);
            let (kind, node) = (frame.kind.get(), frame.node.get());
            rest = others;
            match kind {
                kind::FREE => unreachable!("an object in a free frame"),
                kind::SEGMENT => self.segments.free(object, &self.frames),
                kind::MIXED => mixed::free(object, &mut shard.ledger, self.ground()),
                class => {
                    let mut places = [object.place; BATCH];
                    let mut count = 1;
                    while let Some((next, others)) = rest.split_first() {
                        let frame = self.frames.get(next.place.frame);
                        if (frame.kind.get(), frame.node.get()) != (kind, node) {
                            break;
                        }
                        places[count] = next.place;
                        count += 1;
                        rest = others;
                    }
                    let (list, at) = self.class_list(node, class - kind::CLASS);
                    list.free(&places[..count], at.geometry, self.ground());
                }
            }
        }
    }
}
