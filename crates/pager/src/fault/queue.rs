//! Faults read and not yet served: a queue for handlers and one for the readers of the swap file.
//! Also which thread serves a fault.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

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
    pub address: usize,
    pub write: bool,
    pub thread: u32,
    pub read_ns: u64,
}

pub(crate) struct Faults {
    parked: Mutex<VecDeque<Fault>>,
    count: AtomicU32,
    looked_ns: AtomicU64,
    disk: Mutex<VecDeque<(Fault, Stream)>>,
    disk_count: AtomicU32,
    /// When each handler started its present fault, 0 if idle. Then the control thread, which
    /// serves around forks, and the readers of the swap file.
    busy_since: [AtomicU64; HANDLERS_MAX + 1 + DISK_THREADS],
    /// The slot in each handler's frame cache while it stands still.
    cached_slots: [AtomicU32; HANDLERS_MAX + 1 + DISK_THREADS],
}

impl Faults {
    pub fn new() -> io::Result<Self> {
        Ok(Faults {
            parked: Mutex::new(VecDeque::with_capacity(PARKED_MAX)),
            count: AtomicU32::new(0),
            looked_ns: AtomicU64::new(0),
            disk: Mutex::new(VecDeque::with_capacity(PARKED_MAX)),
            disk_count: AtomicU32::new(0),
            busy_since: [const { AtomicU64::new(0) }; HANDLERS_MAX + 1 + DISK_THREADS],
            cached_slots: [const { AtomicU32::new(crate::pages::block::NO_SLOT) };
                HANDLERS_MAX + 1 + DISK_THREADS],
        })
    }

    /// Parks a fault for the next free handler. Returns false if too many wait.
    pub fn park(&self, fault: Fault) -> bool {
        let mut parked = self.parked.lock().expect("no panic while held");
        let has_room = parked.len() < PARKED_MAX;
        if has_room {
            parked.push_back(fault);
            self.count.store(parked.len() as u32, Ordering::Release);
        }
        has_room
    }

    pub fn unpark(&self) -> Option<Fault> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut parked = self.parked.lock().expect("no panic while held");
        let fault = parked.pop_front();
        self.count.store(parked.len() as u32, Ordering::Release);
        fault
    }

    /// Calls `each` with the parked faults, at most every 20 ms.
    pub fn look_at_parked(&self, each: impl FnMut(&Fault)) {
        if !self.has_parked() {
            return;
        }
        let now = sys::now_ns();
        if now.saturating_sub(self.looked_ns.load(Ordering::Relaxed)) > LOOK_NS {
            self.looked_ns.store(now, Ordering::Relaxed);
            self.parked.lock().expect("no panic while held").iter().for_each(each);
        }
    }

    pub fn has_parked(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub fn park_for_disk(&self, fault: Fault, stream: Stream) -> bool {
        let mut disk = self.disk.lock().expect("no panic while held");
        let has_room = disk.len() < PARKED_MAX;
        if has_room {
            disk.push_back((fault, stream));
            self.disk_count.store(disk.len() as u32, Ordering::Release);
        }
        has_room
    }

    pub fn unpark_for_disk(&self) -> Option<(Fault, Stream)> {
        if !self.has_parked_for_disk() {
            return None;
        }
        let mut disk = self.disk.lock().expect("no panic while held");
        let fault = disk.pop_front();
        self.disk_count.store(disk.len() as u32, Ordering::Release);
        fault
    }

    pub fn has_parked_for_disk(&self) -> bool {
        self.disk_count.load(Ordering::Acquire) > 0
    }

    /// Sets the start of the fault that a thread serves, 0 for none.
    pub fn set_busy(&self, index: usize, since_ns: u64) {
        self.busy_since[index].store(since_ns, Ordering::Release);
    }

    pub fn set_cached(&self, index: usize, slot: Option<u32>) {
        self.cached_slots[index].store(slot.unwrap_or(crate::pages::block::NO_SLOT), Ordering::Relaxed);
    }

    pub fn any_busy(&self) -> bool {
        self.busy_since.iter().any(|since| since.load(Ordering::Acquire) != 0)
    }

    pub fn longest(&self) -> Option<(usize, u64)> {
        let busy = self.busy_since.iter().map(|since| since.load(Ordering::Relaxed)).enumerate();
        busy.filter(|(_, since)| *since != 0).min_by_key(|(_, since)| *since)
    }

    /// In a forked child: calls `give` with the slots in the parent's frame caches.
    pub fn reset(&self, mut give: impl FnMut(u32)) {
        self.busy_since.iter().for_each(|since| since.store(0, Ordering::Relaxed));
        while self.unpark().is_some() {}
        while self.unpark_for_disk().is_some() {}
        for slot in &self.cached_slots {
            match slot.swap(crate::pages::block::NO_SLOT, Ordering::Relaxed) {
                crate::pages::block::NO_SLOT => {}
                slot => give(slot),
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const FAULT: Fault = Fault { address: 0x1000, write: false, thread: 1, read_ns: 5 };

    #[test]
    fn faults_are_served_in_order_and_refused_when_there_are_too_many() {
        let faults = Faults::new().unwrap();
        assert!(faults.unpark().is_none() && !faults.has_parked());
        for address in 0..PARKED_MAX {
            assert!(faults.park(Fault { address, ..FAULT }));
        }
        assert!(faults.has_parked() && !faults.park(FAULT));
        assert_eq!(faults.unpark().unwrap().address, 0);
        assert!(faults.park(FAULT), "there is room again");
        assert!((1..PARKED_MAX).all(|address| faults.unpark().unwrap().address == address));
        assert_eq!(faults.unpark().unwrap().address, FAULT.address);
        assert!(!faults.has_parked());
    }

    #[test]
    fn the_longest_fault_is_known_and_a_child_forgets_all() {
        let faults = Faults::new().unwrap();
        assert_eq!((faults.any_busy(), faults.longest()), (false, None));
        faults.set_busy(3, 700);
        faults.set_busy(9, 600);
        assert_eq!((faults.any_busy(), faults.longest()), (true, Some((9, 600))));
        faults.set_cached(3, Some(77));
        assert!(faults.park(FAULT));
        let mut given = Vec::new();
        faults.reset(|slot| given.push(slot));
        assert_eq!((given, faults.any_busy(), faults.has_parked()), (vec![77], false, false));
    }
}
