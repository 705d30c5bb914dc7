//! Large new mappings of the program's: the control thread's side. `preload`'s module of this name
//! has the other.

use std::ops::Range;

use doorway::control_page::kind;
use sys::futex;

use crate::control_page::control_page;

/// What the control thread has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Register the range: it is a new private anonymous mapping.
    Ordinary,
    /// Look at all mappings: only /proc/self/maps tells what this one is.
    Unknown,
    /// Let go of the range for good: the program has a userfaultfd of its own for it.
    Release,
    /// Fill no frame again: the program hands out references to its pages.
    References,
}

/// The pending request, to be completed with [`done`], and its number.
pub fn asked() -> Option<(Kind, Range<usize>, u32)> {
    let question = control_page().announcement.question()?;
    let kind = match question.kind {
        kind::ORDINARY => Kind::Ordinary,
        kind::RELEASE => Kind::Release,
        kind::REFERENCES => Kind::References,
        _ => Kind::Unknown,
    };
    Some((kind, question.range, question.number))
}

/// Lets the thread go on that waits for this, if it still does.
pub fn done(number: u32) {
    let announcement = &control_page().announcement;
    if announcement.answer(number) {
        futex::wake(&announcement.state, 1);
    }
}
