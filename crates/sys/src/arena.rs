//! The reserved arena: one range that holds all of uzswap's own memory.
//!
//! Inside a managed program the pager must recognize its own memory by address, since it must never
//! page itself out. So the preload object reserves one range at start ([`open`]), and every arena
//! of the crates above takes its pages from it with [`take`]. If it is not open (tests, benchmarks,
//! explicit regions of the library), `take` is a plain mapping.
//!
//! A process that serves swap to others must not wait for memory. It stocks the arena ([`stock`]):
//! all pages are allocated and locked at once, none is given back, and taking, populating and
//! discarding make no system call.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{memory, PAGE_SIZE};

static START: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// Where the lowest file below the arena begins.
static FILES: AtomicUsize = AtomicUsize::new(0);
static STOCKED: AtomicBool = AtomicBool::new(false);
const LOWEST_BYTES: usize = 2 * PAGE_SIZE;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Reserves `len` bytes for the arena. Call once, before any [`take`] and before there are other
/// threads.
///
/// # Errors
/// ENOMEM if the address space or RLIMIT_AS has no room: retry with a smaller length.
///
/// # Panics
/// If the arena is already open.
pub fn open(len: usize) -> io::Result<()> {
    assert_eq!(START.load(Ordering::Relaxed), 0, "the arena is open already");
    // Inaccessible until taken: the program's mlockall() would otherwise fill the reservation.
    let at = memory::reserve_uncounted(len)?;
    // SAFETY: the reservation was made above.
    unsafe { memory::keep_small_pages(at, len) };
    // SAFETY: the lowest pages of the reservation, which are never taken.
    unsafe { memory::make_accessible(at, LOWEST_BYTES)? };
    publish(at.as_ptr() as usize, len);
    Ok(())
}

fn publish(start: usize, len: usize) {
    NEXT.store(start + LOWEST_BYTES, Ordering::Relaxed);
    END.store(start + len, Ordering::Relaxed);
    FILES.store(start - PAGE_SIZE, Ordering::Relaxed);
    START.store(start, Ordering::Release);
}

/// An address below the arena for a mapping of `len` bytes that stays for ever, as a hint to
/// mmap(2); 0 if the arena is not open. The kernel's own choice could be a gap that the program has
/// just left and maps again.
pub fn file_hint(len: usize) -> usize {
    let len = len.next_multiple_of(PAGE_SIZE);
    match range().start {
        0 => 0,
        _ => FILES.fetch_sub(len, Ordering::Relaxed).saturating_sub(len),
    }
}

/// Opens an arena of `len` bytes, all resident and locked from now on. Call once, before any
/// [`take`].
///
/// # Errors
/// ENOMEM without enough memory; EPERM or ENOMEM if RLIMIT_MEMLOCK forbids the lock. Nothing is
/// open then.
///
/// # Panics
/// If the arena is already open.
pub fn stock(len: usize) -> io::Result<()> {
    assert_eq!(START.load(Ordering::Relaxed), 0, "the arena is open already");
    let len = len.next_multiple_of(HUGE_PAGE_BYTES) + LOWEST_BYTES;
    let at = take_outside(len, HUGE_PAGE_BYTES)?;
    // SAFETY: just mapped.
    let locked = unsafe {
        memory::prefer_huge_pages(at, len);
        memory::lock(at, len)
    };
    if let Err(error) = locked {
        // SAFETY: mapped above and not shared yet.
        unsafe { memory::unmap(at, len) };
        return Err(error);
    }
    STOCKED.store(true, Ordering::Relaxed);
    publish(at.as_ptr() as usize, len);
    Ok(())
}

/// Whether an address is in a stocked arena.
pub fn is_stocked(address: usize) -> bool {
    STOCKED.load(Ordering::Relaxed) && range().contains(&address)
}

/// Bytes left in the arena, or `None` if it is not open.
pub fn left_bytes() -> Option<usize> {
    let end = taken_up_to();
    (end != 0).then(|| end - NEXT.load(Ordering::Relaxed).min(end))
}

/// An unreadable page for the process's life; `None` if the arena is not open or is stocked.
pub fn unreadable() -> Option<usize> {
    let end = range().end;
    Some(taken_up_to()).filter(|page| *page != end)
}

/// End of the range that can be taken: before the page of [`unreadable`].
fn taken_up_to() -> usize {
    match range().end {
        0 => 0,
        end if STOCKED.load(Ordering::Relaxed) => end,
        end => end - PAGE_SIZE,
    }
}

/// The arena's addresses, `0..0` if it is not open.
pub fn range() -> std::ops::Range<usize> {
    START.load(Ordering::Acquire)..END.load(Ordering::Relaxed)
}

/// The two lowest pages of the arena, below all memory taken: fork() copies memory in address
/// order, so the kernel reports on these pages before it copies any other of the arena. `None` if
/// the arena is not open.
pub fn lowest_pages() -> Option<[usize; 2]> {
    let start = START.load(Ordering::Acquire);
    (start != 0).then_some([start, start + PAGE_SIZE])
}

/// Takes `len` zeroed bytes (whole pages), aligned to `align`, a power of two. The address space is
/// never returned: users recycle ranges themselves and give pages back with [`memory::discard`].
///
/// # Errors
/// ENOMEM if the arena, or the address space, is full.
pub fn take(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    assert!(len > 0 && len.is_multiple_of(PAGE_SIZE) && align.is_power_of_two());
    let align = align.max(PAGE_SIZE);
    if START.load(Ordering::Acquire) == 0 {
        return take_outside(len, align);
    }
    let end = taken_up_to();
    let mut next = NEXT.load(Ordering::Relaxed);
    loop {
        let at = next.next_multiple_of(align);
        if len > end.saturating_sub(at) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        match NEXT.compare_exchange_weak(next, at + len, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                let room = NonNull::new(at as *mut u8).expect("inside the arena");
                if !STOCKED.load(Ordering::Relaxed) {
                    // SAFETY: just taken from the reservation, for the caller alone.
                    unsafe { memory::make_accessible(room, len)? };
                }
                return Ok(room);
            }
            Err(now) => next = now,
        }
    }
}

fn take_outside(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    let raw = memory::map(len + align - PAGE_SIZE)?;
    let start = raw.as_ptr() as usize;
    let at = start.next_multiple_of(align);
    let tail = start + len + align - PAGE_SIZE - (at + len);
    if at > start {
        // SAFETY: the part before the aligned range was mapped above and is not used.
        unsafe { memory::unmap(raw, at - start) };
    }
    if tail > 0 {
        // SAFETY: as above, for the part after it.
        unsafe { memory::unmap(NonNull::new((at + len) as *mut u8).expect("not null"), tail) };
    }
    let at = NonNull::new(at as *mut u8).expect("not null");
    // Pages come and go one by one here, even where the system uses huge pages everywhere. SAFETY:
    // mapped above.
    unsafe { memory::keep_small_pages(at, len) };
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_the_arena_ranges_are_aligned_and_zero() {
        let at = take(8 * PAGE_SIZE, 1 << 20).unwrap();
        assert_eq!(at.as_ptr() as usize % (1 << 20), 0);
        // SAFETY: just taken, eight pages long.
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), 8 * PAGE_SIZE) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}
