//! Bare system calls: they set no errno, and need only functions that every C library has.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use doorway::rights::Rights;

use crate::calls::raw_syscall;

/// No mapping lies below; `vm.mmap_min_addr` is usually higher.
pub const NO_ADDRESS_BELOW: isize = 4096;

fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the functions below pass valid arguments.
    unsafe { raw_syscall(number, arguments) as isize }
}

/// Sleeps while `*word == expected`, at most `timeout_ns`. May return early.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let time = [timeout_ns / 1_000_000_000, timeout_ns % 1_000_000_000];
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let arguments = [word.as_ptr().addr(), operation, expected as usize, time.as_ptr().addr(), 0, 0];
    call(libc::SYS_futex, arguments);
}

/// Sleeps while a word of this object and one that the kernel clears have their values, at most
/// `timeout_ns`. May return early.
pub fn wait_for_either(words: [(&AtomicU32, u32); 2], timeout_ns: u64) {
    /// `FUTEX2_SIZE_U32` of the kernel's futex.h.
    const SIZE: u64 = 2;
    const EAGAIN: isize = -(libc::EAGAIN as isize);
    const EINTR: isize = -(libc::EINTR as isize);
    const ETIMEDOUT: isize = -(libc::ETIMEDOUT as isize);
    let [own, kernels] = words.map(|(word, value)| (u64::from(value), word.as_ptr().addr() as u64));
    // `struct futex_waitv`: value, address, flags of 32 bits.
    let list = [[own.0, own.1, SIZE | libc::FUTEX_PRIVATE_FLAG as u64], [kernels.0, kernels.1, SIZE]];
    let until = now_ns().saturating_add(timeout_ns);
    let time = [until / 1_000_000_000, until % 1_000_000_000];
    let clock = libc::CLOCK_MONOTONIC as usize;
    let arguments = [list.as_ptr().addr(), list.len(), 0, time.as_ptr().addr(), clock, 0];
    // Other errors than these are a filter's: containers' refuse calls that they do not know.
    if !matches!(call(libc::SYS_futex_waitv, arguments), EAGAIN | EINTR | ETIMEDOUT | 0..) {
        wait(words[0].0, words[0].1, timeout_ns);
    }
}

pub fn wake(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    call(libc::SYS_futex, [word.as_ptr().addr(), operation, i32::MAX as usize, 0, 0, 0]);
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
/// A waiter looks again after this time in any case.
const LOOK_NS: u64 = 10_000_000;

pub fn lock(word: &AtomicU32) {
    if try_lock(word) {
        return;
    }
    // Taken as contended: other threads may sleep, and a surplus wake is cheap.
    while word.swap(CONTENDED, Ordering::Acquire) != FREE {
        wait(word, CONTENDED, LOOK_NS);
    }
}

pub fn try_lock(word: &AtomicU32) -> bool {
    word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

pub fn unlock(word: &AtomicU32) {
    if word.swap(FREE, Ordering::Release) == CONTENDED {
        wake(word);
    }
}

pub fn process_id() -> i32 {
    call(libc::SYS_getpid, [0; 6]) as i32
}

/// This process's number where /proc is mounted; `None` without /proc.
pub fn number_in_proc() -> Option<u32> {
    let mut digits = [0u8; 16];
    let arguments = [
        libc::AT_FDCWD as usize,
        c"/proc/self".as_ptr().addr(),
        digits.as_mut_ptr().addr(),
        digits.len(),
        0,
        0,
    ];
    let len = usize::try_from(call(libc::SYS_readlinkat, arguments)).ok()?;
    core::str::from_utf8(digits.get(..len)?).ok()?.parse().ok()
}

/// Makes the kernel wipe private memory in forked children. Returns whether it does.
pub fn wipe_in_children(address: usize, len: usize) -> bool {
    call(libc::SYS_madvise, [address, len, libc::MADV_WIPEONFORK as usize, 0, 0, 0]) == 0
}

pub fn now_ns() -> u64 {
    let mut time = [0u64; 2];
    call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, time.as_mut_ptr().addr(), 0, 0, 0, 0]);
    time[0] * 1_000_000_000 + time[1]
}

pub fn thread_id() -> u32 {
    call(libc::SYS_gettid, [0; 6]) as u32
}

pub fn rights() -> Rights {
    let (mut users, mut groups) = ([0u32; 3], [0u32; 3]);
    for (number, ids) in [(libc::SYS_getresuid, &mut users), (libc::SYS_getresgid, &mut groups)] {
        let [real, effective, saved] = ids.each_mut().map(|id| core::ptr::from_mut(id).addr());
        call(number, [real, effective, saved, 0, 0, 0]);
    }
    let sets = capabilities();
    Rights { users, groups, permitted: u64::from(sets[1]) | u64::from(sets[4]) << 32 }
}

/// The calling thread's effective, permitted and inheritable capabilities: the lower halves, then
/// the upper ones. None if the kernel does not tell.
fn capabilities() -> [u32; 6] {
    /// `_LINUX_CAPABILITY_VERSION_3` of the kernel's capability.h.
    const VERSION: u32 = 0x2008_0522;
    let (mut header, mut sets) = ([VERSION, 0], [0u32; 6]);
    call(libc::SYS_capget, [header.as_mut_ptr().addr(), sets.as_mut_ptr().addr(), 0, 0, 0, 0]);
    sets
}

pub fn yield_now() {
    call(libc::SYS_sched_yield, [0; 6]);
}

/// Ends the process with all threads, without running any code of the program.
pub fn exit_process(status: i32) -> ! {
    loop {
        call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]);
    }
}

/// Opens a file, closed on exec. Returns a negative error number on failure.
pub fn open(path: &CStr, flags: i32) -> isize {
    open_at(libc::AT_FDCWD, path, flags)
}

/// The same for a path relative to a directory.
pub fn open_at(directory: i32, path: &CStr, flags: i32) -> isize {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    call(libc::SYS_openat, [directory as usize, path.as_ptr().addr(), flags, 0, 0, 0])
}

pub fn close(descriptor: isize) {
    call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]);
}

/// ioctl(2) with an argument by address. Returns a negative error number on failure.
pub fn ioctl(descriptor: isize, request: usize, argument: usize) -> isize {
    call(libc::SYS_ioctl, [descriptor as usize, request, argument, 0, 0, 0])
}

/// Reads from an offset. Returns the number of bytes read.
pub fn read_at(descriptor: isize, buffer: &mut [u8], offset: u64) -> usize {
    let arguments = [descriptor as usize, buffer.as_mut_ptr().addr(), buffer.len(), offset as usize, 0, 0];
    usize::try_from(call(libc::SYS_pread64, arguments)).unwrap_or(0)
}

/// A memory file with these bytes, positioned at its start, or a negative error number. The file
/// size limit applies: writing past it would raise SIGXFSZ.
pub fn file_of(name: &CStr, bytes: &[u8], closes_on_exec: bool) -> isize {
    if limit_of(libc::RLIMIT_FSIZE as usize) < bytes.len() as u64 {
        return -(libc::EFBIG as isize);
    }
    let flags = if closes_on_exec { libc::MFD_CLOEXEC } else { 0 } as usize;
    let file = call(libc::SYS_memfd_create, [name.as_ptr().addr(), flags, 0, 0, 0, 0]);
    let arguments = [file as usize, bytes.as_ptr().addr(), bytes.len(), 0, 0, 0];
    if file >= 0 && call(libc::SYS_pwrite64, arguments) != bytes.len() as isize {
        close(file);
        return -(libc::ENOMEM as isize);
    }
    file
}

pub fn may_read(path: &CStr) -> bool {
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr().addr(), libc::R_OK as usize, 0, 0, 0];
    call(libc::SYS_faccessat, arguments) == 0
}

/// The attributes of a path's file, `None` without one.
pub fn status(path: &CStr) -> Option<libc::stat> {
    // SAFETY: all zeroes is a valid structure.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr().addr(), (&raw mut status).addr(), 0, 0, 0];
    (call(libc::SYS_newfstatat, arguments) == 0).then_some(status)
}

/// Reads entries of an open directory. Returns the number of bytes, 0 at the end.
pub fn read_directory(directory: isize, entries: &mut [u8]) -> usize {
    let arguments = [directory as usize, entries.as_mut_ptr().addr(), entries.len(), 0, 0, 0];
    usize::try_from(call(libc::SYS_getdents64, arguments)).unwrap_or(0)
}

/// The word at an address that the program passed to the kernel; `None` if unreadable.
pub fn read_own(address: usize) -> Option<u64> {
    read_of(process_id() as u32, address).ok()
}

/// The same of another process, or a negative error number.
pub fn read_of(process: u32, address: usize) -> Result<u64, isize> {
    let mut word = 0u64;
    let here = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let there = libc::iovec { iov_base: address as *mut _, iov_len: size_of::<u64>() };
    let arguments = [process as usize, (&raw const here).addr(), 1, (&raw const there).addr(), 1, 0];
    match call(libc::SYS_process_vm_readv, arguments) {
        len if len == size_of::<u64>() as isize => Ok(word),
        error => Err(error),
    }
}

/// Whether the kernel can read a byte at an address of the program that is not a small number.
pub fn is_readable(address: usize) -> bool {
    // The kernel reads the signal set before it refuses the operation. A set may begin at any
    // address; an aligned one is in one page.
    let arguments = [usize::MAX, address & !7, 0, 8, 0, 0];
    call(libc::SYS_rt_sigprocmask, arguments) != -(libc::EFAULT as isize)
}

/// Bytes at addresses from the program, which may be wrong. Asks the kernel once for each page.
pub struct Reader {
    /// The last page that the kernel could read.
    page: usize,
    can_ask: bool,
}

impl Reader {
    /// Under a filter, which might kill for the call, the addresses are trusted.
    pub fn new() -> Self {
        Reader { page: 0, can_ask: !crate::fork::expects_filter() }
    }

    pub fn byte(&mut self, at: usize) -> Option<u8> {
        let page = at / doorway::PAGE_SIZE;
        if at < NO_ADDRESS_BELOW as usize || page != self.page && self.can_ask && !is_readable(at) {
            return None;
        }
        self.page = page;
        // SAFETY: the kernel has read there, or in the same page.
        Some(unsafe { core::ptr::with_exposed_provenance::<u8>(at).read() })
    }

    /// A pointer, which may begin anywhere.
    pub fn pointer(&mut self, at: usize) -> Option<usize> {
        self.byte(at)?;
        self.byte(at.checked_add(size_of::<usize>() - 1)?)?;
        // SAFETY: as above.
        Some(unsafe { core::ptr::with_exposed_provenance::<usize>(at).read_unaligned() })
    }

    /// The length of a terminated string.
    pub fn string_len(&mut self, start: usize, max: usize) -> Option<usize> {
        (0..max).map_while(|len| self.byte(start.checked_add(len)?)).position(|byte| byte == 0)
    }
}

/// Whether this thread may change its root directory and open its own files in /proc under any
/// root: it is root's, and CAP_SYS_CHROOT is effective.
pub fn may_change_root() -> bool {
    const SYS_CHROOT: u32 = 18;
    call(libc::SYS_geteuid, [0; 6]) == 0 && capabilities()[0] >> SYS_CHROOT & 1 == 1
}

/// Whether this thread may open a userfaultfd that moves pages.
pub fn may_have_userfaultfd() -> bool {
    /// `UFFDIO_API` and `USERFAULTFD_IOC_NEW` of the kernel's userfaultfd.h.
    const API: usize = 0xc018_aa3f;
    const NEW: usize = 0xaa00;
    const MOVE: u64 = 1 << 16;
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let mut descriptor = call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]);
    if descriptor < 0 {
        let node = open(c"/dev/userfaultfd", libc::O_RDWR);
        if node >= 0 {
            descriptor = call(libc::SYS_ioctl, [node as usize, NEW, flags, 0, 0, 0]);
            close(node);
        }
    }
    if descriptor < 0 {
        return false;
    }
    let mut argument = [0xaa, MOVE, 0u64];
    let answer = call(libc::SYS_ioctl, [descriptor as usize, API, argument.as_mut_ptr().addr(), 0, 0, 0]);
    close(descriptor);
    answer == 0
}

/// A variable of the environment.
///
/// # Safety
/// No other thread changes the environment.
pub unsafe fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a terminated name; getenv returns null or a terminated string.
    unsafe { libc::getenv(name.as_ptr()).as_ref().map(|text| CStr::from_ptr(text)) }
}

pub fn descriptors_max() -> u64 {
    limit_of(libc::RLIMIT_NOFILE as usize)
}

fn limit_of(resource: usize) -> u64 {
    let mut limit = [0u64; 2];
    call(libc::SYS_prlimit64, [0, resource, 0, limit.as_mut_ptr().addr(), 0, 0]);
    limit[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_others_out() {
        static LOCK: AtomicU32 = AtomicU32::new(0);
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        lock(&LOCK);
                        assert_eq!(INSIDE.fetch_add(1, Ordering::Relaxed), 0);
                        INSIDE.fetch_sub(1, Ordering::Relaxed);
                        unlock(&LOCK);
                    }
                });
            }
        });
        assert!(try_lock(&LOCK) && !try_lock(&LOCK));
    }

    /// Regression: it returned at once where a container's filter refuses the call, so its caller
    /// kept a CPU busy.
    #[test]
    fn a_wait_for_either_word_lasts_under_a_filter() {
        const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step(LOAD, 0, 0, 0),
            step(EQUAL, 0, 1, libc::SYS_futex_waitv as u32),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let limited = move || {
            let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
            // Not by prctl(), which this object intercepts: it would note a filter for all tests.
            let (new, mode) = (libc::PR_SET_NO_NEW_PRIVS as usize, libc::SECCOMP_MODE_FILTER as usize);
            let set = [libc::PR_SET_SECCOMP as usize, mode, (&raw const filter).addr(), 0, 0, 0];
            let is_set = call(libc::SYS_prctl, [new, 1, 0, 0, 0, 0]) == 0 && call(libc::SYS_prctl, set) == 0;
            let (words, began) = ([AtomicU32::new(1), AtomicU32::new(2)], now_ns());
            wait_for_either([(&words[0], 1), (&words[1], 2)], 20_000_000);
            (is_set, now_ns() - began)
        };
        let (is_set, ns) = std::thread::spawn(limited).join().unwrap();
        if !is_set {
            return testkit::skip!("kernel", "no filter can be set here");
        }
        assert!(ns >= 20_000_000, "{ns} ns");
    }

    #[test]
    fn system_calls_return_plausible_values() {
        let here = 0u8;
        assert!(is_readable((&raw const here).addr()) && !is_readable(0x10007) && !is_readable(1 << 62));
        let (mut reader, words) = (Reader::new(), [7usize, 9]);
        let here = words.as_ptr().addr();
        assert_eq!([here, here + 8, 8, 0x10008].map(|at| reader.pointer(at)), [Some(7), Some(9), None, None]);
        assert_eq!(reader.string_len(c"four".as_ptr().addr(), 5), Some(4));
        assert_eq!(reader.string_len(c"four".as_ptr().addr(), 4), None);
        assert!(now_ns() > 0 && descriptors_max() > 2);
        assert_ne!(thread_id(), 0);
        let file = open(c"/proc/self/stat", libc::O_RDONLY);
        assert!(file > 2 && read_at(file, &mut [0; 16], 0) == 16);
        close(file);
        assert!(open(c"/no/such/file", libc::O_RDONLY) < 0);
    }
}
