//! Requests of other threads to the control thread, which alone has the pager's files.

use std::sync::atomic::{AtomicU32, Ordering};

use sys::futex;

/// The requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Request {
    /// Read the mappings.
    Look = 1,
    /// Bring everything in and stand still.
    Halt = 2,
    /// Continue after that.
    GoOn = 3,
}

const NOTHING: u32 = 0;

/// One request at a time.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Held by the requesting thread.
    one: AtomicU32,
    request: AtomicU32,
    /// Changed to wake the control thread.
    bell: AtomicU32,
}

impl Mailbox {
    /// Sends a request and waits until it is done.
    pub fn ask(&self, request: Request) {
        self.lock();
        self.ask_locked(request);
        self.unlock();
    }

    /// [`Mailbox::ask`] for a thread that has the lock.
    pub fn ask_locked(&self, request: Request) {
        self.request.store(request as u32, Ordering::Release);
        self.ring();
        while self.request.load(Ordering::Acquire) != NOTHING {
            futex::wait(&self.request, request as u32, Some(100_000_000));
        }
    }

    /// Blocks further requests.
    pub fn lock(&self) {
        futex::lock_bits(&self.one);
    }

    pub fn unlock(&self) {
        futex::unlock_bits(&self.one);
    }

    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        futex::wake(&self.bell, 1);
    }

    /// Carries out pending requests; for the control thread.
    pub fn answer(&self, act: impl FnOnce(Request)) {
        act(match self.request.load(Ordering::Acquire) {
            1 => Request::Look,
            2 => Request::Halt,
            3 => Request::GoOn,
            _ => return,
        });
        self.request.store(NOTHING, Ordering::Release);
        futex::wake(&self.request, 1);
    }

    /// Sleeps until the bell rings, at most `ns`; for the control thread. `seen` is from
    /// [`Mailbox::bell`], read before the last reply.
    pub fn sleep(&self, seen: u32, ns: u64) {
        futex::wait(&self.bell, seen, Some(ns));
    }

    /// The number of rings.
    pub fn bell(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }
}
