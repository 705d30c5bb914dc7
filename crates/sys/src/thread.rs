//! Threads that the host program cannot see or disturb.
//!
//! A pager thread must survive all actions of its host program: closing every descriptor, changing
//! credentials, counting its threads, installing signal handlers, loading libraries that grow
//! thread-local storage. A thread of the C library takes part in all of that, and its setup
//! allocates on the program's heap, which the pager pages out. So pager threads are made with
//! clone(2) directly:
//!
//! * their stack and TLS block lie in memory of the caller (the arena); the C library allocates
//!   nothing;
//! * the first one has its **own file table** (no CLONE_FILES), so that no close() of the program
//!   reaches a userfaultfd; the others share the first one's;
//! * every signal is blocked in them, so that no handler of the program runs there;
//! * the C library does not know them: a program whose last own thread exits ends as without them.
//!
//! The price: thread-local storage is a copy of the creator's at that time, as far as it lies at
//! fixed offsets from the thread pointer (errno, the locale of the C library). Rust's
//! `thread_local!` uses a table that is still the creator's, so it must not be used without
//! knowledge of this.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use crate::{checked, done};

/// Address space; only touched parts take memory. Blocks of pages pass through some frames: a fork
/// in a release build took 200 KiB.
const STACK_BYTES: usize = 512 * 1024;
const GUARD_BYTES: usize = 4096;
/// Bytes on the side of the thread pointer without thread-local storage.
const HEADER_BYTES: usize = 8192;
/// Most copied bytes of the creator's thread-local storage.
const STATIC_TLS_BYTES: usize = 16 * 1024;

/// Bytes that [`spawn`] needs for a thread: guard, stack and TLS block.
pub fn thread_bytes() -> usize {
    STACK_BYTES + STATIC_TLS_BYTES + 2 * HEADER_BYTES
}

/// The file table of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// A copy of the caller's table at the start; close unwanted files with [`close_all_files`].
    Own,
    /// The caller's table.
    Shared,
}

/// Starts `entry(argument)` on `memory`, [`thread_bytes`] of zeroed arena memory. Returns the
/// thread's kernel id. The thread ends when `entry` returns; this function never reclaims its
/// memory.
///
/// # Safety
/// The memory must belong to the thread until it has ended, and `entry` must keep to the rules
/// above.
///
/// # Errors
/// EAGAIN at a limit on processes.
pub unsafe fn spawn(
    memory: NonNull<u8>,
    files: Files,
    entry: extern "C" fn(usize),
    argument: usize,
) -> io::Result<i32> {
    // SAFETY: the caller's promises.
    let (stack, thread_pointer) = unsafe { prepare(memory, entry, argument) };
    let flags = match files {
        Files::Own => doorway::thread::OWN_FILES,
        Files::Shared => doorway::thread::OWN_FILES | libc::CLONE_FILES as usize,
    };
    let before = block_signals();
    // SAFETY: the thread has its own stack and thread pointer; the caller guarantees `entry`.
    let result = unsafe { doorway::thread::begin(flags, stack, thread_pointer) };
    restore_signals(before);
    match result {
        0.. => Ok(result as i32),
        _ => Err(io::Error::from_raw_os_error(-result as i32)),
    }
}

/// Prepares `memory` for a thread that runs `entry(argument)`. Returns its stack, whose lowest word
/// is the argument, and its thread pointer. Its thread-local storage is a copy of the calling
/// thread's current one.
///
/// # Safety
/// As [`spawn`].
pub unsafe fn prepare(memory: NonNull<u8>, entry: extern "C" fn(usize), argument: usize) -> (usize, usize) {
    let base = memory.as_ptr() as usize;
    // SAFETY: the lowest page of the caller's memory becomes the guard.
    unsafe { libc::mprotect(memory.as_ptr().cast(), GUARD_BYTES, libc::PROT_NONE) };
    // Static TLS is below the thread pointer on x86-64, above it on aarch64, opposite libc's
    // header.
    let (below, above) = match cfg!(target_arch = "x86_64") {
        true => (STATIC_TLS_BYTES + HEADER_BYTES, HEADER_BYTES),
        false => (HEADER_BYTES, STATIC_TLS_BYTES + HEADER_BYTES),
    };
    let thread_pointer = base + thread_bytes() - above;
    let stack_top = thread_pointer - below;
    copy_tls(own_thread_pointer(), thread_pointer);
    let words = thread_pointer as *mut usize;
    // SAFETY: inside the caller's memory.
    unsafe {
        // On x86-64 the thread pointer points at itself, in word 0 and, for the C library, word 2.
        if cfg!(target_arch = "x86_64") {
            words.write(thread_pointer);
            words.add(2).write(thread_pointer);
        }
        let stack = stack_top as *mut usize;
        stack.sub(1).write(entry as usize);
        stack.sub(2).write(argument);
    }
    (stack_top - 16, thread_pointer)
}

/// The calling thread's thread pointer.
pub fn own_thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register, or the word that the ABI defines as its copy.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack));
    }
    pointer
}

/// Copies the memory around one thread pointer to another by the kernel, up to unmapped pages.
fn copy_tls(from: usize, to: usize) {
    const PAGE: usize = crate::PAGE_SIZE;
    // Copies up to the next page border of the source at a time.
    let copy = |from: usize, to: usize, len: usize| {
        let local = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: len };
        let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: len };
        // SAFETY: writes only into the TLS block of the new thread, within the bounds below.
        unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == len as isize }
    };
    let header = HEADER_BYTES / 8;
    let (below, above) = match cfg!(target_arch = "x86_64") {
        true => (STATIC_TLS_BYTES, header),
        false => (HEADER_BYTES / 2, STATIC_TLS_BYTES),
    };
    let mut offset = 0;
    while offset < below {
        let end = from - offset;
        let len = ((end - 1) % PAGE + 1).min(below - offset);
        if !copy(end - len, to - offset - len, len) {
            break;
        }
        offset += len;
    }
    offset = 0;
    while offset < above {
        let len = (PAGE - (from + offset) % PAGE).min(above - offset);
        if !copy(from + offset, to + offset, len) {
            break;
        }
        offset += len;
    }
}

/// Blocks all signals by the raw system call: the C library's wrapper excludes two of its own.
fn block_signals() -> u64 {
    let (all, mut before) = (!0u64, 0u64);
    // SAFETY: both masks have 8 bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &all, &mut before, 8usize) };
    before
}

fn restore_signals(mask: u64) {
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &mask, std::ptr::null_mut::<u64>(), 8usize)
    };
}

/// Gives the calling thread its own file table, a copy of the shared one: later closes by others
/// have no effect here. Threads that it starts share the new table.
///
/// # Errors
/// ENOMEM; EPERM under a seccomp filter that forbids unshare(2).
pub fn leave_file_table() -> io::Result<()> {
    // SAFETY: concerns descriptors of this thread alone.
    done(unsafe { libc::unshare(libc::CLONE_FILES) })
}

/// Blocks the program's signal handlers in the calling thread, a thread of the C library, and in
/// those that it starts. The C library's own two signals stay, which setuid() and similar calls
/// need.
pub fn hold_signals() {
    // SAFETY: a plain bit set; the old mask is not requested.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        // This thread itself raises these, and then the process must end.
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT] {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// Closes every descriptor of the calling thread's file table, which must be its own.
pub fn close_all_files() {
    close_range(0, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: descriptors of this table are unused; memory is not affected.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) } != 0 {
        for descriptor in first..=last.min(65535) {
            // SAFETY: as above.
            unsafe { libc::close(descriptor as i32) };
        }
    }
}

/// Closes every descriptor but two. As [`close_all_files`].
pub fn close_all_files_but(mut kept: [i32; 2]) {
    kept.sort_unstable();
    let [first, last] = kept.map(|number| number as u32);
    for range in [0..first, first + 1..last, last + 1..u32::MAX] {
        if !range.is_empty() {
            close_range(range.start, range.end - 1);
        }
    }
}

/// Gives an open file another number in the calling thread's file table, and closes the file that
/// had it.
///
/// # Errors
/// EBADF beyond the limit on descriptors.
pub fn renumber(descriptor: i32, number: i32) -> io::Result<()> {
    if descriptor == number {
        return Ok(());
    }
    // SAFETY: numbers of this table; memory is not affected.
    let result = checked(unsafe { libc::dup3(descriptor, number, libc::O_CLOEXEC) });
    // SAFETY: as above.
    unsafe { libc::close(descriptor) };
    result.map(|_| ())
}

/// Gives an open file a number of at least `from`.
///
/// # Errors
/// EMFILE or EINVAL beyond the limit on descriptors.
pub fn renumber_above(descriptor: i32, from: i32) -> io::Result<i32> {
    // SAFETY: as for `renumber`.
    let result = checked(unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, from) });
    // SAFETY: as above.
    unsafe { libc::close(descriptor) };
    result
}

/// The calling thread's kernel id.
pub fn id() -> i32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Pins the calling thread to `cpu`. Returns false if that CPU is not allowed.
pub fn pin(cpu: usize) -> bool {
    // SAFETY: a plain bit set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) == 0
    }
}

/// Lists the CPUs that the calling thread may use, up to `cpus.len()`. Returns their number.
pub fn allowed_cpus(cpus: &mut [usize]) -> usize {
    let mut count = 0;
    // SAFETY: a plain bit set for the kernel to fill.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set);
        for cpu in 0..libc::CPU_SETSIZE as usize {
            if libc::CPU_ISSET(cpu, &set) && count < cpus.len() {
                cpus[count] = cpu;
                count += 1;
            }
        }
    }
    count
}

/// Names the calling thread for `ps -L` and `top -H`.
pub fn name(name: &std::ffi::CStr) {
    // SAFETY: a terminated string; the kernel truncates it to 15 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// The calling thread, and those that it makes from now on, gain no rights by executing programs: a
/// program may have renounced that, and its agent executes none.
pub fn renounce_new_rights() {
    // SAFETY: affects exec only.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}

/// Has the kernel clear this word, and wake its waiters, when the calling thread ends in any way.
pub fn clear_at_end(word: Option<&'static AtomicU32>) {
    let address = word.map_or(std::ptr::null_mut(), AtomicU32::as_ptr);
    // SAFETY: null, or a word that lives as long as the process.
    unsafe { libc::syscall(libc::SYS_set_tid_address, address) };
}

/// Raises the calling thread's priority 15 nice levels above that of the program's first thread,
/// where permitted (root, CAP_SYS_NICE). The kernel permits at most -20.
pub fn hurry() {
    // The C library's function returns -1 for an error and for that level; the system call, levels
    // from 40 (nice -20) to 1.
    // SAFETY: takes numbers.
    let told = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, crate::threads::process()) };
    if told > 0 {
        // SAFETY: changes the nice value of this thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, id() as libc::id_t, 20 - told as i32 - 15) };
    }
}

/// Sleeps.
pub fn sleep_ns(ns: u64) {
    let time =
        libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as libc::c_long };
    // SAFETY: a valid time; the remainder is not requested.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Ends the calling thread alone.
pub fn exit() -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Ends the process with all threads, without running any code of the program.
pub fn exit_process(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Ends the process by SIGABRT, as [`end_process_by`], and the program that it pages
/// ([`crate::threads`]).
pub fn end_process() -> ! {
    crate::threads::end_program();
    end_process_by(libc::SIGABRT)
}

/// Ends the process so that wait(2) returns `status`.
pub fn end_process_as(status: i32) -> ! {
    match libc::WTERMSIG(status) {
        0 => exit_process(libc::WEXITSTATUS(status)),
        signal => end_process_by(signal),
    }
}

/// Ends the process by a signal with its default action, or by SIGKILL if that does not end it. The
/// first process of a namespace is immune to both, and exits.
pub fn end_process_by(signal: i32) -> ! {
    // SAFETY: plain system calls; the process ends.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, std::ptr::null_mut());
        // This thread, which blocks every signal, takes this one at once, and runs no handler of
        // the program. Another thread might have to wait for the CPU, or for a page that never
        // arrives.
        restore_signals(!(1 << (signal - 1)));
        libc::syscall(libc::SYS_tgkill, libc::getpid(), id(), signal);
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
    exit_process(128 + signal)
}

/// Yields the CPU.
pub fn yield_now() {
    // SAFETY: takes nothing.
    unsafe { libc::sched_yield() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

    static RESULT: AtomicI32 = AtomicI32::new(0);
    static DONE: AtomicU32 = AtomicU32::new(0);
    static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

    extern "C" fn body(argument: usize) {
        close_all_files();
        // SAFETY: an invalid descriptor makes close fail and set this thread's own errno.
        let failed = unsafe { libc::close(DESCRIPTOR.load(Ordering::Relaxed)) };
        let own = crate::errno();
        RESULT
            .store(if failed == -1 && own == libc::EBADF { argument as i32 } else { -1 }, Ordering::Relaxed);
        DONE.store(1, Ordering::Release);
        crate::futex::wake(&DONE, 1);
    }

    #[test]
    fn a_thread_has_its_own_files_and_errno() {
        if crate::is_emulated() {
            return;
        }
        // SAFETY: descriptor 2 is open; dup makes another number.
        let descriptor = unsafe { libc::dup(2) };
        DESCRIPTOR.store(descriptor, Ordering::Relaxed);
        let memory = crate::memory::map(thread_bytes()).unwrap();
        // SAFETY: the memory is never reused; the body keeps to the rules.
        let thread = unsafe { spawn(memory, Files::Own, body, 42) }.unwrap();
        assert!(thread > 0);
        while DONE.load(Ordering::Acquire) == 0 {
            crate::futex::wait(&DONE, 0, Some(1_000_000_000));
        }
        assert_eq!(RESULT.load(Ordering::Relaxed), 42);
        // SAFETY: still open in this table: the thread closed its own copy.
        assert_eq!(unsafe { libc::close(descriptor) }, 0);
    }
}
