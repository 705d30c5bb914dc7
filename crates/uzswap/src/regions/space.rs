//! The space: one budget and one pager for all regions of the process.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::OnceLock;

use pager::{Pager, StartError, BLOCK_BYTES};
use sys::memory;
use sys::userfaultfd::OpenError;

use super::counters::{Counters, Stats};
use super::mailbox::{Mailbox, Request};
use super::ranges::Ranges;
use super::region::Region;
use super::{forks, threads};
use crate::{PoolError, UnknownAlgorithm, DEFAULT_COMPRESSOR, PAGE_SIZE};

/// The smallest budget that leaves room for pages beside staging and tables.
pub const RAM_BYTES_MIN: u64 = 8 << 20;
/// Default reservation of address space, which costs nothing until it is used.
const ADDRESS_BYTES: usize = 1 << 40;
/// Least address space of a space.
const ADDRESS_BYTES_MIN: usize = 64 << 20;

/// Why starting a space, or making a region, failed.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// This process already has one: [`Space::current`].
    #[error("this process has a space already")]
    Started,
    /// The budget is too small.
    #[error("the budget is less than {} MiB", RAM_BYTES_MIN >> 20)]
    Ram(u64),
    /// The kernel's page size is not 4 KiB.
    #[error("pages of {} KiB: only 4 KiB are supported", .0 >> 10)]
    PageSize(usize),
    /// No compressor of that name.
    #[error(transparent)]
    Compressor(#[from] UnknownAlgorithm),
    /// The pool could not be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No userfaultfd(2); the text names the remedy.
    #[error(transparent)]
    Userfaultfd(OpenError),
    /// The swap file cannot be there; the text has the reason.
    #[error(transparent)]
    Swap(#[from] swapfile::OpenError),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// The action.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The space's address space is used up, or in too many pieces.
    #[error("no {} MiB of address space in one piece are left", .0.div_ceil(1 << 20))]
    Full(usize),
    /// This process was forked from the space's process.
    #[error("the space is that of the process this one was forked from")]
    Forked,
}

impl From<StartError> for SpaceError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Userfaultfd(error) => SpaceError::Userfaultfd(error),
            StartError::System { what, source } => SpaceError::System { what, source },
        }
    }
}

/// The settings of a space.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(super) ram_bytes: u64,
    pub(super) compressor: String,
    pub(super) verify: bool,
    pub(super) swap_bytes: u64,
    pub(super) swap_directory: PathBuf,
    address_bytes: usize,
    messages: Option<fn(&str)>,
}

impl Builder {
    /// The budget in bytes, 256 MiB by default. At least [`RAM_BYTES_MIN`].
    pub fn ram(mut self, bytes: u64) -> Self {
        self.ram_bytes = bytes;
        self
    }

    /// The compressor's name, one of [`registry`](crate::registry)'s; `auto` by default.
    pub fn compressor(mut self, name: &str) -> Self {
        name.clone_into(&mut self.compressor);
        self
    }

    /// Whether every page is checked when it returns. Slower; a changed page ends the process.
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// A swap file behind the budget, of at most this many bytes: pages that do not fit compressed,
    /// or do not compress, go there, encrypted with a key that lives as long as the process. The
    /// file has no name, and is gone however the process ends. By default, and for 0 bytes, there
    /// is none.
    pub fn swap(mut self, bytes: u64) -> Self {
        self.swap_bytes = bytes;
        self
    }

    /// The swap file's directory on a disk, `/var/tmp` by default.
    pub fn swap_directory(mut self, directory: &Path) -> Self {
        directory.clone_into(&mut self.swap_directory);
        self
    }

    /// Address space for all regions together, in bytes; by default 1 TiB, or as much as is
    /// available.
    pub fn address_space(mut self, bytes: usize) -> Self {
        self.address_bytes = bytes;
        self
    }

    /// Receives messages for users, called by a thread of the space. Must not use regions.
    pub fn on_message(mut self, messages: fn(&str)) -> Self {
        self.messages = Some(messages);
        self
    }

    /// Starts the space's threads: one that measures, as many that serve faults as there are CPUs,
    /// and a few that compress.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing is left behind then.
    pub fn start(self) -> Result<Space, SpaceError> {
        let kernels = sys::kernel_page_bytes();
        if kernels != PAGE_SIZE {
            return Err(SpaceError::PageSize(kernels));
        }
        if self.ram_bytes < RAM_BYTES_MIN {
            return Err(SpaceError::Ram(self.ram_bytes));
        }
        let _one = Starting::one();
        if Space::current().is_some() {
            return Err(SpaceError::Started);
        }
        forks::install().map_err(|source| SpaceError::System { what: "pthread_atfork", source })?;
        let (reserved, len) = reserve(self.address_bytes)?;
        let start = (reserved.as_ptr() as usize).next_multiple_of(BLOCK_BYTES);
        let range = start..(reserved.as_ptr() as usize + len) & !(BLOCK_BYTES - 1);
        let counters = Counters::new(self.ram_bytes, self.messages);
        // Both live for ever: the threads refer to them.
        let counters: &'static Counters = Box::leak(Box::new(counters));
        let inner: &'static Inner = Box::leak(Box::new(Inner {
            counters,
            range: range.clone(),
            swap_bytes: self.swap_bytes,
            ranges_lock: AtomicU32::new(0),
            ranges: std::cell::UnsafeCell::new(Ranges::new(range)),
            mailbox: Mailbox::default(),
            process: std::process::id(),
            pager: OnceLock::new(),
        }));
        if let Err(error) = threads::start(inner, self) {
            // SAFETY: reserved above; no pager has looked at it.
            unsafe { memory::unmap(reserved, len) };
            return Err(error);
        }
        SPACE.store(std::ptr::from_ref(inner).cast_mut(), Ordering::Release);
        Ok(Space { inner })
    }
}

/// Reserves `bytes` of address space, or less if not available.
fn reserve(bytes: usize) -> Result<(NonNull<u8>, usize), SpaceError> {
    let mut len =
        bytes.clamp(ADDRESS_BYTES_MIN, memory::USER_END).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES;
    loop {
        match memory::reserve(len) {
            Ok(at) => {
                // SAFETY: reserved just now.
                unsafe { memory::keep_small_pages(at, len) };
                return Ok((at, len));
            }
            Err(_) if len / 2 > ADDRESS_BYTES_MIN => len = (len / 2).next_multiple_of(BLOCK_BYTES),
            Err(source) => return Err(SpaceError::System { what: "address space", source }),
        }
    }
}

/// Held while a space starts, and over forks.
pub(super) static STARTING: AtomicU32 = AtomicU32::new(0);

struct Starting;

impl Starting {
    fn one() -> Self {
        sys::futex::lock_bits(&STARTING);
        Starting
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        sys::futex::unlock_bits(&STARTING);
    }
}

/// A space's state for its threads, regions and fork handlers.
pub(super) struct Inner {
    pub counters: &'static Counters,
    /// The address space of all regions.
    pub range: Range<usize>,
    swap_bytes: u64,
    ranges_lock: AtomicU32,
    ranges: std::cell::UnsafeCell<Ranges>,
    pub mailbox: Mailbox,
    process: u32,
    pub pager: OnceLock<&'static Pager>,
}

// SAFETY: the ranges are touched under their lock alone.
unsafe impl Sync for Inner {}

/// The space of this process, once started.
pub(super) static SPACE: AtomicPtr<Inner> = AtomicPtr::new(std::ptr::null_mut());

impl Inner {
    /// Whether the calling process has the space's threads.
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// Whether forks need no preparation.
    pub fn reports_forks(&self) -> bool {
        self.pager.get().is_none_or(|pager| pager.reports_forks())
    }

    /// Sets whether forked children have the regions.
    pub fn inherit(&self, inherits: bool) {
        let at = NonNull::new(self.range.start as *mut u8).expect("not null");
        // SAFETY: the space's own range.
        if let Err(error) = unsafe { memory::inherit(at, self.range.len(), inherits) } {
            self.counters.end(format_args!("forked children cannot be given their memory: {error}"));
        }
    }

    pub fn lock_ranges(&self) {
        sys::futex::lock_bits(&self.ranges_lock);
    }

    pub fn unlock_ranges(&self) {
        sys::futex::unlock_bits(&self.ranges_lock);
    }

    fn with_ranges<T>(&self, act: impl FnOnce(&mut Ranges) -> T) -> T {
        self.lock_ranges();
        // SAFETY: the lock is held.
        let result = act(unsafe { &mut *self.ranges.get() });
        self.unlock_ranges();
        result
    }

    /// Takes `len` zeroed bytes, whole blocks, anywhere or only at `at`, and puts them under the
    /// pager.
    pub fn take(&self, len: usize, at: Option<usize>) -> Result<NonNull<u8>, SpaceError> {
        if !self.is_own() {
            return Err(SpaceError::Forked);
        }
        let start = self.with_ranges(|ranges| match at {
            Some(at) => ranges.take_at(at, len).then_some(at),
            None => ranges.take(len),
        });
        let start = start.ok_or(SpaceError::Full(len))?;
        let memory = NonNull::new(start as *mut u8).expect("not null");
        // SAFETY: taken just now from the space's own range.
        if let Err(source) = unsafe { memory::make_accessible(memory, len) } {
            self.with_ranges(|ranges| ranges.give(start, len));
            return Err(SpaceError::System { what: "memory for a region", source });
        }
        // No page of it can be evicted until the pager has seen it.
        self.mailbox.ask(Request::Look);
        Ok(memory)
    }

    /// Gives back a taken range: its bytes are gone.
    ///
    /// # Safety
    /// The range was taken, and is not used any more.
    pub unsafe fn give(&self, at: NonNull<u8>, len: usize) {
        // SAFETY: the caller owns the range.
        unsafe { memory::discard(at, len) };
        if !self.is_own() {
            return;
        }
        // If the kernel cannot split the mapping, the memory stays accessible, but zero. SAFETY: as
        // above.
        let _ = unsafe { memory::make_inaccessible(at, len) };
        self.with_ranges(|ranges| ranges.give(at.as_ptr() as usize, len));
    }
}

/// The regions of this process: a budget, and the threads that keep it. Each process has at most
/// one, which ends with it; copies of this name the same.
#[derive(Clone, Copy)]
pub struct Space {
    pub(super) inner: &'static Inner,
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("range", &self.inner.range).field("stats", &self.stats()).finish()
    }
}

impl Space {
    /// The settings of a new space.
    pub fn builder() -> Builder {
        Builder {
            ram_bytes: 256 << 20,
            compressor: DEFAULT_COMPRESSOR.to_owned(),
            verify: cfg!(debug_assertions),
            swap_bytes: 0,
            swap_directory: PathBuf::from("/var/tmp"),
            address_bytes: ADDRESS_BYTES,
            messages: None,
        }
    }

    /// The space that this process has started; `None` in a forked child, too.
    pub fn current() -> Option<Space> {
        // SAFETY: null, or a space, which lives for ever.
        let inner = unsafe { SPACE.load(Ordering::Acquire).as_ref() };
        inner.filter(|inner| inner.is_own()).map(|inner| Space { inner })
    }

    /// A region of `len` bytes, all zeroes. It begins at a multiple of 64 KiB. No page is resident
    /// until it is touched.
    ///
    /// # Errors
    /// [`SpaceError::Full`] without address space; [`SpaceError::System`] at the kernel's limits
    /// (`vm.max_map_count`, strict overcommit); [`SpaceError::Forked`] in a forked child.
    pub fn region(&self, len: usize) -> Result<Region, SpaceError> {
        Region::new(*self, len)
    }

    /// Most bytes of the swap file; 0 without one.
    pub fn swap_bytes(&self) -> u64 {
        self.inner.swap_bytes
    }

    /// Changes the budget, in bytes. A smaller one is reached within moments.
    ///
    /// # Errors
    /// [`SpaceError::Ram`] below [`RAM_BYTES_MIN`].
    pub fn set_ram(&self, bytes: u64) -> Result<(), SpaceError> {
        if bytes < RAM_BYTES_MIN {
            return Err(SpaceError::Ram(bytes));
        }
        self.inner.counters.budget.store(bytes, Ordering::Relaxed);
        self.inner.mailbox.ring();
        Ok(())
    }

    /// Figures of all regions together.
    pub fn stats(&self) -> Stats {
        self.inner.counters.stats()
    }

    /// Whether an address is in a present or past region of this space.
    pub fn contains(&self, address: *const u8) -> bool {
        self.inner.range.contains(&(address as usize))
    }
}
