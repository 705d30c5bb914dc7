//! The program's side of fork(): see the agent's module `fork` for how the two sides meet.
//!
//! The handlers are the C library's (pthread_atfork), so they cover every fork through it: fork(),
//! daemon(), forkpty(). vfork() and posix_spawn() share the parent's memory until exec and need
//! nothing. The pager itself notices forks by bare system calls: see `populate_child` in
//! `address_space/src/transition/hand_over.rs`. `__register_atfork` is interposed so that no other
//! library registers before this object, whose handlers run last before the fork and first after
//! it.
//!
//! In the child, this module makes one thread, on a stack that the agent prepared.

use core::ffi::{c_int, c_long, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use doorway::control_page::{brings_in, end, halt, RESTART};

use crate::calls::raw_syscall;
use crate::control_page::{
    has_pager, is_alive, is_own_process, is_set, note_process, nudge, set, CONTROL_PAGE,
};
use crate::next::library;
use crate::{announce, channel, scratch, sharing, signals, spawn, system, tasks, threads, youth};

/// The thread pointer of the thread that holds [`doorway::control_page::Forks::one`] for a fork, 0
/// for none: a forked child has it, too. A child of a bare clone(), which has no agent, and may
/// share this memory, forks beside it, and its children have none either.
static FORKER: AtomicUsize = AtomicUsize::new(0);
/// Blocked signals before the fork of the thread that holds [`doorway::control_page::Forks::one`].
static SIGNALS: AtomicU64 = AtomicU64::new(0);
type Handler = Option<unsafe extern "C" fn()>;

extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

library! {
    REGISTER: __register_atfork(Handler, Handler, Handler, *mut c_void) -> c_int;
}

/// Interval of checks on a control thread that is asked to halt, even if it wakes no thread.
const PATIENCE_NS: u64 = 200_000;

static INSTALLED: AtomicBool = AtomicBool::new(false);

pub fn install() {
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: the functions live as long as the process: the object is never unloaded.
        unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

/// pthread_atfork() of every object calls this. Constructors of other libraries run before this
/// object's; its handlers must be first nevertheless.
#[no_mangle]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    install();
    let Some(next) = REGISTER.function() else { return libc::ENOSYS };
    // SAFETY: the caller's arguments.
    unsafe { next(prepare, parent, child, object) }
}

/// Brings everything in, and halts the pager for good. `why` is a value of [`end`].
pub fn stop_for_good(why: u32) {
    debug_assert_ne!(why, end::NONE);
    /// Set once a filter for all threads may forbid the calls below: everything is in since then.
    static IS_BOUND: AtomicU32 = AtomicU32::new(0);
    let forks = &CONTROL_PAGE.forks;
    if is_set(&IS_BOUND) || !is_alive() || !is_own_process() {
        return;
    }
    if forks.stopped.swap(1, Ordering::AcqRel) == 0 {
        CONTROL_PAGE.end.store(why, Ordering::Release);
        // The state stays: the pager is halted for good. Forks find it stopped.
        with_halt(None, || {});
    } else {
        wait_until_stopped();
    }
    if why == end::FILTERED {
        set(&IS_BOUND);
    }
}

/// Brings everything in, and ends the agent for good. `why` is a value of [`end`].
pub fn leave_for_good(why: u32) {
    if !may_leave() {
        return;
    }
    if CONTROL_PAGE.forks.stopped.swap(1, Ordering::AcqRel) == 0 {
        CONTROL_PAGE.end.store(why, Ordering::Release);
    }
    without_agent(|| ());
}

/// Waits for the thread that ends paging. A halt seen under the lock is not that of a fork.
fn wait_until_stopped() {
    let forks = &CONTROL_PAGE.forks;
    let is_halted = || {
        system::lock(&forks.one);
        let is_halted = forks.state.load(Ordering::Acquire) == halt::HALTED;
        system::unlock(&forks.one);
        is_halted
    };
    while is_alive() && !signals::blocked(is_halted) {
        system::yield_now();
    }
}

/// A filter is about to bind the calling thread and its children: its forks run unmanaged.
pub fn expect_filter() {
    set(&CONTROL_PAGE.forks.filtered);
}

pub fn expects_filter() -> bool {
    is_set(&CONTROL_PAGE.forks.filtered)
}

/// Forked children do not inherit some memory from now on.
pub fn expect_wiped() {
    set(&CONTROL_PAGE.forks.wiped);
}

/// Asks the control thread to halt the pager, and waits for it. The caller holds the lock. Ends the
/// process if the kernel has ended the control thread alone: pages that are out stay so.
fn halt_and_wait() {
    if youth::hold() {
        return;
    }
    let state = &CONTROL_PAGE.forks.state;
    CONTROL_PAGE.forks.keeps.store(0, Ordering::Release);
    state.store(halt::ASKED, Ordering::Release);
    // A control thread that is halted for good, for a running fork, waits for this.
    system::wake(state);
    while is_alive() {
        nudge();
        if state.load(Ordering::Acquire) == halt::ASKED {
            system::wait(state, halt::ASKED, PATIENCE_NS);
        }
        if state.load(Ordering::Acquire) == halt::HALTED {
            return;
        }
        system::yield_now();
    }
    if has_pager() && !is_set(&CONTROL_PAGE.forks.stopped) {
        system::exit_process(128 + libc::SIGKILL);
    }
}

/// Asks the control thread to halt, with the word set that gives the reason, and calls `act` once
/// it has. The halt lasts until [`go_on`].
pub fn with_halt<T>(why: Option<&AtomicU32>, act: impl FnOnce() -> T) -> T {
    let forks = &CONTROL_PAGE.forks;
    signals::blocked(|| {
        system::lock(&forks.one);
        forks.forker.store(system::thread_id(), Ordering::Relaxed);
        forks.connection.store(-1, Ordering::Release);
        why.into_iter().for_each(set);
        halt_and_wait();
        let answer = act();
        system::unlock(&forks.one);
        answer
    })
}

pub fn go_on() {
    youth::release();
    CONTROL_PAGE.forks.state.store(halt::RUNNING, Ordering::Release);
    system::wake(&CONTROL_PAGE.forks.state);
}

/// Calls `act` while everything is in and nothing is paged.
pub fn while_halted<T>(act: impl FnOnce() -> T) -> T {
    let stopped = &CONTROL_PAGE.forks.stopped;
    if !is_alive() || !is_own_process() || is_set(stopped) {
        return act();
    }
    with_halt(None, || {
        let answer = act();
        // A thread that ends paging for good waits for this halt, or has just ended it.
        if !is_set(stopped) {
            go_on();
        }
        answer
    })
}

/// Makes a call that the kernel permits only to single-threaded processes, without the agent.
/// Returns `None`, without the call, if the program has several threads.
pub fn alone(call: impl FnOnce() -> c_long) -> Option<c_long> {
    if !may_leave() || tasks::count()? != 1 {
        return None;
    }
    Some(without_agent(call))
}

/// The calling thread has restricted itself: so are the agent's threads when this returns, as they
/// begin again from it.
pub fn share_restrictions() {
    if may_leave() {
        without_agent(|| ());
    }
}

/// Whether the agent can end and begin again.
fn may_leave() -> bool {
    is_alive() && is_own_process() && !expects_filter()
}

/// Ends the agent with everything in, calls `act`, and starts the agent again, as in a forked
/// child.
fn without_agent<T>(act: impl FnOnce() -> T) -> T {
    let forks = &CONTROL_PAGE.forks;
    with_halt(Some(&forks.leaving), || {
        while is_alive() {
            system::yield_now();
        }
        let answer = act();
        start_anew();
        answer
    })
}

/// Tries to open a file: a negative error, or another number.
fn try_open(path: &CStr) -> isize {
    let trial = system::open(path, libc::O_RDONLY);
    if trial >= 0 {
        system::close(trial);
    }
    trial
}

/// Takes a connection to the control thread, if a child of this thread can have a pager.
fn connect() -> i32 {
    let forks = &CONTROL_PAGE.forks;
    if !is_set(&forks.can_keep) || expects_filter() || is_set(&forks.wiped) {
        return -1;
    }
    let tell = |why: u32| {
        forks.why.store(why, Ordering::Release);
        -1
    };
    if system::descriptors_max() <= forks.descriptors.load(Ordering::Relaxed).into() {
        return tell(brings_in::DESCRIPTORS);
    }
    let lends = is_set(&forks.lends);
    if !lends && !system::may_have_userfaultfd() {
        return tell(brings_in::USERFAULTFD);
    }
    // The agent began with another root directory. Its thread in the child begins with this
    // thread's, and returns there.
    let opened = try_open(if lends { c"/proc/self/statm" } else { c"/proc/thread-self/pagemap" });
    let is_outside = opened == -(libc::ENOENT as isize);
    if opened < 0 && !(is_outside && system::may_change_root()) {
        return tell(brings_in::PROC);
    }
    forks.outside.store(is_outside.into(), Ordering::Release);
    channel::take(forks).unwrap_or_else(|| tell(brings_in::CHANNEL))
}

fn is_forker() -> bool {
    FORKER.load(Ordering::Relaxed) == threads::pointer()
}

unsafe extern "C" fn prepare() {
    let forks = &CONTROL_PAGE.forks;
    if !is_own_process() {
        return;
    }
    // A handler that forks would wait for this thread.
    let before = signals::block();
    // One fork at a time from here on.
    system::lock(&forks.one);
    FORKER.store(threads::pointer(), Ordering::Relaxed);
    SIGNALS.store(before, Ordering::Relaxed);
    let connection = if is_set(&forks.stopped) { -1 } else { connect() };
    // If another thread has yet to halt the pager for good, this one halts it.
    if is_set(&forks.stopped) && (!is_alive() || forks.state.load(Ordering::Acquire) == halt::HALTED) {
        forks.keeps.store(0, Ordering::Release);
        forks.connection.store(connection, Ordering::Release);
        return;
    }
    forks.forker.store(system::thread_id(), Ordering::Relaxed);
    forks.connection.store(connection, Ordering::Release);
    halt_and_wait();
}

unsafe extern "C" fn parent() {
    let forks = &CONTROL_PAGE.forks;
    if !is_forker() {
        return;
    }
    set(&forks.forked);
    let connection = forks.connection.swap(-1, Ordering::AcqRel);
    if connection >= 0 {
        channel::send(connection, channel::BACK);
        channel::close(connection);
    }
    if !is_set(&forks.stopped) || is_set(&forks.keeps) {
        // A control thread that serves the child continues by itself.
        go_on();
    }
    // The child now survives any end of this process. Signals are still blocked: a signal that ends
    // the process waits, at most two seconds (the agent's `BIRTH_NS`).
    wait_for_children();
    let before = SIGNALS.load(Ordering::Relaxed);
    FORKER.store(0, Ordering::Relaxed);
    system::unlock(&forks.one);
    signals::restore(before);
}

unsafe extern "C" fn child() {
    let forks = &CONTROL_PAGE.forks;
    if !is_forker() {
        return;
    }
    note_process();
    set(&forks.forked);
    announce::forget();
    sharing::forget();
    forks.attending.store(0, Ordering::Release);
    scratch::forget();
    threads::forget();
    forks.can_keep.store(0, Ordering::Release);
    let connection = forks.connection.swap(-1, Ordering::AcqRel);
    if connection >= 0 && forks.keeps.swap(0, Ordering::AcqRel) != 0 {
        take_over(connection);
    } else {
        if connection >= 0 {
            channel::close(connection);
        }
        start_anew();
    }
    let before = SIGNALS.load(Ordering::Relaxed);
    FORKER.store(0, Ordering::Relaxed);
    forks.one.store(0, Ordering::Release);
    signals::restore(before);
}

/// Waits until no child needs this process any more.
pub fn wait_for_children() {
    let attending = &CONTROL_PAGE.forks.attending;
    while is_alive() && attending.load(Ordering::Acquire) != 0 {
        system::wait(attending, 1, PATIENCE_NS * 50);
    }
}

/// Calls `close`, which may close unknown descriptors, while no thread forks: the connection to the
/// control thread could be among them.
pub fn unless_forking<T>(close: impl FnOnce() -> T) -> T {
    // A process that shares this one's memory has its own file table.
    if !is_own_process() {
        return close();
    }
    signals::blocked(|| {
        system::lock(&CONTROL_PAGE.forks.one);
        let answer = close();
        system::unlock(&CONTROL_PAGE.forks.one);
        answer
    })
}

/// Whether a system call by number forks unseen by the pager. Calls with their own stack return
/// elsewhere, and are excluded.
pub fn is_unreported(number: c_long, arguments: &[usize; 6]) -> bool {
    is_set(&CONTROL_PAGE.forks.unreported) && forks(number, arguments)
}

/// The flags of a clone(2) by number, if the child has its own stack.
pub fn flags_with_stack(number: c_long, arguments: &[usize; 6]) -> Option<u64> {
    let [a, b, ..] = *arguments;
    match number {
        libc::SYS_clone if b != 0 => Some(a as u64),
        libc::SYS_clone3 if b >= (STACK_WORD + 1) * 8 => {
            let read = |word: usize| system::read_own(a + word * 8);
            read(0).filter(|_| read(STACK_WORD).is_some_and(|stack| stack != 0))
        }
        _ => None,
    }
}

/// Prepares a clone with its own stack, which never returns to this object. If it is a fork unseen
/// by the pager, no page may be out.
pub fn prepare_for_stack_of_its_own(flags: u64) {
    if is_set(&CONTROL_PAGE.forks.unreported) && flags & SHARES_MEMORY == 0 {
        stop_for_good(end::BARE_FORK);
    }
}

const SHARES_MEMORY: u64 = libc::CLONE_VM as u64;
/// `struct clone_args` of the kernel's sched.h: flags, ..., stack.
const STACK_WORD: usize = 5;

fn forks(number: c_long, arguments: &[usize; 6]) -> bool {
    let [a, b, ..] = *arguments;
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_clone => a as u64 & SHARES_MEMORY == 0 && b == 0,
        libc::SYS_clone3 if b >= (STACK_WORD + 1) * 8 => {
            let read = |word: usize| system::read_own(a + word * 8);
            read(0).is_some_and(|flags| flags & SHARES_MEMORY == 0) && read(STACK_WORD) == Some(0)
        }
        _ => false,
    }
}

/// Forks by a system call with the same preparation as the C library's fork().
///
/// # Safety
/// As the system call, which must be one that forks without its own stack.
pub unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> c_long {
    // SAFETY: called in the order of pthread_atfork(), by the thread that forks.
    unsafe {
        prepare();
        let answer = raw_syscall(number, arguments);
        match answer {
            0 => child(),
            _ => parent(),
        }
        answer
    }
}

/// The stack, with its argument, and the thread pointer of the agent that its predecessor prepared.
fn take_spare(argument: usize) -> Option<(usize, usize)> {
    let [stack, pointer] = CONTROL_PAGE.forks.spare.each_ref().map(|word| word.swap(0, Ordering::AcqRel));
    if stack == 0 {
        return None;
    }
    // SAFETY: the agent's promise: an unused stack, whose lowest word is for the argument.
    unsafe { (stack as *mut usize).write(argument) };
    Some((stack, pointer))
}

/// Starts a control thread that takes over the parent's pages, and waits until it has.
fn take_over(connection: i32) {
    let state = &CONTROL_PAGE.forks.state;
    state.store(halt::TAKING, Ordering::Release);
    // A thread that was about to end paging in the parent did not get to do so.
    CONTROL_PAGE.forks.stopped.store(0, Ordering::Release);
    let spare = take_spare(connection as usize);
    // SAFETY: an unused stack.
    if spare.is_some_and(|(stack, pointer)| unsafe { spawn::agent(stack, pointer) }) {
        channel::close(connection);
        while state.load(Ordering::Acquire) == halt::TAKING {
            // A filter that was set unseen may end the agent.
            if !is_alive() {
                system::exit_process(128 + libc::SIGKILL);
            }
            system::wait(state, halt::TAKING, PATIENCE_NS * 50);
        }
        return;
    }
    // Without a thread there can be no pager. The parent gives up waiting and brings everything in.
    if channel::receive(connection) == Some(channel::COMPLETE) {
        channel::close(connection);
        forget_agent();
        state.store(halt::RUNNING, Ordering::Release);
    } else {
        system::exit_process(128 + libc::SIGKILL);
    }
}

/// In a forked child: there is no control thread and no pager.
fn forget_agent() {
    CONTROL_PAGE.is_alive.store(0, Ordering::Release);
    CONTROL_PAGE.has_pager.store(0, Ordering::Release);
}

fn start_anew() {
    // The agent's threads exist only in the parent. Their tables are unused here and hold no page.
    forget_agent();
    let forks = &CONTROL_PAGE.forks;
    forks.state.store(halt::RUNNING, Ordering::Release);
    if is_set(&forks.stopped) || is_set(&forks.filtered) {
        youth::forget();
    } else if !youth::begin_again() {
        // SAFETY: an unused stack.
        take_spare(RESTART).map(|(stack, pointer)| unsafe { youth::begin(None, stack, pointer) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_fork_are_known_by_their_numbers() {
        let with = |a: usize, b: usize| [a, b, 0, 0, 0, 0];
        let chld = libc::SIGCHLD as usize;
        assert!(forks(libc::SYS_clone, &with(chld, 0)));
        assert!(!forks(libc::SYS_clone, &with(chld, 0x1000)), "returns elsewhere");
        assert!(!forks(libc::SYS_clone, &with(chld | libc::CLONE_VM as usize, 0)), "shares its memory");
        assert!(!forks(libc::SYS_getpid, &with(chld, 0)));
        let mut words = [0u64; 8];
        let at = words.as_mut_ptr().addr();
        assert!(forks(libc::SYS_clone3, &with(at, 64)));
        assert!(!forks(libc::SYS_clone3, &with(at, 8)) && !forks(libc::SYS_clone3, &with(8, 64)));
        words[5] = 0x1000;
        assert!(!forks(libc::SYS_clone3, &with(words.as_ptr().addr(), 64)));
        assert_eq!(flags_with_stack(libc::SYS_clone3, &with(words.as_ptr().addr(), 64)), Some(0));
        assert_eq!(flags_with_stack(libc::SYS_clone, &with(chld, 0x1000)), Some(chld as u64));
        assert_eq!(flags_with_stack(libc::SYS_clone, &with(chld, 0)), None);
        words = [(libc::CLONE_VM | libc::CLONE_VFORK) as u64, 0, 0, 0, 0, 0, 0, 0];
        assert!(!forks(libc::SYS_clone3, &with(words.as_ptr().addr(), 64)));
    }
}
