//! A program's first milliseconds, in which its agent only waits. Most processes of scripts and
//! builds end within them. Starting the agent takes longer than `true` runs, because the agent
//! relocates its image, makes its arena and joins the tree.
//!
//! The agent's process begins here, in this object's code, on the stack that the agent will have.
//! It enters the agent when the program is no longer young, has grown, or needs it. Until then
//! there is no pager to halt, so during a fork or a halt the process only keeps waiting.

use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use doorway::thread;

use crate::calls::raw_syscall;
use crate::control_page::{is_set, CONTROL_PAGE};
use crate::{spawn, system};

/// There is no waiting process.
const NONE: u32 = 0;
/// It waits.
const YOUNG: u32 = 1;
/// It waits until a thread of the program has forked or has made another call.
const HELD: u32 = 2;
/// It enters the agent, or has entered it.
const GROWN: u32 = 3;

/// Woken when the process must go on. It sees other changes at its next look.
static STATE: AtomicU32 = AtomicU32::new(NONE);
/// Where the agent begins: its entry, 0 for a function on its stack; stack; thread pointer.
static AGENT: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

const YOUNG_NS: u64 = 10_000_000;
/// Interval between looks.
const LOOK_NS: u64 = 300_000;
/// A program has grown with this much more memory than at its start, pages of its files included:
/// a thread fills 3 MiB in a millisecond.
const GROWN_KIB: i64 = 2 << 10;
/// A forked child with this memory is no small one. It may copy pages, which is no growth.
const LARGE_KIB: i64 = 16 << 10;
/// How long a process that has lost its memory takes to end.
const ENDS_NS: u64 = 5_000_000;

/// Makes the agent's process. The agent will begin at `entry` as a program does, or, without one,
/// in the function on its stack. Returns false if no process is possible.
///
/// # Safety
/// Stack and thread pointer belong to the process from now on, and the entry expects this stack.
pub unsafe fn begin(entry: Option<usize>, stack: usize, thread_pointer: usize) -> bool {
    for (word, value) in AGENT.iter().zip([entry.unwrap_or(0), stack, thread_pointer]) {
        word.store(value, Ordering::Relaxed);
    }
    // SAFETY: the caller's promise.
    unsafe { make() }
}

/// Makes the process again, in a child of a fork, or after the process has left.
/// Returns false if none was waiting before.
pub fn begin_again() -> bool {
    // SAFETY: nothing ran on the stack but the process that waited, which is not in this process.
    STATE.load(Ordering::Acquire) == HELD && unsafe { make() }
}

/// In a child that has no agent.
pub fn forget() {
    STATE.store(NONE, Ordering::Release);
}

/// Makes the process, which will begin the agent that [`AGENT`] names.
///
/// # Safety
/// As for [`begin`], whose caller gave it the stack: nothing else has run there in this process.
unsafe fn make() -> bool {
    let [_, stack, thread_pointer] = agent();
    // SAFETY: unused memory of the stack, below the words that the agent begins with.
    let below = unsafe {
        let below = (stack as *mut [usize; 2]).sub(1);
        below.write([0, live as *const () as usize]);
        below
    };
    STATE.store(YOUNG, Ordering::Release);
    // SAFETY: the stack begins with an argument and a function.
    let is_made = unsafe { spawn::agent(below.addr(), thread_pointer) };
    if !is_made {
        forget();
    }
    is_made
}

fn agent() -> [usize; 3] {
    AGENT.each_ref().map(|word| word.load(Ordering::Relaxed))
}

fn change(from: u32, to: u32) -> bool {
    STATE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Keeps the process waiting until [`release`]. Returns false if there is an agent, or none will
/// come. The caller holds the lock of forks.
pub fn hold() -> bool {
    change(YOUNG, HELD) || STATE.load(Ordering::Acquire) == HELD
}

pub fn release() {
    change(HELD, YOUNG);
}

/// Lets the agent begin: the caller needs it.
pub fn end() {
    if change(YOUNG, GROWN) {
        system::wake(&STATE);
    }
}

/// The process, until it enters the agent.
extern "C" fn live(_: usize) -> ! {
    stand_apart();
    let began = system::now_ns();
    let grown_kib = LARGE_KIB.min(peak_kib() + GROWN_KIB);
    let is_over = || system::now_ns() - began > YOUNG_NS || peak_kib() >= grown_kib;
    loop {
        match STATE.load(Ordering::Acquire) {
            GROWN => enter(),
            HELD if leaves() => system::exit_process(0),
            YOUNG if is_over() => end(),
            state => wait(state),
        }
        if has_ended() {
            system::exit_process(0);
        }
    }
}

/// Leaves the program's files and its process group, and takes the agent's name.
fn stand_apart() {
    let all = [0, u32::MAX as usize, 0, 0, 0, 0];
    let name = [libc::PR_SET_NAME as usize, c"uzswap".as_ptr().addr(), 0, 0, 0, 0];
    let process = libc::PRIO_PROCESS as usize;
    // SAFETY: attributes of this process, which has a file table of its own.
    unsafe {
        raw_syscall(libc::SYS_close_range, all);
        raw_syscall(libc::SYS_setpgid, [0; 6]);
        raw_syscall(libc::SYS_prctl, name);
        // The process gets a higher priority than the program, where permitted, so that it sees the
        // program grow. It began with the nice value of the thread that made it, as 20 less that.
        let told = raw_syscall(libc::SYS_getpriority, [process, 0, 0, 0, 0, 0]);
        if told > 0 {
            raw_syscall(libc::SYS_setpriority, [process, 0, (5 - told) as usize, 0, 0, 0]);
        }
    }
}

/// Whether paging has ended before it began, or another process is about to follow this one.
fn leaves() -> bool {
    let forks = &CONTROL_PAGE.forks;
    forks.leaving.swap(0, Ordering::AcqRel) != 0 || is_set(&forks.stopped)
}

fn enter() -> ! {
    let [entry, stack, _] = agent();
    // SAFETY: `begin`'s caller promised that the agent can begin so.
    unsafe { thread::enter((entry != 0).then_some(entry), stack) }
}

/// The most memory that the program has had. Unlike files in /proc, this needs no right.
fn peak_kib() -> i64 {
    // SAFETY: all zeroes is a valid structure, which the kernel fills.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    let arguments = [libc::RUSAGE_SELF as usize, (&raw mut usage).addr(), 0, 0, 0, 0];
    // SAFETY: as above.
    unsafe { raw_syscall(libc::SYS_getrusage, arguments) };
    usage.ru_maxrss
}

fn program() -> u32 {
    CONTROL_PAGE.process.load(Ordering::Acquire)
}

/// The word that the kernel clears when the program's first thread ends or executes a program,
/// while it has its value. Some C libraries use another word.
fn first_word() -> Option<&'static AtomicU32> {
    let address = CONTROL_PAGE.first_word.load(Ordering::Acquire);
    // SAFETY: null, or a word in a control block of the program's memory, which this process has.
    let word = unsafe { (address as *const AtomicU32).as_ref() }?;
    (word.load(Ordering::Acquire) == program()).then_some(word)
}

fn wait(state: u32) {
    match first_word() {
        Some(word) => system::wait_for_either([(&STATE, state), (word, program())], LOOK_NS),
        None => system::wait(&STATE, state, LOOK_NS),
    }
}

/// Whether the program has ended, or has executed another. Nothing is paged, so no other process
/// that has this memory needs this one. False if its first thread alone has ended: then the agent
/// finds out.
fn has_ended() -> bool {
    if first_word().is_some() {
        return false;
    }
    // The kernel permits any access to the memory that this process has.
    match system::read_of(program(), STATE.as_ptr().addr()) {
        Ok(_) => false,
        Err(error) if error == -(libc::ESRCH as isize) => ends(),
        Err(_) => true,
    }
}

/// Whether all threads of the program end within milliseconds.
fn ends() -> bool {
    let number = program() as usize;
    // SAFETY: makes a descriptor.
    let process = unsafe { raw_syscall(libc::SYS_pidfd_open, [number, 0, 0, 0, 0, 0]) };
    if process < 0 {
        // After other errors, of a filter for example, the agent finds out.
        return process == -c_long::from(libc::ESRCH);
    }
    let mut poll = libc::pollfd { fd: process as c_int, events: libc::POLLIN, revents: 0 };
    let time = [0, ENDS_NS];
    let arguments = [(&raw mut poll).addr(), 1, time.as_ptr().addr(), 0, 0, 0];
    // SAFETY: the structures live.
    unsafe { raw_syscall(libc::SYS_ppoll, arguments) };
    system::close(process as isize);
    poll.revents != 0
}
