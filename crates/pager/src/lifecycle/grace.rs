//! Grace periods: when every thread of the program has been seen outside of the calls that discard
//! memory.
//!
//! The event of madvise(MADV_DONTNEED) is read before the kernel discards anything
//! (`pages/discard.rs`), and nothing tells when its thread is done. As with RCU, it is enough to
//! see every thread once in a state in which it cannot be in such a call any more. A thread has
//! left a call of before when
//!
//! * it is blocked in another one, or in a page fault outside of any,
//! * its time in user mode has grown by two ticks since the period began,
//! * or it is no more.
//!
//! The kernel scales the time in user mode by what it measures more exactly, so that it can pass
//! the border of a tick while a thread is in a long call, and what io_uring's threads are doing does
//! not show. But a thread that discards registered memory holds the address space's lock during that: that is
//! waited for, too.
//!
//! A thread that is none of these (stopped by a signal in mid-call, kept from running for a minute)
//! keeps the period open for as long, and the pages concerned stay where they are.

use std::sync::Mutex;

use sys::threads::{self, Sight};

use crate::pages::Pages;

/// Threads that can be followed at a time; a process with more waits for some to end.
const THREADS_MAX: usize = 4096;
/// Between two looks: one costs some microseconds a thread.
const LOOK_NS: u64 = 20_000_000;
/// Ticks of user mode, of which one may be rounding.
const TICKS: u64 = 2;

/// A thread that may still be in a call.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    thread: i32,
    user_ticks: u64,
}

impl Suspect {
    /// Whether it may still be in a call of before.
    fn remains(&self, sight: Option<Sight>) -> bool {
        match sight {
            Some(Sight::Running { user_ticks }) | Some(Sight::Discarding { user_ticks }) => {
                user_ticks < self.user_ticks + TICKS
            }
            Some(Sight::Elsewhere) | None => false,
        }
    }
}

/// The grace periods of one pager.
#[derive(Default)]
pub(super) struct GracePeriods(Mutex<GracePeriod>);

impl GracePeriods {
    /// One step: begins a period when pages wait for one, looks at the threads that are left, ends
    /// it when there is none.
    pub fn step(&self, now_ns: u64, pages: &Pages) {
        self.0.lock().expect("no panic while held").step(now_ns, pages);
    }

    /// In a forked child, which has one thread, and that in fork().
    pub fn reset(&self, pages: &Pages) {
        *self.0.lock().expect("no panic while held") = GracePeriod::default();
        pages.forget_discarding();
    }
}

/// The grace period under way, if any.
#[derive(Default)]
struct GracePeriod {
    suspects: Vec<Suspect>,
    is_open: bool,
    /// There were more threads than can be followed, or they could not be listed.
    is_incomplete: bool,
    looked_ns: u64,
}

impl GracePeriod {
    fn step(&mut self, now_ns: u64, pages: &Pages) {
        if now_ns.wrapping_sub(self.looked_ns) < LOOK_NS || !(self.is_open || pages.has_discarding()) {
            return;
        }
        self.looked_ns = now_ns;
        if !self.is_open {
            // From here on events mark pages for the next period; calls whose events came before
            // are those to wait for.
            pages.begin_grace();
            self.suspects.clear();
            self.is_incomplete = false;
            let own = threads::own();
            let saw_all = threads::for_each(|thread| match threads::look(thread) {
                _ if thread == own => {}
                Some(Sight::Running { user_ticks }) | Some(Sight::Discarding { user_ticks }) => {
                    if self.suspects.len() < THREADS_MAX {
                        self.suspects.push(Suspect { thread, user_ticks });
                    } else {
                        self.is_incomplete = true;
                    }
                }
                Some(Sight::Elsewhere) | None => {}
            });
            self.is_incomplete |= !saw_all;
            self.is_open = true;
        } else {
            self.suspects.retain(|suspect| suspect.remains(threads::look(suspect.thread)));
        }
        if self.suspects.is_empty() {
            self.is_open = false;
            let have_left = sys::memory::outwait_readers().is_ok();
            // Begun again when not every thread was followed: some may be in calls from before
            // still.
            if have_left && !self.is_incomplete {
                pages.end_grace();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tick_of_user_mode_may_be_rounding() {
        let suspect = Suspect { thread: 1, user_ticks: 7 };
        for (ticks, remains) in [(7, true), (8, true), (9, false)] {
            assert_eq!(suspect.remains(Some(Sight::Running { user_ticks: ticks })), remains, "{ticks}");
            assert_eq!(suspect.remains(Some(Sight::Discarding { user_ticks: ticks })), remains, "{ticks}");
        }
        assert!(!suspect.remains(Some(Sight::Elsewhere)) && !suspect.remains(None));
    }
}
