//! The control thread: the first thread of uzswap in a program. It joins the ledger, watches the
//! budget, sets up the pager at half of it, and has the program's memory registered when it gets
//! tight.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use doorway::control_page::{end, RESTART};
use pager::{Config, NamedPages, Pager, Watch};
use sys::procfs::{self, ProcFile};
use sys::thread;
use sys::{arena, futex, PAGE_SIZE};
use zswap::{Forms, Zswap};

use crate::accounts::{self, JoinError, Ledgered};
use crate::announce::Kind as Announced;
use crate::control_page::{self, control_page, is_set};
use crate::{announce, broken, channel, credentials, fork, retire, start, swap, threads};

static SOCKET: OnceLock<Vec<u8>> = OnceLock::new();
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// Room under the budget that registering is started with, up to half of a small budget.
const HEAD_START_BYTES: u64 = 128 << 20;
/// The same where one process uses nearly all and says what it maps: what it can touch between two
/// looks that come in time.
const HEAD_START_ALONE_BYTES: u64 = 24 << 20;
/// Below this a process is not worth a pager: its threads and tables would take more than can be
/// saved.
const MANAGED_BYTES_MIN: u64 = 4 << 20;
/// Some processes together can touch new memory about so fast; the watch looks often enough not to
/// be overrun.
const TOUCH_BYTES_PER_NS: u64 = 8;
/// The same where mappings have more untouched memory than there is room: two threads were seen to
/// touch huge pages at 20.
const BURST_BYTES_PER_NS: u64 = 64;
/// Between looks at processes too small to be worth a pager.
const SMALL_NS: u64 = 5_000_000;
/// New mappings from this size on have the watch look at once.
const BURST_BYTES: usize = 16 << 20;

/// Keeps the supervisor's address for this process and its forks.
pub fn remember_socket(name: &CStr) {
    let _ = SOCKET.set(name.to_bytes().to_vec());
}

/// The supervisor's address.
pub fn socket() -> &'static [u8] {
    SOCKET.get().map_or(&[], Vec::as_slice)
}

/// What the environment says about emulated accelerators, if anything.
static EMULATE: OnceLock<String> = OnceLock::new();

/// Keeps what the environment said at the start about emulated accelerators.
pub fn remember_emulation(spec: &str) {
    let _ = EMULATE.set(spec.to_owned());
}

/// The pager, once there is one.
pub fn pager() -> Option<&'static Pager> {
    // SAFETY: null or a leaked box, which lives for ever.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
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

/// In a forked child: there is no pager any more. The parent's tables stay as dead weight; its key
/// does not. Whether there is a control thread stays as it is: the program's threads that wait for
/// this one's reply would take "none" for leave to go on.
pub fn forget_pager() {
    control_page().has_pager.store(0, Ordering::Release);
    swap::forget();
    PAGER.store(std::ptr::null_mut(), Ordering::Release);
    HANDLERS.store(0, Ordering::Release);
}

/// Takes away what the program's threads ask a pager by.
pub fn close_desk() {
    control_page().has_pager.store(0, Ordering::SeqCst);
    control_page().total.store(0, Ordering::Release);
    control_page().others.store(0, Ordering::Release);
}

/// Takes the pager from those who look for it. No other thread has a reference to it.
pub fn take_pager() -> Option<Box<Pager>> {
    HANDLERS.store(0, Ordering::Release);
    CHILDREN_INHERIT.store(false, Ordering::Relaxed);
    let pager = PAGER.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null or a leaked box without users: all threads but the calling one have ended.
    (!pager.is_null()).then(|| unsafe { Box::from_raw(pager) })
}

/// Lets the program's threads know how many threads are not theirs.
fn count_threads() {
    control_page().threads.store(pager().map_or(1, Pager::own_threads), Ordering::Release);
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
/// and the pager's would keep the process for ever. The status is that of the first thread, as it
/// would be without them.
pub fn end_if_program_ended() {
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    let now = sys::now_ns();
    if now.wrapping_sub(LOOKED_NS.load(Ordering::Relaxed)) < ENDED_LOOK_NS {
        return;
    }
    LOOKED_NS.store(now, Ordering::Relaxed);
    if let Some(status) = sys::threads::first_has_ended() {
        let own = pager().map_or(1, Pager::own_threads);
        if sys::threads::count().is_some_and(|all| all <= own + 1) {
            pager().into_iter().for_each(|pager| _ = fork::bring_in_for_others(pager));
            thread::exit_process(status);
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
    if let Some(pager) = pager() {
        pager.dismiss_gate_reports();
        // The requesting thread may have stopped waiting.
        if is_set(&control_page().references) {
            pager.stop_recycling();
        }
    }
    if let (Some((kind, range, number)), Some(pager)) = (announce::asked(), pager()) {
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
    keep_spare();
    set_alive(true);
    run(0);
}

extern "C" fn run(_argument: usize) {
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
        let pager = set_up(accounts)?;
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

/// Why a process is not managed whose forks are neither announced nor reported.
const BARE_FORKS: &str =
    "its forks cannot be seen, as it does not load uzswap's object: run as root, or `sudo setcap \
    cap_sys_ptrace+ep` the uzswap program";

static RIGHTS: &dyn sys::privileged::PrivilegedHelper = &accounts::Rights;

/// Lets the program's threads tell the agent's memory from the program's.
pub fn share_arena() {
    let own = arena::range();
    control_page().arena[0].store(own.start, Ordering::Relaxed);
    control_page().arena[1].store(own.end, Ordering::Release);
}

/// Lets the program's threads see how near the tree is to its budget.
fn share_figures(accounts: &'static Ledgered) {
    use pager::Accounts;
    control_page().tight_bytes.store(tight_at(accounts.budget()), Ordering::Relaxed);
    let [own, others] = accounts.ledger().total_addresses();
    control_page().others.store(others, Ordering::Release);
    control_page().total.store(own, Ordering::Release);
}

/// The use at which memory is tight, with room for what several processes touch between two looks.
fn tight_at(budget: u64) -> u64 {
    (budget / 6 * 5).min(budget.saturating_sub(HEAD_START_BYTES)).max(budget / 2)
}

/// What a look shows, in bytes.
struct Look {
    budget: u64,
    /// Of the tree.
    total: u64,
    /// Of this process.
    own: u64,
    /// Mapped by this process and never touched, or given back.
    untouched: u64,
}

impl Look {
    /// The use of the tree at which the program's memory is registered: early enough that a fast
    /// program does not overrun the budget before the next look, and no earlier. From then on each
    /// first touch that is not one of a run is a fault that a handler serves, which takes far
    /// longer than the kernel, so a program that just fits is not to get there.
    ///
    /// Most of what is mapped and untouched stays so (stacks, an allocator's reserves), and looks
    /// come often where there is more of it than room.
    fn registers_at(&self, says_what_it_maps: bool) -> u64 {
        let tight = tight_at(self.budget);
        if !says_what_it_maps || self.own < self.total / 8 * 7 {
            return tight;
        }
        self.budget.saturating_sub(HEAD_START_ALONE_BYTES + self.untouched / 4).max(tight)
    }
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
        let mark = mark(&Look { budget, total, own, untouched });
        // Nothing is paged yet, so a pause is nothing but not to begin.
        let pauses = is_pause_wanted(accounts);
        accounts.slot().into_iter().for_each(|slot| slot.set_paused(pauses));
        if (total >= mark && own >= MANAGED_BYTES_MIN || is_over()) && !pauses {
            return true;
        }
        let room = mark.saturating_sub(total);
        let rate = if untouched < room { TOUCH_BYTES_PER_NS } else { BURST_BYTES_PER_NS };
        // The many small processes of a large tree need no close watch, and none has room to grow
        // fast.
        let is_small = own < MANAGED_BYTES_MIN && untouched < BURST_BYTES as u64;
        let least = if is_small { SMALL_NS } else { 500_000 };
        if !sleep(accounts, (room / rate).clamp(least, 100_000_000)) {
            return false;
        }
    }
}

fn set_up(accounts: &'static Ledgered) -> Result<&'static Pager, Box<dyn std::error::Error>> {
    use pager::Accounts;
    if let Some(why) = accounts::too_few_descriptors() {
        return Err(why.into());
    }
    let settings = accounts.ledger().settings();
    let without = settings.without;
    accounts.open_recorder();
    let folio_pages = settings.folio_bytes as usize / PAGE_SIZE;
    let staging_bytes = pager::staging_bytes(accounts.budget(), folio_pages);
    let mut cpus = [0; pager::HANDLERS_MAX];
    let cpu_count = thread::allowed_cpus(&mut cpus);
    let config = Config {
        folio_pages,
        staging_pages: staging_bytes / PAGE_SIZE,
        handlers: cpu_count,
        own: start::own_ranges(),
        only: None,
        kept: NamedPages {
            count: || control_page().cleared.count().wrapping_add(control_page().robust.count()),
            each: |each| {
                control_page().cleared.for_each(each);
                control_page().robust.for_each(each);
            },
        },
        executable: pager::executable::dominates(),
        records: accounts.records(),
        without_move: without & ledger::WITHOUT_MOVE != 0,
        without_scan: without & ledger::WITHOUT_SCAN != 0,
        without_tracking: without & ledger::WITHOUT_TRACKING != 0,
    };
    let mut registry = acomp::Registry::new();
    codecs::register_all(&mut registry);
    // No threads may be started here: engines of emulated devices work in the submitting thread.
    #[cfg(feature = "iaa")]
    iaa::register_with(&mut registry, iaa::Options { emulate: EMULATE.get().cloned(), inline: true });
    let algorithm = registry.find(&settings.compressor)?;
    let swap_file = match settings.swap_bytes {
        0 => None,
        _ => {
            let plain = without & ledger::WITHOUT_ENCRYPTION != 0;
            swap::open(accounts.socket(), accounts.owner(), plain)
                .map_err(|error| format!("the swap file: {error}"))?
        }
    };
    let store = Zswap::new(
        zswap::Config {
            max_groups: pager::POOL_GROUPS,
            verify: settings.verify || cfg!(debug_assertions),
            batch: settings.batch as usize,
            tally: Some(tally),
            swap: swap_file,
            ..Default::default()
        },
        algorithm,
    )?;
    let pager: &'static Pager = Box::leak(Box::new(Pager::new(config, store, accounts)?));
    swap::count_threads(pager);
    // Its children would find zeroes where its pages are out, without a report.
    if !pager.reports_forks() {
        if !control_page::is_shared() {
            return Err(BARE_FORKS.into());
        }
        control_page().forks.unreported.store(1, Ordering::Release);
    }
    accounts.keep(pager.descriptor());
    accounts.slot().into_iter().for_each(ledger::Slot::set_managed);
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    // In one order with the references below, which a thread notes before it looks whether there is
    // a pager.
    control_page().has_pager.store(1, Ordering::SeqCst);
    ACCOUNTS.store(std::ptr::from_ref(accounts).cast_mut(), Ordering::Release);
    let can_fork = pager.can_fork() && swap::can_be_inherited() && pager.store().survives_fork();
    CHILDREN_INHERIT.store(can_fork, Ordering::Relaxed);
    if pager.needs_drainer() {
        for cpu in &cpus[..cpu_count] {
            threads::spawn(drainer, *cpu)?;
        }
    }
    // Looked at once the pager can be told, as it is told once it can be looked at.
    std::sync::atomic::fence(Ordering::SeqCst);
    if is_set(&control_page().references) {
        pager.stop_recycling();
    }
    start_threads(pager)?;
    if CHILDREN_INHERIT.load(Ordering::Relaxed) {
        fork::keep();
    }
    Ok(pager)
}

static ACCOUNTS: AtomicPtr<Ledgered> = AtomicPtr::new(std::ptr::null_mut());

/// Counts the forms of pages that were just stored, in this process's slot.
fn tally(forms: &Forms) {
    // SAFETY: null, or a leaked box.
    if let Some(slot) = unsafe { ACCOUNTS.load(Ordering::Acquire).as_ref() }.and_then(Ledgered::slot) {
        for (number, pages) in forms.pages.iter().enumerate().filter(|(_, pages)| **pages > 0) {
            slot.add_form(number, u64::from(*pages));
        }
        slot.add(ledger::Counter::CompressRequests, forms.requests.into());
        slot.add(ledger::Counter::CompressUnits, forms.units.into());
    }
}
const _: () = assert!(zswap::FORMS_MAX == ledger::FORMS_MAX);

/// Whether forked children go on with this process's pager.
static CHILDREN_INHERIT: AtomicBool = AtomicBool::new(false);

/// The control thread of a forked child, made by the program's thread from what [`keep_spare`] left
/// ready. `channel` is the connection to the parent's, or [`RESTART`].
extern "C" fn begin_child(channel: usize) {
    threads::forget();
    keep_spare();
    if channel == RESTART {
        forget_pager();
        set_alive(true);
        run(0);
    } else {
        inherit(channel as i32);
    }
}

/// Leaves a thread ready for a forked child: its stack and its thread-local storage.
fn keep_spare() {
    let Ok((stack, pointer)) = threads::prepare(begin_child) else { return };
    let spare = &control_page().forks.spare;
    spare[1].store(pointer, Ordering::Relaxed);
    spare[0].store(stack, Ordering::Release);
}

/// Continues with what the parent left where it was.
fn inherit(channel: i32) {
    thread::close_all_files_but(channel);
    // Out of the way of descriptors that get the numbers that they have in the parent.
    let channel = match thread::renumber_above(channel, fork::numbers_end()) {
        Ok(above) => above,
        Err(error) => end_child(format_args!("no descriptor is left: {error}")),
    };
    thread::name(c"uzswap");
    thread::hurry();
    channel::send(channel, channel::TAKE, &[], None);
    let answer = channel::receive(channel);
    let kept = match &answer {
        Some(message) if message.word() == channel::INHERITS && message.descriptors[1] >= 0 => message,
        Some(message) if message.word() == channel::COMPLETE => {
            // Everything is in place, and the parent's tables are dead weight.
            forget_pager();
            set_alive(!fork::expects_filter());
            fork::taken();
            if is_alive() {
                run(0);
            }
            return;
        }
        // With the parent went what this process's pages are in.
        _ => end_child(format_args!("its parent was killed before it had handed its memory over")),
    };
    let pager = pager().expect("the parent had one");
    let mut given = kept.descriptors;
    if pager.store().swap_file().is_some() {
        let inherited = match channel::receive(channel) {
            Some(told) if told.word() == channel::SWAP && told.descriptors[0] >= 0 => {
                channel::close(told.descriptors[1]);
                swap::inherit(told.rest().first().copied().unwrap_or(0), told.descriptors[0], &mut given)
            }
            _ => end_child(format_args!("its parent was killed before it had handed its memory over")),
        };
        if let Err(error) = inherited {
            end_child(format_args!("it cannot go on with the swap file: {error}"));
        }
    }
    if is_set(&control_page().forks.outside) {
        let root = channel::receive(channel).filter(|told| told.word() == channel::ROOT);
        let entered = root.is_some_and(|told| {
            let entered = fork::enter_root(told.descriptors[0]);
            told.descriptors.into_iter().for_each(channel::close);
            entered
        });
        if !entered {
            end_child(format_args!("it cannot leave its root directory"));
        }
        control_page().forks.outside.store(0, Ordering::Release);
    }
    channel::close(channel);
    // SAFETY: set together with the pager, which is there; a leaked box.
    let accounts: &'static Ledgered = unsafe { &*ACCOUNTS.load(Ordering::Acquire) };
    accounts.leave();
    HANDLERS.store(0, Ordering::Release);
    if let Err(error) = pager.inherit(given[0], given[1], kept.rest()) {
        end_child(format_args!("it cannot go on with its parent's memory: {error}"));
    }
    swap::count_threads(pager);
    if let Err(error) = start_threads(pager) {
        end_child(format_args!("no thread: {error}"));
    }
    fork::keep();
    set_alive(true);
    fork::taken();
    match accounts.rejoin(socket()) {
        Ok(()) => {
            swap::note_place(accounts.owner());
            share_figures(accounts);
            accounts.keep(pager.descriptor());
            accounts.slot().into_iter().for_each(ledger::Slot::set_managed);
            watch(pager, accounts);
            if credentials::take() && !fork::has_stopped() {
                return run(0);
            }
        }
        Err(JoinError::NoSupervisor) => accounts::kill_process(),
        Err(JoinError::Refused | JoinError::Elsewhere | JoinError::NoDescriptor) => {
            fork::note_stopped();
            retire::retire();
        }
    }
    set_alive(false);
}

/// Ends a forked child whose pages cannot be brought in.
fn end_child(why: std::fmt::Arguments<'_>) -> ! {
    broken::tell(pager::FixedText::new(format_args!("a forked child is ended: {why}")).as_str());
    accounts::kill_process()
}

fn start_threads(pager: &'static Pager) -> std::io::Result<()> {
    let mut cpus = [0; pager::HANDLERS_MAX];
    let cpu_count = thread::allowed_cpus(&mut cpus).min(pager.handlers_max()).max(1);
    for cpu in &cpus[..cpu_count] {
        threads::spawn(handler, *cpu)?;
    }
    for index in 0..(cpu_count - 1).clamp(1, 4) {
        threads::spawn(worker, index)?;
    }
    if pager.store().swap_file().is_some() {
        threads::spawn(writer, 0)?;
        for index in 0..pager::DISK_THREADS {
            threads::spawn(reader, index)?;
        }
    }
    Ok(())
}

/// Whether that is the address of what handlers run.
pub fn is_handler(entry: usize) -> bool {
    entry == handler as *const () as usize
}

static HANDLERS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(cpu: usize) {
    thread::name(c"uzswap-fault");
    thread::hurry();
    thread::pin(cpu);
    let index = HANDLERS.fetch_add(1, Ordering::Relaxed);
    // None when setting up failed after all.
    if let Some(pager) = pager() {
        pager.handle_faults(index);
    }
}

extern "C" fn drainer(cpu: usize) {
    thread::name(c"uzswap-events");
    thread::hurry();
    thread::pin(cpu);
    pager().expect("set before threads start").drain_events(cpu);
}

extern "C" fn worker(_index: usize) {
    thread::name(c"uzswap-reclaim");
    if let Some(pager) = pager() {
        pager.reclaim();
    }
}

extern "C" fn writer(_index: usize) {
    thread::name(c"uzswap-writer");
    if let Some(pager) = pager() {
        pager.write_to_disk();
    }
}

extern "C" fn reader(index: usize) {
    thread::name(c"uzswap-reader");
    thread::hurry();
    if let Some(pager) = pager() {
        pager.read_from_disk(index);
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
fn watch(pager: &'static Pager, accounts: &'static Ledgered) {
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

#[cfg(test)]
mod tests {
    use super::{tight_at, Look};

    const MIB: u64 = 1 << 20;

    fn look(budget: u64, others: u64, own: u64, untouched: u64) -> Look {
        Look { budget: budget * MIB, total: (others + own) * MIB, own: own * MIB, untouched: untouched * MIB }
    }

    #[test]
    fn one_large_process_has_nearly_all_of_its_budget_before_it_is_paged() {
        let alone = look(320, 10, 250, 40);
        assert_eq!(alone.registers_at(true), (320 - 24 - 10) * MIB);
        assert_eq!(alone.registers_at(false), tight_at(320 * MIB), "its mappings come unseen");
        assert_eq!(look(320, 100, 250, 40).registers_at(true), tight_at(320 * MIB), "another is large");
    }

    #[test]
    fn no_program_is_registered_earlier_than_several() {
        for (budget, untouched) in [(24, 0), (320, 4000), (4096, 100_000)] {
            let mark = look(budget, 0, budget / 2, untouched).registers_at(true);
            assert_eq!(mark, tight_at(budget * MIB), "{budget} MiB with {untouched} MiB untouched");
        }
    }
}
