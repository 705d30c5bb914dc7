//! Faults read and not yet served: a queue for handlers and one for the readers of the swap file.
//! Also which thread serves a fault.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

use address_space::units::{PageNumber, SlotNumber};

use super::readahead::Stream;
use crate::HANDLERS_MAX;

/// Threads that read the swap file: the number of faults that wait for the disk at a time.
pub const DISK_THREADS: usize = 4;
/// Most faults read and not yet served. For each a thread waits.
pub(super) const PARKED_MAX: usize = 4096;
/// Nanoseconds between two calls for parked faults.
const LOOK_NS: u64 = 20_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub page: PageNumber,
    pub write: bool,
    pub thread: u32,
    pub read_ns: u64,
}

/// Faults that wait, at most [`PARKED_MAX`]. They are counted beside the lock.
pub(crate) struct Queue<T> {
    waiting: Mutex<VecDeque<T>>,
    count: AtomicU32,
}

impl<T> Queue<T> {
    fn new() -> Self {
        Queue { waiting: Mutex::new(VecDeque::with_capacity(PARKED_MAX)), count: AtomicU32::new(0) }
    }

    /// Adds a fault, behind all others. Returns false if too many wait.
    pub fn push(&self, fault: T) -> bool {
        let mut waiting = self.waiting.lock().expect("no panic while held");
        let has_room = waiting.len() < PARKED_MAX;
        if has_room {
            waiting.push_back(fault);
            self.count.store(waiting.len() as u32, Ordering::Release);
        }
        has_room
    }

    pub fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut waiting = self.waiting.lock().expect("no panic while held");
        let fault = waiting.pop_front();
        self.count.store(waiting.len() as u32, Ordering::Release);
        fault
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

pub(crate) struct Faults {
    /// For the next free handler.
    pub parked: Queue<Fault>,
    looked_ns: AtomicU64,
    /// For the readers of the swap file.
    pub disk: Queue<(Fault, Stream)>,
    /// When each handler started its present fault, 0 if idle. Then the control thread, which
    /// serves around forks, and the readers of the swap file.
    busy_since: [AtomicU64; HANDLERS_MAX + 1 + DISK_THREADS],
    /// The slot in each handler's frame cache while it stands still.
    cached_slots: [AtomicU32; HANDLERS_MAX + 1 + DISK_THREADS],
}

impl Faults {
    pub fn new() -> Self {
        Faults {
            parked: Queue::new(),
            looked_ns: AtomicU64::new(0),
            disk: Queue::new(),
            busy_since: [const { AtomicU64::new(0) }; HANDLERS_MAX + 1 + DISK_THREADS],
            cached_slots: [const { AtomicU32::new(SlotNumber::NONE_WORD) }; HANDLERS_MAX + 1 + DISK_THREADS],
        }
    }

    /// Calls `each` with the parked faults, at most every 20 ms.
    pub fn look_at_parked(&self, each: impl FnMut(&Fault)) {
        if self.parked.is_empty() {
            return;
        }
        let now = sys::now_ns();
        if now.saturating_sub(self.looked_ns.load(Ordering::Relaxed)) > LOOK_NS {
            self.looked_ns.store(now, Ordering::Relaxed);
            self.parked.waiting.lock().expect("no panic while held").iter().for_each(each);
        }
    }

    /// Sets the start of the fault that a thread serves, 0 for none.
    pub fn set_busy(&self, index: usize, since_ns: u64) {
        self.busy_since[index].store(since_ns, Ordering::Release);
    }

    pub fn set_cached(&self, index: usize, slot: Option<SlotNumber>) {
        self.cached_slots[index].store(SlotNumber::word_of(slot), Ordering::Relaxed);
    }

    pub fn any_busy(&self) -> bool {
        self.busy_since.iter().any(|since| since.load(Ordering::Acquire) != 0)
    }

    pub fn longest(&self) -> Option<(usize, u64)> {
        let busy = self.busy_since.iter().map(|since| since.load(Ordering::Relaxed)).enumerate();
        busy.filter(|(_, since)| *since != 0).min_by_key(|(_, since)| *since)
    }

    /// In a forked child: calls `give` with the slots in the parent's frame caches.
    pub fn reset(&self, mut give: impl FnMut(SlotNumber)) {
        self.busy_since.iter().for_each(|since| since.store(0, Ordering::Relaxed));
        while self.parked.pop().is_some() {}
        while self.disk.pop().is_some() {}
        for slot in &self.cached_slots {
            let slot = slot.swap(SlotNumber::NONE_WORD, Ordering::Relaxed);
            SlotNumber::of_word(slot).into_iter().for_each(&mut give);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_served_in_order_and_refused_when_there_are_too_many() {
        let queue = Queue::new();
        assert!(queue.pop().is_none() && queue.is_empty());
        assert!((0..PARKED_MAX).all(|number| queue.push(number)));
        assert!(!queue.is_empty() && !queue.push(0));
        assert_eq!(queue.pop(), Some(0));
        assert!(queue.push(7), "there is room again");
        assert!((1..PARKED_MAX).all(|number| queue.pop() == Some(number)));
        assert_eq!(queue.pop(), Some(7));
        assert!(queue.is_empty());
    }

    #[test]
    fn the_longest_fault_is_known_and_a_child_forgets_all() {
        let faults = Faults::new();
        assert_eq!((faults.any_busy(), faults.longest()), (false, None));
        faults.set_busy(3, 700);
        faults.set_busy(9, 600);
        assert_eq!((faults.any_busy(), faults.longest()), (true, Some((9, 600))));
        let slot = SlotNumber::of_word(77);
        faults.set_cached(3, slot);
        assert!(faults.parked.push(Fault {
            page: PageNumber::default(),
            write: false,
            thread: 1,
            read_ns: 5
        }));
        let mut given = Vec::new();
        faults.reset(|slot| given.push(slot));
        assert_eq!((given, faults.any_busy(), faults.parked.is_empty()), (Vec::from_iter(slot), false, true));
    }
}
