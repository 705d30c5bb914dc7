//! Announces large new mappings to the control thread, from the thread that made them.
//!
//! A mapping fills unseen until it is registered, at several gigabytes a second with huge pages,
//! and while every CPU is busy the control thread may not look for a while. So while memory is
//! tight, the thread that made a large mapping waits until it is registered, at most [`WAIT_NS`].

use core::sync::atomic::{fence, AtomicU32, AtomicUsize, Ordering};

use doorway::control_page::{halt, kind};
use doorway::PAGE_SIZE;

use crate::control_page::{self, CONTROL_PAGE};
use crate::signals::blocked;
use crate::system::{self, now_ns};
use crate::{fork, mappings};

/// Mappings from this size on are announced.
pub const LARGE_BYTES: usize = 512 * 1024;
/// New mappings from this size on wake the control thread: they could fill before its next look.
const BURST_BYTES: usize = 16 << 20;
/// A reply takes microseconds, unless the control thread is halted for a fork.
const WAIT_NS: u64 = 3_000_000;
/// Releasing a range brings everything in.
const RELEASE_NS: u64 = 10_000_000_000;
/// Longer: a page that refills a frame before the pager knows shows wrong bytes to a reference.
const REFERENCES_NS: u64 = 1_000_000_000;
/// Values of [`doorway::control_page::ControlPage::references`].
const SAID: u32 = 1;
const KNOWN: u32 = 2;

/// Registers `[start, start + len)` if memory is tight; `what` is a value of [`kind`].
pub fn announce(start: usize, len: usize, what: u32) {
    // A filter may forbid the calls that a request takes.
    if len < LARGE_BYTES || control_page::is_agents(start) || fork::expects_filter() || is_over() {
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
            // Other threads wait; the control thread finds this range when it looks at all
            // mappings.
            control_page::nudge();
            return;
        }
        ask(start, len, what, WAIT_NS);
        system::unlock(one);
    });
}

/// Makes the pager release `[start, start + len)`.
pub fn release(start: usize, len: usize) {
    insist(start, len, kind::RELEASE, RELEASE_NS);
}

/// Ranges that [`release_around`] has released; further ranges are released each time. A later
/// pager than the one numbered in [`PAGER`] has released none.
static RELEASED: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

static PAGER: AtomicU32 = AtomicU32::new(0);

/// Releases, once, the mappings around a range that the program may use often.
pub fn release_around(start: usize, len: usize) {
    let number = || CONTROL_PAGE.pagers.load(Ordering::Acquire);
    let pager = number();
    if PAGER.swap(pager, Ordering::AcqRel) != pager {
        forget_released();
    }
    let is_known = |[from, to]: &[AtomicUsize; 2]| {
        (from.load(Ordering::Relaxed)..to.load(Ordering::Acquire)).contains(&start)
            && len <= to.load(Ordering::Relaxed).saturating_sub(start)
    };
    if len == 0 || RELEASED.iter().any(is_known) {
        return;
    }
    // The kernel refuses unmapped ranges.
    let Some(range) = mappings::around(start, len) else { return };
    release(range.start, range.len());
    if number() != pager {
        return;
    }
    let free = RELEASED.iter().find(|[from, _]| {
        from.compare_exchange(0, range.start, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    if let Some([_, to]) = free {
        to.store(range.end, Ordering::Release);
    }
}

/// Notes that references to the program's pages will exist outside it: from now on no other page's
/// bytes may fill a frame that such a page left. Pages moved out earlier have no such references.
pub fn note_references() {
    if CONTROL_PAGE.references.load(Ordering::Acquire) == KNOWN {
        return;
    }
    // Every thread waits: none may hand out a reference before the pager knows.
    CONTROL_PAGE.references.fetch_max(SAID, Ordering::SeqCst);
    // A pager that starts now reads the flag.
    fence(Ordering::SeqCst);
    insist(0, 0, kind::REFERENCES, REFERENCES_NS);
    // A child of vfork() shares this memory, but has no agent.
    if control_page::is_own_process() {
        CONTROL_PAGE.references.store(KNOWN, Ordering::Release);
    }
}

/// Everything is in for good, and no thread serves requests.
fn is_over() -> bool {
    let forks = &CONTROL_PAGE.forks;
    forks.stopped.load(Ordering::Acquire) != 0 && forks.state.load(Ordering::Acquire) == halt::HALTED
}

fn insist(start: usize, len: usize, what: u32, wait_ns: u64) {
    if control_page::has_pager() && control_page::is_own_process() && !is_over() {
        blocked(|| {
            system::lock(&CONTROL_PAGE.announcement.one);
            ask(start, len, what, wait_ns);
            system::unlock(&CONTROL_PAGE.announcement.one);
        });
    }
}

/// Sends a request and waits for the reply. The caller holds the lock, and signals are blocked: a
/// handler could re-enter, or never return.
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

fn forget_released() {
    for [from, to] in &RELEASED {
        to.store(0, Ordering::Release);
        from.store(0, Ordering::Release);
    }
}

/// In a forked child: the waiting threads exist only in the parent, and a new pager has released
/// nothing.
pub fn forget() {
    forget_released();
    CONTROL_PAGE.announcement.give_up();
    CONTROL_PAGE.announcement.one.store(0, Ordering::Release);
}
