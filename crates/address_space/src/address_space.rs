//! Where every managed page is, and the only transitions that change it.
//!
//! A page is mapped, staged, stored or never touched (`table`). Only these transitions move it:
//!
//! | transition | from | to | file |
//! |---|---|---|---|
//! | evict | kernel | staged | `evict` |
//! | compress | staged | stored, or back | `compress` |
//! | fault in | staged, stored, nothing | kernel | `fault_in`, `fault_in_run`, `from_disk`; `place` |
//! | discard | staged, stored | kernel (nothing) | `discard` |
//! | relocate | staged, stored | stored elsewhere | `relocate` |
//! | hand over | - | copied into a child | `hand_over` |
//!
//! Each takes the lock of the page's block ([`BlockGuard`]). To call the kernel for the page, it
//! makes from that lock the proof that no event about the address space is unread or unapplied
//! ([`Coherent`]), which has the calls. The state and the system calls are private to these two.

use std::io;
use std::ops::Range;

use replacement::policy::{History, Policy};
use sys::userfaultfd::{feature, Message, OpenError, MESSAGES_MAX, MISSING};
use sys::PAGE_SIZE;
use zswap::Zswap;

use crate::accounts::{Accounts, Counter};
use crate::errors::{FixedText, StartError};
use crate::own_threads::OwnThreads;
use crate::space::block::{BlockGuard, Locked, PageState};
use crate::space::changed::Changed;
use crate::space::descriptor::{Guard, Reports};
use crate::space::mover::Coherent;
use crate::space::table::AddressTable;
use crate::space::Space;
use crate::staging::discard_window::DiscardWindow;
use crate::staging::Staging;
use crate::sync::{Pagemap, Userfaultfd};
use crate::tracker::{AccessTracker, Rwp};
use crate::transition::discard::Discards;
use crate::transition::reorder::{apply, settle, Reorder};
use crate::units::{pages_in, BlockNumber, PageMask, PageNumber};

/// The outcome of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The range is registered.
    Done,
    /// The kernel refuses the range.
    Refused,
    /// Reports are still unread.
    NotNow,
}

/// The one group of the pool: a pager serves one program.
pub const GROUP: zswap::Group = zswap::Group(0);
/// Pages displaced by something newer before their destination was known.
pub const DISPLACED: zswap::Group = zswap::Group(1);
/// Groups that the pool needs.
pub const GROUPS: u16 = 2;

/// A message that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// No message, or too many unapplied events.
    Nothing,
    /// A page is missing.
    Fault {
        /// The page that was touched.
        page: PageNumber,
        /// Whether it was written to.
        write: bool,
        /// The number of the waiting thread.
        thread: u32,
    },
    /// An event. It has been applied.
    Event,
}

/// Attempts to register a range while calls are under way, before it is deferred.
const REGISTER_TRIES: usize = 20;

/// Configuration of an address space.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most pages that may be staged at once.
    pub staging_pages: usize,
    /// Page executable memory, and no other.
    pub executable: bool,
    /// Do not use access tracking (Linux 7.3).
    pub without_tracking: bool,
}

#[cfg(test)]
impl Settings {
    pub(crate) fn for_tests(staging_pages: usize) -> Self {
        Settings { staging_pages, executable: false, without_tracking: false }
    }

    pub(crate) fn store_for_tests() -> Zswap {
        let mut registry = acomp::Registry::new();
        codecs::register_all(&mut registry);
        let config = zswap::Config { max_groups: GROUPS, verify: true, ..Default::default() };
        Zswap::new(config, registry.find("lz4").unwrap()).unwrap()
    }
}

/// A page without references, whose replacement is reported.
#[derive(Debug)]
pub struct Bell(pub(crate) usize);

impl Bell {
    /// Replaces the page. The report wakes every thread that waits for messages.
    pub fn ring(self) {
        // SAFETY: nothing refers to the page, by `AddressSpace::register_bell`.
        let rung = unsafe { sys::memory::map_again(self.0, PAGE_SIZE) };
        rung.expect("as many mappings as before, and one more");
    }
}

/// Every managed page of a process. One type, because a transition needs the table, staging and the
/// pool at once: with a lock for each of them apart, a page could be in two or in none.
///
/// The transitions take all of it instead of the parts that they change, though each changes four
/// at most (a block, staging, the pool, the policy). Each also applies events if its proof is
/// refused, which may be any other transition, and ends the process if a page is lost; with parts,
/// every call on the way would carry eight. Steps that do neither take their parts, if these are
/// few.
pub struct AddressSpace {
    pub(crate) accounts: &'static dyn Accounts,
    pub(crate) space: Space,
    /// Memory that pages pass through on their way out and in.
    pub staging: Staging,
    /// The pool, and its swap file.
    pub store: Zswap,
    /// Which pages leave.
    pub policy: Policy,
    /// Pages that the program discarded and the kernel may still have mapped.
    pub discards: Discards,
    /// Mappings to look at again.
    pub changed: Changed,
    pub(crate) reorder: Reorder,
    /// The threads that page, which change no mappings.
    pub own_threads: OwnThreads,
}

impl AddressSpace {
    /// Opens the userfaultfd and creates every table. Also returns the features that were enabled.
    ///
    /// # Errors
    /// [`StartError`] names the missing part.
    pub fn new(
        settings: &Settings,
        store: Zswap,
        accounts: &'static dyn Accounts,
    ) -> Result<(Self, u64), StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let events = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP;
        let needed = feature::MOVING | events | feature::THREAD_ID;
        let tracking = if settings.without_tracking { 0 } else { feature::TRACKING };
        let wanted = needed | feature::EVENT_FORK | tracking;
        let (uffd, features) = Userfaultfd::open_with_any(wanted)?;
        if features & needed != needed {
            return Err(OpenError::Features { missing: needed & !features }.into());
        }
        let window = DiscardWindow::new(uffd, settings.executable)?;
        let staging = Staging::new(settings.staging_pages, window).map_err(system("staging memory"))?;
        if settings.executable {
            staging.allow_execution().map_err(system("executable staging memory"))?;
        }
        let pagemap = Pagemap::open().map_err(system("/proc/thread-self/pagemap"))?;
        let tracker = Box::new(Rwp::new(&uffd, pagemap, features));
        let space = Space::new(uffd, pagemap, tracker).map_err(system("page table memory"))?;
        if !space.mover.guard_staging(staging.range(), true) {
            return Err(system("a page")(std::io::Error::last_os_error()));
        }
        let pages = AddressSpace {
            accounts,
            space,
            staging,
            store,
            policy: Policy::new(pages_in(accounts.budget())),
            discards: Discards::default(),
            changed: Changed::new(),
            reorder: Reorder::new().map_err(system("memory for pages in transit"))?,
            own_threads: OwnThreads::new(),
        };
        Ok((pages, features))
    }

    /// Whether a page is staged or stored. A hint: no lock is taken.
    pub fn is_out(&self, at: PageNumber) -> bool {
        self.space.table.is_out(at)
    }

    /// The page table.
    pub fn table(&self) -> &AddressTable {
        &self.space.table
    }

    /// Whether a page is in memory and was armed. A hint: no lock is taken.
    pub fn was_armed(&self, at: PageNumber) -> bool {
        self.space.table.find(at.block()).is_some_and(|block| block.history().is_armed(at.index()))
    }

    /// Tells the policy of pages that came back from staging or the pool. Faults needed `needed`.
    pub(crate) fn note_returned(&self, history: &History, mask: PageMask, needed: PageMask, in_run: bool) {
        let returned = self.policy.returned(history, mask.bits(), needed.bits(), in_run);
        if self.space.mover.tracker.sees_uses() {
            // In a run, every page but the first is moved in armed.
            self.policy.came_armed(history, (mask.without_first() & !needed).bits());
        }
        if returned.pages > 0 {
            self.accounts.add(Counter::Returned, returned.pages);
            self.accounts.add(Counter::ReturnDistance, returned.distance_pages);
        }
    }

    /// The kernel's view of the memory.
    pub fn pagemap(&self) -> &Pagemap {
        &self.space.mover.pagemap
    }

    /// The reporting side of the userfaultfd that guards the program's memory.
    pub fn reports(&self) -> Reports {
        self.space.mover.guard.reports()
    }

    /// The same userfaultfd, for calls whose results must be reliable.
    pub fn guard(&self) -> &Guard {
        &self.space.mover.guard
    }

    /// Tells which pages were used.
    pub fn tracker(&self) -> &dyn AccessTracker {
        &*self.space.mover.tracker
    }

    /// Replaces the tracker in a test.
    #[cfg(all(any(test, feature = "testing"), not(feature = "shuttle")))]
    pub fn track_by(&mut self, tracker: Box<dyn AccessTracker>) {
        self.space.mover.tracker = tracker;
    }

    /// Registers a range with this process's userfaultfd.
    pub fn register(&self, range: Range<usize>) -> Registered {
        for _ in 0..REGISTER_TRIES {
            match self.space.try_register(&range) {
                Some(true) => return Registered::Done,
                Some(false) => return Registered::Refused,
                None => {}
            }
            self.apply_events();
            crate::sync::yield_now();
        }
        Registered::NotNow
    }

    /// Lets the kernel fill a range by itself until the mappings are read again. Does nothing if
    /// the first page is present or any page is out: then the mapping is not new.
    pub fn leave_to_kernel(&self, range: Range<usize>) {
        // Nothing is evicted while events are read.
        let Some(reading) = self.space.events.reading().filter(|_| !self.space.events.pending()) else {
            return;
        };
        let is_new = self.space.mover.mapped(range.start, 1).is_empty() && !self.space.has_out(range.clone());
        if is_new {
            // If the mapping is gone, nothing is left to do.
            let _ = self.space.mover.guard.reports().unregister(range.start, range.len());
        }
        drop(reading);
        if is_new {
            self.changed.note(range.start, range.end);
        }
    }

    /// In a forked child, where no call is under way and no report is unread.
    pub fn forget_reports(&self) {
        settle(self);
        debug_assert!(self.space.events.is_coherent());
    }

    /// Starts or stops watching for calls that change mappings. Stopped, nothing is registered.
    pub fn watch_changes(&self, on: bool) {
        // The result does not matter: the state may be set already.
        let _ = self.space.mover.guard_probe(on);
        let _ = self.space.mover.guard_staging(self.staging.range(), on);
    }

    /// Registers a page whose replacement is reported, if nothing is watched. `None` on failure.
    pub fn register_bell(&self) -> Option<Bell> {
        let probe = self.space.mover.guard.probe;
        self.reports().register(probe, PAGE_SIZE, MISSING).ok()?;
        // The guard took this page for the probe alone, and nothing else has its address.
        Some(Bell(probe))
    }

    /// Frees the memory of staging and the table after their last use.
    ///
    /// # Safety
    /// No thread uses this any more.
    pub unsafe fn free_memory(&self) {
        let staging = self.staging.range();
        let at = std::ptr::NonNull::new(staging.start as *mut u8).expect("in the arena");
        // SAFETY: staging's own range, whose content is not needed.
        unsafe { sys::memory::discard(at, staging.len()) };
        // SAFETY: the caller's promise.
        unsafe { self.space.table.free_memory() };
    }

    /// Reads a message, and applies it if it is an event. Hold no block's lock.
    pub fn read_message(&self) -> Read {
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        let mut read = Read::Nothing;
        // One at a time: another handler serves a second fault sooner than this one's queue.
        if let Some(reading) = self.space.events.reading() {
            if self.space.mover.guard.reports().read(&mut messages, 1) == 1 {
                read = match messages[0] {
                    Message::Fault { address, write, thread, .. } => {
                        Read::Fault { page: PageNumber::of(address), write, thread }
                    }
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
        self.space.events.apply(|event| apply(self, event));
        settle(self);
    }

    /// Queues and applies an event that was read while all other threads stand still.
    pub fn apply_now(&self, event: Message) {
        self.space.events.push(event);
        self.apply_events();
    }

    /// Whether an event is unapplied, or its place in the order unknown.
    pub fn has_pending_events(&self) -> bool {
        !self.space.events.is_coherent()
    }

    /// Ends the process and names the broken invariant: continuing could corrupt data.
    pub fn fatal(&self, what: std::fmt::Arguments<'_>) -> ! {
        self.accounts.broken(FixedText::new(format_args!("the program is ended: {what}")).as_str());
        sys::thread::end_process()
    }

    /// Sends the user a message.
    pub fn say(&self, what: std::fmt::Arguments<'_>) {
        self.accounts.say(FixedText::new(what).as_str());
    }

    /// The proof for the locked blocks. `None` while events are unapplied.
    pub(crate) fn coherent<'a>(&'a self, locked: &'a impl Locked) -> Option<Coherent<'a>> {
        self.space.mover.coherent(&self.space.events, locked)
    }

    /// In debug builds, checks that the staged pages of a just locked block are in its slot.
    fn checked<'a>(&self, block: io::Result<BlockGuard<'a>>) -> BlockGuard<'a> {
        let Ok(block) = block else {
            self.fatal(format_args!("no memory for the page table: the arena is full"));
        };
        if cfg!(debug_assertions) {
            let staged = block.mask(PageState::Staged);
            if !staged.is_empty() {
                let slot = block.staged_slot();
                let (owner, present) = (self.staging.owner(slot), self.staging.present(slot));
                assert_eq!(owner, block.number(), "the owner of {slot:?}");
                assert!((staged & !present).is_empty(), "staged pages of {owner:?} that are not in {slot:?}");
            }
        }
        block
    }

    /// Locks a block, creating its record if needed.
    pub(crate) fn lock(&self, at: BlockNumber) -> BlockGuard<'_> {
        self.checked(self.space.table.lock(at))
    }

    pub(crate) fn lock_settled(&self, at: BlockNumber) -> BlockGuard<'_> {
        self.checked(self.space.table.lock_settled(at))
    }

    /// Reads a stored page and leaves it in the pool.
    pub(crate) fn load_copy(&self, at: PageNumber, bytes: &mut [u8; PAGE_SIZE]) {
        if let Err(error) = self.store.load(GROUP, at.key(), &mut [bytes], zswap::Keep::Shared) {
            self.fatal(format_args!("page {at:?} is lost: {error}"));
        }
    }
}

/// A coarse clock in milliseconds.
pub fn now_ms() -> u32 {
    (sys::now_ns() / 1_000_000) as u32
}
