//! What [`crate::entry`] and [`crate::live`] need of the machine. The model checker compiles those
//! files with its own version of this one.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Waits a moment for another thread; `round` counts the moments.
pub(crate) fn relax(round: u32) {
    if round < 64 {
        std::hint::spin_loop();
    } else {
        // The holder copies one object at most; it can only take this long when it lost its CPU.
        std::thread::yield_now();
    }
}
