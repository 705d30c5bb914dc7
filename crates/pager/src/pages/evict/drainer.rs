//! The drainer: reads messages on behalf of a thread that waits in the kernel for its own event to
//! be read.
//!
//! [`super::by_remap`] takes pages away by mremap(), which returns once its event has been read. No
//! handler can be relied on for that: every handler may be waiting for the very block that is being
//! evicted, or be evicting itself. So one thread does nothing but this, holds no lock while it
//! reads, and waits for no other thread.
//!
//! ```text
//!  evicting thread   begin ----- mremap() ........ waits ........ returns --- end
//!  drainer             sleeps      reads: others' events are queued, faults put aside; its own: done, sleeps
//! ```
//!
//! There is an drainer on every CPU, and the one beside the evicting thread works for it: it runs
//! at once when that one sleeps, and waking another CPU is the most expensive step of all.
//!
//! Only one thread evicts at a time: it holds the right to read messages
//! ([`crate::pages::mover::Mover::quiet_alone`]) from begin to end, and the drainer reads in its
//! name. Faults that the drainer reads are sent again: their threads are woken once the event has
//! been read, and run into the same fault.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use sys::userfaultfd::{Message, MESSAGES_MAX};
use sys::{futex, PAGE_SIZE};

use crate::pages::events::EventQueue;
use crate::pages::guard::Reports;
use crate::units::page_of;
use crate::HANDLERS_MAX;

/// No call is under way.
const IDLE: u32 = 0;
/// Reading until the event has come.
const READING: u32 = 1;
/// The call has answered without an event: stop reading.
const OVER: u32 = 2;
/// The thread is to end.
const ENDING: u32 = 3;
/// Faults put aside; further ones are sent again at once.
const ASIDE_MAX: usize = 64;
/// How long the drainer waits for messages before it looks whether the call has answered.
const LOOK_MS: i32 = 1;

/// All drainers.
#[derive(Debug)]
pub(crate) struct Drainers {
    each: [Drainer; HANDLERS_MAX],
}

impl Drainers {
    /// None yet.
    pub(crate) fn new() -> Self {
        Drainers { each: std::array::from_fn(|_| Drainer::default()) }
    }

    /// The one of processor `cpu`.
    pub(crate) fn of(&self, cpu: usize) -> &Drainer {
        &self.each[cpu % HANDLERS_MAX]
    }

    /// The one beside the calling thread, or any that works.
    pub(crate) fn near(&self) -> &Drainer {
        let near = self.of(sys::cpu::current());
        if near.works.load(Ordering::Acquire) {
            return near;
        }
        self.each
            .iter()
            .find(|drainer| drainer.works.load(Ordering::Acquire))
            .expect("an drainer was started")
    }

    /// Has all of them end, none of which works for a call.
    pub(crate) fn end(&self) {
        for drainer in &self.each {
            drainer.state.store(ENDING, Ordering::Release);
            futex::wake(&drainer.state, 1);
        }
    }

    /// Whether evictions can begin.
    pub(crate) fn any(&self) -> bool {
        self.each.iter().any(|drainer| drainer.works.load(Ordering::Acquire))
    }
}

/// What the two threads share.
#[derive(Debug, Default)]
pub(crate) struct Drainer {
    /// A thread serves.
    works: AtomicBool,
    state: AtomicU32,
    /// Where the pages go: tells the event from the program's own.
    target: AtomicUsize,
    seen: AtomicBool,
}

impl Drainer {
    /// Has messages read from now on, until the event of an mremap() to `target` has been.
    pub(crate) fn begin(&self, target: usize) {
        self.target.store(target, Ordering::Relaxed);
        self.seen.store(false, Ordering::Relaxed);
        let before = self.state.swap(READING, Ordering::AcqRel);
        assert_eq!(before, IDLE, "one mremap() at a time");
        futex::wake(&self.state, 1);
    }

    /// The call has returned. Whether its event was read; it is not read any more.
    pub(crate) fn end(&self) -> bool {
        let _ = self.state.compare_exchange(READING, OVER, Ordering::AcqRel, Ordering::Acquire);
        while self.state.load(Ordering::Acquire) != IDLE {
            futex::wait(&self.state, OVER, Some(1_000_000));
        }
        self.seen.load(Ordering::Relaxed)
    }

    /// Works for others as long as the process and the pager live.
    pub(crate) fn serve(&self, reports: Reports, events: &EventQueue) {
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        // Where there are more processors than drainers, some share one.
        if self.works.swap(true, Ordering::AcqRel) {
            return;
        }
        loop {
            match self.state.load(Ordering::Acquire) {
                IDLE => {
                    // For ever: behind a seccomp filter this is the last call that may be made.
                    futex::wait(&self.state, IDLE, None);
                    continue;
                }
                ENDING => return,
                _ => {}
            }
            let mut aside = [0; ASIDE_MAX];
            let mut count = 0;
            while self.state.load(Ordering::Acquire) == READING {
                if !reports.wait(LOOK_MS) || reports.read(&mut messages, 1) == 0 {
                    continue;
                }
                match messages[0] {
                    Message::Remap { to, .. } if to == self.target.load(Ordering::Relaxed) => {
                        self.seen.store(true, Ordering::Relaxed);
                        break;
                    }
                    Message::Fault { address, .. } if count < ASIDE_MAX => {
                        aside[count] = address;
                        count += 1;
                    }
                    Message::Fault { address, .. } => reports.wake(page_of(address), PAGE_SIZE),
                    event => events.push(event),
                }
            }
            if self.state.swap(IDLE, Ordering::AcqRel) == OVER {
                futex::wake(&self.state, 1);
            }
            for address in &aside[..count] {
                reports.wake(page_of(*address), PAGE_SIZE);
            }
        }
    }
}
