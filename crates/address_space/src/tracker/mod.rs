//! Which pages the program uses, if the kernel can tell.
//!
//! | tracker | kernels | how |
//! |---|---|---|
//! | [`rwp`] | Linux 7.3 and later, with moves | an armed page is inaccessible; at its first use the kernel disarms it by itself |
//! | | all others | nothing is known of use |
//! | `simulated` | tests | the test says which pages are used |
//!
//! A present page is *armed* or *used*. A page that was never armed counts as used: a filled or
//! copied page has a user. Pages that are moved in are armed. Uses by the kernel count as the
//! program's.
//!
//! Trackers change no page's bytes, place or state, and their results only guide the choice of
//! pages to evict: a range may be unmapped, replaced or moved at any moment. So trackers need no
//! block's lock and no proof, and a failed call does no harm.
//!
//! Never used: `UFFDIO_SET_MODE`, which takes every mapping's write lock, and messages about uses.

mod rwp;
#[cfg(all(any(test, feature = "testing"), not(feature = "shuttle")))]
pub mod simulated;

pub use rwp::Rwp;
use sys::pagemap::Run;

/// Tells which present pages were used since they were armed.
pub trait AccessTracker: Send + Sync {
    /// Whether uses are seen. If not, [`AccessTracker::look`] reports every present page as unused.
    fn sees_uses(&self) -> bool;

    /// Additional mode with which a range must be registered to be armed. Zero if none is needed.
    fn mode(&self) -> u64;

    /// Arms the present pages of a range. Pages that cannot be armed stay used.
    fn arm(&self, start: usize, len: usize);

    /// Disarms a range's pages: they are used. Wakes no thread.
    fn disarm(&self, start: usize, len: usize);

    /// As [`sys::pagemap::Pagemap::present`]; runs also end between used and armed pages
    /// ([`Run::is_used`]).
    fn look(&self, start: usize, end: usize, runs: &mut [Run]) -> (usize, usize);
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
