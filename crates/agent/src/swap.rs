//! This process's part in the swap file of its user.
//!
//! The supervisor has the file and its segment table, and gives out descriptors of both. The file's
//! descriptor is valid only in the file table of the pager's threads. A forked child gets the file
//! from its parent, under the same number.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

use ledger::wire::{self, Kind};
use swapfile::{engine_on, Config, Disk, Engine, ForkedRow, Shared, SwapFile};
use sys::thread;

use crate::state::AGENT;
use crate::{paging, threads};

/// Threads of the engine: with the writer itself, enough concurrent writes to keep a disk busy.
const ENGINE_THREADS: usize = 2;
/// A child's name in the table until it has a place in the ledger.
const UNBORN: u32 = 1 << 31;
/// The file's number in the pager's file table is below this, so that a child can use the same one.
const NUMBER_MAX: i32 = 64;

pub(crate) struct SwapShare {
    /// The process's file, under a number of its own file table: a leaked box, or null. A child
    /// that begins again leaks its parent's, whose number is invalid there.
    file: AtomicPtr<Shared>,
    /// Engine threads that were started and are not yet counted as the pager's.
    uncounted: AtomicU32,
}

impl SwapShare {
    pub(crate) const fn new() -> Self {
        SwapShare { file: AtomicPtr::new(std::ptr::null_mut()), uncounted: AtomicU32::new(0) }
    }
}

/// Requests a part of the swap file from the supervisor.
fn ask(socket: i32, number: u32) -> std::io::Result<OwnedFd> {
    let descriptor = wire::ask(socket, Kind::Swap, number, Kind::Swapped)?;
    // SAFETY: just received, without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Opens the user's swap file, for the process named `owner` there, whose connection to the
/// supervisor is `socket`; encrypted unless `plain`. Returns `None` if the supervisor has none for
/// it, which the supervisor reports. Fails if the supervisor does not reply, or there are more
/// processes than rows in the table.
pub fn open(
    socket: i32,
    owner: u32,
    plain: bool,
) -> Result<Option<Arc<SwapFile>>, Box<dyn std::error::Error>> {
    let file = match ask(socket, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        file => file?,
    };
    let table = ask(socket, 1)?;
    let shared = Shared::join(File::from(file), table.as_fd(), &Config { plain, ..Config::default() })?;
    let shared: &'static Shared = Box::leak(Box::new(shared));
    AGENT.swap.file.store(std::ptr::from_ref(shared).cast_mut(), Ordering::Release);
    Ok(Some(shared.open(engine(shared.disk().clone())?, owner)?))
}

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or a leaked box, which lives for ever.
    unsafe { AGENT.swap.file.load(Ordering::Acquire).as_ref() }
}

fn engine(disk: Arc<Disk>) -> Result<Arc<dyn Engine>, swapfile::OpenError> {
    let config = Config { threads: ENGINE_THREADS, ..Config::default() };
    engine_on(disk, &config, &spawn)
}

fn spawn(work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    let work = Box::into_raw(Box::new(work));
    let spawned = threads::spawn(engine_thread, work as usize);
    match spawned {
        Ok(()) => _ = AGENT.swap.uncounted.fetch_add(1, Ordering::AcqRel),
        // SAFETY: made above; no thread took it.
        Err(_) => drop(unsafe { Box::from_raw(work) }),
    }
    spawned
}

/// The entry point of the engine's threads.
pub extern "C" fn engine_thread(work: usize) {
    thread::name(c"uzswap-disk");
    // SAFETY: leaked by `spawn` for this thread.
    let work = unsafe { Box::from_raw(work as *mut Box<dyn FnOnce() + Send>) };
    work();
}

/// Counts the engine's threads as the pager's, once there is one.
pub fn count_threads(pager: &pager::Pager) {
    (0..AGENT.swap.uncounted.swap(0, Ordering::AcqRel)).for_each(|_| pager.add_own_thread());
}

fn own() -> Option<&'static Arc<SwapFile>> {
    paging::pager().and_then(|pager| pager.store().swap_file())
}

/// In a forked child that begins again: wipes the parent's keys.
pub fn forget() {
    own().into_iter().for_each(|file| file.forget_keys());
    if let Some(shared) = shared() {
        // Its number is invalid here.
        std::mem::forget(shared.disk().clone());
    }
    close();
}

/// Closes the file, which no pager uses any more.
pub fn close() {
    let shared = AGENT.swap.file.swap(std::ptr::null_mut(), Ordering::AcqRel);
    AGENT.swap.uncounted.store(0, Ordering::Release);
    if !shared.is_null() {
        // SAFETY: leaked by `open`; the pager that used it is gone.
        drop(unsafe { Box::from_raw(shared) });
    }
}

/// The lowest number above the file's.
pub fn numbers_end() -> i32 {
    shared().map_or(0, |shared| shared.disk().descriptor() + 1)
}

/// Whether forked children can take over their parent's share of the swap file.
pub fn can_be_inherited() -> bool {
    shared().is_none_or(|shared| shared.disk().descriptor() < NUMBER_MAX)
}

/// A child's share of the swap file; none without one.
pub struct Inheritance(Option<ForkedRow>);

impl Inheritance {
    /// Makes a row for a new child that has changed nothing. Returns `None` if none is free.
    pub fn new() -> Option<Inheritance> {
        match own() {
            None => Some(Inheritance(None)),
            Some(file) => file.fork_row(UNBORN).ok().map(Some).map(Inheritance),
        }
    }

    /// The row's number for the child, and the file; `None` without a swap file.
    pub fn told(&self) -> Option<(u64, i32)> {
        let row = self.0.as_ref()?;
        Some((row.number() as u64, shared()?.disk().descriptor()))
    }

    /// Completes the transfer: the child has received the row.
    pub fn hand_over(self) {
        self.0.into_iter().for_each(ForkedRow::leave_to_child);
    }
}

/// In a forked child: continues with the row that its parent made and the file that it sent, before
/// any other use of the pager. `others` are descriptors received earlier, renumbered if they have
/// the file's number. Fails if the file cannot have its number, or no thread can be started.
pub fn inherit(row: u64, file: i32, others: &mut [i32; 2]) -> Result<(), Box<dyn std::error::Error>> {
    let (Some(shared), Some(own)) = (shared(), own()) else {
        return Err("its parent had no swap file".into());
    };
    let above = thread::renumber_above(file, numbers_end())?;
    for other in others {
        *other = thread::renumber_above(*other, numbers_end())?;
    }
    thread::renumber(above, shared.disk().descriptor())?;
    AGENT.swap.uncounted.store(0, Ordering::Release);
    let engine = engine(shared.disk().clone())?;
    let row = own.forked_row(row as usize);
    paging::pager().expect("it has the file").store().inherit_swap(row, UNBORN, engine);
    Ok(())
}

/// In a forked child that has its place in the ledger: takes a name unique in the tree. A child
/// that has changed its user continues with its parent's file.
pub fn note_place(owner: u32) {
    if let Some(file) = own() {
        file.set_owner(owner);
    }
}
