//! The privileged helper: performs operations for which this process lacks, or has dropped, the
//! privilege.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A file of the process that asks, or of the system, by the number that it is asked for with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Lent {
    /// /dev/userfaultfd: a process that has it open may make userfaultfds of its own memory.
    DeviceNode = 0,
    /// /proc/self/pagemap, which is root's file in a process that changed its user.
    Pagemap = 1,
}

impl Lent {
    /// What a number stands for.
    pub fn from_number(number: u32) -> Option<Self> {
        [Lent::DeviceNode, Lent::Pagemap].into_iter().find(|what| *what as u32 == number)
    }
}

/// A helper with more rights.
pub trait Lender: Sync {
    /// Opens a file; returns its number in the calling thread's file table.
    fn open(&self, what: Lent) -> Option<i32>;

    /// Agrees on the features of a userfaultfd just made. The kernel checks the calling process,
    /// not the memory's owner, for the right to have forks reported.
    fn agree(&self, userfaultfd: i32, features: u64) -> bool;
}

static LENDER: AtomicPtr<&'static dyn Lender> = AtomicPtr::new(std::ptr::null_mut());

/// Has `lender` be asked from now on, by whichever thread is refused something.
pub fn set(lender: &'static &'static dyn Lender) {
    LENDER.store(std::ptr::from_ref(lender).cast_mut(), Ordering::Release);
}

fn lender() -> Option<&'static dyn Lender> {
    // SAFETY: null, or what `set` was given, which lives for ever.
    unsafe { LENDER.load(Ordering::Acquire).as_ref() }.copied()
}

/// Asks for a file.
pub(crate) fn open(what: Lent) -> Option<i32> {
    lender()?.open(what)
}

/// Asks for features.
pub(crate) fn agree(userfaultfd: i32, features: u64) -> bool {
    lender().is_some_and(|lender| lender.agree(userfaultfd, features))
}
