//! The program's calls that the pager must know of.
//!
//! Paging does not depend on them: kernel events and looks at the mappings find calls that bypass
//! them. They tell the pager early of large new mappings, and in time of calls that would disable
//! paging.

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::ptr::null;

use doorway::control_page::{end, kind};

use crate::filter::{FLAG_TSYNC, SET_MODE_FILTER};
use crate::next::{also_named, interposed, library, Onward};
use crate::target::Target;
use crate::{
    announce, cleared, control_page, credentials, environment, exec, filter, fork, limits, parent, remap,
    sharing, single, system,
};

/// `UFFDIO_REGISTER` and `UFFDIO_MOVE` of the kernel's userfaultfd.h.
const REGISTER_REQUEST: libc::c_ulong = 0xc020_aa00;
const MOVE_REQUEST: libc::c_ulong = 0xc028_aa05;

const ORDINARY: c_int = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
/// Flags that keep a mapping of that kind.
const HARMLESS: c_int =
    libc::MAP_NORESERVE | libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_STACK;

/// Whether the caller is a thread of the pager, which also gets here: its stack is in the arena.
fn is_pagers_thread() -> bool {
    let here = 0u8;
    control_page::is_agents(&raw const here as usize)
}

/// Converts a system call's result to the C library's, with errno.
pub fn set_errno(answer: c_long) -> c_long {
    if (-4095..0).contains(&answer) {
        // SAFETY: the calling thread is the program's, with its own errno.
        unsafe { *libc::__errno_location() = -answer as i32 };
        return -1;
    }
    answer
}

/// mmap(2): registers a large private mapping before it can fill unseen.
#[no_mangle]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments, unchanged.
    let answer = unsafe { libc::syscall(libc::SYS_mmap, address, len, protection, flags, file, offset) };
    if answer != -1 && protection == libc::PROT_READ | libc::PROT_WRITE && flags & !HARMLESS == ORDINARY {
        announce::announce(answer as usize, len, kind::ORDINARY);
    }
    answer as *mut c_void
}

also_named!(
    mmap64,
    mmap(address: *mut c_void, len: usize, protection: c_int, flags: c_int, file: c_int, offset: libc::off_t)
        -> *mut c_void
);

/// mprotect(2): reserved address space that becomes accessible is a new mapping.
#[no_mangle]
pub unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, protection: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let answer = unsafe { libc::syscall(libc::SYS_mprotect, address, len, protection) };
    if answer == 0 && protection == libc::PROT_READ | libc::PROT_WRITE {
        announce::announce(address as usize, len, kind::UNKNOWN);
    }
    answer as c_int
}

/// madvise(2): forked children must not find non-inherited pages in the pager's copies.
#[no_mangle]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    set_errno(unsafe { advise(address as usize, len, advice) }) as c_int
}

unsafe fn advise(address: usize, len: usize, advice: c_int) -> c_long {
    const MADV_GUARD_INSTALL: c_int = 102;
    if matches!(advice, libc::MADV_WIPEONFORK | libc::MADV_DONTFORK) && !control_page::is_agents(address) {
        // Before the call: another thread may fork as soon as the advice is in force.
        fork::expect_wiped();
    }
    let call = |advice: c_int| {
        // SAFETY: the caller's range and advice, or a repeated discard.
        unsafe { raw_syscall(libc::SYS_madvise, [address, len, advice as usize, 0, 0, 0]) }
    };
    let answer = call(advice);
    // Installing guards discards pages without an event; a discard raises one and keeps the guards.
    // ENOMEM: all but gaps between mappings is guarded.
    let is_guarded = answer == 0 || answer == -c_long::from(libc::ENOMEM);
    if advice == MADV_GUARD_INSTALL && is_guarded && control_page::has_pager() {
        call(libc::MADV_DONTNEED);
    }
    answer
}

/// mremap(2): memory that paging split into several mappings moves as one.
#[no_mangle]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let arguments = [address as usize, len, new_len, flags as usize, target as usize];
    let is_plain = !control_page::has_pager() || is_pagers_thread();
    // SAFETY: the caller's arguments, unchanged.
    set_errno(unsafe {
        if is_plain {
            remap::by_kernel(arguments)
        } else {
            remap::remap(arguments)
        }
    }) as *mut c_void
}

/// ioctl(2): releases memory that the program registers with its own userfaultfd. A range has only
/// one: the kernel refuses the second, so the call is repeated after the release. If the program
/// moves pages from a range, evicted pages would be holes.
#[no_mangle]
pub unsafe extern "C" fn ioctl(file: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let call =
        || unsafe { raw_syscall(libc::SYS_ioctl, [file as usize, request as usize, argument, 0, 0, 0]) };
    // The kernel refuses unreadable structures.
    let range = |start: usize, len: usize| {
        let word = |at: usize| system::read_own(argument.wrapping_add(at));
        Some((word(start)? as usize, word(len)? as usize))
    };
    let mut answer;
    match request & 0xffff_ffff {
        REGISTER_REQUEST if !is_pagers_thread() => {
            answer = call();
            if answer == -c_long::from(libc::EBUSY) {
                if let Some((start, len)) = range(0, 8) {
                    announce::release(start, len);
                    answer = call();
                }
            }
        }
        // struct uffdio_move: dst, src, len.
        MOVE_REQUEST if control_page::has_pager() && !is_pagers_thread() => {
            if let Some((start, len)) = range(8, 16) {
                announce::release_around(start, len);
            }
            answer = call();
        }
        _ => answer = call(),
    }
    set_errno(answer) as c_int
}

library! {
    VMSPLICE: vmsplice(c_int, *const libc::iovec, usize, c_uint) -> isize;
}

unsafe fn vmsplice_onward(pipe: c_int, vectors: *const libc::iovec, count: usize, flags: c_uint) -> Onward {
    announce::note_references();
    let function = VMSPLICE.find();
    if !function.is_null() {
        return Onward { function, answer: 0 };
    }
    let arguments = [pipe as usize, vectors as usize, count, flags as usize, 0, 0];
    // SAFETY: the caller's arguments.
    let answer = unsafe { raw_syscall(libc::SYS_vmsplice, arguments) };
    Onward { function: null(), answer: set_errno(answer) as isize }
}

interposed! {
    // The pipe refers to the program's pages even after they have been evicted. Threads can be
    // cancelled there.
    vmsplice = onward_vmsplice(pipe: c_int, vectors: *const libc::iovec, count: usize, flags: c_uint)
        vmsplice_onward(pipe, vectors, count, flags);
}

/// close_range(2): waits for running forks, whose connections are descriptors of the process.
#[no_mangle]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
    // SAFETY: the caller's arguments, unchanged.
    set_errno(fork::unless_forking(|| unsafe { raw_syscall(libc::SYS_close_range, arguments) })) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    // SAFETY: the caller's argument.
    let answer = unsafe { close_range(first as c_uint, c_uint::MAX, 0) };
    // Before Linux 5.9 the call does not exist.
    if answer != 0 {
        for descriptor in (first as usize)..(system::descriptors_max() as usize).min(1 << 20) {
            system::close(descriptor as isize);
        }
    }
}

/// setsockopt(2): a socket with zero-copy sending refers to pages until they are sent.
#[no_mangle]
pub unsafe extern "C" fn setsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    let arguments = [socket as usize, level as usize, name as usize, value as usize, len as usize, 0];
    // SAFETY: the caller's arguments, unchanged.
    let answer = unsafe { raw_syscall(libc::SYS_setsockopt, arguments) };
    if answer == 0 && level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY {
        announce::note_references();
    }
    set_errno(answer) as c_int
}

/// mlockall(2): locked memory is not evicted, so everything comes in and paging ends for good.
#[no_mangle]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    set_errno(lock_all(flags as usize)) as c_int
}

fn lock_all(flags: usize) -> c_long {
    // SAFETY: no memory changes.
    let answer = unsafe { raw_syscall(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]) };
    if answer == 0 {
        fork::stop_for_good(end::LOCKED);
    }
    answer
}

/// prctl(2): a seccomp filter set this way binds only the calling thread, so paging continues. Its
/// children inherit the filter, so a fork brings everything in and they run unmanaged.
#[no_mangle]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let answer = unsafe { libc::syscall(libc::SYS_prctl, option, a, b, c, d) as c_int };
    if option == libc::PR_SET_SECCOMP && answer == 0 {
        fork::expect_filter();
    }
    answer
}

/// The body of `syscall`: seccomp(2), which has no wrapper, comes this way. A filter for all
/// threads would bind the pager's too, so everything comes in before, unless the kernel would
/// refuse it. An exec is treated as the C library's.
unsafe extern "C" fn syscall_of_program(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    const SET_MODE_STRICT: usize = 0;
    /// Changes a profile of a security module (Linux 6.8).
    const SYS_LSM_SET_SELF_ATTR: c_long = 460;
    let (operation, flags) = (a as c_uint as usize, b as c_uint as usize);
    let sets_filter = number == libc::SYS_seccomp && matches!(operation, SET_MODE_STRICT | SET_MODE_FILTER);
    let is_for_all = operation == SET_MODE_FILTER && flags & FLAG_TSYNC != 0;
    // A filter in force may forbid the calls that try out the new one.
    let is_taken = || fork::expects_filter() || filter::would_be_taken(flags, c);
    if sets_filter && is_for_all && control_page::is_alive() && is_taken() {
        fork::stop_for_good(end::FILTERED);
    }
    cleared::note_call(number, &[a, b, c, d, e, f]);
    if number == libc::SYS_vmsplice {
        announce::note_references();
    }
    sharing::note_call(number, &[a, b, c, d, e, f]);
    // SAFETY: the caller's arguments, the environment completed.
    let answer = unsafe {
        match number {
            libc::SYS_execve => environment::completed(
                c as *const _,
                Target::Path(libc::AT_FDCWD, a as *const _),
                |environment| raw_syscall(number, [a, b, environment as usize, d, e, f]),
            ),
            libc::SYS_execveat => environment::completed(
                d as *const _,
                exec::of_directory(a as c_int, b as *const _, e as c_int),
                |environment| raw_syscall(number, [a, b, c, environment as usize, e, f]),
            ),
            libc::SYS_madvise => advise(a, b, c as c_int),
            libc::SYS_mlockall => lock_all(a),
            libc::SYS_io_uring_setup => {
                let answer = raw_syscall(number, [a, b, c, d, e, f]);
                if answer >= 0 {
                    announce::note_references();
                }
                answer
            }
            libc::SYS_prlimit64 => limits::prlimit_raw(a, b, c, d),
            libc::SYS_setrlimit | libc::SYS_getrlimit => limits::by_number(number, a, b),
            libc::SYS_getppid => parent::shown().into(),
            libc::SYS_unshare | libc::SYS_setns => single::unless_alone(number, a, b),
            libc::SYS_landlock_restrict_self | SYS_LSM_SET_SELF_ATTR => {
                let answer = raw_syscall(number, [a, b, c, d, e, f]);
                if answer == 0 {
                    fork::share_restrictions();
                }
                answer
            }
            _ if fork::is_unreported(number, &[a, b, c, d, e, f]) => {
                fork::by_number(number, [a, b, c, d, e, f])
            }
            _ if credentials::may_give_up(number) => {
                let answer = raw_syscall(number, [a, b, c, d, e, f]);
                credentials::changed();
                answer
            }
            _ => raw_syscall(number, [a, b, c, d, e, f]),
        }
    };
    if sets_filter && answer >= 0 {
        // This thread's children inherit the filter.
        fork::expect_filter();
    }
    set_errno(answer)
}

/// Whether a system call's child returns on its own stack. Notes such a call's effects.
extern "C" fn returns_elsewhere(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize) -> bool {
    let arguments = [a, b, c, d, e, 0];
    let Some(flags) = fork::flags_with_stack(number, &arguments) else { return false };
    cleared::note_call(number, &arguments);
    sharing::note_call(number, &arguments);
    fork::prepare_for_stack_of_its_own(flags);
    true
}

extern "C" fn failed(answer: c_long) -> c_long {
    set_errno(answer)
}

/// syscall(2). A child of clone(2) with its own stack returns from here to the address on that
/// stack, so this object must have no frame in between.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "cmp rdi, {clone}",
        "je 2f",
        "cmp rdi, {clone3}",
        "je 2f",
        "jmp {ordinary}",
        "2:",
        "sub rsp, 56",
        ".cfi_adjust_cfa_offset 56",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "call {returns_elsewhere}",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "test al, al",
        "jnz 3f",
        "jmp {ordinary}",
        "3:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 4f",
        "ret",
        "4:",
        "mov rdi, rax",
        "jmp {failed}",
        ".cfi_endproc",
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        returns_elsewhere = sym returns_elsewhere,
        ordinary = sym syscall_of_program,
        failed = sym failed,
    )
}

/// syscall(2): as above. Here the caller's address is in a register, which the new thread also has.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp x0, #{clone}",
        "b.eq 2f",
        "cmp x0, #{clone3}",
        "b.eq 2f",
        "b {ordinary}",
        "2:",
        "stp x29, x30, [sp, #-80]!",
        ".cfi_def_cfa_offset 80",
        ".cfi_offset x30, -72",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "bl {returns_elsewhere}",
        "and w16, w0, #1",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x30",
        "cbnz w16, 3f",
        "b {ordinary}",
        "3:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc 0",
        "cmn x0, #4095",
        "b.hs 4f",
        "ret",
        "4:",
        "b {failed}",
        ".cfi_endproc",
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        returns_elsewhere = sym returns_elsewhere,
        ordinary = sym syscall_of_program,
        failed = sym failed,
    )
}

/// Makes the system call: this object must not call its own `syscall`.
///
/// # Safety
/// As the system call.
pub unsafe fn raw_syscall(number: c_long, arguments: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    let answer: c_long;
    // SAFETY: the caller guarantees the arguments.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
        );
    }
    answer
}
