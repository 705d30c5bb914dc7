//! Preparation of a process that serves swap to others: it must never wait for memory.
//!
//! The kernel writes memory out to this process when memory is short. If the process then allocated
//! memory, and the kernel reclaimed some by writing more out, the system would deadlock. So its
//! memory is allocated and locked in advance, its threads are marked as IO flushers, and the
//! out-of-memory killer is told to kill others first.

use std::fs;
use std::io;

use crate::done;

const PR_SET_IO_FLUSHER: libc::c_int = 57;
const PR_GET_IO_FLUSHER: libc::c_int = 58;

/// A failed step.
#[derive(Debug, thiserror::Error)]
pub enum FlusherError {
    /// Memory cannot be locked.
    #[error("memory cannot be locked ({0}): root, CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK (`ulimit -l`) is needed")]
    Lock(io::Error),
    /// A thread cannot be marked.
    #[error("PR_SET_IO_FLUSHER failed ({0}): CAP_SYS_RESOURCE and Linux 5.6 are needed")]
    Mark(io::Error),
    /// The mark was set but does not read back.
    #[error("PR_SET_IO_FLUSHER was accepted, but reads back as unset")]
    Unmarked,
    /// The score cannot be set.
    #[error("/proc/self/oom_score_adj cannot be set ({0}): CAP_SYS_RESOURCE is needed")]
    Score(io::Error),
}

/// Locks all current and future memory of the process, page by page as it is touched.
///
/// # Errors
/// [`FlusherError::Lock`].
pub fn lock_memory() -> Result<(), FlusherError> {
    // SAFETY: locking changes no content.
    done(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) })
        .map_err(FlusherError::Lock)
}

/// Makes the C library's malloc allocate and keep `bytes` now for later allocations, never return
/// memory, and use one heap for all threads.
pub fn keep_heap(bytes: usize) {
    // SAFETY: settings of the C library's allocator; it locks itself.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
    let mut room = vec![0u8; bytes];
    // Written, so that neither the compiler nor the kernel omits it.
    room.iter_mut().step_by(crate::PAGE_SIZE).for_each(|byte| *byte = 1);
    std::hint::black_box(&room);
}

/// Marks the calling thread as an IO flusher, so that its allocations never wait for writeback, and
/// reads the mark back. Threads that it starts inherit the mark.
///
/// # Errors
/// [`FlusherError::Mark`], [`FlusherError::Unmarked`].
pub fn mark_thread() -> Result<(), FlusherError> {
    // SAFETY: a flag of the calling thread.
    done(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) }).map_err(FlusherError::Mark)?;
    match is_marked() {
        true => Ok(()),
        false => Err(FlusherError::Unmarked),
    }
}

/// Whether the calling thread is marked.
pub fn is_marked() -> bool {
    // SAFETY: returns a flag of the calling thread.
    unsafe { libc::prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) == 1 }
}

/// Allocates 128 KiB of the calling thread's stack, as much as it will need.
#[inline(never)]
pub fn touch_stack() {
    let mut room = std::mem::MaybeUninit::<[u8; 128 << 10]>::uninit();
    let start = room.as_mut_ptr().cast::<u8>();
    for offset in (0..128 << 10).step_by(crate::PAGE_SIZE) {
        // SAFETY: within this function's own array.
        unsafe { start.add(offset).write_volatile(0) };
    }
    std::hint::black_box(&mut room);
}

/// Tells the out-of-memory killer to end any other process before this one.
///
/// # Errors
/// [`FlusherError::Score`].
pub fn spare_from_oom() -> Result<(), FlusherError> {
    fs::write("/proc/self/oom_score_adj", "-1000").map_err(FlusherError::Score)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_and_is_inherited() {
        std::thread::spawn(|| {
            assert!(!is_marked());
            match mark_thread() {
                Ok(()) => assert!(std::thread::spawn(is_marked).join().unwrap()),
                Err(error) => testkit::skip!("capability", "{error}"),
            }
        })
        .join()
        .unwrap();
        assert!(!is_marked(), "other threads are left alone");
    }

    #[test]
    fn a_stack_can_be_touched() {
        std::thread::Builder::new().stack_size(256 << 10).spawn(touch_stack).unwrap().join().unwrap();
    }
}
