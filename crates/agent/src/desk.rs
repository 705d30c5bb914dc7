//! What the program's threads and this agent's say to each other: memory of `preload`'s where there
//! is one.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use doorway::desk::Desk;

/// The state without a program that shares one with the agent.
static OWN: Desk = Desk::new();
static SHARED: AtomicPtr<Desk> = AtomicPtr::new(std::ptr::null_mut());

/// The desk.
pub fn desk() -> &'static Desk {
    // SAFETY: null, or the memory that `share` was promised.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWN)
}

/// Whether the program's threads use it, too.
pub fn is_shared() -> bool {
    !SHARED.load(Ordering::Acquire).is_null()
}

/// Has all threads use the desk at an address. To be called before there are others.
///
/// # Safety
/// There is one, for as long as the process lives.
pub unsafe fn share(address: usize) {
    SHARED.store(address as *mut Desk, Ordering::Release);
}

/// Whether a word is set.
pub fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}
