//! Large new mappings of the program's: the control thread's side. `preload`'s module of this name has the other.

use std::ops::Range;
use std::sync::atomic::Ordering;

use doorway::desk::{kind, ASKED, IDLE};
use sys::futex;

use crate::desk::desk;

/// What the control thread has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Register the range: it is a new private anonymous mapping.
    Ordinary,
    /// Look at all mappings: only /proc/self/maps tells what this one is.
    Unknown,
    /// Let go of the range for good: the program has a userfaultfd of its own for it.
    Release,
    /// Fill no frame anew: the program hands out references to its pages.
    References,
}

/// What somebody waits for, to be answered with [`done`].
pub fn asked() -> Option<(Kind, Range<usize>)> {
    let announcement = &desk().announcement;
    if announcement.state.load(Ordering::Acquire) != ASKED {
        return None;
    }
    let kind = match announcement.kind.load(Ordering::Relaxed) {
        kind::ORDINARY => Kind::Ordinary,
        kind::RELEASE => Kind::Release,
        kind::REFERENCES => Kind::References,
        _ => Kind::Unknown,
    };
    let [start, end] = announcement.range.each_ref().map(|bound| bound.load(Ordering::Relaxed));
    Some((kind, start..end))
}

/// Lets the waiting thread go on.
pub fn done() {
    let state = &desk().announcement.state;
    state.store(IDLE, Ordering::Release);
    futex::wake(state, 1);
}
