//! The control thread: the first thread of uzswap in a program. It joins the ledger, watches the
//! budget, sets up the pager at half of it, and has the program's memory registered when it gets
//! tight.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use doorway::control_page::end;
use pager::{Pager, Watch};
use sys::procfs::{self, ProcFile};
use sys::{arena, futex, thread, PAGE_SIZE};

use crate::accounts::{self, JoinError, Ledgered};
use crate::announce::Kind as Announced;
use crate::control_page::{self, control_page, is_set};
use crate::look::{tight_at, Look};
use crate::{announce, credentials, fork, inherit, paging, retire, start};

static SOCKET: OnceLock<Vec<u8>> = OnceLock::new();

/// Keeps the supervisor's address for this process and its forks.
pub fn remember_socket(name: &CStr) {
    let _ = SOCKET.set(name.to_bytes().to_vec());
}

/// The supervisor's address.
pub fn socket() -> &'static [u8] {
    SOCKET.get().map_or(&[], Vec::as_slice)
}

/// Whether there is a control thread to answer requests.
pub fn is_alive() -> bool {
    is_set(&control_page().is_alive)
}

/// Notes that the caller is the control thread, or that there is none.
pub fn set_alive(alive: bool) {
    if alive {
        control_page().forks.thread.store(sys::threads::own() as u32, Ordering::Release);
    }
    control_page().is_alive.store(alive.into(), Ordering::Release);
}

/// Lets the program's threads know how many threads are not theirs.
fn count_threads() {
    control_page().threads.store(paging::pager().map_or(1, Pager::own_threads), Ordering::Release);
}

/// Sleeps between looks, and does what was asked of the control thread. False when the program has
/// given up rights that the caller is to give up, too.
#[must_use]
fn sleep(accounts: &Ledgered, ns: u64) -> bool {
    end_if_program_ended();
    count_threads();
    let nudge = &control_page().nudge;
    let seen = nudge.load(Ordering::Acquire);
    answer_requests(accounts);
    if credentials::are_wanted() {
        return false;
    }
    futex::wait(nudge, seen, Some(ns));
    answer_requests(accounts);
    accounts.end_if_alone();
    !credentials::are_wanted()
}

/// Between looks whether the program's first thread has ended.
const ENDED_LOOK_NS: u64 = 50_000_000;

/// Ends the process when the program has no thread any more: each of its threads may end by itself,
/// or the kernel ends them one by one (SECCOMP_RET_KILL_THREAD), and the pager's would keep the
/// process for ever. The status is that of the first thread, as it would be without them.
pub fn end_if_program_ended() {
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    let now = sys::now_ns();
    if now.wrapping_sub(LOOKED_NS.load(Ordering::Relaxed)) < ENDED_LOOK_NS {
        return;
    }
    LOOKED_NS.store(now, Ordering::Relaxed);
    if let Some(status) = sys::threads::first_has_ended() {
        let own = paging::pager().map_or(1, Pager::own_threads);
        if sys::threads::count().is_some_and(|all| all <= own + 1) {
            paging::pager().into_iter().for_each(|pager| _ = fork::bring_in_for_others(pager));
            thread::end_process_as(status);
        }
    }
}

/// Says why paging ends, if it does. Before the halt: no system call can be relied on behind it.
fn say_end(accounts: &Ledgered) {
    let why = match control_page().end.swap(end::NONE, Ordering::AcqRel) {
        end::NONE => return,
        end::LOCKED => "mlockall() was called",
        end::BARE_FORK => {
            "it forks by a system call, with a stack of its own, which the kernel does not report"
        }
        end::OPENED => {
            "the program opened its own memory in /proc, where the kernel reads nothing that is out"
        }
        _ => "a seccomp filter for all threads was set",
    };
    let text = pager::FixedText::new(format_args!("paging ends here: {why}"));
    pager::Accounts::say(accounts, text.as_str());
}

fn answer_requests(accounts: &Ledgered) {
    say_end(accounts);
    fork::answer_halt();
    if let Some(pager) = paging::pager() {
        pager.dismiss_gate_reports();
        // The requesting thread may have stopped waiting.
        if is_set(&control_page().references) {
            pager.stop_recycling();
        }
    }
    if let (Some((kind, range, number)), Some(pager)) = (announce::asked(), paging::pager()) {
        match kind {
            Announced::Ordinary => pager.register(range),
            Announced::Unknown => pager.refresh_mappings(),
            Announced::Release => pager.release(range),
            Announced::References => pager.stop_recycling(),
        }
        announce::done(number);
    }
}

/// The agent's first thread in a process, on a stack of its own.
pub fn begin() {
    inherit::keep_spare();
    set_alive(true);
    run(0);
}

pub(crate) extern "C" fn run(_argument: usize) {
    // Once for each time that the program gives up rights.
    while live() && credentials::take() && !fork::has_stopped() {}
    // No thread serves requests any more, so none may wait for a reply.
    set_alive(false);
}

/// False when there is to be no agent in this process; true when the program has given up rights.
fn live() -> bool {
    thread::close_all_files();
    thread::name(c"uzswap");
    thread::hurry();
    credentials::say_own();
    let accounts: &'static Ledgered = match Ledgered::join(socket()) {
        Ok(joined) => Box::leak(Box::new(joined)),
        // The loader found this object a moment ago, by way of the supervisor. Gone since means
        // killed, and then nothing of its tree is to be left.
        Err(JoinError::NoSupervisor) => accounts::kill_process(),
        // The supervisor knows, or finds out, and says so.
        Err(JoinError::Refused | JoinError::Elsewhere | JoinError::NoDescriptor) => return false,
    };
    if accounts.ledger().settings().lends {
        sys::privileged::set(&RIGHTS);
        control_page().forks.lends.store(1, Ordering::Relaxed);
    }
    share_figures(accounts);
    let statm = ProcFile::open_own(c"statm").map_err(|error| format!("/proc/thread-self/statm: {error}"));
    let managed = statm.map_err(Into::into).and_then(|statm| -> Result<_, Box<dyn std::error::Error>> {
        // Setting up takes some milliseconds, and registers nothing yet.
        if !wait_for(accounts, &statm, |look| look.budget / 2, || false) {
            return Ok(None);
        }
        let pager = paging::set_up(accounts)?;
        pager.note_found();
        // Relatives have something registered, or will have it as soon as they are to inherit this
        // pager.
        let registers_at = |look: &Look| {
            let mark = look.registers_at(control_page::is_shared());
            // New mappings are announced from there on.
            control_page().tight_bytes.store(mark, Ordering::Relaxed);
            mark
        };
        if !wait_for(accounts, &statm, registers_at, fork::has_forked) {
            return Ok(None);
        }
        share_figures(accounts);
        pager.refresh_mappings();
        start::give_back_stack();
        Ok(Some(pager))
    });
    match managed {
        Ok(Some(pager)) => watch(pager, accounts),
        Ok(None) => {}
        Err(error) => {
            accounts.unmanaged(&error.to_string());
            // With the threads that were started already.
            retire::retire();
            return false;
        }
    }
    true
}

static RIGHTS: &dyn sys::privileged::PrivilegedHelper = &accounts::Rights;

/// Lets the program's threads tell the agent's memory from the program's.
pub fn share_arena() {
    let own = arena::range();
    control_page().arena[0].store(own.start, Ordering::Relaxed);
    control_page().arena[1].store(own.end, Ordering::Release);
}

/// Lets the program's threads see how near the tree is to its budget.
pub(crate) fn share_figures(accounts: &'static Ledgered) {
    use pager::Accounts;
    control_page().tight_bytes.store(tight_at(accounts.budget()), Ordering::Relaxed);
    let [own, others] = accounts.ledger().total_addresses();
    control_page().others.store(others, Ordering::Release);
    control_page().total.store(own, Ordering::Release);
}

/// Publishes this process's use until the tree's is up to `mark` and, if it has no pager yet, its
/// own is worth one. Ends early when `is_over`. False when the program has given up rights.
fn wait_for(
    accounts: &'static Ledgered,
    statm: &ProcFile,
    mark: impl Fn(&Look) -> u64,
    is_over: fn() -> bool,
) -> bool {
    use pager::Accounts;
    loop {
        let mut buffer = [0; 128];
        let text = statm.read_at(&mut buffer, 0);
        let own = procfs::anonymous_bytes(text).unwrap_or(0);
        // The arena counts as a stack, all of it.
        let not_program = own.saturating_add(arena::range().len() as u64);
        let untouched = procfs::sizes(text)
            .map_or(0, |(_, data)| (data.saturating_mul(PAGE_SIZE as u64)).saturating_sub(not_program));
        accounts.publish(own, 0, 0, 0);
        let (budget, total) = (accounts.budget(), accounts.total());
        let look = Look { budget, total, own, untouched };
        let mark = mark(&look);
        // Nothing is paged yet, so a pause is nothing but not to begin.
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

/// Whether a debugger waits for access.
fn is_pause_wanted(accounts: &Ledgered) -> bool {
    accounts.slot().is_some_and(ledger::Slot::is_pause_wanted)
}

/// Between looks whether a pause is over.
const PAUSE_LOOK_NS: u64 = 10_000_000;

/// Brings everything in and pages nothing while a pause is wanted. False when the program has given
/// up rights.
fn pause(pager: &'static Pager, accounts: &'static Ledgered) -> bool {
    let Some(slot) = accounts.slot() else { return true };
    while slot.is_pause_wanted() {
        // A fork in between lets everybody go on.
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

/// Watches over everything until the program gives up rights.
pub(crate) fn watch(pager: &'static Pager, accounts: &'static Ledgered) {
    let mut watch = Watch::default();
    let mut relatives = accounts.relatives();
    loop {
        if is_pause_wanted(accounts) && !pause(pager, accounts) {
            return;
        }
        if fork::has_forked() && accounts.relatives() != relatives {
            relatives = accounts.relatives();
            pager.note_relatives();
        }
        let (_, next_ns) = pager.watch(&mut watch);
        if fork::has_forked() {
            pager.measure_shared(&mut watch);
        }
        if !sleep(accounts, next_ns) {
            return;
        }
    }
}
