//! Shards: the free handles, open mixed zspages and counts of threads that allocate and free.
//!
//! Threads spread over a few shards, so that each mostly finds its own shard's memory in its own
//! CPU's cache. For the same reason each shard counts, and adds to the pool's totals only when its
//! counts have grown: if two CPUs wrote the same word for every object, they would spend more time
//! on that word than on the object.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use crate::handles::FreeHandles;
use crate::lock::{Lock, Locked};
use crate::mixed::OpenSet;

pub(crate) const SHARDS: usize = 8;
/// A shard adds its count of a class to the totals at this many bytes.
const CLASS_FLUSH_BYTES: u32 = 8192;
/// A shard adds its counts of holes and of payload to the totals at this many bytes.
const FLUSH_BYTES: u64 = 16_384;

pub(crate) struct Shard {
    pub(crate) handles: FreeHandles,
    /// One per node.
    pub(crate) open: Vec<OpenSet>,
    pub(crate) ledger: Ledger,
}

/// Objects and payload bytes of a class, in one word: `objects * 2^38 + bytes`, both signed. A
/// shard that frees may report before the one that allocated, so both can be negative for a while.
#[derive(Default)]
struct Tally(AtomicI64);

const TALLY_BYTES_BITS: u32 = 38;

impl Tally {
    fn add(&self, objects: i64, bytes: i64) {
        let change = (objects << TALLY_BYTES_BITS).wrapping_add(bytes);
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> (i64, i64) {
        let word = self.0.load(Ordering::Relaxed);
        let unused = i64::BITS - TALLY_BYTES_BITS;
        let bytes = word << unused >> unused;
        (word.wrapping_sub(bytes) >> TALLY_BYTES_BITS, bytes)
    }
}

/// The pool's totals, without the counts that shards have not reported.
#[derive(Default)]
pub(crate) struct Totals {
    classes: Vec<Tally>,
    pub(crate) mixed_zspages: AtomicUsize,
    dead_bytes: AtomicI64,
    /// Requested bytes of all classes.
    payload_bytes: AtomicI64,
}

impl Totals {
    #[inline]
    pub(crate) fn payload_bytes(&self, class: u16) -> u64 {
        self.classes[usize::from(class)].get().1.max(0) as u64
    }

    #[inline]
    pub(crate) fn dead_bytes(&self) -> usize {
        self.dead_bytes.load(Ordering::Relaxed).max(0) as usize
    }

    #[inline]
    pub(crate) fn all_payload_bytes(&self) -> usize {
        self.payload_bytes.load(Ordering::Relaxed).max(0) as usize
    }
}

#[derive(Default, Clone, Copy)]
struct Delta {
    objects: i32,
    bytes: i32,
}

/// Unreported changes of a shard.
pub(crate) struct Ledger {
    deltas: Box<[Delta]>,
    dead_bytes: i64,
    payload_bytes: i64,
}

impl Ledger {
    /// Counts `objects` more (or less) of `class`, with `bytes` of payload.
    #[inline]
    pub(crate) fn count(&mut self, class: u16, objects: i32, bytes: i32, totals: &Totals) {
        let delta = &mut self.deltas[usize::from(class)];
        delta.objects += objects;
        delta.bytes += bytes;
        self.payload_bytes += i64::from(bytes);
        if self.payload_bytes.unsigned_abs() >= FLUSH_BYTES {
            totals.payload_bytes.fetch_add(self.payload_bytes, Ordering::Relaxed);
            self.payload_bytes = 0;
        }
        if delta.bytes.unsigned_abs() >= CLASS_FLUSH_BYTES || delta.objects.unsigned_abs() >= 1 << 10 {
            totals.classes[usize::from(class)].add(i64::from(delta.objects), i64::from(delta.bytes));
            *delta = Delta::default();
        }
    }

    #[inline]
    pub(crate) fn count_dead(&mut self, bytes: i64, totals: &Totals) {
        self.dead_bytes += bytes;
        if self.dead_bytes.unsigned_abs() >= FLUSH_BYTES {
            totals.dead_bytes.fetch_add(self.dead_bytes, Ordering::Relaxed);
            self.dead_bytes = 0;
        }
    }
}

/// A value alone on its cache lines.
#[repr(align(128))]
struct Padded<T>(T);

struct Seat {
    /// [`stack_tag`] of the shard's thread; 0 for none. A thread that has ended keeps its seat
    /// until another one finds all taken.
    owner: AtomicUsize,
    shard: Lock<Shard>,
}

pub(crate) struct Shards {
    seats: [Padded<Seat>; SHARDS],
    totals: Padded<Totals>,
}

impl Shards {
    pub(crate) fn new(classes: usize, nodes: usize) -> Self {
        let shard = || Shard {
            handles: FreeHandles::default(),
            open: std::iter::repeat_with(OpenSet::default).take(nodes).collect(),
            ledger: Ledger {
                deltas: vec![Delta::default(); classes].into(),
                dead_bytes: 0,
                payload_bytes: 0,
            },
        };
        let seat = || Padded(Seat { owner: AtomicUsize::new(0), shard: Lock::new(shard()) });
        let classes = std::iter::repeat_with(Tally::default).take(classes).collect();
        let totals = Padded(Totals { classes, ..Totals::default() });
        Shards { seats: std::array::from_fn(|_| seat()), totals }
    }

    #[inline]
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals.0
    }

    /// Locks the shard of this thread, or another free one.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, Shard> {
        let (tag, home) = stack_tag();
        let seat = &self.seats[home].0;
        if seat.owner.load(Ordering::Relaxed) == tag {
            if let Some(shard) = seat.shard.try_lock() {
                return shard;
            }
        }
        self.lock_other(tag, home)
    }

    /// Looks for a seat that is this thread's, or free; otherwise shares one.
    #[cold]
    fn lock_other(&self, tag: usize, home: usize) -> Locked<'_, Shard> {
        let around = || (home..home + SHARDS).map(|index| &self.seats[index % SHARDS].0);
        for seat in around() {
            let owner = seat.owner.load(Ordering::Relaxed);
            let mine = owner == tag
                || owner == 0
                    && seat.owner.compare_exchange(0, tag, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if mine {
                if let Some(shard) = seat.shard.try_lock() {
                    return shard;
                }
            }
        }
        let free = around().find_map(|seat| Some((seat, seat.shard.try_lock()?)));
        match free {
            Some((seat, shard)) => {
                seat.owner.store(tag, Ordering::Relaxed);
                shard
            }
            None => self.seats[home].0.shard.lock(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lock<Shard>> {
        self.seats.iter().map(|seat| &seat.0.shard)
    }

    /// Objects and payload bytes of each of `classes`, and bytes of holes in mixed zspages: exact
    /// if no other thread allocates or frees.
    pub(crate) fn count(&self, classes: Range<u16>) -> (Vec<(u64, u64)>, u64) {
        let range = usize::from(classes.start)..usize::from(classes.end);
        let mut counts: Vec<(i64, i64)> =
            self.totals.0.classes[range.clone()].iter().map(Tally::get).collect();
        let mut dead = self.totals.0.dead_bytes.load(Ordering::Relaxed);
        for shard in self.iter() {
            let shard = shard.lock();
            dead += shard.ledger.dead_bytes;
            for (count, delta) in counts.iter_mut().zip(&shard.ledger.deltas[range.clone()]) {
                count.0 += i64::from(delta.objects);
                count.1 += i64::from(delta.bytes);
            }
        }
        let counts = counts.into_iter().map(|(objects, bytes)| (objects.max(0) as u64, bytes.max(0) as u64));
        (counts.collect(), dead.max(0) as u64)
    }

    pub(crate) fn bytes(&self) -> usize {
        let totals = &self.totals.0;
        let used = self.iter().map(|shard| {
            let shard = shard.lock();
            size_of_val(&shard.ledger.deltas[..]) + size_of_val(&shard.open[..])
        });
        size_of::<Self>() + size_of_val(&totals.classes[..]) + used.sum::<usize>()
    }
}

/// A nonzero number that is mostly the same for a thread and differs between threads, and the seat
/// to try first. Stacks lie at least a megabyte apart; thread-local storage is off limits here.
#[inline]
fn stack_tag() -> (usize, usize) {
    let mark = 0u8;
    let tag = (&raw const mark as usize) >> 20;
    (tag, (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) % SHARDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_find_seats_of_their_own() {
        let shards = Shards::new(10, 1);
        let seat_of = |shard: Locked<'_, Shard>| {
            shards.iter().position(|other| other.try_lock().is_none()).inspect(|_| drop(shard))
        };
        let here = seat_of(shards.lock());
        assert!(here.is_some());
        assert_eq!(seat_of(shards.lock()), here);
        let there = std::thread::scope(|scope| scope.spawn(|| seat_of(shards.lock())).join().unwrap());
        assert!(there.is_some() && there != here);
        assert_eq!(seat_of(shards.lock()), here);
    }

    /// A shard that only frees reports first: the sum borrowed from the objects, and the class
    /// seemed to hold 256 GiB.
    #[test]
    fn counts_below_zero_are_counts() {
        let shards = Shards::new(10, 1);
        let all: Vec<&Lock<Shard>> = shards.iter().collect();
        for _ in 0..100 {
            all[1].lock().ledger.count(3, -1, -1000, shards.totals());
        }
        assert_eq!(shards.totals().payload_bytes(3), 0);
        for _ in 0..101 {
            all[0].lock().ledger.count(3, 1, 1000, shards.totals());
        }
        assert_eq!(shards.count(3..4), (vec![(1, 1000)], 0));
    }

    #[test]
    fn counts_are_exact_wherever_they_are_kept() {
        let shards = Shards::new(10, 1);
        // Allocates in one shard and frees in another, in steps below and above the reporting
        // threshold.
        let all: Vec<&Lock<Shard>> = shards.iter().collect();
        for (bytes, times) in [(100, 1000), (4096, 7), (1, 3)] {
            for _ in 0..times {
                all[0].lock().ledger.count(3, 1, bytes, shards.totals());
                all[0].lock().ledger.count_dead(i64::from(bytes), shards.totals());
            }
            assert_eq!(
                shards.count(0..10),
                (
                    (0..10).map(|c| if c == 3 { (times, times * bytes as u64) } else { (0, 0) }).collect(),
                    times * bytes as u64
                )
            );
            for _ in 0..times {
                all[5].lock().ledger.count(3, -1, -bytes, shards.totals());
                all[5].lock().ledger.count_dead(i64::from(-bytes), shards.totals());
            }
            assert_eq!(shards.count(3..4), (vec![(0, 0)], 0));
        }
    }
}
