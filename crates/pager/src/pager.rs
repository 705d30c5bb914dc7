//! The pager: creates the parts, and passes each call and each thread to its part.

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

/// Pages a whole program. A thread with its own file table creates it. The threads that run
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
    /// Opens the descriptors and creates every table. Nothing is registered yet.
    ///
    /// # Errors
    /// [`StartError`] names the missing part.
    pub fn new(config: Config, store: Zswap, accounts: &'static dyn Accounts) -> Result<Self, StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let has_tiers = store.has_tiers();
        let (pages, features) = Pages::new(&config, store, accounts)?;
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

    pub(crate) fn reclaimer(&self) -> Reclaimer<'_> {
        let Pager { reclaim, pages, program, quiesce, accounts, config, .. } = self;
        Reclaimer::new(reclaim, pages, program, quiesce, *accounts, config)
    }

    pub(crate) fn service(&self) -> FaultService<'_> {
        let Pager { fault, pages, quiesce, gate, accounts, config, .. } = self;
        FaultService::new(fault, pages, self.reclaimer(), quiesce, gate, *accounts, config)
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle<'_> {
        let Pager { lifecycle, pages, program, quiesce, gate, accounts, config, .. } = self;
        Lifecycle::new(lifecycle, self.service(), pages, program, quiesce, gate, *accounts, config)
    }

    pub(crate) fn forks(&self) -> Forks<'_> {
        let Pager { pages, program, quiesce, gate, accounts, config, .. } = self;
        Forks::new(self.lifecycle(), self.service(), pages, program, quiesce, gate, *accounts, config)
    }

    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn track_by(&mut self, tracker: Box<dyn crate::tracker::AccessTracker>) {
        self.pages.track_by(tracker);
    }

    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn own_page(&self) -> usize {
        self.lifecycle().own_page()
    }
}

/// The threads of a pager, and calls about its pages.
impl Pager {
    /// Most handlers.
    pub fn handlers_max(&self) -> usize {
        self.config.handlers
    }

    /// The userfaultfd that guards the program's memory, to duplicate it elsewhere.
    pub fn descriptor(&self) -> i32 {
        self.pages.reports().descriptor()
    }

    /// Counts a thread of the pager that other code has started: of the swap file's engine.
    pub fn add_own_thread(&self) {
        self.pages.add_own_thread();
    }

    /// The pool.
    pub fn store(&self) -> &Zswap {
        self.pages.store()
    }

    /// Number of started threads of the pager.
    pub fn own_threads(&self) -> u32 {
        self.pages.own_threads()
    }

    /// Stops refilling frames, for good. The program shares references to its pages, and the kernel
    /// keeps them after the page has moved away.
    pub fn stop_recycling(&self) {
        self.pages.stop_recycling();
    }

    /// Publishes this process's use, read from the kernel. Returns the total of all processes.
    pub fn measure(&self) -> u64 {
        self.program.measure(&self.pages)
    }

    /// A reclaim worker: sleeps until there is pressure, evicts and compresses until there is none.
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

    /// Serves faults until the end. `index` is the handler's number. Pin its thread to one CPU.
    pub fn handle_faults(&self, index: usize) {
        self.service().handle_faults(index);
    }

    /// Serves faults from the swap file until the process or the pager ends. `index` is the
    /// thread's number, below [`crate::DISK_THREADS`].
    pub fn read_from_disk(&self, index: usize) {
        self.service().read_from_disk(index);
    }

    /// Reports a message about this process.
    pub fn say_once(&self, what: &str) {
        self.accounts.say(what);
    }
}

/// The life of a pager. Call from the control thread.
impl Pager {
    /// Registers a new mapping of the program, before its first touch if possible. Any thread of
    /// the pager may call it.
    pub fn register(&self, range: Range<usize>) {
        self.lifecycle().register(range);
    }

    /// Releases a range for good, which the program guards itself.
    pub fn release(&self, range: Range<usize>) {
        self.lifecycle().release(range);
    }

    /// Whether a range is registered and its pages can leave, as of the last look at the mappings.
    pub fn manages(&self, range: Range<usize>) -> bool {
        self.program.manages(range)
    }

    /// Records the pages in memory, so that later ones are known to be younger. Call once, when
    /// much of the budget is in use and before anything is registered.
    pub fn note_found(&self) {
        self.lifecycle().note_found();
    }

    /// Reads the program's mappings again.
    pub fn refresh_mappings(&self) {
        self.lifecycle().refresh_mappings();
    }

    /// One look: publishes this process's use, registers new mappings, wakes workers. Returns the
    /// total use, and the nanoseconds until the next look.
    pub fn watch(&self, watch: &mut Watch) -> (u64, u64) {
        self.lifecycle().watch(watch)
    }

    /// Call when relatives, which may share memory with this process, came or went.
    pub fn note_relatives(&self) {
        self.program.gauge().note_relatives();
    }

    /// Corrects the published use for pages shared with forked relatives: each counts its fair
    /// share. Walks the page tables, so it is for processes that have forked, from time to time.
    pub fn measure_shared(&self, watch: &mut Watch) {
        self.lifecycle().measure_shared(watch);
    }

    /// Stops reclaim, brings all pages in, unregisters all mappings, and waits for the last fault.
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

    /// After a permanent halt: all workers and handlers make their last system call, an endless
    /// wait. The seccomp filter that follows may kill any thread for any other call.
    pub fn park(&self) {
        self.lifecycle().park();
    }

    /// After a halt: ends all threads, except those of the swap file's engine, which end when the
    /// pager is dropped. Call [`Pager::call_all`] until the threads have ended.
    pub fn dismiss(&self) {
        self.lifecycle().dismiss();
    }

    /// Wakes all dismissed threads that still wait.
    pub fn call_all(&self) {
        self.lifecycle().call_all();
    }

    /// Reads the remaining messages. Call when all handlers have ended.
    pub fn read_out(&self) {
        self.lifecycle().read_out();
    }

    /// Frees the memory of tables and staging, when all threads have ended and before the drop.
    pub fn let_go(&mut self) {
        self.pages.let_go();
    }
}

/// Forks.
impl Pager {
    /// Whether the kernel reports forks. If not, a child finds zeroes in place of out pages: bring
    /// everything in first ([`Pager::halt`]), or exclude the memory from the child.
    pub fn reports_forks(&self) -> bool {
        self.gate.reports_forks()
    }

    /// Whether children can inherit the pager.
    pub fn can_fork(&self) -> bool {
        self.forks().can_fork()
    }

    /// The number after the pager's highest descriptor. A child uses the same numbers.
    pub fn numbers_end(&self) -> i32 {
        self.forks().numbers_end()
    }

    /// Halts all threads and starts to attend to a fork by thread `forker`. `None` if forks cannot
    /// be watched. Call from the control thread, and end with [`Pager::end_fork`].
    pub fn begin_fork(&self, forker: u32) -> Option<ForkSession> {
        self.forks().begin(forker)
    }

    /// The descriptors to wait for, besides the caller's own. -1 for none.
    pub fn fork_descriptors(&self, session: &ForkSession) -> [i32; 3] {
        self.forks().descriptors(session)
    }

    /// Whether work comes without a descriptor's report: waiting faults, or further children.
    pub fn has_held(&self, session: &ForkSession) -> bool {
        self.forks().has_held(session)
    }

    /// Serves everything that waits now.
    pub fn attend(&self, session: &mut ForkSession) {
        self.forks().attend(session);
    }

    /// Decides the outcome for the child. `is_ready` says whether it is ready to take over, or will
    /// not be soon. The child is no longer served.
    pub fn settle<'a>(&self, session: &'a mut ForkSession, is_ready: bool) -> Outcome<'a> {
        self.forks().settle(session, is_ready)
    }

    /// Resumes all threads, and closes descriptors that were not handed over.
    pub fn end_fork(&self, session: ForkSession) {
        self.forks().end(session);
    }

    /// In the child: continues with copies of the parent's table, staging and pool. `main`, `gate`
    /// and `copied` are from [`Outcome::Inherits`]. The first of the child's pager threads calls
    /// it. That thread has its own file table, with only these descriptors and the caller's. Start
    /// the other threads afterwards.
    ///
    /// # Errors
    /// If files cannot be opened. The process must end then: its pages cannot be brought in.
    pub fn inherit(&self, main: i32, gate: i32, copied: &[u64]) -> Result<(), StartError> {
        self.forks().inherit(main, gate, copied)
    }

    /// Reads reports of the gate that no thread attends to. The control thread calls it between
    /// looks, and so do threads whose awaited pages do not come and for which it may wait. Not
    /// while a fork is attended to.
    pub fn dismiss_gate_reports(&self) {
        self.gate.dismiss_reports();
    }
}
