//! Scratch memory for functions that may be called with little stack.
//!
//! A signal handler's alternate stack may leave it a kilobyte or two. So functions that need more
//! than the C library's own use a place in this object's memory, which is never paged. No call
//! waits for a place: a handler may have interrupted the thread that has it, and a forked child may
//! lack that thread. If none is free, the call uses the stack.

use core::cell::UnsafeCell;
use core::mem::{align_of, size_of, MaybeUninit};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::control_page;

const BYTES: usize = 5136;
/// More than the expected number of concurrent calls.
const PLACES: usize = 4;

/// Types for which all-zero bytes are valid.
///
/// # Safety
/// They are.
pub unsafe trait Plain {}

// SAFETY: numbers.
unsafe impl<const LEN: usize> Plain for [u8; LEN] {}

#[repr(align(16))]
struct Buffer {
    bytes: UnsafeCell<[u8; BYTES]>,
    is_taken: AtomicBool,
}

// SAFETY: the bytes belong to the thread that has taken the place.
unsafe impl Sync for Buffer {}

static ALL: [Buffer; PLACES] =
    [const { Buffer { bytes: UnsafeCell::new([0; BYTES]), is_taken: AtomicBool::new(false) } }; PLACES];

/// Returns a place, also when a cancelled thread unwinds.
struct Taken(&'static Buffer);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

fn take() -> Option<Taken> {
    // A child of vfork() shares its parent's memory, and never returns from an exec.
    if !control_page::is_own_process() {
        return None;
    }
    let takes = |place: &&Buffer| {
        place.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    ALL.iter().find(takes).map(Taken)
}

pub fn with<T: Plain, R>(act: impl FnOnce(&mut T) -> R) -> R {
    const { assert!(size_of::<T>() <= BYTES && align_of::<T>() <= align_of::<Buffer>()) };
    let Some(taken) = take() else { return on_stack(act) };
    let room = taken.0.bytes.get().cast::<T>();
    // SAFETY: the place is this call's until `taken` drops; its size and alignment are asserted
    // above, and a `T` may be zeroes.
    unsafe {
        room.write_bytes(0, 1);
        act(&mut *room)
    }
}

#[cold]
#[inline(never)]
fn on_stack<T: Plain, R>(act: impl FnOnce(&mut T) -> R) -> R {
    // SAFETY: a `T` may be zeroes.
    act(unsafe { &mut MaybeUninit::zeroed().assume_init() })
}

/// In a forked child, which lacks the threads that had places.
pub fn forget() {
    ALL.iter().for_each(|place| place.is_taken.store(false, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_within_calls_have_room_of_their_own() {
        fn nested(depth: u8) {
            with(|room: &mut [u8; BYTES]| {
                assert!(room.iter().all(|byte| *byte == 0));
                room.fill(depth);
                if depth > 0 {
                    nested(depth - 1);
                }
                assert!(room.iter().all(|byte| *byte == depth));
            });
        }
        control_page::note_process();
        nested(2 * PLACES as u8);
    }
}
