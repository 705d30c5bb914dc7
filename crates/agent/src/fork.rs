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
//! Everything that is out stays out; see `pager`'s module `fork_session` for why the child never misses a page. The child's
//! handler is the first to run: `__register_atfork` is interposed so that no other library is before this object, and
//! ours is the last to run before the fork. Whatever runs in the child before it is served by the parent all the same.
//!
//! A fork brings everything in before and starts a new pager in the child, as if nothing had been there, where that
//! cannot work:
//!
//! * where neither the process nor its supervisor has CAP_SYS_PTRACE: the kernel does not report forks then;
//! * when the forking thread may not open what the child's pager needs, and the supervisor cannot do it instead (it is in
//!   another network namespace, has changed its user or its root directory, has no descriptors left): found out by opening it;
//! * after MADV_WIPEONFORK or MADV_DONTFORK: which pages a child has is the kernel's secret then;
//! * with accelerators, whose portals a child does not have;
//! * before the pager is set up, where nothing is out.
//!
//! A child that dies, or becomes another program, before it has taken over closes its connection, and the parent goes
//! on. A child that is stopped at its birth (by a debugger) is waited for [`BIRTH_NS`], then it gets all its memory. A
//! parent that ends in order waits until its child has taken over (`attending`; `preload`'s module `ending`); one that is killed
//! before takes the child along.
//!
//! The forking thread's side is `preload`'s module of this name. Where that is not, nobody asks, and the pager itself notices
//! forks, see `Pages::populate_child`.

use std::sync::atomic::{AtomicI32, Ordering};

use doorway::desk::ending;
use doorway::desk::halt::{ASKED, HALTED, RUNNING};
use ledger::wire::Kind;
use pager::{Outcome, Pager};
use sys::futex;

use crate::desk::{desk, is_set};
use crate::{accounts, channel, control, credentials, swap};

/// How long the parent waits for its child to take over.
const BIRTH_NS: u64 = 2_000_000_000;
/// Who stands still looks so often, whether it was woken or not.
const LOOK_NS: u64 = 100_000_000;

/// Where the control thread listens for forking threads.
static LISTENER_NUMBER: AtomicI32 = AtomicI32::new(-1);

/// Whether this process has forked or was forked: some of its pages may be shared.
pub fn has_forked() -> bool {
    is_set(&desk().forks.forked)
}

/// The control thread listens no more: its descriptors are closed.
pub fn let_go() {
    desk().forks.listener.store(0, Ordering::Release);
    desk().forks.unreported.store(0, Ordering::Release);
    LISTENER_NUMBER.store(-1, Ordering::Relaxed);
}

/// Whether paging has ended in this process.
pub fn has_stopped() -> bool {
    is_set(&desk().forks.stopped)
}

/// Paging has ended in this process, with everything brought in by the caller.
pub fn note_stopped() {
    desk().forks.stopped.store(1, Ordering::Release);
}

/// Whether a filter may bind threads of the program.
pub fn expects_filter() -> bool {
    is_set(&desk().forks.filtered)
}

/// Lets forks of this process leave everything where it is. Called by its control thread when the pager is set up.
pub fn keep() {
    if let Some((number, name)) = channel::listen() {
        LISTENER_NUMBER.store(number, Ordering::Relaxed);
        desk().forks.listener.store(name, Ordering::Release);
    }
}

/// Called by the control thread between its looks: answers a halt that was asked for, and returns when it is over.
pub fn answer_halt() {
    let forks = &desk().forks;
    if forks.state.load(Ordering::Acquire) != ASKED {
        return;
    }
    let pager = control::pager();
    if is_set(&forks.ending) {
        let is_shared = pager.is_some_and(bring_in_for_others);
        forks.ending.store(if is_shared { ending::SHARED } else { ending::NO }, Ordering::Release);
        stand(is_shared);
        return;
    }
    if is_set(&forks.leaving) {
        // With a pager there are more threads, and memory that is out.
        if pager.is_none() {
            leave();
        }
        forks.leaving.store(0, Ordering::Release);
        forks.state.store(HALTED, Ordering::Release);
        futex::wake(&forks.state, i32::MAX);
        return;
    }
    if let (Some(pager), 0..) = (pager, forks.connection.load(Ordering::Acquire)) {
        if attend(pager) {
            return;
        }
    }
    if let Some(pager) = pager {
        pager.halt();
        if is_set(&forks.stopped) {
            pager.park();
        }
    }
    stand(is_set(&forks.stopped));
    if let Some(pager) = pager {
        pager.go_on();
    }
}

/// Brings everything in for good if another process has this memory, which may outlive this process; whether that is so.
pub fn bring_in_for_others(pager: &Pager) -> bool {
    if is_set(&desk().forks.stopped) || !sys::threads::is_memory_shared() {
        return false;
    }
    pager.halt();
    note_stopped();
    let why = "its memory is in, for a process that shares it and may outlive this one";
    let _ = accounts::tell(Kind::Unmanaged, why);
    true
}

/// Says that the pager has halted, and stands still until the program's thread says otherwise. `is_last`: perhaps for ever.
fn stand(is_last: bool) {
    let forks = &desk().forks;
    forks.state.store(HALTED, Ordering::Release);
    futex::wake(&forks.state, i32::MAX);
    while forks.state.load(Ordering::Acquire) == HALTED {
        // The filter that comes next may kill for any call but the one that this thread is in by then: it is the last. Who asked
        // looks for that.
        let is_quiet = is_last && is_set(&forks.quiet);
        if is_quiet {
            forks.quiet.store(2, Ordering::Release);
        } else if is_last {
            control::end_if_program_ended();
            if credentials::are_wanted() {
                return;
            }
        }
        futex::wait(&forks.state, HALTED, (!is_quiet).then_some(LOOK_NS));
    }
}

/// Ends the calling thread, the agent's only one: the kernel does what is asked of it for processes of one thread alone. Another
/// is started afterwards, as in a forked child.
fn leave() -> ! {
    desk().forks.state.store(HALTED, Ordering::Release);
    // Its descriptors are closed with it: nobody else has its file table.
    sys::thread::exit()
}

/// Stands by a fork until the child has taken over; false when it cannot be done this way.
fn attend(pager: &Pager) -> bool {
    let Some(connection) = channel::accept(LISTENER_NUMBER.load(Ordering::Relaxed)) else { return false };
    let Some(mut session) = pager.begin_fork(desk().forks.forker.load(Ordering::Relaxed)) else {
        channel::close(connection);
        return false;
    };
    desk().forks.keeps.store(1, Ordering::Release);
    desk().forks.attending.store(1, Ordering::Release);
    desk().forks.state.store(HALTED, Ordering::Release);
    futex::wake(&desk().forks.state, i32::MAX);
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
                session.note_back();
                birth_ns = sys::now_ns() + BIRTH_NS;
                continue;
            }
            // No child, or it has ended or become another program.
            Some(None) => break,
            None if sys::now_ns() > birth_ns => false,
            None => continue,
        };
        // Now: what this process has in the swap file is what it had at the fork.
        let inheritance = is_ready.then(swap::Inheritance::new).flatten();
        match pager.settle(&mut session, inheritance.is_some()) {
            Outcome::Inherits { main, gate, copied } => {
                let told = channel::send(connection, channel::INHERITS, copied, Some([main, gate]));
                let inheritance = inheritance.expect("asked for");
                let is_told = match inheritance.told() {
                    Some((row, file)) => channel::send(connection, channel::SWAP, &[row], Some([file, file])),
                    None => told,
                };
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
        break;
    }
    channel::close(connection);
    pager.end_fork(session);
    desk().forks.attending.store(0, Ordering::Release);
    futex::wake(&desk().forks.attending, i32::MAX);
    true
}

/// The child's control thread has taken over: the program may run.
pub fn taken() {
    desk().forks.state.store(RUNNING, Ordering::Release);
    futex::wake(&desk().forks.state, i32::MAX);
}
