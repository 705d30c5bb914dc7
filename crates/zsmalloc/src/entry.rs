//! The word behind a handle: where the object is, how long it is, and its users.
//!
//! ```text
//!   63          40 39        24 23        8   7    6      0
//!  +--------------+------------+-----------+------+--------+
//!  |    frame     |   offset   | length - 1| live |  pins  |   an object; live is 0 while it is only reserved
//!  +--------------+------------+-----------+------+--------+
//!  |             next free handle          |  0   |   0    |   a free handle
//!  +--------------+------------+-----------+------+--------+
//! ```
//!
//! `pins` is a tiny reader-writer lock: 0 free, 1..=126 readers, 127 one thread alone (a writer, or
//! compaction moving the object). It is held for one copy, or for the life of a read guard. Every
//! change of a live word swaps it as a whole, so location and pins never disagree.

use super::sync::{relax, AtomicU64, Ordering};

const PINS: u64 = 0x7f;
const ALONE: u64 = 0x7f;
const READERS_MAX: u64 = 0x7e;
const LIVE: u64 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameOffset {
    pub(crate) frame: u32,
    /// Bytes from the start of the frame.
    pub(crate) offset: u16,
}

/// Frames that fit into a word.
pub(crate) const FRAME_LIMIT: u32 = 1 << 24;

/// The content of an entry, pins left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) place: FrameOffset,
    /// Bytes, 1..=65536.
    pub(crate) len: u32,
}

impl FrameOffset {
    pub(crate) const NOWHERE: FrameOffset = FrameOffset { frame: 0, offset: 0 };
}

impl Object {
    pub(crate) const NOWHERE: Object = Object { place: FrameOffset::NOWHERE, len: 1 };

    fn encode(self) -> u64 {
        debug_assert!((1..=65536).contains(&self.len) && self.place.frame < FRAME_LIMIT);
        u64::from(self.place.frame) << 40
            | u64::from(self.place.offset) << 24
            | u64::from(self.len - 1) << 8
            | LIVE
    }

    fn decode(word: u64) -> Self {
        Object {
            place: FrameOffset { frame: (word >> 40) as u32, offset: (word >> 24) as u16 },
            len: u32::from((word >> 8) as u16) + 1,
        }
    }
}

/// One entry of the handle table. All zeroes is a free handle.
pub(crate) struct Entry(AtomicU64);

impl Entry {
    #[cfg(test)]
    pub(crate) fn free() -> Self {
        Entry(AtomicU64::new(0))
    }

    /// Stores the future place of a free handle's object. The caller owns the free handle.
    #[inline]
    pub(crate) fn reserve(&self, object: Object) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed) & (LIVE | PINS), 0, "reserving a live handle");
        self.0.store(object.encode() & !LIVE, Ordering::Relaxed);
    }

    pub(crate) fn reserved(&self) -> Object {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(word & (LIVE | PINS), 0, "not reserved");
        Object::decode(word)
    }

    /// Makes the reserved object visible to all threads.
    #[inline]
    pub(crate) fn publish(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | LIVE, Ordering::Release);
    }

    /// The object, pinned or not; `None` for a free handle.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Object> {
        let word = self.0.load(Ordering::Relaxed);
        (word & LIVE != 0).then(|| Object::decode(word))
    }

    /// Pins the object for reading. Waits for a writer or a move; panics if the handle is free.
    #[inline]
    pub(crate) fn pin(&self) -> Object {
        let mut round = 0;
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            assert!(word & LIVE != 0, "reading through a freed handle");
            if word & PINS >= READERS_MAX {
                relax(round);
                round += 1;
                word = self.0.load(Ordering::Relaxed);
                continue;
            }
            match self.0.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Object::decode(word),
                Err(now) => word = now,
            }
        }
    }

    #[inline]
    pub(crate) fn unpin(&self) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!(
            before & LIVE != 0 && (1..=READERS_MAX).contains(&(before & PINS)),
            "unpin without pin"
        );
    }

    /// Locks the object for writing. Panics if the handle is free, or if a read guard on the object
    /// is alive: guards promise stable bytes.
    #[inline]
    pub(crate) fn lock(&self) -> Object {
        self.exchange_unused(|word| word | ALONE)
    }

    /// Frees the handle, which is on no list yet. The caller frees the memory. Panics as `lock`.
    #[inline]
    pub(crate) fn claim(&self) -> Object {
        self.exchange_unused(|_| 0)
    }

    #[inline]
    fn exchange_unused(&self, change: impl Fn(u64) -> u64) -> Object {
        let mut round = 0;
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            assert!(word & LIVE != 0, "writing or freeing through a freed handle");
            match word & PINS {
                0 => {}
                ALONE => {
                    relax(round);
                    round += 1;
                    word = self.0.load(Ordering::Relaxed);
                    continue;
                }
                _ => panic!("writing or freeing an object that is being read"),
            }
            match self.0.compare_exchange_weak(word, change(word), Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Object::decode(word),
                Err(now) => word = now,
            }
        }
    }

    /// Locks the object if it is still `expected` and unused.
    #[inline]
    pub(crate) fn try_lock(&self, expected: Object) -> bool {
        let word = expected.encode();
        self.0.compare_exchange(word, word | ALONE, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends [`lock`](Self::lock) or [`try_lock`](Self::try_lock), with the object's current place.
    #[inline]
    pub(crate) fn unlock(&self, object: Object) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed) & PINS, ALONE, "unlock without lock");
        self.0.store(object.encode(), Ordering::Release);
    }

    /// Links a free entry to the next free handle. The caller owns the free handle.
    #[inline]
    pub(crate) fn set_next(&self, next: u32) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed) & LIVE, 0, "linking a live handle");
        self.0.store(u64::from(next) << 8, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn next(&self) -> u32 {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(word & (LIVE | PINS), 0, "a live handle on the free list");
        (word >> 8) as u32
    }
}
