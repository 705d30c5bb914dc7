//! Where every managed page is, and the one way to change that.
//!
//! A page is mapped, staged, stored or never touched (`table`). It changes its place in one of the
//! transitions of this module and nowhere else:
//!
//! | transition | from | to | file |
//! |---|---|---|---|
//! | evict | kernel | staged | `evict` |
//! | compress | staged | stored, or back | `compress` |
//! | fault in | staged, stored, nothing | kernel | `fault_in`, `fault_in_run`, `from_disk`; `place` |
//! | discard | staged, stored | kernel (nothing) | `discard` |
//! | relocate | staged, stored | stored elsewhere | `relocate` |
//! | hand over | - | copied into a child | `children` |
//!
//! Each takes the lock of the page's block ([`block::BlockGuard`]) and, to call the kernel for the
//! page, the proof that no event about the address space is unread or unapplied ([`mover::Quiet`]),
//! which is made from that lock and has the calls. Neither the state of a page nor the system calls
//! that move one can be reached without them.

pub(crate) mod block;
mod children;
mod compress;
mod discard;
mod discard_window;
mod events;
mod evict;
mod extents;
mod fault_in;
mod fault_in_run;
mod fork_point;
mod from_disk;
mod guard;
mod inbound;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod mover;
mod own_threads;
mod place;
mod refs;
mod relocate;
mod reorder;
pub(crate) mod run;
pub(crate) mod staging;
pub(crate) mod table;

use std::ops::Range;

use replacement::policy::{History, Policy};
use sys::userfaultfd::{feature, Message, OpenError, MESSAGES_MAX, MISSING};
use sys::PAGE_SIZE;
use zswap::Zswap;

use crate::accounts::{Accounts, Counter};
use crate::config::{Config, FixedText, StartError};
use crate::quiesce::Bell;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Pagemap, Userfaultfd};
use crate::tracker::{self, AccessTracker};
use crate::units::{index_of, page_at, pages_in, within, PageNumber, BLOCK_PAGES};

pub(crate) use children::ChildMemory;
pub(crate) use compress::Compressed;
pub(crate) use discard_window::DiscardWindow;
pub use events::EventQueue;
pub(crate) use extents::{EXTENT_PAGES, EXTENT_SLOTS};
pub(crate) use fault_in::FaultedIn;
pub(crate) use from_disk::{FromDisk, Scratch};
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) use guard::Registration;
pub(crate) use guard::{Guard, Reports};
pub(crate) use inbound::Inbound;
pub use mover::Mover;
use own_threads::OwnThreads;
pub(crate) use own_threads::ThreadsState;
pub(crate) use staging::Staging;
use table::AddressTable;

/// How an attempt to register a range ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registered {
    /// It is registered.
    Done,
    /// The kernel refuses.
    Refused,
    /// Reports are to come.
    NotNow,
}

/// The one group of the pool: a pager serves one program.
pub(crate) const GROUP: zswap::Group = zswap::Group(0);
/// Pages whose place something newer has taken before it was known where they go.
const DISPLACED: zswap::Group = zswap::Group(1);
/// Groups that the pool must have.
pub(crate) const GROUPS: u16 = 2;

/// A message for the thread that serves faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// Nothing was there, or too many events wait.
    Nothing,
    /// A page is missing.
    Fault { address: usize, write: bool, thread: u32 },
    /// An event, which has been applied.
    Event,
}

/// Tries to register a range while calls are under way, before it is left for later.
const REGISTER_TRIES: usize = 20;
/// Ranges of changed mappings that are remembered; with more, all count as changed.
const CHANGED_MAX: usize = 256;

/// Ranges whose mappings may be others than those that were registered.
struct Changed {
    ranges: Vec<(usize, usize)>,
    all: bool,
}

/// All managed pages of a process.
pub(crate) struct Pages {
    accounts: &'static dyn Accounts,
    table: AddressTable,
    staging: Staging,
    store: Zswap,
    /// Whether pages of the store may be in a swap file.
    has_swap: bool,
    /// Learns from what goes and comes which pages are to go.
    policy: Policy,
    events: EventQueue,
    mover: Mover,
    /// Frames that pages left in are filled again; else they go back to the system, because
    /// something beside the program may still refer to them.
    recycles: AtomicBool,
    /// Generation of grace periods: which of the two discard states new ones get.
    odd: AtomicBool,
    /// Pages that are being discarded, roughly: raised when one is marked, reset when a grace
    /// period clears them.
    discarding: AtomicU64,
    changed: Mutex<Changed>,
    reorder: Mutex<reorder::ReorderBuffer>,
    own_threads: OwnThreads,
    /// Bytes of what follows an mremap(), in transit.
    transit: Mutex<relocate::Transit>,
}

impl Pages {
    pub fn new(
        config: &Config,
        store: Zswap,
        accounts: &'static dyn Accounts,
    ) -> Result<(Self, u64), StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let events = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP;
        let needed = feature::MOVING | events | feature::THREAD_ID;
        let tracking = if config.without_tracking { 0 } else { feature::TRACKING };
        let wanted = needed | feature::EVENT_FORK | tracking;
        let (uffd, features) = Userfaultfd::open_with_any(wanted)?;
        if features & needed != needed {
            return Err(OpenError::Features { missing: needed & !features }.into());
        }
        let window = DiscardWindow::new(uffd, config.executable)?;
        let staging = Staging::new(config.staging_pages, window).map_err(system("staging memory"))?;
        if config.executable {
            staging.allow_execution().map_err(system("executable staging memory"))?;
        }
        let pagemap = Pagemap::open().map_err(system("/proc/thread-self/pagemap"))?;
        let tracker = tracker::choose(&uffd, pagemap, features);
        let mover = Mover::new(uffd, pagemap, tracker).map_err(system("a page"))?;
        if !mover.guard_staging(staging.range(), true) {
            return Err(system("a page")(std::io::Error::last_os_error()));
        }
        let pages = Pages {
            accounts,
            table: AddressTable::new().map_err(system("page table memory"))?,
            staging,
            has_swap: store.swap_file().is_some(),
            store,
            policy: Policy::new(pages_in(accounts.budget())),
            events: EventQueue::new(),
            mover,
            recycles: AtomicBool::new(true),
            odd: AtomicBool::new(false),
            discarding: AtomicU64::new(0),
            changed: Mutex::new(Changed { ranges: Vec::with_capacity(CHANGED_MAX), all: false }),
            reorder: Mutex::default(),
            own_threads: OwnThreads::new(),
            transit: Mutex::new(relocate::Transit::new().map_err(system("memory for pages in transit"))?),
        };
        Ok((pages, features))
    }

    /// The pool.
    pub fn store(&self) -> &Zswap {
        &self.store
    }

    /// Whether a page is staged or stored. A hint: no lock is taken.
    pub fn is_out(&self, at: usize) -> bool {
        self.table.find(at).is_some_and(|block| block.is_out(index_of(at)))
    }

    /// Whether a page is in memory and was armed. A hint: no lock is taken.
    pub fn was_armed(&self, at: usize) -> bool {
        self.table.find(at).is_some_and(|block| block.history().is_armed(index_of(at)))
    }

    /// The replacement policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Tells the policy of pages that came back from staging or the pool, of which `needed` were
    /// asked for.
    fn note_returned(&self, history: &History, mask: u32, needed: u32, in_run: bool) {
        let returned = self.policy.returned(history, mask, needed, in_run);
        if self.mover.tracker.sees_uses() {
            // A run is moved in armed but for its first page.
            self.policy.came_armed(history, mask & !needed & mask.wrapping_sub(1));
        }
        if returned.pages > 0 {
            self.accounts.add(Counter::Returned, returned.pages);
            self.accounts.add(Counter::ReturnDistance, returned.distance_pages);
        }
    }

    /// Where pages wait.
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    /// The table, for looks without a lock.
    pub fn table(&self) -> &AddressTable {
        &self.table
    }

    /// The pagemap of this process.
    pub fn pagemap(&self) -> &Pagemap {
        &self.mover.pagemap
    }

    /// What the userfaultfd that guards the program's memory reports, and what is registered with
    /// it.
    pub fn reports(&self) -> Reports {
        self.mover.guard.reports()
    }

    /// The same, for questions whose results count.
    pub fn guard(&self) -> &Guard {
        &self.mover.guard
    }

    /// Where frames are given back.
    pub fn discard_window(&self) -> &DiscardWindow {
        &self.staging.discard_window
    }

    /// Has frames that pages left in be given back from now on, never filled again: the program
    /// hands references to its pages to others (vmsplice, MSG_ZEROCOPY), which the kernel keeps
    /// after a page has been moved away.
    pub fn stop_recycling(&self) {
        self.recycles.store(false, Ordering::Release);
    }

    /// Whether frames are filled again.
    pub fn recycles(&self) -> bool {
        self.recycles.load(Ordering::Acquire)
    }

    /// What sees uses.
    pub fn tracker(&self) -> &dyn AccessTracker {
        &*self.mover.tracker
    }

    /// Has a test's tracker say which pages are used.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub fn track_by(&mut self, tracker: Box<dyn AccessTracker>) {
        self.mover.tracker = tracker;
    }

    /// Registers a range, so that uses of its pages are seen if that can be: not where nothing may
    /// be accessed.
    fn register_tracked(&self, range: &Range<usize>) -> bool {
        let register = |mode| {
            let len = range.end - range.start;
            self.mover.guard.reports().register(range.start, len, MISSING | mode).is_ok()
        };
        match self.mover.tracker.mode() {
            0 => register(0),
            mode => register(mode) || register(0),
        }
    }

    /// Registers a range with this process's userfaultfd. Not while reports are to come: what the
    /// table says of the range may be about an earlier mapping.
    pub fn register(&self, range: Range<usize>) -> Registered {
        let try_now = || (!self.mover.is_changing()).then(|| self.register_tracked(&range));
        for _ in 0..REGISTER_TRIES {
            match self.events.while_quiet(try_now) {
                Some(Some(true)) => return Registered::Done,
                Some(Some(false)) => return Registered::Refused,
                Some(None) | None => {}
            }
            self.apply_events();
            crate::sync::yield_now();
        }
        Registered::NotNow
    }

    /// Has the kernel fill a range by itself until the mappings are looked at again, unless its
    /// first page is there, or any of it is out: then it is not what it was taken for.
    pub fn leave_to_kernel(&self, range: Range<usize>) {
        // Nothing goes out during that.
        let Some(reading) = self.events.reading().filter(|_| !self.events.pending()) else { return };
        let is_new = self.mover.mapped(range.start, 1) == 0 && !self.has_out(range.clone());
        if is_new {
            // A mapping that is gone needs nothing.
            let _ = self.mover.guard.reports().unregister(range.start, range.len());
        }
        drop(reading);
        if is_new {
            self.note_changed(range.start, range.end);
        }
    }

    /// Whether some page of a range is out.
    fn has_out(&self, range: Range<usize>) -> bool {
        self.table.busy(range.start, range.end).any(|base| {
            let mask = within(base, range.start, range.end);
            (0..BLOCK_PAGES).any(|page| mask >> page & 1 == 1 && self.is_out(page_at(base, page)))
        })
    }

    /// In a forked child: no call is under way, and no report is to come.
    pub fn forget_reports(&self) {
        self.settle();
        debug_assert!(self.events.is_quiet());
    }

    /// Begins to watch for calls that change mappings, or ends it: nothing at all is registered
    /// then.
    pub fn watch_changes(&self, on: bool) {
        // It may be so already.
        let _ = self.mover.guard_probe(on);
        let _ = self.mover.guard_staging(self.staging.range(), on);
    }

    /// Registers a page whose replacement is reported; `None` when that fails. After
    /// [`Pages::watch_changes`] was ended.
    pub fn register_bell(&self) -> Option<Bell> {
        let probe = self.mover.guard.probe();
        self.reports().register(probe, PAGE_SIZE, MISSING).ok()?;
        // SAFETY: the guard's own page, taken for the probe alone: nothing else has its address.
        Some(unsafe { Bell::new(probe) })
    }

    /// Gives back what staging and the table had, neither of which is used any more.
    pub fn let_go(&mut self) {
        let staging = self.staging.range();
        let at = std::ptr::NonNull::new(staging.start as *mut u8).expect("in the arena");
        // SAFETY: staging's range, of which nothing is needed.
        unsafe { sys::memory::discard(at, staging.len()) };
        self.table.let_go();
    }

    /// Counts a thread of the pager's that has started.
    pub fn add_own_thread(&self) {
        self.own_threads.add();
    }

    /// Threads counted so far.
    pub fn own_threads(&self) -> u32 {
        self.own_threads.count()
    }

    /// What all of them but the caller do.
    pub fn own_threads_state(&self) -> ThreadsState {
        self.own_threads.state()
    }

    /// In a forked child, which has none of them but the caller.
    pub fn reset_own_threads(&self) {
        self.own_threads.reset();
        self.own_threads.add();
    }

    /// Reads a message, and applies it if it is an event. Hold no block's lock.
    pub fn read_message(&self) -> Read {
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        let mut read = Read::Nothing;
        // One at a time: a second fault is better served by another handler than by queueing here.
        if let Some(reading) = self.events.reading() {
            if self.mover.guard.reports().read(&mut messages, 1) == 1 {
                read = match messages[0] {
                    Message::Fault { address, write, thread, .. } => Read::Fault { address, write, thread },
                    event => {
                        reading.push(event);
                        Read::Event
                    }
                };
            }
        }
        self.apply_events();
        read
    }

    /// Applies the events read so far. Hold no block's lock.
    pub fn apply_events(&self) {
        self.events.apply(|event| self.apply(event));
        self.settle();
    }

    fn note_changed(&self, start: usize, end: usize) {
        let mut changed = self.changed.lock().expect("no panic while held");
        match changed.ranges.len() < CHANGED_MAX {
            true => changed.ranges.push((start, end)),
            false => changed.all = true,
        }
    }

    /// Calls `each` with the ranges whose mappings may be others since the last call.
    pub fn take_changed(&self, mut each: impl FnMut(usize, usize)) {
        let mut changed = self.changed.lock().expect("no panic while held");
        if std::mem::take(&mut changed.all) {
            each(0, usize::MAX);
        }
        changed.ranges.drain(..).for_each(|(start, end)| each(start, end));
    }

    /// Queues an event that was read while everybody else stands still, and applies it.
    pub fn apply_now(&self, event: Message) {
        self.events.push(event);
        self.apply_events();
    }

    /// Whether events wait to be applied.
    pub fn has_pending_events(&self) -> bool {
        !self.events.is_quiet()
    }

    /// Ends the process with a message that names what broke: the alternative is a wrong byte.
    pub fn fatal(&self, what: std::fmt::Arguments<'_>) -> ! {
        self.accounts.broken(FixedText::new(format_args!("the program is ended: {what}")).as_str());
        sys::thread::end_process()
    }

    /// Says something about this process.
    pub fn say(&self, what: std::fmt::Arguments<'_>) {
        self.accounts.say(FixedText::new(what).as_str());
    }

    /// The proof for what is locked; `None` when events wait to be applied.
    fn quiet<'a>(&'a self, locked: &'a impl run::Locked) -> Option<mover::Quiet<'a>> {
        self.mover.quiet(&self.events, locked)
    }

    /// Checks, in debug builds, that the staged pages of a block that was just locked are in its
    /// slot.
    fn checked<'a>(&self, block: block::BlockGuard<'a>) -> block::BlockGuard<'a> {
        if cfg!(debug_assertions) {
            let (staged, slot) = (block.mask(block::PageState::Staged), block.slot());
            if staged != 0 {
                let (owner, present) = (self.staging.owner(slot), self.staging.present(slot));
                assert_eq!(owner, block.base(), "the owner of slot {slot}");
                assert_eq!(staged & !present, 0, "staged pages of {owner:#x} that are not in slot {slot}");
            }
        }
        block
    }

    /// The lock of a block that must have a record.
    fn lock(&self, address: usize) -> block::BlockGuard<'_> {
        match self.table.lock(address) {
            Ok(guard) => self.checked(guard),
            Err(_) => self.fatal(format_args!("no memory for the page table: the arena is full")),
        }
    }

    fn lock_settled(&self, address: usize) -> block::BlockGuard<'_> {
        match self.table.lock_settled(address) {
            Ok(guard) => self.checked(guard),
            Err(_) => self.fatal(format_args!("no memory for the page table: the arena is full")),
        }
    }

    /// Reads a stored page without taking it out of the pool.
    fn load_copy(&self, at: usize, page: &mut [u8; PAGE_SIZE]) {
        let key = PageNumber::of(at).key();
        if let Err(error) = self.store.load(GROUP, key, &mut [page], zswap::Keep::Shared) {
            self.fatal(format_args!("page {at:#x} is lost: {error}"));
        }
    }
}

/// A coarse clock.
pub(crate) fn now_ms() -> u32 {
    (sys::now_ns() / 1_000_000) as u32
}
