//! fork(): the pager stands still around it, and parent and child both have one afterwards.
//!
//! ```text
//!             forking thread            control thread                       child's forking thread     child's control thread
//! prepare()   connect, ASKED ---------> stand still, HALTED
//!             C library, clone(2) ----> serves both of them -------> C library
//! parent()    back, goes on             :                            child(): starts ---------> take
//!                                       hands over ------------------------------------------> inherits
//!                                       everybody goes on            goes on <----------------- serves
//! ```
//!
//! Everything that is out stays out; see `pager`'s module `heritage` for why the child never misses a page. The child's
//! handler is the first to run: `__register_atfork` is interposed so that no other library is before this object, and
//! ours is the last to run before the fork. Whatever runs in the child before it is served by the parent all the same.
//!
//! A fork brings everything in before and starts a new pager in the child, as if nothing had been there, where that
//! cannot work:
//!
//! * without CAP_SYS_PTRACE the kernel does not report forks;
//! * when the forking thread may not open what the child's pager needs (it has changed its user, is in another network
//!   namespace, has no descriptors left): found out by opening it;
//! * after MADV_WIPEONFORK or MADV_DONTFORK: which pages a child has is the kernel's secret then;
//! * with accelerators, whose portals a child does not have;
//! * before the pager is set up, where nothing is out.
//!
//! A child that dies, or becomes another program, before it has taken over closes its connection, and the parent goes
//! on. A child that is stopped at its birth (by a debugger) is waited for [`BIRTH_NS`], then it gets all its memory. A
//! parent that is killed before its child has taken over takes the child along.
//!
//! The handlers are the C library's (pthread_atfork), so every fork that goes through it is covered: fork(), daemon(),
//! forkpty(). vfork() and posix_spawn() share the parent's memory until exec and need nothing. A fork by bare system
//! call is noticed by the pager itself, see `Pager::foster`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use pager::{Outcome, Pager};
use sys::procfs::ProcFile;
use sys::userfaultfd::{feature, Userfaultfd};
use sys::{futex, thread};

use crate::{announce, channel, control, start, swap};

const RUNNING: u32 = 0;
const ASKED: u32 = 1;
const HALTED: u32 = 2;
/// In a child whose control thread is taking over.
const TAKING: u32 = 3;

/// How long the parent waits for its child to take over.
const BIRTH_NS: u64 = 2_000_000_000;
/// Fewer descriptors than this are too few for a child's pager.
const DESCRIPTORS_MIN: u64 = 256;

static STATE: AtomicU32 = AtomicU32::new(RUNNING);
/// Held from prepare to parent or child: one fork at a time.
static ONE: AtomicU32 = AtomicU32::new(0);
/// Paging has ended for good.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// A seccomp filter may be in force in forked children.
static FILTERED: AtomicBool = AtomicBool::new(false);
/// Forked children may not have all of the memory.
static WIPED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);
/// Where the control thread listens for forking threads: the socket's name, 0 for nowhere, and its number for the control thread.
static LISTENER: AtomicU64 = AtomicU64::new(0);
static LISTENER_NUMBER: AtomicI32 = AtomicI32::new(-1);
/// The forking thread, and its connection to the control thread, -1 when everything is to come in.
static FORKER: AtomicU32 = AtomicU32::new(0);
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
/// Whether the control thread stands by this fork with everything left out.
static KEEPS: AtomicBool = AtomicBool::new(false);

type Handler = Option<unsafe extern "C" fn()>;

extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
}

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Registers the handlers.
pub fn install() {
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: the functions live as long as the process: the object is never unloaded.
        unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

/// What pthread_atfork() of every object calls. Constructors of other libraries run before this object's; its handlers
/// are to be the first all the same.
///
/// # Safety
/// As the C library's.
#[no_mangle]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    install();
    let mut next = NEXT.load(Ordering::Relaxed);
    if next.is_null() {
        // SAFETY: a terminated name.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()) };
        NEXT.store(next, Ordering::Relaxed);
    }
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function has this type; the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Register>(next)(prepare, parent, child, object) }
}

/// Whether this process has forked or was forked: some of its pages may be shared.
pub fn has_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Ends paging in this process: everything is brought in, and its pager stands still from now on.
pub fn stop_for_good(why: &'static str) {
    if control::is_alive() && !STOPPED.swap(true, Ordering::AcqRel) {
        control::remember_end(why);
        futex::lock_bits(&ONE);
        CONNECTION.store(-1, Ordering::Release);
        halt_and_wait();
        // The state stays: nobody lets the pager go on. Forks find it stopped.
        futex::unlock_bits(&ONE);
    }
}

/// Paging has ended in this process, with everything brought in by the caller.
pub fn note_stopped() {
    STOPPED.store(true, Ordering::Release);
}

/// A filter is about to bind the calling thread and its children: what they fork runs unmanaged.
pub fn expect_filter() {
    FILTERED.store(true, Ordering::Release);
}

/// Whether a filter may bind the calling thread.
pub fn expects_filter() -> bool {
    FILTERED.load(Ordering::Acquire)
}

/// Some memory is not inherited from now on.
pub fn expect_wiped() {
    WIPED.store(true, Ordering::Release);
}

/// Lets forks of this process leave everything where it is. Called by its control thread when the pager is set up.
pub fn keep() {
    if let Some((number, name)) = channel::listen() {
        LISTENER_NUMBER.store(number, Ordering::Relaxed);
        LISTENER.store(name, Ordering::Release);
    }
}

/// Called by the control thread between its looks: answers a halt that was asked for, and returns when it is over.
pub fn answer_halt() {
    if STATE.load(Ordering::Acquire) != ASKED {
        return;
    }
    let pager = control::pager();
    if let (Some(pager), 0..) = (pager, CONNECTION.load(Ordering::Acquire)) {
        if attend(pager) {
            return;
        }
    }
    if let Some(pager) = pager {
        pager.halt();
        if STOPPED.load(Ordering::Acquire) {
            pager.park();
        }
    }
    STATE.store(HALTED, Ordering::Release);
    futex::wake(&STATE, i32::MAX);
    while STATE.load(Ordering::Acquire) == HALTED {
        // When it is for good, the filter that comes next may not allow to wait once more.
        let limit = (!STOPPED.load(Ordering::Acquire)).then_some(100_000_000);
        futex::wait(&STATE, HALTED, limit);
    }
    if let Some(pager) = pager {
        pager.go_on();
    }
}

/// Stands by a fork until the child has taken over; false when it cannot be done this way.
fn attend(pager: &Pager) -> bool {
    let Some(connection) = channel::accept(LISTENER_NUMBER.load(Ordering::Relaxed)) else { return false };
    let Some(mut session) = pager.begin_fork(FORKER.load(Ordering::Relaxed)) else {
        channel::close(connection);
        return false;
    };
    KEEPS.store(true, Ordering::Release);
    STATE.store(HALTED, Ordering::Release);
    futex::wake(&STATE, i32::MAX);
    let mut birth_ns = u64::MAX;
    loop {
        let [main, gate, child] = pager.fork_descriptors(&session);
        let pause_ms = if pager.has_held(&session) { 1 } else { 100 };
        let ready = channel::wait([connection, main, gate, child], pause_ms);
        pager.attend(&mut session);
        let is_ready = match ready[0].then(|| channel::receive(connection)) {
            // What the kernel reported before the word was sent has been read only now.
            Some(Some(message)) if message.word() == channel::TAKE => {
                pager.attend(&mut session);
                true
            }
            Some(Some(_)) => {
                birth_ns = sys::now_ns() + BIRTH_NS;
                continue;
            }
            // No child, or it has ended or become another program.
            Some(None) => break,
            None if sys::now_ns() > birth_ns => false,
            None => continue,
        };
        // Now: what this process has in the swap file is what it had at the fork.
        let legacy = is_ready.then(swap::Legacy::new).flatten();
        match pager.settle(&mut session, legacy.is_some()) {
            Outcome::Inherits { main, gate, copied } => {
                let told = channel::send(connection, channel::INHERITS, copied, Some([main, gate]));
                let legacy = legacy.expect("asked for");
                let is_told = match legacy.told() {
                    Some((row, file)) => channel::send(connection, channel::SWAP, &[row], Some([file, file])),
                    None => told,
                };
                if is_told {
                    legacy.leave();
                }
                channel::close(main);
                channel::close(gate);
            }
            Outcome::Complete => {
                channel::send(connection, channel::COMPLETE, &[], None);
            }
            Outcome::Lost => {}
        }
        break;
    }
    channel::close(connection);
    pager.end_fork(session);
    true
}

/// Has the control thread halt the pager and waits until it has. The caller has [`ONE`].
fn halt_and_wait() {
    KEEPS.store(false, Ordering::Release);
    STATE.store(ASKED, Ordering::Release);
    // A control thread that stands still for good, for a fork that was under way, waits for this.
    futex::wake(&STATE, i32::MAX);
    while control::is_alive() {
        control::nudge();
        if STATE.load(Ordering::Acquire) == ASKED {
            futex::wait(&STATE, ASKED, Some(10_000_000));
        }
        if STATE.load(Ordering::Acquire) == HALTED {
            return;
        }
        thread::yield_now();
    }
}

/// Connects to the control thread, if a child of this thread will be able to have a pager.
fn connect() -> i32 {
    let name = LISTENER.load(Ordering::Acquire);
    if name == 0 || FILTERED.load(Ordering::Acquire) || WIPED.load(Ordering::Acquire) {
        return -1;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if limit.rlim_cur < DESCRIPTORS_MIN {
        return -1;
    }
    let Ok(trial) = Userfaultfd::open(feature::MOVE) else { return -1 };
    trial.close();
    let Ok(trial) = ProcFile::open(c"/proc/self/pagemap") else { return -1 };
    trial.close();
    channel::connect(name)
}

unsafe extern "C" fn prepare() {
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // One at a time from here on: the control thread takes the oldest connection for the forking thread's.
    futex::lock_bits(&ONE);
    let connection = if STOPPED.load(Ordering::Acquire) { -1 } else { connect() };
    if STOPPED.load(Ordering::Acquire) {
        KEEPS.store(false, Ordering::Release);
        CONNECTION.store(connection, Ordering::Release);
        return;
    }
    FORKER.store(thread::id() as u32, Ordering::Relaxed);
    CONNECTION.store(connection, Ordering::Release);
    halt_and_wait();
    // SAFETY: the calling thread is the program's, with an errno of its own.
    unsafe { *libc::__errno_location() = error };
}

unsafe extern "C" fn parent() {
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    FORKED.store(true, Ordering::Relaxed);
    let connection = CONNECTION.swap(-1, Ordering::AcqRel);
    if connection >= 0 {
        channel::send(connection, channel::BACK, &[], None);
        channel::close(connection);
    }
    if !STOPPED.load(Ordering::Acquire) || KEEPS.load(Ordering::Acquire) {
        // A control thread that attends to the child goes on by itself.
        STATE.store(RUNNING, Ordering::Release);
        futex::wake(&STATE, i32::MAX);
    }
    futex::unlock_bits(&ONE);
    // SAFETY: the calling thread is the program's, with an errno of its own.
    unsafe { *libc::__errno_location() = error };
}

unsafe extern "C" fn child() {
    FORKED.store(true, Ordering::Relaxed);
    announce::forget();
    LISTENER.store(0, Ordering::Release);
    let connection = CONNECTION.swap(-1, Ordering::AcqRel);
    if connection >= 0 && KEEPS.swap(false, Ordering::AcqRel) {
        take_over(connection);
    } else {
        if connection >= 0 {
            channel::close(connection);
        }
        start_anew();
    }
    ONE.store(0, Ordering::Release);
}

/// Has a new control thread take over what the parent left, and waits until it has.
fn take_over(connection: i32) {
    STATE.store(TAKING, Ordering::Release);
    // Whoever ended paging in the parent this moment did not get to do so.
    STOPPED.store(false, Ordering::Release);
    if start::start_inheriting(connection) {
        channel::close(connection);
        while STATE.load(Ordering::Acquire) == TAKING {
            futex::wait(&STATE, TAKING, Some(100_000_000));
        }
        return;
    }
    // Without a thread there can be no pager. Left alone, the parent gives up waiting and sends everything.
    match channel::receive(connection) {
        Some(message) if message.word() == channel::COMPLETE => {
            channel::close(connection);
            control::forget();
            STATE.store(RUNNING, Ordering::Release);
        }
        _ => crate::accounts::kill_process(),
    }
}

/// The child's control thread has taken over: the program may run.
pub fn taken() {
    STATE.store(RUNNING, Ordering::Release);
    futex::wake(&STATE, i32::MAX);
}

fn start_anew() {
    // The control thread and its kind exist in the parent only. Their tables are dead weight here and hold no page.
    control::forget();
    STATE.store(RUNNING, Ordering::Release);
    if !STOPPED.load(Ordering::Acquire) && !FILTERED.load(Ordering::Acquire) {
        start::start_control();
    }
}
