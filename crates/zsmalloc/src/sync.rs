//! The primitives of [`crate::entry`] and [`crate::live`]. The model checker compiles those files
//! with its own version of this one.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Waits briefly for another thread; `round` counts the waits.
pub(crate) fn relax(round: u32) {
    if round < 64 {
        std::hint::spin_loop();
    } else {
        // The holder copies at most one object, so a wait this long means that it lost its CPU.
        std::thread::yield_now();
    }
}
