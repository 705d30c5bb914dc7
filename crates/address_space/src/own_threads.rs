//! The pager's own threads.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Most of the pager's threads whose thread IDs are kept.
const OWN_THREADS_MAX: usize = 256;

/// What the other threads that page do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadsState {
    /// All wait in the kernel.
    Blocked,
    /// One runs.
    Running,
    /// They cannot be looked at, or are too many.
    Unknown,
}

pub struct OwnThreads {
    count: AtomicU32,
    /// Thread IDs, stored by the threads themselves.
    numbers: [AtomicI32; OWN_THREADS_MAX],
}

impl OwnThreads {
    pub fn new() -> Self {
        OwnThreads { count: AtomicU32::new(0), numbers: [const { AtomicI32::new(0) }; OWN_THREADS_MAX] }
    }

    pub fn add(&self) {
        let index = self.count.fetch_add(1, Ordering::AcqRel) as usize;
        if let Some(number) = self.numbers.get(index) {
            number.store(sys::threads::own(), Ordering::Release);
        }
    }

    /// In a forked child, where the caller is the only thread.
    pub fn reset(&self) {
        self.count.store(0, Ordering::Release);
        self.numbers.iter().for_each(|number| number.store(0, Ordering::Release));
        self.add();
    }

    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// The state of the threads except the caller.
    pub fn state(&self) -> ThreadsState {
        let (own, count) = (sys::threads::own(), self.count() as usize);
        for number in &self.numbers[..count.min(OWN_THREADS_MAX)] {
            match number.load(Ordering::Acquire) {
                number if number == own => {}
                // The thread is about to store its ID.
                0 => return ThreadsState::Running,
                number => match sys::threads::is_blocked(number) {
                    Some(true) => {}
                    Some(false) => return ThreadsState::Running,
                    None => return ThreadsState::Unknown,
                },
            }
        }
        match count <= OWN_THREADS_MAX {
            true => ThreadsState::Blocked,
            false => ThreadsState::Unknown,
        }
    }

    pub fn leave_one(&self) -> bool {
        !cfg!(feature = "shuttle")
            && sys::threads::count().is_some_and(|all| {
                all <= 1 + if sys::threads::program().is_some() { 0 } else { self.count() }
            })
    }
}
