//! The memory that the program's threads and the agent's share: `preload`'s, where it is loaded.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use doorway::control_page::ControlPage;

use crate::state::AGENT;

pub(crate) struct Page {
    /// Used where no program shares a control page with the agent.
    own: ControlPage,
    shared: AtomicPtr<ControlPage>,
}

impl Page {
    pub(crate) const fn new() -> Self {
        Page { own: ControlPage::new(), shared: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

/// The control page.
pub fn control_page() -> &'static ControlPage {
    // SAFETY: null, or memory that `share`'s caller guarantees.
    unsafe { AGENT.page.shared.load(Ordering::Acquire).as_ref() }.unwrap_or(&AGENT.page.own)
}

/// Whether the program's threads share it.
pub fn is_shared() -> bool {
    !AGENT.page.shared.load(Ordering::Acquire).is_null()
}

/// Sets the address of the control page, before there are other threads.
///
/// # Safety
/// A control page stays there for the life of the process.
pub unsafe fn share(address: usize) {
    AGENT.page.shared.store(address as *mut ControlPage, Ordering::Release);
}

/// Whether a word is not zero.
pub fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}
