//! Address-space events of the program: order, and exclusion against pages in motion.
//!
//! The kernel lets the thread behind an event go on as soon as the event has been *read*. From then
//! on the range may be discarded or reused at any moment, so a page that is moved in on the
//! strength of older state would bring stale bytes back. Hence [`super::mover::Quiet`]: the proof
//! that every event read so far has been applied to the table, and that none is read while the
//! proof lives. A thread that holds a block's lock and gets the proof may believe what the block
//! says; one that does not get it lets go of the block and starts again.
//!
//! A move that happens before the event is read is covered by the kernel: it returns EAGAIN while
//! an event is unread, and what was moved in earlier still is discarded by the thread when it
//! continues.

use std::collections::VecDeque;

use sys::userfaultfd::Message;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Most events read and not yet applied. Readers stop reading at the limit, which makes the program
/// wait.
const EVENTS_MAX: usize = 256;

/// Events between the kernel and the table.
pub struct EventQueue {
    gate: RwLock<()>,
    queue: Mutex<VecDeque<Message>>,
    apply: Mutex<()>,
    read: AtomicU64,
    applied: AtomicU64,
    /// Some events may have been read out of order (see [`super::order`]).
    unsettled: AtomicBool,
}

/// Every event read has been applied, and none is read while this lives. [`super::mover::Quiet`]
/// has it, with what is locked.
pub struct Still<'a> {
    _gate: RwLockReadGuard<'a, ()>,
}

/// The right to read messages: no page moves while it lives.
pub struct Reading<'a> {
    queue: &'a EventQueue,
    _gate: RwLockWriteGuard<'a, ()>,
}

impl Reading<'_> {
    /// Notes an event that was just read.
    pub fn push(&self, event: Message) {
        self.queue.push(event);
    }
}

impl EventQueue {
    /// None yet.
    pub(super) fn new() -> Self {
        EventQueue {
            gate: RwLock::new(()),
            queue: Mutex::new(VecDeque::with_capacity(EVENTS_MAX)),
            apply: Mutex::new(()),
            read: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            unsettled: AtomicBool::new(false),
        }
    }

    /// The right to read messages; `None` while too many events wait to be applied.
    pub fn reading(&self) -> Option<Reading<'_>> {
        let gate = self.gate.write().expect("no panic while held");
        let has_room = self.queue.lock().expect("no panic while held").len() < EVENTS_MAX;
        has_room.then_some(Reading { queue: self, _gate: gate })
    }

    /// Notes an event that was read with permission: under [`Reading`], or while all others
    /// stand still.
    pub fn push(&self, event: Message) {
        self.queue.lock().expect("no panic while held").push_back(event);
        self.read.fetch_add(1, Ordering::Release);
    }

    /// Whether there are events to apply.
    pub fn pending(&self) -> bool {
        self.applied.load(Ordering::Acquire) != self.read.load(Ordering::Acquire)
    }

    /// Whether the table says what the events so far come to.
    pub fn is_quiet(&self) -> bool {
        !self.pending() && !self.is_unsettled()
    }

    /// Whether the order of events is unknown.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire)
    }

    /// Notes that the order of events is unknown, or known again.
    pub fn set_unsettled(&self, unsettled: bool) {
        self.unsettled.store(unsettled, Ordering::Release);
    }

    /// Keeps events from being read while `act` runs, if there is none to apply; `None` else. For
    /// what is not about a page.
    pub fn while_quiet<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let _gate = self.gate.read().expect("no panic while held");
        self.is_quiet().then(act)
    }

    /// Keeps events from being read; `None` when some wait to be applied.
    pub(super) fn still(&self) -> Option<Still<'_>> {
        let gate = self.gate.read().expect("no panic while held");
        self.is_quiet().then_some(Still { _gate: gate })
    }

    /// Applies queued events in order, one applier at a time. Hold no block's lock here.
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
