//! Which pages the program uses, where the kernel can tell.
//!
//! | tracker | kernels | how |
//! |---|---|---|
//! | [`rwp`] | Linux 7.3 and later, with moves | an armed page is inaccessible; at its first use the kernel disarms it by itself |
//! | [`none`] | all others | nothing is known of use |
//! | `simulated` | tests | the test says which pages are used |
//!
//! A present page is *armed* or *used*. It is used when it was never armed, too: a page that is
//! filled or copied in has a user. What is moved in is armed. Uses by the kernel count as the
//! program's.
//!
//! Nothing here changes a page's bytes, place or state, and no answer of a tracker is relied on for
//! more than a choice of pages to evict: a range may be unmapped, replaced or moved at any moment.
//! So trackers need no lock of a block and no proof. A call that fails changes nothing that counts.
//!
//! Never used: `UFFDIO_SET_MODE`, which takes every mapping's write lock, and messages about uses.

mod none;
mod rwp;
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod simulated;

use sys::pagemap::Run;

use crate::sync::{Pagemap, Userfaultfd};

/// Sees which present pages are used since they were armed.
pub(crate) trait AccessTracker: Send + Sync {
    /// Whether uses are seen at all. If not, [`AccessTracker::look`] finds present pages and calls
    /// every one of them unused.
    fn sees_uses(&self) -> bool;

    /// What a range must be registered with, beside its other modes, for its pages to be armed.
    /// Zero if nothing is needed.
    fn mode(&self) -> u64;

    /// Arms the present pages of a range. Those that cannot be armed stay used.
    fn arm(&self, start: usize, len: usize);

    /// Disarms a range's pages: they are used. Wakes no thread.
    fn disarm(&self, start: usize, len: usize);

    /// As [`Pagemap::present`]; runs also end between used and armed pages ([`Run::is_used`]).
    fn look(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize);
}

/// The tracker for this kernel. `uffd`, which guards the program's memory, has agreed on
/// `features`.
pub(crate) fn choose(uffd: &Userfaultfd, pagemap: Pagemap, features: u64) -> Box<dyn AccessTracker> {
    match rwp::Rwp::new(uffd, pagemap, features) {
        Some(rwp) => Box::new(rwp),
        None => Box::new(none::NoTracker::new(pagemap)),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
