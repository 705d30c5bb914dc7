//! Every system call uzswap makes, and every figure it reads from the kernel.
//!
//! The only crate with wide `unsafe` towards the kernel. It turns errors into meaning: callers
//! match on enums, never on errno.

pub mod arena;
pub mod atfork;
pub mod capabilities;
pub mod cpu;
pub mod credentials;
pub mod directory;
pub mod files;
pub mod flusher;
pub mod futex;
pub mod kernel;
pub mod maps;
pub mod memory;
pub mod owned;
pub mod packets;
pub mod pagemap;
pub mod privileged;
pub mod process;
pub mod procfs;
pub mod ptrace;
pub mod shared;
pub mod stderr;
pub mod thread;
pub mod threads;
pub mod userfaultfd;

/// Bytes in a page. uzswap supports only 4 KiB pages. aarch64 kernels may use others, which `uzswap
/// check` and `uzswap run` report.
pub const PAGE_SIZE: usize = 4096;

/// Bytes in a page of the running kernel.
pub fn kernel_page_bytes() -> usize {
    // SAFETY: returns a constant.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(0)
}

/// The last error of a libc call, as a plain number.
pub(crate) fn errno() -> i32 {
    // SAFETY: valid in the calling thread: pager threads have their own TLS block.
    unsafe { *libc::__errno_location() }
}

/// Returns the result of a system call, or its error if it is -1.
pub(crate) fn checked<T: From<i8> + PartialEq>(result: T) -> std::io::Result<T> {
    if result == T::from(-1) {
        return Err(std::io::Error::last_os_error());
    }
    Ok(result)
}

/// As [`checked`], for a call that returns nothing else.
pub(crate) fn done(result: i32) -> std::io::Result<()> {
    checked(result).map(|_| ())
}

/// Whether an emulator of single programs stands in for the kernel (QEMU's user mode): it has no
/// userfaultfd, starts only the C library's threads, and locks no memory. Reports it, for tests
/// that skip.
#[cfg(test)]
pub(crate) fn is_emulated() -> bool {
    let error = match userfaultfd::Userfaultfd::open(0) {
        Err(userfaultfd::OpenError::Missing) => libc::ENOSYS,
        Err(userfaultfd::OpenError::Other(error)) => error.raw_os_error().unwrap_or(0),
        Err(_) => 0,
        Ok(opened) => {
            opened.close();
            0
        }
    };
    let is_emulated = error == libc::ENOSYS;
    if is_emulated {
        testkit::skip!("userfaultfd", "no userfaultfd, as in QEMU's user mode");
    }
    is_emulated
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Number of CPUs that the calling thread may use.
pub fn cpu_count() -> usize {
    // SAFETY: a plain bit set for the kernel to fill.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set) != 0 {
            return 1;
        }
        libc::CPU_COUNT(&set).max(1) as usize
    }
}
