//! Segments: sealed memory files of objects that relatives map, so that each object is in memory
//! once for all of them.
//!
//! A segment takes the place of a chunk of frames. Nothing writes to it, so an object moves there
//! only if its bytes are the same, and only by a change of its entry. Its frames count the bytes of
//! this pool's objects; they are on no list, and compaction leaves them alone.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use sys::memory;

use crate::compact::{Mark, Source};
use crate::entry::{FrameOffset, Object};
use crate::frame::{kind, Field, Frames, CHUNK_BYTES, CHUNK_FRAMES, FRAME_BYTES};
use crate::handles::Handle;
use crate::lock::Lock;
use crate::pool::Pool;
use crate::tidy::TIDY_BYTES;

/// Most bytes of a segment: a chunk of frames.
pub const SEGMENT_BYTES_MAX: usize = CHUNK_BYTES;

/// A segment that a pool has mapped. Dropping it leaves it mapped; see
/// [`unmap_segment`](Pool::unmap_segment).
#[derive(Debug)]
pub struct Segment {
    first: u32,
    len: usize,
    rank: u32,
}

impl Segment {
    /// Its rank, and the bytes of its file.
    pub fn rank_and_bytes(&self) -> (u32, usize) {
        (self.rank, self.len)
    }

    fn place(&self, at: usize, len: usize) -> Option<FrameOffset> {
        let is_inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        let (frame, offset) = (self.first + (at / FRAME_BYTES) as u32, (at % FRAME_BYTES) as u16);
        is_inside.then_some(FrameOffset { frame, offset })
    }
}

/// The pool's segments.
#[derive(Default)]
pub(crate) struct Segments {
    /// First frames of the chunks that no segment uses now.
    spare: Lock<Vec<u32>>,
    /// Bytes of the mapped segments.
    bytes: AtomicUsize,
    /// This pool's objects in them.
    objects: AtomicUsize,
}

impl Segments {
    /// Frees an object of a segment.
    pub(crate) fn free(&self, object: Object, frames: &Frames) {
        let before = frames.get(object.place.frame).live.fetch_sub(object.len, Ordering::AcqRel);
        debug_assert!(before >= object.len, "freed more than there was");
        self.objects.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// Maps a memory file of `len` bytes, whose seals against writing and cutting the caller has
    /// seen. Of two segments that have an object, all pools use the one of lower rank.
    ///
    /// # Errors
    /// Those of mmap(2); ENOMEM if the arena is full.
    ///
    /// # Panics
    /// If it is empty, or larger than [`SEGMENT_BYTES_MAX`].
    pub fn map_segment(&self, file: BorrowedFd<'_>, len: usize, rank: u32) -> io::Result<Segment> {
        assert!((1..=SEGMENT_BYTES_MAX).contains(&len), "a segment of {len} bytes");
        let spare = self.segments.spare.lock().pop();
        let first = match spare {
            Some(first) => first,
            None => self.frames.add_chunk(0)?,
        };
        for number in first..first + CHUNK_FRAMES {
            let frame = self.frames.get(number);
            frame.live.set(0);
            frame.used.set(rank);
            frame.kind.set(kind::SEGMENT);
        }
        // SAFETY: the chunk holds no objects, and no list names its frames.
        if let Err(error) = unsafe { memory::map_over(self.frames.base(first), len, file) } {
            self.segments.spare.lock().push(first);
            return Err(error);
        }
        self.segments.bytes.fetch_add(len, Ordering::Relaxed);
        Ok(Segment { first, len, rank })
    }

    /// The bytes of a segment.
    pub fn segment<'a>(&'a self, segment: &'a Segment) -> &'a [u8] {
        // SAFETY: mapped while the segment is borrowed, and sealed.
        unsafe { std::slice::from_raw_parts(self.frames.base(segment.first).as_ptr(), segment.len) }
    }

    /// Moves an object to byte `at` of a segment, if the bytes there are the same, the object is
    /// not in use, and in no segment of lower rank. Frees its memory.
    pub fn share(&self, handle: Handle, segment: &Segment, at: usize) -> bool {
        let entry = self.entry(handle);
        let Some(object) = entry.peek() else { return false };
        let Some(place) = segment.place(at, object.len as usize) else { return false };
        let (frame, other) = (self.frames.get(object.place.frame), self.frames.get(place.frame));
        let was_shared = frame.kind.get() == kind::SEGMENT;
        if was_shared && frame.used.get() <= other.used.get() || !entry.try_lock(object) {
            return false;
        }
        let bytes = |place| {
            // SAFETY: the locked object's own bytes, or bytes of the segment.
            unsafe {
                std::slice::from_raw_parts(self.frames.address(place).cast_const(), object.len as usize)
            }
        };
        if bytes(place) != bytes(object.place) {
            entry.unlock(object);
            return false;
        }
        other.live.fetch_add(object.len, Ordering::AcqRel);
        self.segments.objects.fetch_add(1, Ordering::Relaxed);
        entry.unlock(Object { place, len: object.len });
        if was_shared {
            self.segments.free(object, &self.frames);
            return true;
        }
        let mut shard = self.shards.lock();
        let class = self.table.class_of(object.len);
        shard.ledger.count(class, -1, -(object.len as i32), self.shards.totals());
        self.free_places(&mut shard, &[object]);
        true
    }

    /// Whether an object is in a segment.
    ///
    /// # Panics
    /// If the handle is not an object's.
    pub fn is_shared(&self, handle: Handle) -> bool {
        let object = self.entry(handle).peek().expect("a handle that is in use");
        self.frames.get(object.place.frame).kind.get() == kind::SEGMENT
    }

    /// Bytes of this pool's objects in a segment.
    pub fn live_bytes(&self, segment: &Segment) -> usize {
        let frames = segment.first..segment.first + CHUNK_FRAMES;
        frames.map(|number| self.frames.get(number).live.load(Ordering::Acquire) as usize).sum()
    }

    /// Unmaps a segment that has no object of this pool. No thread may be moving one there.
    ///
    /// # Errors
    /// The segment, if it has an object, or there are too many mappings.
    pub fn unmap_segment(&self, segment: Segment) -> Result<(), Segment> {
        if self.live_bytes(&segment) > 0 {
            return Err(segment);
        }
        // SAFETY: no object is left in the chunk, and its frames are on no list.
        if unsafe { memory::empty_again(self.frames.base(segment.first), CHUNK_BYTES) }.is_err() {
            return Err(segment);
        }
        self.segments.bytes.fetch_sub(segment.len, Ordering::Relaxed);
        self.segments.spare.lock().push(segment.first);
        Ok(())
    }

    /// Moves some objects out of segments, into memory of this pool alone: up to
    /// [`TIDYING_BYTES`](crate::TIDYING_BYTES). For a pool that shares its segments no more.
    pub fn leave_segments(&self) {
        let Some(mut scratch) = self.compaction.try_lock() else { return };
        scratch.sources.clear();
        for number in 0..self.frames.count() {
            let frame = self.frames.get(number);
            let live_bytes = u64::from(frame.live.get());
            if frame.kind.get() == kind::SEGMENT && live_bytes > 0 {
                scratch.sources.push(Source { number, mark: Mark::ToMixed, live_bytes, gain: 0 });
            }
        }
        if !scratch.sources.is_empty() {
            scratch.take_within(TIDY_BYTES);
            self.pass(&mut scratch);
        }
    }

    /// Bytes of the mapped segments.
    pub fn segment_bytes(&self) -> usize {
        self.segments.bytes.load(Ordering::Relaxed)
    }

    /// Objects in segments.
    pub fn shared_objects(&self) -> usize {
        self.segments.objects.load(Ordering::Relaxed)
    }
}
