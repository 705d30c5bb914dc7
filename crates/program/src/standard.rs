//! Standard streams that were closed when this program was started.
//!
//! Rust opens /dev/null in their place before main(). A program under `uzswap run` must find them
//! closed, as without uzswap, so that its writes fail.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

static CLOSED: AtomicU8 = AtomicU8::new(0);

extern "C" fn look() {
    for descriptor in 0..3 {
        // SAFETY: queries a descriptor number, open or not.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Runs before Rust's own startup code.
#[used]
#[link_section = ".init_array"]
static LOOK: extern "C" fn() = look;

/// Returns those of descriptors 0, 1 and 2 that were closed at the start.
pub fn closed() -> impl Iterator<Item = c_int> {
    let closed = CLOSED.load(Ordering::Relaxed);
    (0..3).filter(move |descriptor| closed & 1 << descriptor != 0)
}
