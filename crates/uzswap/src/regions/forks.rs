//! fork(): the child gets its bytes, and no space.
//!
//! If the kernel reports forks, the pager handles them: a handler reads the fork event and copies
//! evicted pages into the child. Otherwise the child would find zeroes in their place. So
//! everything comes in before the fork and nothing is registered during it; and because a bare
//! clone(2) calls no handler, the range is kept from children at all other times (MADV_DONTFORK).
//!
//! Either way this library's locks are held over a fork, since the child could not release a lock
//! of another thread.

use std::sync::atomic::Ordering;
use std::sync::OnceLock;

use super::mailbox::Request;
use super::space::{Inner, Space, SPACE, STARTING};

/// Installs the fork handlers.
pub(super) fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: `child` writes to atomics alone. A shared object with running threads is never
        // unloaded.
        let installed = unsafe { sys::atfork::install(prepare, parent, child) };
        installed.map_err(|error| error.raw_os_error().unwrap_or(0))
    });
    installed.map_err(std::io::Error::from_raw_os_error)
}

fn space() -> Option<&'static Inner> {
    Space::current().map(|space| space.inner)
}

unsafe extern "C" fn prepare() {
    // No space starts in between: `parent` would find it without its locks taken here, and the
    // child could start none.
    sys::futex::lock_bits(&STARTING);
    let Some(space) = space() else { return };
    space.lock_ranges();
    space.mailbox.lock();
    if !space.reports_forks() {
        space.mailbox.ask_locked(Request::Halt);
        space.inherit(true);
    }
}

unsafe extern "C" fn parent() {
    if let Some(space) = space() {
        if !space.reports_forks() {
            space.inherit(false);
            space.mailbox.ask_locked(Request::GoOn);
        }
        space.mailbox.unlock();
        space.unlock_ranges();
    }
    sys::futex::unlock_bits(&STARTING);
}

unsafe extern "C" fn child() {
    // The parent's regions stay plain memory; the child may start a space of its own.
    SPACE.store(std::ptr::null_mut(), Ordering::Release);
    sys::futex::unlock_bits(&STARTING);
}
