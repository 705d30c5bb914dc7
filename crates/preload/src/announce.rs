//! Large new mappings, announced to the control thread by the thread that made them.
//!
//! A mapping fills unseen until it is registered, at several gigabytes a second with huge pages,
//! and while every CPU is busy the control thread may not get round to looking for a while. So
//! while memory is tight the thread that made a large mapping waits until it is registered, or for
//! [`WAIT_NS`], whichever comes first.

use core::sync::atomic::{fence, AtomicUsize, Ordering};

use doorway::control_page::{halt, kind};
use doorway::PAGE_SIZE;

use crate::control_page::{self, CONTROL_PAGE};
use crate::mappings;
use crate::signals::blocked;
use crate::system::{self, now_ns};

/// Mappings from this size on are announced.
pub const LARGE_BYTES: usize = 512 * 1024;
/// New mappings from this size on have the control thread look at once: they could fill before its
/// next look.
const BURST_BYTES: usize = 16 << 20;
/// An answer takes microseconds; a control thread that cannot answer (it stands still for a fork)
/// is not waited for.
const WAIT_NS: u64 = 3_000_000;
/// To let go of a range means to bring everything in.
const RELEASE_NS: u64 = 10_000_000_000;
/// What stands by until then may be wrong.
const REFERENCES_NS: u64 = 1_000_000_000;
/// Of [`doorway::control_page::ControlPage::references`]: said, and known to the pager, too, where
/// there is one.
const SAID: u32 = 1;
const KNOWN: u32 = 2;

/// Has `[start, start + len)` registered if memory is tight; `what` is of [`kind`].
pub fn announce(start: usize, len: usize, what: u32) {
    if len < LARGE_BYTES || control_page::is_agents(start) {
        return;
    }
    if !control_page::has_pager() || !control_page::is_tight_with(len) {
        if len >= BURST_BYTES {
            control_page::nudge();
        }
        return;
    }
    if !control_page::is_own_process() {
        return;
    }
    blocked(|| {
        let one = &CONTROL_PAGE.announcement.one;
        if !system::try_lock(one) {
            // Others wait for the control thread, which finds this range when it looks at all
            // mappings.
            control_page::nudge();
            return;
        }
        ask(start, len, what, WAIT_NS);
        system::unlock(one);
    });
}

/// Has the pager let go of `[start, start + len)`.
pub fn release(start: usize, len: usize) {
    insist(start, len, kind::RELEASE, RELEASE_NS);
}

/// Ranges that [`release_around`] has released; more are released again each time.
static RELEASED: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

/// The same for the mappings of a range that the program may use often: once.
pub fn release_around(start: usize, len: usize) {
    let is_known = |[from, to]: &[AtomicUsize; 2]| {
        (from.load(Ordering::Relaxed)..to.load(Ordering::Acquire)).contains(&start)
            && len <= to.load(Ordering::Relaxed) - start
    };
    if len == 0 || RELEASED.iter().any(is_known) {
        return;
    }
    // The kernel refuses what is not mapped.
    let Some(range) = mappings::around(start, len) else { return };
    release(range.start, range.len());
    let free = RELEASED.iter().find(|[from, _]| {
        from.compare_exchange(0, range.start, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    if let Some([_, to]) = free {
        to.store(range.end, Ordering::Release);
    }
}

/// Notes that others than the program will refer to some of its pages: a frame that such a page
/// left must not be filled with another one's bytes from now on. What was moved out before has no
/// such references.
pub fn note_references() {
    if CONTROL_PAGE.references.load(Ordering::Acquire) == KNOWN {
        return;
    }
    // Of several threads each waits: none is to hand out a reference before.
    CONTROL_PAGE.references.fetch_max(SAID, Ordering::SeqCst);
    // A pager that comes now looks whether it was said.
    fence(Ordering::SeqCst);
    insist(0, 0, kind::REFERENCES, REFERENCES_NS);
    // A child of vfork() has this memory, too, and no agent.
    if control_page::is_own_process() {
        CONTROL_PAGE.references.store(KNOWN, Ordering::Release);
    }
}

fn insist(start: usize, len: usize, what: u32, wait_ns: u64) {
    let forks = &CONTROL_PAGE.forks;
    // Everything is in, and stays, and none is there to answer.
    let is_over =
        forks.stopped.load(Ordering::Acquire) != 0 && forks.state.load(Ordering::Acquire) == halt::HALTED;
    if control_page::has_pager() && control_page::is_own_process() && !is_over {
        blocked(|| {
            system::lock(&CONTROL_PAGE.announcement.one);
            ask(start, len, what, wait_ns);
            system::unlock(&CONTROL_PAGE.announcement.one);
        });
    }
}

/// Asks, and waits for the answer. The caller has the lock, and signals are blocked: a handler may
/// come here, too, or never return.
fn ask(start: usize, len: usize, what: u32, wait_ns: u64) {
    let announcement = &CONTROL_PAGE.announcement;
    let number = announcement.ask(start..start + len.next_multiple_of(PAGE_SIZE), what);
    control_page::nudge();
    let give_up = now_ns() + wait_ns;
    while announcement.is_open(number) {
        let left = give_up.saturating_sub(now_ns());
        if left == 0 {
            break;
        }
        system::wait(&announcement.state, number, left);
    }
    announcement.give_up();
}

/// In a forked child: threads that were waiting exist in the parent only.
pub fn forget() {
    CONTROL_PAGE.announcement.give_up();
    CONTROL_PAGE.announcement.one.store(0, Ordering::Release);
}
