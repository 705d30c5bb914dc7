//! The memory that the program's threads and the agent's share: `preload`'s, where it is loaded.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use doorway::control_page::ControlPage;

/// Used where no program shares a control page with the agent.
static OWN: ControlPage = ControlPage::new();
static SHARED: AtomicPtr<ControlPage> = AtomicPtr::new(std::ptr::null_mut());

/// The control page.
pub fn control_page() -> &'static ControlPage {
    // SAFETY: null, or memory that `share`'s caller guarantees.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWN)
}

/// Whether the program's threads share it.
pub fn is_shared() -> bool {
    !SHARED.load(Ordering::Acquire).is_null()
}

/// Sets the address of the control page, before there are other threads.
///
/// # Safety
/// A control page stays there for the life of the process.
pub unsafe fn share(address: usize) {
    SHARED.store(address as *mut ControlPage, Ordering::Release);
}

/// Whether a word is not zero.
pub fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}
