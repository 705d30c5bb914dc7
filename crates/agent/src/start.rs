//! The start of the agent's first thread, and the agent's own memory ranges.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::OnceLock;

use doorway::limits;
use sys::{arena, PAGE_SIZE};

use crate::state::AGENT;

/// Most ranges excluded from paging.
const RANGES_MAX: usize = 256;

/// What the process that starts the agent has told it.
pub(crate) struct Start {
    /// The supervisor's address.
    pub socket: OnceLock<Vec<u8>>,
    /// Set where the supervisor is attached to a program that ran before: its end ends no process.
    pub attached: AtomicBool,
    /// The environment's specification of emulated accelerators.
    pub emulate: OnceLock<String>,
    ranges: [[AtomicUsize; 2]; RANGES_MAX],
    range_count: AtomicUsize,
}

impl Start {
    pub(crate) const fn new() -> Self {
        Start {
            socket: OnceLock::new(),
            attached: AtomicBool::new(false),
            emulate: OnceLock::new(),
            ranges: [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; RANGES_MAX],
            range_count: AtomicUsize::new(0),
        }
    }
}

/// Excludes a range from paging, up to 256 ranges. Call before there are other threads.
pub fn add_own_range(range: Range<usize>) {
    let index = AGENT.start.range_count.load(Ordering::Relaxed);
    if range.start < range.end && index < RANGES_MAX {
        AGENT.start.ranges[index][0].store(range.start & !(PAGE_SIZE - 1), Ordering::Relaxed);
        AGENT.start.ranges[index][1].store(range.end.next_multiple_of(PAGE_SIZE), Ordering::Relaxed);
        AGENT.start.range_count.store(index + 1, Ordering::Relaxed);
    }
}

fn added_ranges() -> impl Iterator<Item = Range<usize>> {
    let added = &AGENT.start.ranges[..AGENT.start.range_count.load(Ordering::Relaxed)];
    added.iter().map(|range| range[0].load(Ordering::Relaxed)..range[1].load(Ordering::Relaxed))
}

/// Ranges that must never be paged, in address order: the arena and the added ranges.
pub fn own_ranges() -> Vec<Range<usize>> {
    let mut ranges: Vec<_> = added_ranges().collect();
    ranges.push(arena::range());
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// Discards stack memory that deeper calls of the calling thread used, if the stack is an added
/// range: setting up takes 200 KiB.
pub fn give_back_stack() {
    /// More than the calls below and the red zone use.
    const LEFT_BYTES: usize = 16 << 10;
    let here = 0u8;
    let at = std::hint::black_box(&raw const here).addr();
    let Some(stack) = added_ranges().find(|range| range.contains(&at)) else { return };
    let end = at.saturating_sub(LEFT_BYTES) & !(PAGE_SIZE - 1);
    if let (Some(memory), true) = (NonNull::new(stack.start as *mut u8), end > stack.start) {
        // SAFETY: the thread's own stack, below the frames of all its calls.
        unsafe { sys::memory::discard(memory, end - stack.start) };
    }
}

/// Reserves the arena: by the limit's room under RLIMIT_AS, generously without that limit.
pub fn open_arena() -> bool {
    let mut limit = libc::rlimit { rlim_cur: limits::NONE, rlim_max: limits::NONE };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    let mut bytes = limits::arena_bytes(limits::room_under(limit.rlim_cur));
    while bytes >= 16 << 20 {
        if arena::open(bytes & !(PAGE_SIZE - 1)).is_ok() {
            return true;
        }
        bytes /= 2;
    }
    false
}
