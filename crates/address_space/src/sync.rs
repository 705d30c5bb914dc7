//! The locks behind moves of pages, and the kernel. Tests of interleavings replace both, by a
//! scheduler's locks and a model (`--features shuttle`).

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{atomic, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "shuttle"))]
pub use std::sync::{atomic, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(not(feature = "shuttle"))]
pub use sys::{
    futex::{lock_bits, try_lock_bits, unlock_bits},
    pagemap::Pagemap,
    thread::{sleep_ns, yield_now},
    userfaultfd::Userfaultfd,
};

#[cfg(feature = "shuttle")]
pub use crate::model::{Pagemap, Userfaultfd};

#[cfg(feature = "shuttle")]
mod scheduled {
    use std::sync::atomic::AtomicU32;

    pub use sys::futex::{try_lock_bits, unlock_bits};

    /// The same lock. Waiting threads let others run.
    pub fn lock_bits(word: &AtomicU32) {
        yield_now();
        while !try_lock_bits(word) {
            yield_now();
        }
    }

    pub fn yield_now() {
        shuttle::thread::yield_now();
    }

    pub fn sleep_ns(_ns: u64) {
        shuttle::thread::yield_now();
    }
}
#[cfg(feature = "shuttle")]
pub use scheduled::*;
