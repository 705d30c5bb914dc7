//! The privileged helper: performs operations for which this process lacks the privilege.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A file of the requesting process or the system, with its number in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PrivilegedFile {
    /// /dev/userfaultfd: a process that has it open may make userfaultfds for its own memory.
    DeviceNode = 0,
    /// /proc/self/pagemap, which belongs to root in a process that changed its user.
    Pagemap = 1,
}

impl PrivilegedFile {
    /// The file with a number.
    pub fn from_number(number: u32) -> Option<Self> {
        [PrivilegedFile::DeviceNode, PrivilegedFile::Pagemap].into_iter().find(|what| *what as u32 == number)
    }
}

/// A helper with more rights.
pub trait PrivilegedHelper: Sync {
    /// Opens a file and returns its number in the calling thread's file table.
    fn open(&self, what: PrivilegedFile) -> Option<i32>;

    /// Agrees on the features of a new userfaultfd. The kernel checks the calling process, not the
    /// memory's owner, for the right to fork reports.
    fn agree(&self, userfaultfd: i32, features: u64) -> bool;
}

static HELPER: AtomicPtr<&'static dyn PrivilegedHelper> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the helper for any thread that is refused an operation.
pub fn set(helper: &'static &'static dyn PrivilegedHelper) {
    HELPER.store(std::ptr::from_ref(helper).cast_mut(), Ordering::Release);
}

fn helper() -> Option<&'static dyn PrivilegedHelper> {
    // SAFETY: null, or the argument of `set`, which lives for ever.
    unsafe { HELPER.load(Ordering::Acquire).as_ref() }.copied()
}

pub(crate) fn open(what: PrivilegedFile) -> Option<i32> {
    helper()?.open(what)
}

pub(crate) fn agree(userfaultfd: i32, features: u64) -> bool {
    helper().is_some_and(|helper| helper.agree(userfaultfd, features))
}
