//! Large new mappings, announced to the control thread by the thread that made them.
//!
//! A mapping fills unseen until it is registered, at several gigabytes a second with huge pages, and while every CPU is
//! busy the control thread may not get round to looking for a while. So while memory is tight the thread that made a large
//! mapping waits until it is registered, or for [`WAIT_NS`], whichever comes first.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sys::{futex, house, PAGE_SIZE};

use crate::broken::{self, Point};
use crate::control;

/// Mappings from this size on are announced.
pub const LARGE_BYTES: usize = 512 * 1024;
/// An answer takes microseconds; a control thread that cannot answer (it stands still for a fork) is not waited for.
const WAIT_NS: u64 = 3_000_000;

const IDLE: u32 = 0;
const ASKED: u32 = 1;

static ONE: AtomicU32 = AtomicU32::new(0);
static STATE: AtomicU32 = AtomicU32::new(IDLE);
static RANGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// What the control thread has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Register the range: it is a new private anonymous mapping.
    Ordinary,
    /// Look at all mappings: only /proc/self/maps tells what this one is.
    Unknown,
}

/// Has `[start, start + len)` registered if memory is tight. Called by the program's threads.
pub fn announce(start: usize, len: usize, kind: Kind) {
    if len < LARGE_BYTES || house::range().contains(&start) {
        return;
    }
    broken::here(Point::Mapping);
    if control::pager().is_none() || !control::is_tight_with(len) {
        control::note_mapping(len);
        return;
    }
    if !futex::try_lock_bits(&ONE) {
        // Others are being answered; the control thread finds this one when it looks at all mappings.
        control::nudge();
        return;
    }
    RANGE[0].store(start, Ordering::Relaxed);
    let len = if kind == Kind::Ordinary { len.next_multiple_of(PAGE_SIZE) } else { 0 };
    RANGE[1].store(start + len, Ordering::Relaxed);
    STATE.store(ASKED, Ordering::Release);
    control::nudge();
    futex::wait(&STATE, ASKED, Some(WAIT_NS));
    STATE.store(IDLE, Ordering::Release);
    futex::unlock_bits(&ONE);
}

/// The range that somebody waits for, empty when all mappings are to be looked at. Called by the control thread, which answers
/// with [`done`].
pub fn asked() -> Option<Range<usize>> {
    (STATE.load(Ordering::Acquire) == ASKED)
        .then(|| RANGE[0].load(Ordering::Relaxed)..RANGE[1].load(Ordering::Relaxed))
}

/// Lets the waiting thread go on.
pub fn done() {
    STATE.store(IDLE, Ordering::Release);
    futex::wake(&STATE, 1);
}

/// In a forked child: whoever was waiting exists in the parent only.
pub fn forget() {
    STATE.store(IDLE, Ordering::Release);
    ONE.store(0, Ordering::Release);
}
