//! The pager: all its parts, and what belongs to no single one of them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

use sys::pagemap::Pagemap;
use sys::procfs::{self, ProcFile};
use sys::userfaultfd::{feature, OpenError, Userfaultfd, WRITE_PROTECT};
use sys::{house, PAGE_SIZE};
use zswap::Zswap;

use crate::accounts::Accounts;
use crate::clock::Hand;
use crate::events::Events;
use crate::halt::Halt;
use crate::listeners::Listeners;
use crate::mappings::Mappings;
use crate::pins::Pins;
use crate::promotion::Promotion;
use crate::racks::{RACK_PAGES, RACK_SLOTS};
use crate::remap::{self, Way};
use crate::staging::Staging;
use crate::streams::Streams;
use crate::table::{AddressTable, Block, PageState, BLOCK_BYTES, BLOCK_PAGES, COMPRESSING, NO_SLOT};
use crate::usher::Ushers;

/// The one group of the pool: a pager serves one program.
pub(crate) const GROUP: zswap::Group = zswap::Group(0);
/// Runs of pages brought in last that are remembered: more than handlers can bring in while an event waits to be applied.
const ARRIVALS: usize = 4 * HANDLERS_MAX;
/// Most handler threads.
pub const HANDLERS_MAX: usize = 64;

/// How a pager works.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pages evicted and stored together: 4 to 512, a power of two.
    pub folio_pages: usize,
    /// Pages that may be staged at once.
    pub staging_pages: usize,
    /// Handler threads that will run; at most [`HANDLERS_MAX`].
    pub handlers: usize,
    /// Ranges never to be touched: the house, the pager's own code and data.
    pub own: Vec<Range<usize>>,
    /// Do without `UFFDIO_MOVE` although the kernel has it, for tests.
    pub without_move: bool,
    /// Do without `PAGEMAP_SCAN` although the kernel has it, for tests.
    pub without_scan: bool,
}

/// A pager could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No userfaultfd.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// No memory, or /proc is not there.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// Pages a whole program. Made by a thread with a file table of its own; the threads that run
/// [`Pager::handle_faults`], [`Pager::reclaim`] and [`Pager::watch`] share that table.
pub struct Pager {
    pub(crate) config: Config,
    pub(crate) accounts: &'static dyn Accounts,
    pub(crate) table: AddressTable,
    pub(crate) staging: Staging,
    pub(crate) store: Zswap,
    pub(crate) uffd: Userfaultfd,
    /// How pages leave and come back.
    pub(crate) way: Way,
    /// Has no event features: discarding a staging page must not wait for this very pager. Where pages are not moved,
    /// staging is not registered with it.
    pub(crate) staging_uffd: Userfaultfd,
    pub(crate) ushers: Ushers,
    pub(crate) pins: Pins,
    /// Whether the kernel leaves the target of an mremap() alone that it refuses.
    pub(crate) keeps_target: bool,
    /// Guards a page of the house while a fork is expected, to tell when the kernel begins to copy the house. `None`
    /// where forks may not be watched.
    pub(crate) gate: Option<Userfaultfd>,
    /// The page that the warden decompresses into around forks.
    pub(crate) gate_page: usize,
    pub(crate) pagemap: Pagemap,
    pub(crate) statm: ProcFile,
    pub(crate) maps: ProcFile,
    pub(crate) rollup: ProcFile,
    pub(crate) events: Events,
    pub(crate) streams: Streams,
    pub(crate) mappings: Mutex<Mappings>,
    pub(crate) hand: Mutex<Hand>,
    /// Raised when there may be something to reclaim; workers sleep on it.
    pub(crate) pressure: AtomicU32,
    /// Bytes that a shared page's fair share differs from its full size, after fork.
    pub(crate) shared_discount: AtomicU64,
    pub(crate) resident: AtomicU64,
    /// Whether that is to be measured anew soon: relatives came or went.
    pub(crate) shared_stale: AtomicBool,
    /// When each handler began its present fault, 0 when idle. The last is the warden's, which serves around forks.
    pub(crate) busy_since: [AtomicU64; HANDLERS_MAX + 1],
    /// The slot in each handler's purse while the handler stands still.
    pub(crate) purse_slots: [AtomicU32; HANDLERS_MAX + 1],
    /// Reclaim workers that run.
    pub(crate) workers: AtomicU32,
    /// Workers that are awake.
    pub(crate) working: AtomicU32,
    /// When nothing was found anywhere that could be moved out, in milliseconds.
    pub(crate) vain_ms: AtomicU32,
    pub(crate) promotion: Promotion,
    /// Runs of pages come in, and a worker is to compress what goes out for them.
    pub(crate) streaming: AtomicBool,
    pub(crate) halt: Halt,
    pub(crate) listeners: Listeners,
    /// Handlers that are reclaiming.
    pub(crate) helping: AtomicU32,
    /// Address of each run, and its pages in the low bits.
    pub(crate) arrivals: [AtomicUsize; ARRIVALS],
    pub(crate) arrival_turn: AtomicU32,
}

impl Pager {
    /// Opens the descriptors and makes every table. Nothing is registered yet.
    ///
    /// # Errors
    /// [`StartError`] names what is missing.
    pub fn new(config: Config, store: Zswap, accounts: &'static dyn Accounts) -> Result<Self, StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let needed = feature::EVENT_REMAP | feature::EVENT_REMOVE | feature::EVENT_UNMAP | feature::THREAD_ID;
        let (uffd, features) = Userfaultfd::open_with_any(needed | feature::MOVE | feature::EVENT_FORK)?;
        if features & needed != needed {
            return Err(OpenError::Features { missing: needed & !features }.into());
        }
        let can_move = Userfaultfd::features()? & feature::MOVING == feature::MOVING;
        let way = if can_move && !config.without_move { Way::Move } else { Way::Remap };
        let (staging, staging_uffd, keeps_target) = match way {
            Way::Move => {
                let staging = Staging::new(config.staging_pages).map_err(system("staging memory"))?;
                let (staging_uffd, range) = (Userfaultfd::open(feature::MOVE)?, staging.range());
                // Write-protect mode satisfies the kernel's rule that a destination of moves is registered, and leaves
                // first touches of staging pages to the kernel. No page is ever protected.
                staging_uffd
                    .register(range.start, range.len(), WRITE_PROTECT)
                    .map_err(|_| OpenError::Features { missing: feature::PAGEFAULT_FLAG_WP })?;
                (staging, staging_uffd, true)
            }
            Way::Remap => {
                let slots = config.staging_pages.min(remap::SLOTS_MAX);
                let staging =
                    Staging::with_slots(config.staging_pages, slots, 0).map_err(system("staging memory"))?;
                (
                    staging,
                    Userfaultfd::open(0)?,
                    sys::remap::probe().map_err(system("mremap with MREMAP_DONTUNMAP"))?,
                )
            }
        };
        let pagemap = Pagemap::open().map_err(system("/proc/self/pagemap"))?;
        Ok(Pager {
            table: AddressTable::new().map_err(system("page table memory"))?,
            staging,
            promotion: Promotion::new(store.promotes()),
            store,
            gate_page: house::take(PAGE_SIZE, PAGE_SIZE).map_err(system("the warden's page"))?.as_ptr()
                as usize,
            gate: match house::porch() {
                Some(_) if features & feature::EVENT_FORK != 0 && way == Way::Move => {
                    Some(Userfaultfd::open(feature::EVENT_FORK)?)
                }
                _ => None,
            },
            uffd,
            staging_uffd,
            way,
            ushers: Ushers::new(),
            pins: Pins::default(),
            keeps_target,
            pagemap: if config.without_scan { pagemap.without_scan() } else { pagemap },
            statm: ProcFile::open(c"/proc/self/statm").map_err(system("/proc/self/statm"))?,
            maps: ProcFile::open(c"/proc/self/maps").map_err(system("/proc/self/maps"))?,
            rollup: ProcFile::open(c"/proc/self/smaps_rollup").map_err(system("/proc/self/smaps_rollup"))?,
            events: Events::new(),
            streams: Streams::new((config.folio_pages * RACK_SLOTS).clamp(BLOCK_PAGES, RACK_PAGES)),
            mappings: Mutex::new(Mappings::new()),
            hand: Mutex::new(Hand::new()),
            pressure: AtomicU32::new(0),
            shared_discount: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            shared_stale: AtomicBool::new(false),
            busy_since: [const { AtomicU64::new(0) }; HANDLERS_MAX + 1],
            purse_slots: [const { AtomicU32::new(NO_SLOT) }; HANDLERS_MAX + 1],
            workers: AtomicU32::new(0),
            working: AtomicU32::new(0),
            vain_ms: AtomicU32::new(now_ms().wrapping_sub(1 << 16)),
            streaming: AtomicBool::new(false),
            halt: Halt::default(),
            listeners: Listeners::default(),
            helping: AtomicU32::new(0),
            arrivals: [const { AtomicUsize::new(0) }; ARRIVALS],
            arrival_turn: AtomicU32::new(0),
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
        self.uffd.descriptor()
    }

    /// Reads this process's use from the kernel and publishes it; answers the total of all processes.
    pub fn measure(&self) -> u64 {
        let mut buffer = [0; 128];
        if let Some(bytes) = procfs::anonymous_bytes(self.statm.read_at(&mut buffer, 0)) {
            let fair = bytes.saturating_sub(self.shared_discount.load(Ordering::Relaxed));
            self.resident.store(fair, Ordering::Relaxed);
            let staged = (self.staging.pages() * PAGE_SIZE) as u64;
            let (pool, stored) = (self.store.pool_bytes(), self.store.stored_pages());
            self.accounts.publish(fair, pool, staged, stored);
        }
        self.accounts.total()
    }

    /// The level that reclaim works towards: a little under the budget, so that small growth needs no waiting.
    pub(crate) fn low_water(&self) -> u64 {
        let budget = self.accounts.budget();
        budget - (budget / 64).clamp(1 << 20, 16 << 20).min(budget / 4)
    }

    /// Registers a mapping that the program has just made.
    pub fn register(&self, range: Range<usize>) {
        let mut mappings = self.mappings.lock().expect("no panic while held");
        if !self.halt.is_on() && !mappings.register(&self.uffd, range) {
            mappings.refresh(&self.maps, &self.uffd, &self.config.own);
        }
    }

    /// Looks at the program's mappings again.
    pub fn refresh_mappings(&self) {
        let mut mappings = self.mappings.lock().expect("no panic while held");
        mappings.refresh(&self.maps, &self.uffd, &self.config.own);
    }

    /// Applies the events read so far.
    pub(crate) fn apply_events(&self) {
        self.events.apply(|event| self.apply(event));
    }

    /// The program discarded `[start, end)`: it reads as zeroes from now on.
    pub(crate) fn forget_range(&self, start: usize, end: usize) {
        self.table.for_each_busy(start, end, |base, block| {
            block.lock();
            let first = start.saturating_sub(base).min(BLOCK_BYTES).div_ceil(PAGE_SIZE);
            let last = (end - base).min(BLOCK_BYTES) / PAGE_SIZE;
            let mask = if last > first { crate::table::span(first, last - first) } else { 0 };
            let (staged, stored) =
                (block.mask(PageState::Staged) & mask, block.mask(PageState::Stored) & mask);
            block.change(staged, PageState::Staged, PageState::Kernel);
            block.change(stored, PageState::Stored, PageState::Kernel);
            for (first, count) in crate::table::runs(stored) {
                self.store.invalidate(GROUP, (base / PAGE_SIZE + first) as u64, count as u64);
            }
            block.unlock();
        });
    }

    /// Keeps the reclaimer away from blocks whose pages the kernel is about to discard.
    pub(crate) fn quarantine(&self, start: usize, end: usize) {
        self.table.quarantine(start, end, now_ms());
    }

    /// mremap() moved `[from, from + len)` to `to`: what is stored or staged follows.
    pub(crate) fn move_range(&self, from: usize, to: usize, len: usize) {
        self.mappings.lock().expect("no panic while held").forget(from, from + len);
        let mut buffer = [[0u8; PAGE_SIZE]; 1];
        self.table.for_each_busy(from, from + len, |base, block| {
            // A compression in progress looks at the old block when it is done.
            lock_settled(block);
            for index in 0..crate::table::BLOCK_PAGES {
                let page = base + index * PAGE_SIZE;
                if page < from || page >= from + len {
                    continue;
                }
                let target = page - from + to;
                let key = (page / PAGE_SIZE) as u64;
                match block.state(index) {
                    PageState::Kernel => continue,
                    PageState::Staged => {
                        // SAFETY: staged pages are read under their block's lock and stay until it is released.
                        let bytes = unsafe {
                            &*(self.staging.address(block.slot(), index) as *const [u8; PAGE_SIZE])
                        };
                        buffer[0].copy_from_slice(bytes);
                        block.change(1 << index, PageState::Staged, PageState::Kernel);
                    }
                    PageState::Stored => {
                        let loaded =
                            self.store.load(GROUP, key, &mut [&mut buffer[0]], zswap::Keep::Exclusive);
                        if let Err(error) = loaded {
                            self.fatal(format_args!("page {page:#x} could not follow mremap: {error}"));
                        }
                        block.change(1 << index, PageState::Stored, PageState::Kernel);
                    }
                }
                self.put_moved(target, &buffer[0]);
            }
            block.unlock();
        });
    }

    /// Stores one page of a moved range under its new address, or puts it back into memory.
    fn put_moved(&self, target: usize, bytes: &[u8; PAGE_SIZE]) {
        let Ok(block) = self.table.block(target) else {
            self.fatal(format_args!("no memory for the page table"));
        };
        let index = target % BLOCK_BYTES / PAGE_SIZE;
        // A compression in progress for what was here before drops its objects when it ends, by these very keys.
        lock_settled(block);
        if block.state(index) == PageState::Kernel
            && self.store.store(GROUP, (target / PAGE_SIZE) as u64, &[bytes]).is_ok()
        {
            block.change(1 << index, PageState::Kernel, PageState::Stored);
            block.unlock();
            return;
        }
        block.unlock();
        loop {
            // SAFETY: the bytes are this page's content; a missing page is filled, a present one refuses.
            let progress = unsafe { self.uffd.copy(target, bytes.as_ptr() as usize, PAGE_SIZE) };
            match progress.stop {
                None => return,
                // This runs while events are applied: the pending one is read by another handler, or is this one,
                // whose thread only has to run.
                Some(sys::userfaultfd::Stop::Again) => sys::thread::sleep_ns(20_000),
                Some(sys::userfaultfd::Stop::Hole) => return,
                Some(stop) => self.fatal(format_args!("page {target:#x} could not follow mremap: {stop:?}")),
            }
        }
    }

    /// Ends the process with a message that names what broke: the alternative is a wrong byte.
    pub(crate) fn fatal(&self, what: std::fmt::Arguments<'_>) -> ! {
        self.accounts.broken(FixedText::new(format_args!("the program is ended: {what}")).as_str());
        end_process()
    }

    /// Says something about this process.
    pub(crate) fn say(&self, what: std::fmt::Arguments<'_>) {
        self.accounts.say(FixedText::new(what).as_str());
    }
}

/// A coarse clock for quarantines.
pub(crate) fn now_ms() -> u32 {
    (sys::now_ns() / 1_000_000) as u32
}

/// Waits for the lock of a block that is not being compressed.
pub(crate) fn lock_settled(block: &Block) {
    loop {
        block.lock();
        if !block.has(COMPRESSING) {
            return;
        }
        block.unlock();
        sys::thread::yield_now();
    }
}

/// Frees the slot number of a block without staged pages.
pub(crate) fn drop_slot_if_unused(block: &Block) {
    if block.mask(PageState::Staged) == 0 {
        block.set_slot(NO_SLOT);
    }
}

/// Ends the process by SIGABRT, whatever the program's handler, or SIGKILL.
pub fn end_process() -> ! {
    sys::thread::end_process()
}

/// Text of limited length that needs no heap.
pub struct FixedText {
    bytes: [u8; 400],
    len: usize,
}

impl FixedText {
    /// Formats `what`, cut at the end if too long.
    pub fn new(what: std::fmt::Arguments<'_>) -> Self {
        let mut text = FixedText { bytes: [0; 400], len: 0 };
        let _ = std::fmt::Write::write_fmt(&mut text, what);
        text
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or("(message cut inside a character)")
    }
}

impl std::fmt::Write for FixedText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = (self.bytes.len() - self.len).min(text.len());
        self.bytes[self.len..self.len + room].copy_from_slice(&text.as_bytes()[..room]);
        self.len += room;
        Ok(())
    }
}
