//! The pager: builds the parts, and hands each call and each thread to the part that does it.

use std::ops::Range;

use sys::{arena, PAGE_SIZE};
use zswap::Zswap;

use crate::accounts::Accounts;
use crate::config::{Config, StartError};
use crate::fault::{FaultService, FaultState};
use crate::fork::{ForkSession, Forks, Outcome};
use crate::gate::Gate;
use crate::lifecycle::{Lifecycle, LifecycleState, Watch};
use crate::pages::Pages;
use crate::program::Program;
use crate::quiesce::Quiesce;
use crate::reclaim::{ReclaimState, Reclaimer};

/// Pages a whole program. Made by a thread with a file table of its own; the threads that run
/// [`Pager::handle_faults`], [`Pager::reclaim`] and [`Pager::watch`] share that table.
pub struct Pager {
    config: Config,
    accounts: &'static dyn Accounts,
    pages: Pages,
    program: Program,
    quiesce: Quiesce,
    reclaim: ReclaimState,
    fault: FaultState,
    lifecycle: LifecycleState,
    gate: Gate,
}

impl Pager {
    /// Opens the descriptors and makes every table. Nothing is registered yet.
    ///
    /// # Errors
    /// [`StartError`] names what is missing.
    pub fn new(config: Config, store: Zswap, accounts: &'static dyn Accounts) -> Result<Self, StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let has_tiers = store.has_tiers();
        let (pages, features) = Pages::new(&config, store, accounts)?;
        // The caller, which is to be the control thread.
        pages.add_own_thread();
        let own_page = arena::take(PAGE_SIZE, PAGE_SIZE).map_err(system("a page"))?.as_ptr() as usize;
        Ok(Pager {
            gate: Gate::open(features)?,
            fault: FaultState::new(&config).map_err(system("memory for waiting faults"))?,
            reclaim: ReclaimState::new(has_tiers, pages.store().swap_file().is_some()),
            program: Program::new(&config, accounts)?,
            quiesce: Quiesce::default(),
            lifecycle: LifecycleState::new(own_page),
            pages,
            config,
            accounts,
        })
    }

    /// Makes room.
    pub(crate) fn reclaimer(&self) -> Reclaimer<'_> {
        let Pager { reclaim, pages, program, quiesce, accounts, config, .. } = self;
        Reclaimer::new(reclaim, pages, program, quiesce, *accounts, config)
    }

    /// Serves faults.
    pub(crate) fn service(&self) -> FaultService<'_> {
        let Pager { fault, pages, quiesce, gate, accounts, config, .. } = self;
        FaultService::new(fault, pages, self.reclaimer(), quiesce, gate, *accounts, config)
    }

    /// What the control thread does.
    pub(crate) fn lifecycle(&self) -> Lifecycle<'_> {
        let Pager { lifecycle, pages, program, quiesce, gate, accounts, config, .. } = self;
        Lifecycle::new(lifecycle, self.service(), pages, program, quiesce, gate, *accounts, config)
    }

    /// Attends to forks.
    pub(crate) fn forks(&self) -> Forks<'_> {
        let Pager { pages, program, quiesce, gate, accounts, config, .. } = self;
        Forks::new(self.lifecycle(), self.service(), pages, program, quiesce, gate, *accounts, config)
    }

    /// Where every page is.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Has a test's tracker say which pages are used.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn track_by(&mut self, tracker: Box<dyn crate::tracker::AccessTracker>) {
        self.pages.track_by(tracker);
    }

    /// The page that the control thread decompresses into.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn own_page(&self) -> usize {
        self.lifecycle().own_page()
    }
}

/// The threads of a pager, and calls about its pages.
impl Pager {
    /// Handlers that there may be.
    pub fn handlers_max(&self) -> usize {
        self.config.handlers
    }

    /// The userfaultfd that guards the program's memory, for a duplicate elsewhere.
    pub fn descriptor(&self) -> i32 {
        self.pages.reports().descriptor()
    }

    /// Counts a thread of the pager's that other code has started: the swap file's engine's.
    pub fn add_own_thread(&self) {
        self.pages.add_own_thread();
    }

    /// The pool.
    pub fn store(&self) -> &Zswap {
        self.pages.store()
    }

    /// Threads of the pager's that have started.
    pub fn own_threads(&self) -> u32 {
        self.pages.own_threads()
    }

    /// Has frames that pages left in never be filled again from now on: the program hands
    /// references to its pages to others, which the kernel keeps when a page is moved away.
    pub fn stop_recycling(&self) {
        self.pages.stop_recycling();
    }

    /// Reads this process's use from the kernel and publishes it; returns the total of all
    /// processes.
    pub fn measure(&self) -> u64 {
        self.program.measure(&self.pages)
    }

    /// A reclaim worker: sleeps until there is pressure, then evicts and compresses until there is
    /// none.
    pub fn reclaim(&self) {
        self.reclaimer().run();
    }

    /// Wakes one reclaim worker if all sleep.
    pub fn wake_workers(&self) {
        self.reclaimer().wake_workers();
    }

    /// Writes to the swap file until the process or the pager ends.
    pub fn write_to_disk(&self) {
        self.reclaimer().write_to_disk();
    }

    /// Serves faults until the process or the pager ends. `index` numbers the handler; pin its
    /// thread to one CPU.
    pub fn handle_faults(&self, index: usize) {
        self.service().handle_faults(index);
    }

    /// Serves faults from the swap file until the process or the pager ends. `index` numbers the
    /// thread, below [`crate::DISK_THREADS`].
    pub fn read_from_disk(&self, index: usize) {
        self.service().read_from_disk(index);
    }

    /// Says something about this process, for callers that decide what is worth saying.
    pub fn say_once(&self, what: &str) {
        self.accounts.say(what);
    }
}

/// The life of a pager. Call from the control thread.
impl Pager {
    /// Registers a mapping that the program has just made, before it is touched if possible. Any
    /// thread of the pager's may call it.
    pub fn register(&self, range: Range<usize>) {
        self.lifecycle().register(range);
    }

    /// Lets go of a range for good, as if there was no pager: the program guards it itself.
    pub fn release(&self, range: Range<usize>) {
        self.lifecycle().release(range);
    }

    /// Whether a range is registered and its pages can go out, as of the last look at the mappings.
    pub fn manages(&self, range: Range<usize>) -> bool {
        self.program.manages(range)
    }

    /// Takes note of the pages that are in memory now, to know later which are older. To be called
    /// once, when much of the budget is in use and before anything is registered.
    pub fn note_found(&self) {
        self.lifecycle().note_found();
    }

    /// Looks at the program's mappings again.
    pub fn refresh_mappings(&self) {
        self.lifecycle().refresh_mappings();
    }

    /// One look: publishes this process's use, registers new mappings, wakes workers. Returns the
    /// total use and the time in nanoseconds until the next look is due.
    pub fn watch(&self, watch: &mut Watch) -> (u64, u64) {
        self.lifecycle().watch(watch)
    }

    /// To be called when relatives that may share memory with this process came or went.
    pub fn note_relatives(&self) {
        self.program.gauge().note_relatives();
    }

    /// Corrects the published use for pages shared with forked relatives: each counts by its fair
    /// share. Walks the page tables, so it is for processes that have forked, now and then.
    pub fn measure_shared(&self, watch: &mut Watch) {
        self.lifecycle().measure_shared(watch);
    }

    /// Stops reclaim, brings every page in, unregisters every mapping, and waits until no fault is
    /// being served. Call from a pager thread that is no worker and no handler.
    pub fn halt(&self) {
        self.lifecycle().halt();
    }

    /// Whether a halt is on.
    pub fn is_halted(&self) -> bool {
        self.quiesce.is_on()
    }

    /// Continues after a halt.
    pub fn resume(&self) {
        self.lifecycle().resume();
    }

    /// After a halt that is for good: has all workers and handlers make their last system call, a
    /// wait that does not end. The filter that comes next may kill for any other, in whichever
    /// thread.
    pub fn park(&self) {
        self.lifecycle().park();
    }

    /// After a halt: has all threads end, those of the swap file's engine excepted, which end when
    /// the pager is dropped. They are to be called ([`Pager::call_all`]) until they have.
    pub fn dismiss(&self) {
        self.lifecycle().dismiss();
    }

    /// Wakes all threads that have been dismissed and wait for something.
    pub fn call_all(&self) {
        self.lifecycle().call_all();
    }

    /// Reads the messages that are left. To be called when all handlers have ended.
    pub fn read_out(&self) {
        self.lifecycle().read_out();
    }

    /// Gives the system back what tables and staging had. To be called when all threads have ended;
    /// what is left to do is to drop the pager.
    pub fn let_go(&mut self) {
        self.pages.let_go();
    }
}

/// Forks.
impl Pager {
    /// Whether the kernel reports forks. Where it does not, a child finds zeroes in place of what
    /// is out: everything must come in first ([`Pager::halt`]), or the child must not have the
    /// memory.
    pub fn reports_forks(&self) -> bool {
        self.gate.reports_forks()
    }

    /// Whether forks can leave everything out at all.
    pub fn can_fork(&self) -> bool {
        self.forks().can_fork()
    }

    /// The first number behind those of the pager's descriptors, which a child's have, too.
    pub fn numbers_end(&self) -> i32 {
        self.forks().numbers_end()
    }

    /// Has all threads stand still and begins to attend to a fork of thread `forker`; `None` when
    /// that cannot be watched. Call from a pager thread that is no worker and no handler; end with
    /// [`Pager::end_fork`].
    pub fn begin_fork(&self, forker: u32) -> Option<ForkSession> {
        self.forks().begin(forker)
    }

    /// The descriptors to wait for, besides the caller's own; -1 for none.
    pub fn fork_descriptors(&self, session: &ForkSession) -> [i32; 3] {
        self.forks().descriptors(session)
    }

    /// Whether there is something to look after that no descriptor tells: faults that wait for time
    /// to pass, further children.
    pub fn has_held(&self, session: &ForkSession) -> bool {
        self.forks().has_held(session)
    }

    /// Serves what there is to serve now.
    pub fn attend(&self, session: &mut ForkSession) {
        self.forks().attend(session);
    }

    /// What becomes of the child, which is ready to take over, or will not be for a while. Serves
    /// it no more.
    pub fn settle<'a>(&self, session: &'a mut ForkSession, is_ready: bool) -> Outcome<'a> {
        self.forks().settle(session, is_ready)
    }

    /// All threads continue. What was not handed over is closed.
    pub fn end_fork(&self, session: ForkSession) {
        self.forks().end(session);
    }

    /// In the child: continues with copies of the parent's table, staging and pool. `main`, `gate`
    /// and `copied` are from [`Outcome::Inherits`]. Called by the first of the child's pager
    /// threads, which has a file table of its own, empty but for these and the caller's. The other
    /// threads are to be started afterwards.
    ///
    /// # Errors
    /// When files cannot be opened. The process must end then: its pages cannot be brought in.
    pub fn inherit(&self, main: i32, gate: i32, copied: &[u64]) -> Result<(), StartError> {
        self.forks().inherit(main, gate, copied)
    }

    /// Reads reports of the gate that no thread waits for any more. To be called by the control
    /// thread between its looks, and by threads that wait for pages that do not come and may be
    /// waited for by that thread; not while a fork is attended to.
    pub fn dismiss_gate_reports(&self) {
        self.gate.dismiss_reports();
    }
}
