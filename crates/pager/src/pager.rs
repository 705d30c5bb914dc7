//! The pager: creates the parts, and passes each call and each thread to its part.

use std::ops::Range;
use std::sync::Arc;

use address_space::{Accounts, AddressSpace, StartError};
use sys::{arena, thread, PAGE_SIZE};
use zswap::Zswap;

use crate::config::Config;
use crate::fault::FaultService;
use crate::fork::{ForkSession, Forks, Outcome};
use crate::gate::Gate;
use crate::lifecycle::{Lifecycle, Watch};
use crate::process::Process;
use crate::reclaim::Reclaimer;
use crate::roles::ThreadRole;

/// Pages a whole program. A thread with its own file table creates it. The threads that run
/// [`Pager::play`] and [`Pager::watch`] share that table.
pub struct Pager {
    pub(crate) process: Arc<Process>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) service: Arc<FaultService>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    forks: Forks,
}

impl Pager {
    /// Opens the descriptors and creates every table. Nothing is registered yet.
    ///
    /// # Errors
    /// [`StartError`] names the missing part.
    pub fn new(config: Config, store: Zswap, accounts: &'static dyn Accounts) -> Result<Self, StartError> {
        let (pages, features) = AddressSpace::new(&config.settings(), store, accounts)?;
        Self::of(config, pages, features, accounts)
    }

    pub(crate) fn of(
        config: Config,
        pages: AddressSpace,
        features: u64,
        accounts: &'static dyn Accounts,
    ) -> Result<Self, StartError> {
        pages.own_threads.add();
        let own_page = arena::take(PAGE_SIZE, PAGE_SIZE)
            .map_err(|source| StartError::System { what: "a page", source })?
            .as_ptr() as usize;
        let gate = Gate::open(features)?;
        let process = Arc::new(Process::new(config, pages, accounts)?);
        let reclaimer = Arc::new(Reclaimer::new(process.clone()));
        let service = Arc::new(FaultService::new(process.clone(), reclaimer.clone(), gate));
        let lifecycle = Lifecycle::new(process.clone(), reclaimer.clone(), service.clone(), own_page);
        let lifecycle = Arc::new(lifecycle);
        let forks = Forks {
            process: process.clone(),
            reclaimer: reclaimer.clone(),
            service: service.clone(),
            lifecycle: lifecycle.clone(),
        };
        Ok(Pager { process, reclaimer, service, lifecycle, forks })
    }
}

/// The threads of a pager, and calls about its pages.
impl Pager {
    /// Most handlers.
    pub fn handlers_max(&self) -> usize {
        self.process.config.handlers
    }

    /// The userfaultfd that guards the program's memory, to duplicate it elsewhere.
    pub fn descriptor(&self) -> i32 {
        self.process.pages.reports().descriptor()
    }

    /// Counts a thread of the pager that other code has started: of the swap file's engine.
    pub fn add_own_thread(&self) {
        self.process.pages.own_threads.add();
    }

    /// The pool.
    pub fn store(&self) -> &Zswap {
        &self.process.pages.store
    }

    /// Number of started threads of the pager.
    pub fn own_threads(&self) -> u32 {
        self.process.pages.own_threads.count()
    }

    /// Stops refilling frames, for good. The program shares references to its pages, and the kernel
    /// keeps them after the page has moved away.
    pub fn stop_recycling(&self) {
        self.process.pages.staging.stop_recycling();
    }

    /// Publishes this process's use, read from the kernel. Returns the total of all processes.
    pub fn measure(&self) -> u64 {
        self.process.measure()
    }

    /// The roles of all threads that this pager needs on these processors, at least one.
    pub fn roles<'a>(&self, cpus: &'a [usize]) -> impl Iterator<Item = ThreadRole> + use<'a> {
        ThreadRole::all(cpus, self.store().swap_file().is_some())
    }

    /// Does a role's work in the calling thread, under its name, until the process or the pager
    /// ends.
    pub fn play(&self, role: ThreadRole) {
        thread::name(role.name());
        if matches!(role, ThreadRole::Handler { .. } | ThreadRole::Reader(_)) {
            thread::hurry();
        }
        match role {
            ThreadRole::Handler { number, cpu } => {
                thread::pin(cpu);
                self.service.handle_faults(number);
            }
            ThreadRole::Worker => self.reclaimer.run(),
            ThreadRole::Writer => self.reclaimer.swap.write_to_disk(),
            ThreadRole::Reader(number) => self.service.read_from_disk(number),
        }
    }

    /// Reports a message about this process.
    pub fn say_once(&self, what: &str) {
        self.process.accounts.say(what);
    }
}

/// The life of a pager. Call from the control thread.
impl Pager {
    /// Registers a new mapping of the program, before its first touch if possible. Any thread of
    /// the pager may call it.
    pub fn register(&self, range: Range<usize>) {
        self.lifecycle.register(range);
    }

    /// Releases a range for good, which the program guards itself.
    pub fn release(&self, range: Range<usize>) {
        self.lifecycle.release(range);
    }

    /// Whether a range is registered and its pages can leave, as of the last look at the mappings.
    pub fn manages(&self, range: Range<usize>) -> bool {
        self.process.manages(range)
    }

    /// Records the pages in memory, so that later ones are known to be younger. Call once, when
    /// much of the budget is in use and before anything is registered.
    pub fn note_found(&self) {
        self.lifecycle.note_found();
    }

    /// Reads the program's mappings again.
    pub fn refresh_mappings(&self) {
        self.lifecycle.refresh_mappings();
    }

    /// One look: publishes this process's use, registers new mappings, wakes workers. Returns the
    /// total use, and the nanoseconds until the next look.
    pub fn watch(&self, watch: &mut Watch) -> (u64, u64) {
        self.lifecycle.watch(watch)
    }

    /// Stops reclaim, brings all pages in, unregisters all mappings, and waits for the last fault.
    pub fn halt(&self) {
        self.lifecycle.halt();
    }

    /// Whether a halt is on.
    pub fn is_halted(&self) -> bool {
        self.process.quiesce.is_on()
    }

    /// Continues after a halt.
    pub fn resume(&self) {
        self.lifecycle.resume();
    }

    /// After a permanent halt: all workers and handlers make their last system call, an endless
    /// wait. The seccomp filter that follows may kill any thread for any other call.
    pub fn park(&self) {
        self.lifecycle.park();
    }

    /// After a halt: ends all threads, except those of the swap file's engine, which end when the
    /// pager is dropped. Call [`Pager::call_all`] until the threads have ended.
    pub fn dismiss(&self) {
        self.lifecycle.dismiss();
    }

    /// Wakes all dismissed threads that still wait.
    pub fn call_all(&self) {
        self.lifecycle.call_all();
    }

    /// Reads the remaining messages. Call when all handlers have ended.
    pub fn read_out(&self) {
        self.lifecycle.read_out();
    }

    /// Whether messages are unread, or events unapplied: a forked child may still get its pages.
    pub fn has_messages(&self) -> bool {
        let pages = &self.process.pages;
        pages.reports().wait(0) || pages.has_pending_events()
    }

    /// Frees the memory of tables and staging, when all threads have ended and before the drop.
    pub fn free_memory(&mut self) {
        // SAFETY: no thread uses the pager, which this one has alone.
        unsafe { self.process.pages.free_memory() };
    }
}

/// Forks.
impl Pager {
    /// Whether the kernel reports forks. If not, a child finds zeroes in place of out pages: bring
    /// everything in first ([`Pager::halt`]), or exclude the memory from the child.
    pub fn reports_forks(&self) -> bool {
        self.service.gate.reports_forks
    }

    /// Whether children can inherit the pager.
    pub fn can_fork(&self) -> bool {
        self.forks.can_fork()
    }

    /// The number after the pager's highest descriptor. A child uses the same numbers.
    pub fn numbers_end(&self) -> i32 {
        self.forks.numbers_end()
    }

    /// Halts all threads and starts to attend to a fork by thread `forker`. `None` if forks cannot
    /// be watched. Call from the control thread, and end with [`Pager::end_fork`].
    pub fn begin_fork(&self, forker: u32) -> Option<ForkSession> {
        self.forks.begin(forker)
    }

    /// The descriptors to wait for, besides the caller's own. -1 for none.
    pub fn fork_descriptors(&self, session: &ForkSession) -> [i32; 3] {
        self.forks.descriptors(session)
    }

    /// Whether work comes without a descriptor's report: waiting faults, or further children.
    pub fn has_held(&self, session: &ForkSession) -> bool {
        self.forks.has_held(session)
    }

    /// Serves everything that waits now.
    pub fn attend(&self, session: &mut ForkSession) {
        self.forks.attend(session);
    }

    /// Decides the outcome for the child. `is_ready` says whether it is ready to take over, or will
    /// not be soon. The child is no longer served.
    pub fn settle<'a>(&self, session: &'a mut ForkSession, is_ready: bool) -> Outcome<'a> {
        self.forks.settle(session, is_ready)
    }

    /// Resumes all threads, and closes descriptors that were not handed over.
    pub fn end_fork(&self, session: ForkSession) {
        self.forks.end(session);
    }

    /// In the child: continues with copies of the parent's table, staging and pool. `main`, `gate`
    /// and `copied` are from [`Outcome::Inherits`]. The first of the child's pager threads calls
    /// it. That thread has its own file table, with only these descriptors and the caller's. Start
    /// the other threads afterwards.
    ///
    /// # Errors
    /// If files cannot be opened. The process must end then: its pages cannot be brought in.
    pub fn inherit(&self, main: i32, gate: i32, copied: &[u64]) -> Result<(), StartError> {
        self.forks.inherit(main, gate, copied)
    }

    /// Reads reports of the gate that no thread attends to. The control thread calls it between
    /// looks, and so do threads whose awaited pages do not come and for which it may wait. Not
    /// while a fork is attended to.
    pub fn dismiss_gate_reports(&self) {
        self.service.gate.dismiss_reports();
    }
}
