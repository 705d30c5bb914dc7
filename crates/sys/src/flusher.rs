//! What a process needs that others swap on: it must never wait for memory itself.
//!
//! Memory is written out to it when memory is short. If it then asked for memory, and the kernel
//! looked for some by writing more out, everything would stand still. So its memory is locked and
//! made in advance, its threads are marked as those that memory is written out by, and the kernel
//! is told to end others before it.

use std::fs;
use std::io;

const PR_SET_IO_FLUSHER: libc::c_int = 57;
const PR_GET_IO_FLUSHER: libc::c_int = 58;

/// A step that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FlusherError {
    /// Memory cannot be locked.
    #[error("memory cannot be locked ({0}): root, CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK (`ulimit -l`) is needed")]
    Lock(io::Error),
    /// A thread cannot be marked.
    #[error("PR_SET_IO_FLUSHER failed ({0}): CAP_SYS_RESOURCE and Linux 5.6 are needed")]
    Mark(io::Error),
    /// A thread was marked, and is not.
    #[error("PR_SET_IO_FLUSHER was accepted, but reads back as unset")]
    Unmarked,
    /// The score cannot be set.
    #[error("/proc/self/oom_score_adj cannot be set ({0}): CAP_SYS_RESOURCE is needed")]
    Score(io::Error),
}

/// Locks all memory of the process, what is there and what comes, page by page as it is touched.
///
/// # Errors
/// [`FlusherError::Lock`].
pub fn lock_memory() -> Result<(), FlusherError> {
    // SAFETY: locking changes no content.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) } {
        0 => Ok(()),
        _ => Err(FlusherError::Lock(io::Error::last_os_error())),
    }
}

/// Has the C library's malloc keep `bytes` of memory, made now, for what is allocated later, give
/// none of its memory back, and use one heap for all threads.
pub fn keep_heap(bytes: usize) {
    // SAFETY: settings of the C library's allocator; it locks itself.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
    let mut room = vec![0u8; bytes];
    // Written, so that neither compiler nor kernel leaves it out.
    room.iter_mut().step_by(crate::PAGE_SIZE).for_each(|byte| *byte = 1);
    std::hint::black_box(&room);
}

/// Marks the calling thread as one that memory is written out by, so that what it asks for never
/// waits for that, and reads the mark back. Threads that it starts are marked too.
///
/// # Errors
/// [`FlusherError::Mark`], [`FlusherError::Unmarked`].
pub fn mark_thread() -> Result<(), FlusherError> {
    // SAFETY: a flag of the calling thread.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        return Err(FlusherError::Mark(io::Error::last_os_error()));
    }
    match is_marked() {
        true => Ok(()),
        false => Err(FlusherError::Unmarked),
    }
}

/// Whether the calling thread is marked.
pub fn is_marked() -> bool {
    // SAFETY: asks for a flag of the calling thread.
    unsafe { libc::prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) == 1 }
}

/// Makes and keeps the pages of the calling thread's stack that it will need: 128 KiB.
#[inline(never)]
pub fn touch_stack() {
    let mut room = std::mem::MaybeUninit::<[u8; 128 << 10]>::uninit();
    let start = room.as_mut_ptr().cast::<u8>();
    for offset in (0..128 << 10).step_by(crate::PAGE_SIZE) {
        // SAFETY: within the array, which is this function's own.
        unsafe { start.add(offset).write_volatile(0) };
    }
    std::hint::black_box(&mut room);
}

/// Has the kernel's out-of-memory killer end any other process before this one.
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
