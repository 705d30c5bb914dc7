//! The pager: all its parts, and what belongs to no single one of them.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::Mutex;

use sys::userfaultfd::feature;
use sys::{arena, PAGE_SIZE};
use zswap::Zswap;

use crate::accounts::Accounts;
use crate::config::{Config, StartError};
use crate::fault::{Clusters, Fault, FaultService, Faults, Handler, Handlers, Streams};
use crate::files::ProcFiles;
use crate::gauge::Gauge;
use crate::grace::GracePeriod;
use crate::halt::Halt;
use crate::kept::KeptPages;
use crate::pages::{Pages, BLOCK_PAGES, EXTENT_PAGES, EXTENT_SLOTS};
use crate::reclaim::{Hand, Promotion, Reclaim, Reclaimer, Swap};
use crate::registrations::Registrations;
use crate::sync::Userfaultfd;

/// Pages a whole program. Made by a thread with a file table of its own; the threads that run
/// [`Pager::handle_faults`], [`Pager::reclaim`] and [`Pager::watch`] share that table.
pub struct Pager {
    pub(crate) config: Config,
    pub(crate) accounts: &'static dyn Accounts,
    pub(crate) pages: Pages,
    pub(crate) faults: Faults,
    pub(crate) handlers: Handlers,
    pub(crate) streams: Streams,
    pub(crate) clusters: Clusters,
    pub(crate) registrations: Mutex<Registrations>,
    pub(crate) hand: Mutex<Hand>,
    pub(crate) reclaim: Reclaim,
    pub(crate) promotion: Promotion,
    pub(crate) swap: Swap,
    pub(crate) halt: Halt,
    pub(crate) grace: Mutex<GracePeriod>,
    pub(crate) kept: KeptPages,
    pub(crate) files: ProcFiles,
    /// Guards a page of the arena while a fork is expected, to tell when the kernel begins to copy
    /// the arena. `None` where forks may not be watched.
    pub(crate) gate: Option<Userfaultfd>,
    /// The page that the control thread decompresses into.
    pub(crate) own_page: usize,
    /// Whether the kernel reports forks: it does to those with CAP_SYS_PTRACE.
    reports_forks: bool,
    pub(crate) gauge: Gauge,
    /// Whether that is to be measured again soon: relatives came or went.
    pub(crate) shared_stale: AtomicBool,
}

impl Pager {
    /// Opens the descriptors and makes every table. Nothing is registered yet.
    ///
    /// # Errors
    /// [`StartError`] names what is missing.
    pub fn new(config: Config, store: Zswap, accounts: &'static dyn Accounts) -> Result<Self, StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let promotes = store.promotes();
        let (pages, features) = Pages::new(&config, store, accounts)?;
        // The caller, which is to be the control thread.
        pages.add_own_thread();
        let gate = match arena::lowest_pages() {
            Some(_) if features & feature::EVENT_FORK != 0 && pages.sink().is_some() => {
                Some(Userfaultfd::open(feature::EVENT_FORK)?)
            }
            _ => None,
        };
        Ok(Pager {
            faults: Faults::new().map_err(system("memory for waiting faults"))?,
            handlers: Handlers::default(),
            clusters: Clusters::new(),
            streams: Streams::new(match config.records {
                true => 1,
                false => (config.folio_pages * EXTENT_SLOTS).clamp(BLOCK_PAGES, EXTENT_PAGES),
            }),
            registrations: Mutex::new(Registrations::new()),
            hand: Mutex::new(Hand::new()),
            reclaim: Reclaim::new(),
            promotion: Promotion::new(promotes),
            swap: Swap::new(pages.store().swap_file().is_some()),
            halt: Halt::default(),
            grace: Mutex::new(GracePeriod::default()),
            kept: KeptPages::new(config.kept),
            files: ProcFiles::open()?,
            gate,
            own_page: arena::take(PAGE_SIZE, PAGE_SIZE).map_err(system("a page"))?.as_ptr() as usize,
            reports_forks: features & feature::EVENT_FORK != 0,
            gauge: Gauge::new(accounts, config.records),
            shared_stale: AtomicBool::new(false),
            pages,
            config,
            accounts,
        })
    }

    /// Handlers that there may be.
    pub fn handlers_max(&self) -> usize {
        self.config.handlers
    }

    /// The userfaultfd that guards the program's memory, for a duplicate elsewhere.
    pub fn descriptor(&self) -> i32 {
        self.pages.reports().descriptor()
    }

    /// Whether this kernel, or a test, needs threads that run [`Pager::drain_events`], best one on
    /// each processor.
    pub fn needs_drainer(&self) -> bool {
        self.pages.needs_drainer()
    }

    /// Reads messages for evictions, for ever.
    pub fn drain_events(&self, cpu: usize) {
        self.pages.add_own_thread();
        self.pages.drain_events(cpu);
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
        self.gauge.measure(&self.files.statm, &self.pages)
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

    /// Who makes room.
    pub(crate) fn reclaimer(&self) -> Reclaimer<'_> {
        Reclaimer {
            reclaim: &self.reclaim,
            hand: &self.hand,
            promotion: &self.promotion,
            swap: &self.swap,
            accounts: self.accounts,
            gauge: &self.gauge,
            pages: &self.pages,
            registrations: &self.registrations,
            kept: &self.kept,
            halt: &self.halt,
            files: &self.files,
            handlers: self.config.handlers,
        }
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

    /// Serves one fault. The caller holds nothing.
    pub(crate) fn serve(&self, handler: &mut Handler, fault: Fault) {
        self.service().serve(handler, fault);
    }

    /// Who serves faults.
    pub(crate) fn service(&self) -> FaultService<'_> {
        FaultService {
            faults: &self.faults,
            handlers: &self.handlers,
            streams: &self.streams,
            clusters: &self.clusters,
            pages: &self.pages,
            reclaimer: self.reclaimer(),
            gate: self.gate,
            records: self.config.records,
        }
    }

    /// Brings in pages that must never be out, now and then.
    pub(crate) fn keep_pages(&self, now_ns: u64) {
        if self.config.only.is_none() {
            let most = self.accounts.budget();
            self.kept.look(now_ns, most, &self.pages, &self.halt, self.own_page);
        }
    }

    /// In a forked child, which has one thread, and that in fork().
    pub(crate) fn reset_grace(&self) {
        self.grace.lock().expect("no panic while held").reset(&self.pages);
    }

    /// Registers a mapping that the program has just made, before it is touched if possible.
    pub fn register(&self, range: Range<usize>) {
        if self.halt.is_on() {
            return;
        }
        self.reclaim.look_again();
        let mut registrations = self.registrations.lock().expect("no panic while held");
        registrations.note_changes(&self.pages);
        if !registrations.register(&self.pages, range, !self.config.executable) {
            registrations.refresh(&self.files.maps, &self.pages, &self.config);
        }
    }

    /// Lets go of a range for good, as if there was no pager: the program guards it itself. Call
    /// from the thread that halts.
    pub fn release(&self, range: Range<usize>) {
        self.halt();
        self.registrations.lock().expect("no panic while held").release(range);
        self.go_on();
    }

    /// Whether the kernel reports forks. Where it does not, a child finds zeroes in place of what
    /// is out: everything must come in first ([`Pager::halt`]), or the child must not have the
    /// memory.
    pub fn reports_forks(&self) -> bool {
        self.reports_forks
    }

    /// Whether a range is registered and its pages can go out, as of the last look at the mappings.
    pub fn manages(&self, range: Range<usize>) -> bool {
        let registrations = self.registrations.lock().expect("no panic while held");
        registrations
            .from(range.start)
            .is_some_and(|known| known.start <= range.start && known.end >= range.end)
    }

    /// Looks at the program's mappings again.
    pub fn refresh_mappings(&self) {
        // Before anything can go.
        self.keep_pages(sys::now_ns());
        self.reclaim.look_again();
        let mut registrations = self.registrations.lock().expect("no panic while held");
        registrations.note_changes(&self.pages);
        registrations.refresh(&self.files.maps, &self.pages, &self.config);
    }

    /// Ends the process with a message that names what broke: the alternative is a wrong byte.
    pub(crate) fn fatal(&self, what: std::fmt::Arguments<'_>) -> ! {
        self.pages.fatal(what)
    }

    /// Says something about this process, for callers that decide what is worth saying.
    pub fn say_once(&self, what: &str) {
        self.accounts.say(what);
    }

    /// Says something about this process.
    pub(crate) fn say(&self, what: std::fmt::Arguments<'_>) {
        self.pages.say(what);
    }
}
