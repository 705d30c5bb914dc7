//! fork(): the child gets its bytes, and no space.
//!
//! Where the kernel reports forks the pager sees to it: a handler reads of the fork and copies into
//! the child what is out here. Elsewhere the child would find zeroes in place of that. So
//! everything comes in before the fork and nothing is registered during it; and because a bare
//! clone(2) calls no handler, the range is kept from children at all other times (MADV_DONTFORK).
//!
//! Either way the locks of this library are held over a fork, since the child could not get at one
//! that another thread had.

use std::sync::atomic::Ordering;
use std::sync::OnceLock;

use super::mailbox::Request;
use super::space::{Inner, SPACE, STARTING};

/// Has the handlers called from now on.
pub(super) fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: `child` writes to atomics alone. Code of a shared object that has threads running
        // in it is never unloaded.
        let installed = unsafe { sys::atfork::install(prepare, parent, child) };
        installed.map_err(|error| error.raw_os_error().unwrap_or(0))
    });
    installed.map_err(std::io::Error::from_raw_os_error)
}

fn space() -> Option<&'static Inner> {
    // SAFETY: null, or a space, which lives for ever.
    unsafe { SPACE.load(Ordering::Acquire).as_ref() }.filter(|space| space.is_own())
}

unsafe extern "C" fn prepare() {
    // None is started in between: it would be found in `parent`, with locks that were not taken
    // here, and the child could start none.
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
    // Regions of the parent's stay what they are, plain memory; a space of its own may be started
    // here.
    SPACE.store(std::ptr::null_mut(), Ordering::Release);
    sys::futex::unlock_bits(&STARTING);
}
