//! Large new mappings, announced to the control thread by the thread that made them.
//!
//! A mapping fills unseen until it is registered, at several gigabytes a second with huge pages, and while every CPU is
//! busy the control thread may not get round to looking for a while. So while memory is tight the thread that made a large
//! mapping waits until it is registered, or for [`WAIT_NS`], whichever comes first.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sys::{arena, futex, PAGE_SIZE};

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
static KIND: AtomicU32 = AtomicU32::new(0);
/// To let go of a range means to bring everything in.
const RELEASE_NS: u64 = 10_000_000_000;

/// What the control thread has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Register the range: it is a new private anonymous mapping.
    Ordinary,
    /// Look at all mappings: only /proc/self/maps tells what this one is.
    Unknown,
    /// Let go of the range for good: the program has a userfaultfd of its own for it.
    Release,
}

/// Has `[start, start + len)` registered if memory is tight. Called by the program's threads.
pub fn announce(start: usize, len: usize, kind: Kind) {
    if len < LARGE_BYTES || arena::range().contains(&start) {
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
    ask(start, len, kind, WAIT_NS);
    futex::unlock_bits(&ONE);
}

/// Has the pager let go of `[start, start + len)`. Called by the program's threads.
pub fn release(start: usize, len: usize) {
    if control::pager().is_some() {
        futex::lock_bits(&ONE);
        ask(start, len, Kind::Release, RELEASE_NS);
        futex::unlock_bits(&ONE);
    }
}

/// Asks, and waits for the answer. The caller has [`ONE`].
fn ask(start: usize, len: usize, kind: Kind, wait_ns: u64) {
    RANGE[0].store(start, Ordering::Relaxed);
    RANGE[1].store(start + len.next_multiple_of(PAGE_SIZE), Ordering::Relaxed);
    KIND.store(kind as u32, Ordering::Relaxed);
    STATE.store(ASKED, Ordering::Release);
    control::nudge();
    futex::wait(&STATE, ASKED, Some(wait_ns));
    STATE.store(IDLE, Ordering::Release);
}

/// What is asked.
pub fn kind() -> Kind {
    match KIND.load(Ordering::Relaxed) {
        0 => Kind::Ordinary,
        1 => Kind::Unknown,
        _ => Kind::Release,
    }
}

/// The range that somebody waits for. Called by the control thread, which answers
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
