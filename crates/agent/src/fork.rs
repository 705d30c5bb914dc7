//! fork(): the pager halts around it, and parent and child both have a pager afterwards.
//!
//! ```text
//!             forking thread            control thread                       child's forking thread     child's control thread
//! prepare()   connection, ASKED ------> stand still, HALTED
//!             C library, clone(2) ----> serves both of them -------> C library
//! parent()    back, waits               :                            child(): starts ---------> take
//!             continues <-------------- hands over ------------------------------------------> inherits
//!                                       all continue                 continues <--------------- serves
//! ```
//!
//! Evicted pages stay out; `pager`'s module `fork` says why the child never misses a page. The
//! child's handler runs first and the parent's runs last before the fork: `__register_atfork` is
//! interposed so that no other library registers before this object. The parent also serves code
//! that runs in the child before that handler.
//!
//! In these cases a fork first brings everything in and starts a new pager in the child:
//!
//! * neither the process nor its supervisor has CAP_SYS_PTRACE: the kernel then does not report
//!   forks;
//! * the forking thread may not open what the child's pager needs, which it finds out by opening
//!   it, and the supervisor cannot open it instead (it has changed its user, or has few
//!   descriptors). A root directory without /proc does not matter as long as the child may leave
//!   it: the child's agent gets the root of the parent's;
//! * after MADV_WIPEONFORK or MADV_DONTFORK: the kernel does not tell which pages a child has;
//! * with accelerators: a child does not have their portals;
//! * before the pager is set up: nothing is out.
//!
//! If the child dies or executes a program before it has taken over, its connection closes and the
//! parent continues. If a debugger stops the child at its birth, the parent waits [`BIRTH_NS`],
//! then brings all its memory in. The parent may end in any way and at any time: its agent is
//! another process, which ends when the child has taken over.
//!
//! The forking thread's side is `preload`'s module of the same name. Without it no request arrives,
//! and the pager itself notices forks: see `populate_child`.

use std::sync::atomic::Ordering;

use doorway::control_page::brings_in;
use doorway::control_page::halt::{ASKED, HALTED, RUNNING};
use pager::{FixedText, Outcome, Pager};
use sys::futex;

use crate::control_page::{control_page, is_set};
use crate::state::AGENT;
use crate::{channel, control, credentials, paging, retire, swap};

/// Descriptors that a child's control thread holds at a time, beside the permanent ones.
const PASSING: i32 = 8;
/// How long the parent waits for its child to take over. `preload`'s `parent` relies on the bound.
const BIRTH_NS: u64 = 2_000_000_000;
/// A halted control thread looks this often, even if not woken.
const LOOK_NS: u64 = 100_000_000;

/// Whether this process has forked or was forked: some of its pages may be shared.
pub fn has_forked() -> bool {
    is_set(&control_page().forks.forked)
}

/// Ends forks that leave pages out: there is no pager.
pub fn disable() {
    control_page().forks.can_keep.store(0, Ordering::Release);
    control_page().forks.unreported.store(0, Ordering::Release);
}

pub fn has_stopped() -> bool {
    is_set(&control_page().forks.stopped)
}

/// Notes that paging has ended in this process. The caller has brought everything in.
pub fn note_stopped() {
    control_page().forks.stopped.store(1, Ordering::Release);
}

pub fn expects_filter() -> bool {
    is_set(&control_page().forks.filtered)
}

/// Lets forks leave pages out. The control thread calls this when the pager is set up.
pub fn keep() {
    control_page().forks.descriptors.store((numbers_end() + PASSING) as u32, Ordering::Relaxed);
    channel::offer();
}

/// The lowest number above the descriptors that a child's pager has under the parent's numbers.
pub fn numbers_end() -> i32 {
    paging::pager().map_or(0, Pager::numbers_end).max(swap::numbers_end())
}

/// Sets the state of a halt, for the thread that waits for it.
fn set_state(state: u32) {
    control_page().forks.state.store(state, Ordering::Release);
    futex::wake(&control_page().forks.state, i32::MAX);
}

/// Reports why forks of this process bring everything in, once for each reason.
fn say_why(pager: &Pager) {
    let forks = &control_page().forks;
    let why = forks.why.swap(brings_in::NONE, Ordering::AcqRel);
    if AGENT.looks.reported_forks.fetch_or(1 << why, Ordering::Relaxed) >> why & 1 == 1 {
        return;
    }
    let descriptors = FixedText::new(format_args!(
        "RLIMIT_NOFILE is less than {}, and a child's pager needs as many descriptors",
        forks.descriptors.load(Ordering::Relaxed) + 1
    ));
    let why = match why {
        brings_in::NONE => return,
        brings_in::DESCRIPTORS => descriptors.as_str(),
        brings_in::PROC => "a child could not open its own files in /proc",
        brings_in::CHANNEL => "pidfd_getfd(2), by which the pager talks with a child, is refused",
        _ => "the process may not have a userfaultfd any more",
    };
    let text = FixedText::new(format_args!("a fork brings everything in: {why}"));
    pager.say_once(text.as_str());
}

/// The agent's root directory, if the forking thread has another one. Fails if it cannot be opened.
fn root_for_child() -> Result<Option<i32>, ()> {
    if !is_set(&control_page().forks.outside) {
        return Ok(None);
    }
    // SAFETY: a constant, terminated path.
    let root = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    (root >= 0).then_some(Some(root)).ok_or(())
}

/// In a forked child: moves the agent's threads to the root directory of the parent's agent. The
/// program's threads keep theirs.
pub fn enter_root(root: i32) -> bool {
    // SAFETY: changes only where this thread and its children resolve paths.
    unsafe { libc::fchdir(root) == 0 && libc::chroot(c".".as_ptr()) == 0 }
}

/// A request of a thread of the program, which waits.
enum Request {
    /// A fork that leaves pages out.
    Fork,
    /// Everything in, and all threads stand: around a fork, or for good.
    Halt,
    /// Everything in, and the agent ends.
    Leave,
}

fn request() -> Option<Request> {
    let forks = &control_page().forks;
    if forks.state.load(Ordering::Acquire) != ASKED {
        return None;
    }
    Some(match forks.connection.load(Ordering::Acquire) {
        _ if is_set(&forks.leaving) => Request::Leave,
        0.. => Request::Fork,
        _ => Request::Halt,
    })
}

/// Carries out a request and returns when the thread has continued. For the control thread.
pub fn serve_request() {
    let pager = paging::pager();
    match (request(), pager) {
        (None, _) => return,
        (Some(Request::Leave), _) => {
            retire::retire();
            leave();
        }
        (Some(Request::Fork), Some(pager)) if attend(pager) => return,
        (Some(Request::Fork | Request::Halt), _) => {}
    }
    let stopped = &control_page().forks.stopped;
    if let Some(pager) = pager {
        say_why(pager);
        pager.halt();
        if is_set(stopped) {
            pager.park();
        }
    }
    stand(is_set(stopped));
    if let Some(pager) = pager {
        pager.resume();
    }
}

/// Reports the halt, and waits until the program's thread ends it. `is_last`: perhaps for ever.
fn stand(is_last: bool) {
    let forks = &control_page().forks;
    set_state(HALTED);
    while forks.state.load(Ordering::Acquire) == HALTED {
        control::end_if_program_ended();
        if is_last && credentials::are_wanted() {
            return;
        }
        futex::wait(&forks.state, HALTED, Some(LOOK_NS));
    }
}

/// Ends the agent. Another is started afterwards, as in a forked child. The end tells the thread
/// that waits for it: the kernel clears `is_alive`.
fn leave() -> ! {
    control_page().forks.leaving.store(0, Ordering::Release);
    set_state(HALTED);
    sys::thread::exit_process(0)
}

/// Serves a fork until the child has taken over. Returns false if everything must come in.
fn attend(pager: &Pager) -> bool {
    let forks = &control_page().forks;
    let forker = forks.forker.load(Ordering::Relaxed);
    let Some(connection) = channel::taken() else { return false };
    let Some(mut session) = pager.begin_fork(forker) else {
        channel::close(connection);
        return false;
    };
    forks.keeps.store(1, Ordering::Release);
    forks.attending.store(1, Ordering::Release);
    set_state(HALTED);
    let mut birth_ns = u64::MAX;
    loop {
        let [main, gate, child] = pager.fork_descriptors(&session);
        let pause_ms = if pager.has_held(&session) { 1 } else { 100 };
        let ready = channel::wait([connection, main, gate, child], pause_ms);
        pager.attend(&mut session);
        let is_ready = match ready[0].then(|| channel::receive(connection)) {
            // Only now are the kernel's events from before this word read.
            Some(Some(message)) if message.word() == channel::TAKE => {
                pager.attend(&mut session);
                true
            }
            Some(Some(_)) => {
                session.note_back();
                birth_ns = sys::now_ns() + BIRTH_NS;
                continue;
            }
            // The child does not exist, has ended or has executed a program.
            Some(None) => break,
            None if sys::now_ns() > birth_ns => false,
            None => continue,
        };
        // Now: this process's pages in the swap file are those it had at the fork.
        let root = root_for_child();
        let inheritance = (is_ready && root.is_ok()).then(swap::Inheritance::new).flatten();
        match pager.settle(&mut session, inheritance.is_some()) {
            Outcome::Inherits { main, gate, copied } => {
                let told = channel::send(connection, channel::INHERITS, copied, Some([main, gate]));
                let inheritance = inheritance.expect("asked for");
                let mut is_told = match inheritance.told() {
                    Some((row, file)) => channel::send(connection, channel::SWAP, &[row], Some([file, file])),
                    None => told,
                };
                if let Ok(Some(root)) = root {
                    is_told &= channel::send(connection, channel::ROOT, &[], Some([root, root]));
                }
                if is_told {
                    inheritance.hand_over();
                }
                channel::close(main);
                channel::close(gate);
            }
            Outcome::Complete => {
                channel::send(connection, channel::COMPLETE, &[], None);
            }
            Outcome::Lost => {}
        }
        root.into_iter().flatten().for_each(channel::close);
        break;
    }
    channel::close(connection);
    forks.attending.store(0, Ordering::Release);
    futex::wake(&forks.attending, i32::MAX);
    pager.end_fork(session);
    true
}

/// The child's control thread has taken over: the program may continue.
pub fn taken() {
    set_state(RUNNING);
}
