//! Address-space events of the program: order, and exclusion against pages in motion.
//!
//! The kernel lets the thread behind an event go on as soon as the event has been *read*. From then on the range may
//! be discarded or reused at any moment, so a page that is moved in on the strength of older state would bring stale
//! bytes back. Hence:
//!
//! * messages are read under the gate's write side, pages are moved under its read side;
//! * reading an event raises `read`; having applied it to the table raises `applied`;
//! * whoever holds a block's lock notes `read` when it looks at the state, goes on only if `applied` has caught up,
//!   and moves pages only if `read` is still the same (under the gate). Otherwise it lets go and starts again.
//!
//! A move that happens before the event is read is covered by the kernel: it answers EAGAIN while an event is unread,
//! and what was moved in earlier still is discarded by the thread that goes on.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sys::userfaultfd::Message;

/// Most events read and not yet applied. Readers stop reading at the limit, which makes the program wait.
const EVENTS_MAX: usize = 256;

/// Events between the kernel and the table.
pub struct Events {
    gate: RwLock<()>,
    queue: Mutex<VecDeque<Message>>,
    apply: Mutex<()>,
    read: AtomicU64,
    applied: AtomicU64,
}

/// The count of events read when a block's state was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(u64);

impl Events {
    /// None yet.
    pub fn new() -> Self {
        Events {
            gate: RwLock::new(()),
            queue: Mutex::new(VecDeque::with_capacity(EVENTS_MAX)),
            apply: Mutex::new(()),
            read: AtomicU64::new(0),
            applied: AtomicU64::new(0),
        }
    }

    /// The right to read messages. While it is held no page moves.
    pub fn reading(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().expect("no panic while held")
    }

    /// Room for further events.
    pub fn room(&self) -> usize {
        EVENTS_MAX.saturating_sub(self.queue.lock().expect("no panic while held").len())
    }

    /// Notes an event that was just read. Only under [`Events::reading`]. Readers ask for [`Events::room`] first, but
    /// for the usher, which must go on until it has read what it reads for: then there may be one event more for each
    /// thread of the program, which waits until its own is read.
    pub fn push(&self, event: Message) {
        self.queue.lock().expect("no panic while held").push_back(event);
        self.read.fetch_add(1, Ordering::Release);
    }

    /// The right to read messages, and the certainty that none was read since `epoch`; `None` when one was.
    pub fn reading_since(&self, epoch: Epoch) -> Option<RwLockWriteGuard<'_, ()>> {
        let guard = self.reading();
        (self.read.load(Ordering::Acquire) == epoch.0).then_some(guard)
    }

    /// The current epoch, if every event read so far has been applied. Ask under a block's lock.
    pub fn epoch(&self) -> Option<Epoch> {
        let read = self.read.load(Ordering::Acquire);
        (self.applied.load(Ordering::Acquire) == read).then_some(Epoch(read))
    }

    /// Whether there are events to apply.
    pub fn pending(&self) -> bool {
        self.applied.load(Ordering::Acquire) != self.read.load(Ordering::Acquire)
    }

    /// The right to move pages on the strength of what was seen at `epoch`; `None` when an event came in between.
    pub fn moving(&self, epoch: Epoch) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.gate.read().expect("no panic while held");
        (self.read.load(Ordering::Acquire) == epoch.0).then_some(guard)
    }

    /// Applies queued events in order, one applier at a time.
    pub fn apply(&self, mut each: impl FnMut(Message)) {
        while self.pending() {
            let _order: MutexGuard<'_, ()> = self.apply.lock().expect("no panic while held");
            let event = self.queue.lock().expect("no panic while held").pop_front();
            if let Some(event) = event {
                each(event);
                self.applied.fetch_add(1, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Message = Message::Remove { start: 0, end: 4096 };

    #[test]
    fn an_event_stops_moves_until_it_is_applied() {
        let events = Events::new();
        let epoch = events.epoch().unwrap();
        assert!(events.moving(epoch).is_some());
        {
            let _reading = events.reading();
            events.push(EVENT);
        }
        assert!(events.moving(epoch).is_none(), "state seen before the event is stale");
        assert!(events.epoch().is_none(), "and may not be looked at before the event is applied");
        let mut seen = Vec::new();
        events.apply(|event| seen.push(event));
        assert_eq!(seen, [EVENT]);
        assert!(events.moving(epoch).is_none());
        assert!(events.moving(events.epoch().unwrap()).is_some());
    }

    #[test]
    fn events_are_applied_in_order_by_several_threads() {
        let events = Events::new();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while order.lock().unwrap().len() < 1000 {
                        events.apply(|event| order.lock().unwrap().push(event));
                    }
                });
            }
            for start in 0..1000 {
                while events.room() == 0 {
                    std::thread::yield_now();
                }
                let _reading = events.reading();
                events.push(Message::Unmap { start, end: start + 1 });
            }
        });
        let order = order.into_inner().unwrap();
        assert!(order
            .iter()
            .enumerate()
            .all(|(index, event)| matches!(event, Message::Unmap { start, .. } if *start == index)));
    }
}
