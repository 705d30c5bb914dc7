//! The control thread: the first thread of uzswap in a program. It joins the ledger, watches the
//! budget, sets up the pager at half of the budget, and registers the program's memory when the
//! budget is nearly used.

use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorway::control_page::end;
use ledger::wire::Kind;
use pager::{Pager, Watch};
use sys::procfs::{self, ProcFile};
use sys::{arena, futex, thread, PAGE_SIZE};

use crate::accounts::{self, JoinError, Ledgered};
use crate::control_page::{self, control_page, is_set};
use crate::look::{tight_at, Usage};
use crate::state::AGENT;
use crate::{announce, credentials, fork, inherit, paging, retire, segments, start};

/// Keeps the supervisor's address for this process and its forks.
pub fn remember_socket(name: &CStr) {
    let _ = AGENT.start.socket.set(name.to_bytes().to_vec());
}

/// The supervisor's address.
pub fn socket() -> &'static [u8] {
    AGENT.start.socket.get().map_or(&[], Vec::as_slice)
}

/// Notes that the supervisor is attached to the program.
pub fn note_attached() {
    AGENT.start.attached.store(true, Ordering::Relaxed);
}

/// Whether the supervisor came later than the program.
pub fn is_attached() -> bool {
    AGENT.start.attached.load(Ordering::Relaxed)
}

/// Whether a control thread serves requests.
pub fn is_alive() -> bool {
    is_set(&control_page().is_alive)
}

/// Notes whether the calling thread is a control thread. If the kernel ends it alone (a filter for
/// all threads, SECCOMP_RET_KILL_THREAD), no thread of the program waits for it.
pub fn set_alive(alive: bool) {
    thread::clear_at_end(alive.then_some(&control_page().is_alive));
    control_page().is_alive.store(alive.into(), Ordering::Release);
}

/// Sleeps between looks, and serves requests. Returns false when the program has given up rights
/// that the caller must also give up, and when the pager must leave the program.
#[must_use]
fn sleep(accounts: &Ledgered, ns: u64) -> bool {
    end_if_program_ended();
    let seen = control_page().nudge.load(Ordering::Acquire);
    answer_requests(accounts);
    if credentials::are_wanted() || is_leave_wanted(accounts) {
        return false;
    }
    rest(seen, ns);
    answer_requests(accounts);
    accounts.end_if_alone();
    !credentials::are_wanted() && !is_leave_wanted(accounts)
}

/// Sleeps until the program asks for something that it had not asked for when the word `nudge` was
/// `seen`, or has ended.
fn rest(seen: u32, ns: u64) {
    let nudge = &control_page().nudge;
    match first_word() {
        // The kernel clears it and wakes this thread.
        Some(word) if futex::wait_for_either([(nudge, seen), (word, program())], ns) => {
            if word.load(Ordering::Acquire) != program() {
                AGENT.looks.ended_ns.store(0, Ordering::Relaxed);
                end_if_program_ended();
            }
        }
        _ => futex::wait(nudge, seen, Some(ns.min(ENDED_LOOK_NS))),
    }
}

fn is_leave_wanted(accounts: &Ledgered) -> bool {
    accounts.slot().is_some_and(ledger::Slot::is_leave_wanted)
}

/// The program's process id.
pub fn program() -> u32 {
    control_page().process.load(Ordering::Acquire)
}

/// The word that the kernel clears when the program's first thread ends or executes a program,
/// while it has its value.
fn first_word() -> Option<&'static AtomicU32> {
    let address = control_page().first_word.load(Ordering::Acquire);
    // SAFETY: null, or a word in a control block of the program's memory, which the agent has, too.
    // The pager does not move it out.
    let word = unsafe { (address as *const AtomicU32).as_ref() }?;
    (word.load(Ordering::Acquire) == program()).then_some(word)
}

/// Interval between checks whether the program has ended, where the kernel does not tell.
const ENDED_LOOK_NS: u64 = 10_000_000;

/// Times of the control thread's last looks, and the reasons that it has reported.
pub(crate) struct Looks {
    /// When it last checked whether the program has ended.
    ended_ns: AtomicU64,
    /// When it last looked at the program's rights.
    pub credentials_ns: AtomicU64,
    /// Reported reasons why forks bring everything in, inherited by children.
    pub reported_forks: AtomicU32,
}

impl Looks {
    pub(crate) const fn new() -> Self {
        let [ended_ns, credentials_ns] = [const { AtomicU64::new(0) }; 2];
        Looks { ended_ns, credentials_ns, reported_forks: AtomicU32::new(0) }
    }
}

/// Ends the agent when no process needs it: the program has ended or has executed another program,
/// and no other process has this memory.
pub fn end_if_program_ended() {
    let now = sys::now_ns();
    if now.wrapping_sub(AGENT.looks.ended_ns.load(Ordering::Relaxed)) < ENDED_LOOK_NS {
        return;
    }
    AGENT.looks.ended_ns.store(now, Ordering::Relaxed);
    let nonce = &control_page().nonce;
    let has = |pid: i32| sys::process::has_this_memory(pid, nonce);
    // A thread that has ended has no memory, the first one either.
    if has(program() as i32) || sys::threads::any(has) {
        return;
    }
    // Children that the kernel reported last have yet to get their pages.
    if paging::pager().is_some_and(Pager::has_messages) {
        return;
    }
    // Another process may need evicted pages.
    let own = std::process::id() as i32;
    let others = || sys::directory::names(Path::new("/proc")).unwrap_or_default();
    let is_shared = paging::pager().is_some()
        && others().iter().filter_map(|name| name.to_str()?.parse().ok()).any(|pid| pid != own && has(pid));
    if !is_shared {
        thread::exit_process(0);
    }
}

/// Reports why paging ends, if it does. Before the halt: no system call is reliable after it.
fn say_end(accounts: &Ledgered) {
    let end = control_page().end.swap(end::NONE, Ordering::AcqRel);
    let why = match end {
        end::NONE => return,
        end::LOCKED => "mlockall() was called",
        end::BARE_FORK => {
            "it forks by a system call, with a stack of its own, which the kernel does not report"
        }
        end::OPENED => {
            "the program opened its own memory in /proc, where the kernel reads nothing that is out"
        }
        end::CONFINED => "the program changes its security profile, which its pager would not have",
        _ => "a seccomp filter for all threads was set",
    };
    let text = pager::FixedText::new(format_args!("paging ends here: {why}"));
    if end == end::CONFINED {
        // The supervisor may not inject another agent before the change.
        let _ = accounts::tell(Kind::Unmanaged, text.as_str());
    } else {
        pager::Accounts::say(accounts, text.as_str());
    }
}

fn answer_requests(accounts: &Ledgered) {
    say_end(accounts);
    fork::serve_request();
    if let Some(pager) = paging::pager() {
        pager.dismiss_gate_reports();
        // The requesting thread may have stopped waiting.
        if is_set(&control_page().references) {
            pager.stop_recycling();
        }
        announce::serve(&control_page().announcement, pager);
    }
}

/// The agent's first thread in a process, on its own stack.
pub fn begin() -> ! {
    stand_apart();
    inherit::keep_spare();
    set_alive(true);
    live(Phase::Joining)
}

/// Makes this process independent of the program's: signals to the program's group do not reach it.
/// The program may take descriptors from it.
pub(crate) fn stand_apart() {
    let page = control_page();
    page.agent.store(std::process::id(), Ordering::Release);
    thread::clear_at_end(Some(&page.is_alive));
    // SAFETY: attributes of this process.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PTRACER, program() as libc::c_ulong);
    }
    let number = page.number.load(Ordering::Acquire);
    sys::threads::look_at(program() as i32, if number == 0 { program() } else { number } as i32);
}

/// The agent's life. Each phase ends with the next one.
pub(crate) enum Phase {
    /// It has no place in the ledger.
    Joining,
    /// The program is small, or the tree has room.
    Young(&'static Ledgered),
    /// The program's memory is registered.
    Managing(&'static Pager, &'static Ledgered),
    /// The program has given up rights that the agent has.
    Yielding,
    /// The process has no agent from now on.
    Retired,
}

pub(crate) fn live(mut phase: Phase) -> ! {
    loop {
        phase = match phase {
            Phase::Joining => join(),
            Phase::Young(accounts) => grow(accounts),
            Phase::Managing(pager, accounts) => {
                watch(pager, accounts);
                interrupted(accounts)
            }
            Phase::Yielding if credentials::take() && !fork::has_stopped() => Phase::Joining,
            Phase::Yielding | Phase::Retired => break,
        }
    }
    // No thread serves requests after this, so none may wait for a reply.
    set_alive(false);
    thread::exit_process(0)
}

/// The phase after a wait that a request of the program or the supervisor ended.
fn interrupted(accounts: &Ledgered) -> Phase {
    if !is_leave_wanted(accounts) {
        return Phase::Yielding;
    }
    // With a pager, this is said when all pages are in.
    if paging::pager().is_none() {
        accounts.done();
    }
    retire::retire();
    Phase::Retired
}

fn join() -> Phase {
    segments::forget();
    thread::close_all_files();
    thread::renounce_new_rights();
    thread::name(c"uzswap");
    thread::hurry();
    credentials::say_own();
    let accounts: &'static Ledgered = match Ledgered::join(socket()) {
        Ok(joined) => Box::leak(Box::new(joined)),
        // The supervisor injected this object. If it is gone, it was killed, and its tree must end.
        Err(JoinError::NoSupervisor) if is_attached() => return Phase::Retired,
        Err(JoinError::NoSupervisor) => accounts::kill_process(),
        Err(JoinError::Interrupted) => return Phase::Yielding,
        // The supervisor knows this or finds out, and reports it.
        Err(JoinError::Refused | JoinError::NoDescriptor) => return Phase::Retired,
    };
    if accounts.ledger().settings().lends {
        sys::privileged::set(&RIGHTS);
        control_page().forks.lends.store(1, Ordering::Relaxed);
    }
    share_figures(accounts);
    Phase::Young(accounts)
}

/// Waits until the program is worth a pager, then until its memory must be registered.
fn grow(accounts: &'static Ledgered) -> Phase {
    let statm = match ProcFile::open_own(c"statm") {
        Ok(statm) => statm,
        Err(error) => {
            accounts.unmanaged(&format!("/proc/thread-self/statm: {error}"));
            retire::retire();
            return Phase::Retired;
        }
    };
    // Setting up takes some milliseconds and registers nothing yet.
    if !wait_for(accounts, &statm, |look| look.budget / 2, || false) {
        return interrupted(accounts);
    }
    let pager = match paging::set_up(accounts) {
        Ok(pager) => pager,
        Err(error) => {
            accounts.unmanaged(&error.to_string());
            if paging::pager().is_some() {
                // Including the threads that were already started.
                retire::retire();
                return Phase::Retired;
            }
            // Its memory counts until it gives up rights.
            wait_for(accounts, &statm, |_| u64::MAX, || false);
            return interrupted(accounts);
        }
    };
    pager.note_found();
    // Relatives have memory registered, or will when they inherit this pager.
    let registers_at = |look: &Usage| {
        let mark = look.registers_at(control_page::is_shared());
        // The program announces new mappings from this mark on.
        control_page().tight_bytes.store(mark, Ordering::Relaxed);
        mark
    };
    if !wait_for(accounts, &statm, registers_at, fork::has_forked) {
        return interrupted(accounts);
    }
    share_figures(accounts);
    pager.refresh_mappings();
    start::give_back_stack();
    Phase::Managing(pager, accounts)
}

/// Asks the supervisor where this process lacks a right.
const RIGHTS: &dyn sys::privileged::PrivilegedHelper = &accounts::Rights;

/// Publishes the arena's range, which tells the agent's memory from the program's.
pub fn share_arena() {
    let own = arena::range();
    control_page().arena[0].store(own.start, Ordering::Relaxed);
    control_page().arena[1].store(own.end, Ordering::Release);
}

/// Publishes the tree's use and budget to the program's threads.
pub(crate) fn share_figures(accounts: &'static Ledgered) {
    use pager::Accounts;
    control_page().tight_bytes.store(tight_at(accounts.budget()), Ordering::Relaxed);
    let [own, others] = accounts.ledger().total_addresses();
    control_page().others.store(others, Ordering::Release);
    control_page().total.store(own, Ordering::Release);
}

/// Publishes this process's use until the tree's use reaches `mark` and, without a pager yet, its
/// own is worth one. Returns early when `is_over`, and false as [`sleep`] does.
fn wait_for(
    accounts: &'static Ledgered,
    statm: &ProcFile,
    mark: impl Fn(&Usage) -> u64,
    is_over: fn() -> bool,
) -> bool {
    use pager::Accounts;
    loop {
        let mut buffer = [0; 128];
        let text = statm.read_at(&mut buffer, 0);
        let own = procfs::anonymous_bytes(text).unwrap_or(0);
        // The kernel counts the whole arena as a stack.
        let not_program = own.saturating_add(arena::range().len() as u64);
        let untouched = procfs::sizes(text)
            .map_or(0, |(_, data)| (data.saturating_mul(PAGE_SIZE as u64)).saturating_sub(not_program));
        note_forked(accounts);
        let own = own.saturating_sub(accounts.share().others_bytes);
        accounts.publish(own, 0, 0, 0);
        let (budget, total) = (accounts.budget(), accounts.total());
        let look = Usage { budget, total, own, untouched };
        let mark = mark(&look);
        // Nothing is paged yet, so pausing only means not to begin.
        let pauses = is_pause_wanted(accounts);
        accounts.slot().into_iter().for_each(|slot| slot.set_paused(pauses));
        if (total >= mark && look.is_worth_a_pager() || is_over()) && !pauses {
            return true;
        }
        if !sleep(accounts, look.next_ns(mark)) {
            return false;
        }
    }
}

/// Tells the supervisor that this process may share memory with relatives.
fn note_forked(accounts: &Ledgered) {
    if fork::has_forked() {
        accounts.slot().into_iter().for_each(ledger::Slot::note_forked);
    }
}

/// Whether a debugger waits for access.
fn is_pause_wanted(accounts: &Ledgered) -> bool {
    accounts.slot().is_some_and(ledger::Slot::is_pause_wanted)
}

/// Interval between checks whether a pause is over.
const PAUSE_LOOK_NS: u64 = 10_000_000;

/// Pages nothing during a pause. Returns false as [`sleep`] does.
fn pause(pager: &'static Pager, accounts: &'static Ledgered) -> bool {
    let Some(slot) = accounts.slot() else { return true };
    while slot.is_pause_wanted() {
        // A fork during the pause releases all threads.
        if !pager.is_halted() {
            pager.halt();
        }
        slot.set_paused(true);
        pager.measure();
        if !sleep(accounts, PAUSE_LOOK_NS) {
            return false;
        }
    }
    slot.set_paused(false);
    pager.resume();
    true
}

/// Runs until the program gives up rights or the pager must leave it.
fn watch(pager: &'static Pager, accounts: &'static Ledgered) {
    let mut watch = Watch::default();
    loop {
        if is_pause_wanted(accounts) && !pause(pager, accounts) {
            return;
        }
        note_forked(accounts);
        let (_, next_ns) = pager.watch(&mut watch);
        if !sleep(accounts, next_ns) {
            return;
        }
    }
}
