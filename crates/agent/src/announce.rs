//! Announcements of large new mappings: the control thread's side. The program's side is in
//! `preload`'s module of the same name.

use std::ops::Range;

use doorway::control_page::kind;
use sys::futex;

use crate::control_page::control_page;

/// A request to the control thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Register the range: it is a new private anonymous mapping.
    Ordinary,
    /// Look at all mappings: only /proc/self/maps shows what this mapping is.
    Unknown,
    /// Release the range for good: the program has its own userfaultfd for it.
    Release,
    /// Fill no freed frame again: the program hands out references to its pages.
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

/// Wakes the thread that waits for this request, if it still does.
pub fn done(number: u32) {
    let announcement = &control_page().announcement;
    if announcement.answer(number) {
        futex::wake(&announcement.state, 1);
    }
}
