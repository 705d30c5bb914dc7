//! Address-space events of the program: order, and exclusion against pages in motion.
//!
//! The kernel lets an event's thread continue once the event has been *read*. From then on the
//! range may be discarded or reused, so a page moved in on older knowledge brings stale bytes back.
//! Hence [`super::mover::Coherent`]: the proof that every event read has been applied to the table
//! and that none is read while the proof lives. A thread with a block's lock and the proof can
//! trust the block. Without the proof it must release the block and start over.
//!
//! The kernel covers moves before the event is read: it returns EAGAIN while an event is unread,
//! and the continuing thread discards pages that were moved in earlier.

use std::collections::VecDeque;

use sys::userfaultfd::Message;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Most unapplied events. Readers stop at this limit, which makes the program wait.
const EVENTS_MAX: usize = 256;

/// Events between the kernel and the table. A queue, because the thread that reads an event may
/// hold a block's lock that applying it needs, and two threads would apply two events in any order.
pub struct EventQueue {
    reading: RwLock<()>,
    queue: Mutex<VecDeque<Message>>,
    apply: Mutex<()>,
    read: AtomicU64,
    applied: AtomicU64,
    /// Events may have been read out of order (see [`crate::transition::reorder`]).
    unsettled: AtomicBool,
}

/// Every event read has been applied, and none is read while this lives. Part of
/// [`super::mover::Coherent`], beside the locked blocks.
pub struct Still<'a> {
    _lock: RwLockReadGuard<'a, ()>,
}

/// The right to read messages: no page moves while it lives.
pub struct Reading<'a> {
    queue: &'a EventQueue,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Reading<'_> {
    pub fn push(&self, event: Message) {
        self.queue.push(event);
    }
}

impl EventQueue {
    pub(crate) fn new() -> Self {
        EventQueue {
            reading: RwLock::new(()),
            queue: Mutex::new(VecDeque::with_capacity(EVENTS_MAX)),
            apply: Mutex::new(()),
            read: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            unsettled: AtomicBool::new(false),
        }
    }

    /// The right to read messages. `None` while the queue of unapplied events is full.
    pub fn reading(&self) -> Option<Reading<'_>> {
        let lock = self.reading.write().expect("no panic while held");
        let has_room = self.queue.lock().expect("no panic while held").len() < EVENTS_MAX;
        has_room.then_some(Reading { queue: self, _lock: lock })
    }

    /// Queues an event that was read under [`Reading`], or while all other threads stand still.
    pub fn push(&self, event: Message) {
        self.queue.lock().expect("no panic while held").push_back(event);
        self.read.fetch_add(1, Ordering::Release);
    }

    /// Whether events wait to be applied.
    pub fn pending(&self) -> bool {
        self.applied.load(Ordering::Acquire) != self.read.load(Ordering::Acquire)
    }

    /// Whether the table reflects all events read so far, in a known order.
    pub fn is_coherent(&self) -> bool {
        !self.pending() && !self.is_unsettled()
    }

    /// Whether the order of events is unknown.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire)
    }

    /// Sets whether the order of events is unknown.
    pub fn set_unsettled(&self, unsettled: bool) {
        self.unsettled.store(unsettled, Ordering::Release);
    }

    /// Prevents events from being read. `None` if events are unapplied.
    pub(crate) fn still(&self) -> Option<Still<'_>> {
        let lock = self.reading.read().expect("no panic while held");
        self.is_coherent().then_some(Still { _lock: lock })
    }

    /// Applies queued events in order, one thread at a time. Hold no block's lock.
    pub fn apply(&self, mut each: impl FnMut(Message)) {
        while self.pending() {
            let _order = self.apply.lock().expect("no panic while held");
            let event = self.queue.lock().expect("no panic while held").pop_front();
            if let Some(event) = event {
                each(event);
                self.applied.fetch_add(1, Ordering::Release);
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const EVENT: Message = Message::Remove { start: 0, end: 4096 };

    #[test]
    fn an_event_stops_moves_until_it_is_applied() {
        let events = EventQueue::new();
        assert!(events.still().is_some());
        events.reading().unwrap().push(EVENT);
        assert!(events.still().is_none());
        let mut seen = Vec::new();
        events.apply(|event| seen.push(event));
        assert_eq!(seen, [EVENT]);
        assert!(events.still().is_some());
    }

    #[test]
    fn readers_stop_when_too_much_waits() {
        let events = EventQueue::new();
        for _ in 0..EVENTS_MAX {
            events.reading().unwrap().push(EVENT);
        }
        assert!(events.reading().is_none());
        events.apply(|_| {});
        assert!(events.reading().is_some());
    }

    #[test]
    fn events_are_applied_in_order_by_several_threads() {
        let events = EventQueue::new();
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
                let reading = loop {
                    match events.reading() {
                        Some(reading) => break reading,
                        None => std::thread::yield_now(),
                    }
                };
                reading.push(Message::Unmap { start, end: start + 1 });
            }
        });
        let order = order.into_inner().unwrap();
        assert!(order
            .iter()
            .enumerate()
            .all(|(index, event)| matches!(event, Message::Unmap { start, .. } if *start == index)));
    }
}
