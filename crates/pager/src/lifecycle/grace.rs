//! Grace periods: they end when every thread of the program was seen outside the calls that discard
//! memory.
//!
//! The event of madvise(MADV_DONTNEED) is read before the kernel discards pages
//! (`address_space/transition/discard.rs`), and nothing reports the end. As with RCU, it suffices
//! to see every thread once in a state outside such calls. A thread has left an earlier call if
//!
//! * it sleeps so that a signal would end the sleep, as those calls do not, or is stopped,
//! * its time in user mode has grown by two ticks since the period began,
//! * or it has ended.
//!
//! The kernel scales user time by a more exact measurement, so it can pass a tick's border during a
//! long call, and the state of io_uring's threads is invisible. But a thread that discards
//! registered memory holds the address space's lock, so that is waited for, too.
//!
//! Any other thread (not scheduled for a minute, or in a long vfork(2)) keeps the period open, and
//! the pages concerned stay where they are.

use address_space::AddressSpace;
use sys::threads::{self, Sight};

/// Most threads followed at a time. A process with more waits for some to end.
const THREADS_MAX: usize = 4096;
/// Nanoseconds between scans. A scan costs some microseconds a thread.
const LOOK_NS: u64 = 20_000_000;
/// Ticks of user time, one of which may be rounding.
const TICKS: u64 = 2;

#[derive(Debug, Clone, Copy)]
struct Suspect {
    thread: i32,
    user_ticks: u64,
}

impl Suspect {
    /// Whether the thread may still be in an earlier call.
    fn remains(&self, sight: Option<Sight>) -> bool {
        match sight {
            Some(Sight::Running { user_ticks }) => user_ticks < self.user_ticks + TICKS,
            Some(Sight::Elsewhere) | None => false,
        }
    }
}

#[derive(Default)]
pub(super) struct GracePeriod {
    suspects: Vec<Suspect>,
    is_open: bool,
    /// Some threads could not be followed, or the threads could not be listed.
    is_incomplete: bool,
    looked_ns: u64,
}

impl GracePeriod {
    /// Starts a period if pages wait, checks the remaining threads, or ends the period.
    pub fn step(&mut self, now_ns: u64, pages: &AddressSpace) {
        if now_ns.wrapping_sub(self.looked_ns) < LOOK_NS || !(self.is_open || pages.discards.are_pending()) {
            return;
        }
        self.looked_ns = now_ns;
        if !self.is_open {
            // From here on, events mark pages for the next period.
            pages.discards.begin_grace();
            self.suspects.clear();
            self.is_incomplete = false;
            let own = threads::own();
            let saw_all = threads::for_each(|thread| match threads::look(thread) {
                _ if thread == own => {}
                Some(Sight::Running { user_ticks }) => {
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
            // Start over if some threads were not followed: they may still be in earlier calls.
            if have_left && !self.is_incomplete {
                pages.discards.end_grace(pages.table());
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
        }
        assert!(!suspect.remains(Some(Sight::Elsewhere)) && !suspect.remains(None));
    }
}
