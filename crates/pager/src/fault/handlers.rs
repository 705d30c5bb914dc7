//! Which handlers listen for faults.
//!
//! The kernel wakes every waiting handler at every fault. A handler on another CPU than the fault
//! does harm even if it loses: its CPU has then loaded the program's address space, so every moved
//! page interrupts it. If it wins, serving wakes one CPU from another twice. (Random walk through
//! 123 MiB of heap in 96, 2-CPU virtual machine, November 2026: 27 s with two listeners, 14.5 s
//! pinned to one CPU.) So a handler that wins no faults, or only other CPUs' faults, rests. It is
//! called when faults queue up, or come from its own CPU. At least one handler always listens.

use std::sync::atomic::{AtomicU32, Ordering};

use sys::futex;

/// Time without faults after which a handler that listens beside others rests.
const LISTEN_MS: i32 = 1;
/// Consecutive faults served by others after which a handler rests.
const LOST_MAX: u32 = 8;
/// A handler checks the faulting CPU once in this number of faults, because a check costs more than
/// a fault. The interval grows while the faults are its own CPU's.
const LOOK_EVERY: std::ops::Range<u32> = 16..32;
/// Consecutive checks that found another CPU after which a handler rests.
const ELSEWHERE_MAX: u32 = 2;
/// Rest of a handler: at first, and after several rests in a row.
const REST_NS: std::ops::Range<u64> = 20_000_000..320_000_000;
/// Rest while there are no faults at all.
const IDLE_NS: u64 = 2_000_000_000;
const ANY: u32 = u32::MAX;
/// Consecutive faults found waiting after which a handler calls for help.
const BACKLOG: u32 = 4;
/// A fault of another thread, read this soon after the last was served, had been waiting.
const WAITED_NS: u64 = 4_000;

#[derive(Debug, Default)]
pub(crate) struct Handlers {
    listening: AtomicU32,
    resting: AtomicU32,
    calls: AtomicU32,
    /// CPU whose handler was called last, or [`ANY`].
    called: AtomicU32,
    served: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Record {
    /// Faults until the next check, and between checks.
    look_in: u32,
    look_every: u32,
    /// The thread served last, and when.
    thread: u32,
    served_ns: u64,
    in_a_row: u32,
    lost: u32,
    elsewhere: u32,
    rest_ns: u64,
}

impl Record {
    pub(crate) fn new() -> Self {
        Record {
            look_in: LOOK_EVERY.start,
            look_every: LOOK_EVERY.start,
            thread: 0,
            served_ns: 0,
            in_a_row: 0,
            lost: 0,
            elsewhere: 0,
            rest_ns: REST_NS.start,
        }
    }

    pub(crate) fn served(&mut self) {
        self.served_ns = sys::now_ns();
    }

    fn is_look_due(&mut self) -> bool {
        self.look_in = self.look_in.saturating_sub(1);
        self.look_in == 0
    }

    fn looked(&mut self, is_here: bool) {
        self.look_every = if is_here { (self.look_every * 2).min(LOOK_EVERY.end) } else { LOOK_EVERY.start };
        self.look_in = self.look_every;
        match is_here {
            true => (self.elsewhere, self.rest_ns) = (0, REST_NS.start),
            false => self.elsewhere += 1,
        }
    }

    /// Called when another handler read the message.
    pub(crate) fn lost(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }
}

impl Handlers {
    pub(crate) fn reset(&self) {
        for count in [&self.listening, &self.resting, &self.calls, &self.called, &self.served] {
            count.store(0, Ordering::Release);
        }
    }

    pub(crate) fn join(&self) {
        self.listening.fetch_add(1, Ordering::AcqRel);
    }

    /// Called for each fault before it is served.
    pub(crate) fn won(&self, record: &mut Record, thread: u32, read_ns: u64) {
        self.served.fetch_add(1, Ordering::Relaxed);
        record.lost = 0;
        let waited = thread != record.thread && read_ns < record.served_ns + WAITED_NS;
        record.in_a_row = if waited { record.in_a_row + 1 } else { 0 };
        record.thread = thread;
        if record.in_a_row == BACKLOG {
            self.call_any();
            record.in_a_row = 0;
        }
        let alone = self.resting.load(Ordering::Acquire) + self.listening.load(Ordering::Acquire) == 1;
        if alone || !record.is_look_due() {
            return;
        }
        let elsewhere = sys::procfs::processor_of(thread).filter(|cpu| *cpu != sys::cpu::current());
        record.looked(elsewhere.is_none());
        if let Some(cpu) = elsewhere {
            self.call(cpu as u32);
        }
    }

    /// Rests, or waits with `wait`: takes ms or -1, returns whether there may be a message.
    pub(crate) fn wait(&self, record: &mut Record, wait: impl FnOnce(i32) -> bool) -> bool {
        let others = self.listening.load(Ordering::Acquire) > 1;
        if others
            && (record.lost >= LOST_MAX || record.elsewhere >= ELSEWHERE_MAX)
            && self.rest(record.rest_ns)
        {
            (record.lost, record.elsewhere) = (0, 0);
            record.rest_ns = (record.rest_ns * 2).min(REST_NS.end);
            return false;
        }
        let came = wait(if others { LISTEN_MS } else { -1 });
        if !came {
            record.lost = LOST_MAX;
        }
        came
    }

    /// Rests if others listen. Returns false if this is the last listener.
    fn rest(&self, ns: u64) -> bool {
        let mut seen = self.calls.load(Ordering::Acquire);
        let others = |listening: u32| (listening > 1).then(|| listening - 1);
        if self.listening.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_err() {
            return false;
        }
        self.resting.fetch_add(1, Ordering::AcqRel);
        let mut ns = ns;
        loop {
            let served = self.served.load(Ordering::Relaxed);
            futex::wait(&self.calls, seen, Some(ns));
            let calls = self.calls.load(Ordering::Acquire);
            if calls != seen {
                let called = self.called.load(Ordering::Relaxed);
                if called == ANY || called as usize == sys::cpu::current() {
                    break;
                }
                seen = calls;
            } else if self.served.load(Ordering::Relaxed) != served {
                break;
            } else {
                ns = IDLE_NS;
            }
        }
        self.resting.fetch_sub(1, Ordering::AcqRel);
        self.listening.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Handlers that listen or rest.
    pub(crate) fn count(&self) -> u32 {
        self.listening.load(Ordering::Acquire) + self.resting.load(Ordering::Acquire)
    }

    pub(crate) fn call_all(&self) {
        self.called.store(ANY, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::AcqRel);
        futex::wake(&self.calls, i32::MAX);
    }

    pub(crate) fn call_any(&self) {
        self.call(ANY);
    }

    /// Wakes a resting handler if a message waited at the last check, waits now, and no fault was
    /// served in between: a real-time thread of the program keeps the listeners from their CPUs.
    /// Takes the result of the last check.
    pub(crate) fn help_if_stuck(&self, before: Option<u32>, waits: impl FnOnce() -> bool) -> Option<u32> {
        let served = self.served.load(Ordering::Relaxed);
        let now = (self.resting.load(Ordering::Acquire) > 0 && waits()).then_some(served);
        if now.is_some() && now == before {
            self.call_any();
        }
        now
    }

    fn call(&self, called: u32) {
        if self.resting.load(Ordering::Acquire) > 0 {
            self.called.store(called, Ordering::Relaxed);
            self.calls.fetch_add(1, Ordering::AcqRel);
            futex::wake(&self.calls, if called == ANY { 1 } else { i32::MAX });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_program_stays_the_more_rarely_it_is_looked_for() {
        let mut record = Record::new();
        let mut next_look = |is_here: bool| {
            let faults = (1..).find(|_| record.is_look_due()).expect("at last");
            record.looked(is_here);
            faults
        };
        let here = true;
        assert_eq!([here, here, here, !here, here, here].map(&mut next_look), [16, 32, 32, 32, 16, 32]);
    }

    #[test]
    fn one_that_rests_is_called_when_a_message_stays() {
        let handlers = Handlers::default();
        handlers.resting.store(1, Ordering::Relaxed);
        let calls = || handlers.calls.load(Ordering::Relaxed);
        assert_eq!((handlers.help_if_stuck(None, || false), calls()), (None, 0));
        assert_eq!((handlers.help_if_stuck(None, || true), calls()), (Some(0), 0));
        handlers.served.store(7, Ordering::Relaxed);
        assert_eq!((handlers.help_if_stuck(Some(0), || true), calls()), (Some(7), 0));
        assert_eq!((handlers.help_if_stuck(Some(7), || true), calls()), (Some(7), 1));
        handlers.resting.store(0, Ordering::Relaxed);
        assert_eq!((handlers.help_if_stuck(Some(7), || true), calls()), (None, 1));
    }
}
