//! What the program's threads and this agent's say to each other: memory of `preload`'s where there
//! is one.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use doorway::control_page::ControlPage;

/// The state without a program that shares one with the agent.
static OWN: ControlPage = ControlPage::new();
static SHARED: AtomicPtr<ControlPage> = AtomicPtr::new(std::ptr::null_mut());

/// The control_page.
pub fn control_page() -> &'static ControlPage {
    // SAFETY: null, or the memory that `share` was promised.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWN)
}

/// Whether the program's threads use it, too.
pub fn is_shared() -> bool {
    !SHARED.load(Ordering::Acquire).is_null()
}

/// Has all threads use the control_page at an address. To be called before there are others.
///
/// # Safety
/// There is one, for as long as the process lives.
pub unsafe fn share(address: usize) {
    SHARED.store(address as *mut ControlPage, Ordering::Release);
}

/// Whether a word is set.
pub fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}
