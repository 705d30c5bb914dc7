//! Announcements of large new mappings: the control thread's side. The program's side is in
//! `preload`'s module of the same name.

use doorway::control_page::{kind, Announcement};
use pager::Pager;
use sys::futex;

/// Carries out the pending request, and wakes the thread that waits for it, if it still does.
pub fn serve(announcement: &Announcement, pager: &Pager) {
    let Some(question) = announcement.question() else { return };
    match question.kind {
        kind::ORDINARY => pager.register(question.range),
        kind::RELEASE => pager.release(question.range),
        kind::REFERENCES => pager.stop_recycling(),
        _ => pager.refresh_mappings(),
    }
    if announcement.answer(question.number) {
        futex::wake(&announcement.state, 1);
    }
}
