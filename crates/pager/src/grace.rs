//! Grace periods: when every thread of the program has been seen outside of the calls that discard
//! memory.
//!
//! The event of madvise(MADV_DONTNEED) is read before the kernel discards anything
//! (`pages/discard.rs`), and nothing tells when its thread is done. As with RCU, it is enough to
//! see every thread once in a state in which it cannot be in such a call any more. A thread has
//! left a call of before when
//!
//! * it is blocked in another one, or in a page fault outside of any,
//! * its time in user mode has grown since the period began,
//! * or it is no more.
//!
//! The kernel scales the time in user mode by what it measures more exactly, so that it can grow by
//! a little while a thread is in a long call, and what io_uring's threads are doing does not show.
//! But a thread that discards registered memory holds the address space's lock during that: that is
//! waited for, too.
//!
//! A thread that is none of these (stopped by a signal in mid-call, kept from running for a minute)
//! keeps the period open for as long, and the pages concerned stay where they are.

use sys::threads::{self, Sight};

use crate::pages::Pages;

/// Threads that can be followed at a time; a process with more waits for some to end.
const THREADS_MAX: usize = 4096;
/// Between two looks: one costs some microseconds a thread.
const LOOK_NS: u64 = 20_000_000;

/// A thread that may still be in a call.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    thread: i32,
    user_ticks: u64,
}

/// The grace period under way, if any.
#[derive(Default)]
pub(crate) struct GracePeriod {
    suspects: Vec<Suspect>,
    is_open: bool,
    /// There were more threads than can be followed, or they could not be listed.
    is_incomplete: bool,
    looked_ns: u64,
}

impl GracePeriod {
    /// One step: begins a period when pages wait for one, looks at the threads that are left, ends
    /// it when there is none.
    pub(crate) fn step(&mut self, now_ns: u64, pages: &Pages) {
        let grace = self;
        if now_ns.wrapping_sub(grace.looked_ns) < LOOK_NS || !(grace.is_open || pages.has_discarding()) {
            return;
        }
        grace.looked_ns = now_ns;
        if !grace.is_open {
            // From here on events mark pages for the next period; calls whose events came before
            // are those to wait for.
            pages.begin_grace();
            grace.suspects.clear();
            grace.is_incomplete = false;
            let own = threads::own();
            let saw_all = threads::for_each(|thread| match threads::look(thread) {
                _ if thread == own => {}
                Some(Sight::Running { user_ticks }) | Some(Sight::Discarding { user_ticks }) => {
                    if grace.suspects.len() < THREADS_MAX {
                        grace.suspects.push(Suspect { thread, user_ticks });
                    } else {
                        grace.is_incomplete = true;
                    }
                }
                Some(Sight::Elsewhere) | None => {}
            });
            grace.is_incomplete |= !saw_all;
            grace.is_open = true;
        } else {
            grace.suspects.retain(|suspect| match threads::look(suspect.thread) {
                Some(Sight::Running { user_ticks }) | Some(Sight::Discarding { user_ticks }) => {
                    user_ticks <= suspect.user_ticks
                }
                Some(Sight::Elsewhere) | None => false,
            });
        }
        if grace.suspects.is_empty() {
            grace.is_open = false;
            let have_left = sys::memory::outwait_readers().is_ok();
            // Begun again when not every thread was followed: some may be in calls from before
            // still.
            if have_left && !grace.is_incomplete {
                pages.end_grace();
            }
        }
    }

    /// In a forked child, which has one thread, and that in fork().
    pub(crate) fn reset(&mut self, pages: &Pages) {
        *self = GracePeriod::default();
        pages.forget_discarding();
    }
}
