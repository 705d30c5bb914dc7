//! futex(2), and a lock on it that needs neither thread-local storage nor a thread id.

use std::sync::atomic::{AtomicU32, Ordering};

/// Sleeps while `*word == expected`, at most `timeout_ns`. May return early.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let time = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call; the time is null or valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, time) };
}

/// Sleeps while both words have these values, at most `timeout_ns`. The first word is woken by
/// [`wake`], the second by the kernel, which clears it. May return early; returns false if the
/// kernel cannot do this.
pub fn wait_for_either(words: [(&AtomicU32, u32); 2], timeout_ns: u64) -> bool {
    /// `FUTEX2_SIZE_U32` of the kernel's futex.h.
    const SIZE: u32 = 2;
    /// `struct futex_waitv`.
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    let [own, kernels] = words;
    let waiter = |(word, value): (&AtomicU32, u32), flags| Waiter {
        value: value.into(),
        address: word.as_ptr().addr() as u64,
        flags,
        reserved: 0,
    };
    let waiters = [waiter(own, SIZE | libc::FUTEX_PRIVATE_FLAG as u32), waiter(kernels, SIZE)];
    let until = crate::now_ns().saturating_add(timeout_ns);
    let time = libc::timespec {
        tv_sec: (until / 1_000_000_000) as libc::time_t,
        tv_nsec: (until % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: both words outlive the call; the structures are whole.
    let result = unsafe {
        libc::syscall(libc::SYS_futex_waitv, &waiters, waiters.len(), 0, &time, libc::CLOCK_MONOTONIC)
    };
    result >= 0 || !matches!(crate::errno(), libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::EFAULT)
}

/// Wakes up to `count` sleepers.
pub fn wake(word: &AtomicU32, count: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: waking only names the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count) };
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Takes a lock in the low two bits of `word`; leaves the other bits unchanged.
pub fn lock_bits(word: &AtomicU32) {
    if try_lock_bits(word) {
        return;
    }
    for _ in 0..100 {
        std::hint::spin_loop();
        if word.load(Ordering::Relaxed) & 3 == FREE && try_lock_bits(word) {
            return;
        }
    }
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen & 3 == FREE {
            // Taken as contended: other threads may sleep, and a surplus wake is cheap.
            if word
                .compare_exchange_weak(seen, seen | CONTENDED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
            continue;
        }
        let contended = seen & !3 | CONTENDED;
        if seen == contended
            || word.compare_exchange(seen, contended, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            wait(word, contended, Some(10_000_000));
        }
    }
}

/// Takes the lock if it is free.
pub fn try_lock_bits(word: &AtomicU32) -> bool {
    let seen = word.load(Ordering::Relaxed);
    seen & 3 == FREE && word.compare_exchange(seen, seen | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Releases a lock taken with [`lock_bits`] or [`try_lock_bits`].
pub fn unlock_bits(word: &AtomicU32) {
    let before = word.fetch_and(!3, Ordering::Release);
    assert_ne!(before & 3, FREE, "releasing a free lock");
    if before & 3 == CONTENDED {
        wake(word, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_excludes_and_keeps_other_bits() {
        let word = AtomicU32::new(0xabc0);
        let mut total = 0u64;
        let shared = &mut total as *mut u64 as usize;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        lock_bits(&word);
                        // SAFETY: the lock excludes the other threads.
                        unsafe { *(shared as *mut u64) += 1 };
                        unlock_bits(&word);
                    }
                });
            }
        });
        assert_eq!(total, 80_000);
        assert_eq!(word.load(Ordering::Relaxed), 0xabc0);
        lock_bits(&word);
        assert!(!try_lock_bits(&word));
    }
}
