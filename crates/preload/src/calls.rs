//! Calls of the program that the pager wants to know of.
//!
//! Paging does not depend on these: what bypasses them is found by the kernel's events and by
//! looking at the mappings. They make the pager learn early of large new mappings, and in time of
//! what would take its footing away.

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::ptr::null;

use doorway::control_page::{end, kind};

use crate::next::{interposed, Next, Onward};
use crate::target::Target;
use crate::{
    announce, cleared, control_page, credentials, ending, environment, exec, fork, limits, parent, remap,
    sharing, single, system,
};

/// `UFFDIO_REGISTER` and `UFFDIO_MOVE` of the kernel's userfaultfd.h.
const REGISTER_REQUEST: libc::c_ulong = 0xc020_aa00;
const MOVE_REQUEST: libc::c_ulong = 0xc028_aa05;

/// A mapping of the kind that is paged.
const ORDINARY: c_int = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
/// What changes nothing about that.
const HARMLESS: c_int =
    libc::MAP_NORESERVE | libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_STACK;

/// Whether the caller is a thread of the pager's, which comes this way, too: they live in the
/// arena.
fn is_pagers_thread() -> bool {
    let here = 0u8;
    control_page::is_agents(&raw const here as usize)
}

/// A system call's answer as the C library gives it.
pub fn set_errno(answer: c_long) -> c_long {
    if (-4095..0).contains(&answer) {
        // SAFETY: the calling thread is the program's, with an errno of its own.
        unsafe { *libc::__errno_location() = -answer as i32 };
        return -1;
    }
    answer
}

/// mmap(2): a large private mapping is registered before it can fill unseen.
///
/// # Safety
/// As mmap(2).
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

/// mmap64: the same on 64-bit machines.
///
/// # Safety
/// As mmap(2).
#[no_mangle]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { mmap(address, len, protection, flags, file, offset) }
}

/// mprotect(2): reserved address space that becomes usable is a new mapping.
///
/// # Safety
/// As mprotect(2).
#[no_mangle]
pub unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, protection: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let answer = unsafe { libc::syscall(libc::SYS_mprotect, address, len, protection) };
    if answer == 0 && protection == libc::PROT_READ | libc::PROT_WRITE {
        announce::announce(address as usize, len, kind::UNKNOWN);
    }
    answer as c_int
}

/// madvise(2): what is not to be inherited by forked children must not be found in the pager's
/// copies there.
///
/// # Safety
/// As madvise(2).
#[no_mangle]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    set_errno(unsafe { advise(address as usize, len, advice) }) as c_int
}

/// # Safety
/// As madvise(2).
unsafe fn advise(address: usize, len: usize, advice: c_int) -> c_long {
    const MADV_GUARD_INSTALL: c_int = 102;
    if matches!(advice, libc::MADV_WIPEONFORK | libc::MADV_DONTFORK) && !control_page::is_agents(address) {
        // Before the call: another thread may fork as soon as the kernel has taken the advice.
        fork::expect_wiped();
    }
    let call = |advice: c_int| {
        // SAFETY: the caller's range and advice, or a discard of what the kernel has discarded.
        unsafe { raw_syscall(libc::SYS_madvise, [address, len, advice as usize, 0, 0, 0]) }
    };
    let answer = call(advice);
    // Guards discard what was there and raise no event; a discard raises one and leaves guards in
    // place. ENOMEM: everything is guarded but gaps between mappings.
    let is_guarded = answer == 0 || answer == -c_long::from(libc::ENOMEM);
    if advice == MADV_GUARD_INSTALL && is_guarded && control_page::has_pager() {
        call(libc::MADV_DONTNEED);
    }
    answer
}

/// mremap(2): what paging has cut into several mappings moves as one.
///
/// # Safety
/// As mremap(2).
#[no_mangle]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let arguments = [address as usize, len, new_len, flags as usize, target as usize];
    if !control_page::has_pager() || is_pagers_thread() {
        // SAFETY: the caller's arguments, unchanged.
        return set_errno(unsafe { remap::by_kernel(arguments) }) as *mut c_void;
    }
    // SAFETY: as above.
    set_errno(unsafe { remap::remap(arguments) }) as *mut c_void
}

/// ioctl(2): memory of the program's own userfaultfd is let go of. A range has one userfaultfd: the
/// kernel refuses a second one, and is asked again without the pager's. What is out of a range that
/// the program moves pages from would be a hole.
///
/// # Safety
/// As ioctl(2).
#[no_mangle]
pub unsafe extern "C" fn ioctl(file: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let call =
        || unsafe { raw_syscall(libc::SYS_ioctl, [file as usize, request as usize, argument, 0, 0, 0]) };
    // Where the structures cannot be read the kernel refuses them.
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

static VMSPLICE: Next = Next::new(c"vmsplice");

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

interposed!(
    /// vmsplice(2): the pipe refers to pages of the program, also after they have been moved away.
    /// Threads can be cancelled there.
    vmsplice,
    onward_vmsplice(pipe: c_int, vectors: *const libc::iovec, count: usize, flags: c_uint)
        vmsplice_onward(pipe, vectors, count, flags)
);

/// close_range(2): waits for forks under way, whose connections are descriptors of the process for
/// a moment.
///
/// # Safety
/// As close_range(2).
#[no_mangle]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
    // SAFETY: the caller's arguments, unchanged.
    set_errno(fork::unless_forking(|| unsafe { raw_syscall(libc::SYS_close_range, arguments) })) as c_int
}

/// closefrom(3): the same.
///
/// # Safety
/// As closefrom(3).
#[no_mangle]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    // SAFETY: the caller's argument.
    let answer = unsafe { close_range(first as c_uint, c_uint::MAX, 0) };
    // Before Linux 5.9 there is no such call.
    if answer != 0 {
        for descriptor in (first as usize)..(system::descriptors_max() as usize).min(1 << 20) {
            system::close(descriptor as isize);
        }
    }
}

/// setsockopt(2): a socket that may send pages without copying them refers to them until they are
/// sent.
///
/// # Safety
/// As setsockopt(2).
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

/// mlockall(2): locked memory is not evicted; everything comes in and paging ends for good.
///
/// # Safety
/// As mlockall(2).
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

/// prctl(2): a seccomp filter set this way binds the calling thread alone; paging continues, but
/// children of that thread inherit the filter, so a fork brings everything in and they run
/// unmanaged.
///
/// # Safety
/// As prctl(2).
#[no_mangle]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let answer = unsafe { libc::syscall(libc::SYS_prctl, option, a, b, c, d) as c_int };
    if option == libc::PR_SET_SECCOMP && answer == 0 {
        fork::expect_filter();
    }
    answer
}

/// Whether the kernel takes no filter with these arguments: what libseccomp does to learn which
/// flags there are.
fn is_no_filter(program: usize) -> bool {
    /// `BPF_MAXINSNS` of the kernel's bpf_common.h.
    const STEPS_MAX: u64 = 4096;
    let is_missing = |address| system::try_read_own(address) == Err(libc::EFAULT);
    // struct sock_fprog: the number of steps, in two bytes, and where they are.
    let words = [program, program.wrapping_add(size_of::<usize>())].map(system::try_read_own);
    let is_wrong = |count: u64| count & 0xffff == 0 || count & 0xffff > STEPS_MAX;
    words.contains(&Err(libc::EFAULT))
        || words[0].is_ok_and(is_wrong)
        || words[1].is_ok_and(|steps| is_missing(steps as usize))
}

/// The body of `syscall`: seccomp(2) has no wrapper of its own and comes this way. A filter for all
/// threads would bind the pager's too, so everything comes in before. An exec is as good as the C
/// library's.
///
/// # Safety
/// As syscall(2).
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
    const SET_MODE_FILTER: usize = 1;
    const FILTER_FLAG_TSYNC: usize = 1;
    let (operation, flags) = (a as c_uint as usize, b as c_uint as usize);
    let sets_filter = number == libc::SYS_seccomp && matches!(operation, SET_MODE_STRICT | SET_MODE_FILTER);
    let is_for_all = operation == SET_MODE_FILTER && flags & FILTER_FLAG_TSYNC != 0;
    if sets_filter && is_for_all && !is_no_filter(c) {
        fork::stop_for_good(end::FILTERED);
    }
    cleared::note_call(number, &[a, b, c, d, e, f]);
    if number == libc::SYS_vmsplice {
        announce::note_references();
    }
    if number == libc::SYS_exit_group {
        ending::before();
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
            libc::SYS_unshare | libc::SYS_setns => {
                single::unless_alone(|| raw_syscall(number, [a, b, c, d, e, f]))
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
        // Children of this thread inherit it.
        fork::expect_filter();
    }
    set_errno(answer)
}

/// Whether a system call makes a process or thread that returns on a stack of its own, and notes
/// what there is to note of it if so.
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

/// syscall(2). What clone(2) makes with a stack of its own returns from here by what lies on that
/// stack, so that no frame of this object may be between: it would be looked for there.
///
/// # Safety
/// As syscall(2).
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
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {returns_elsewhere}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
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

/// syscall(2): see the other one. Here the caller's address is in a register, which the new thread
/// has, too.
///
/// # Safety
/// As syscall(2).
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

/// The system call itself: this object's own `syscall` must not be called here.
///
/// # Safety
/// As the system call.
pub unsafe fn raw_syscall(number: c_long, arguments: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    let answer: c_long;
    // SAFETY: the caller vouches for the arguments.
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
