//! This process's part in the swap file of its user.
//!
//! The supervisor has the file and the table of its segments, and gives descriptors of both out.
//! The file's number is valid in the file table of the pager's threads; a forked child is given the
//! file again, by its parent, under the same number.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;

use ledger::wire::{self, Kind};
use swapfile::{engine_on, Config, Disk, Engine, ForkedRow, Shared, SwapFile};
use sys::thread;

use crate::{paging, threads};

/// Threads of the engine: with the writer itself as many packs are being written at a time as a
/// disk needs to be busy.
const ENGINE_THREADS: usize = 2;
/// What a child is called in the table until it has a place in the ledger.
const UNBORN: u32 = 1 << 31;
/// The file's number in the pager's file table is below this: a child has it under the same one.
const NUMBER_MAX: i32 = 64;

/// The file as this process has it, under a number of its own file table: a leaked box, or null. A
/// child that begins again leaves its parent's where it is, whose number means something else
/// there.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
/// Engine threads that were started and are not counted as the pager's yet.
static UNCOUNTED: AtomicU32 = AtomicU32::new(0);

/// Asks the supervisor for a part of the swap file.
fn ask(socket: i32, number: u32) -> std::io::Result<OwnedFd> {
    let descriptor = wire::ask(socket, Kind::Swap, number, Kind::Swapped)?;
    // SAFETY: received just now, with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The user's swap file, for the process that is called `owner` there and is connected to its
/// supervisor by `socket`; encrypted unless it is to be `plain`. `None` when the supervisor has
/// none for it, and says so itself.
///
/// # Errors
/// When the supervisor does not reply, or there are more processes than the table has rows.
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
    SHARED.store(std::ptr::from_ref(shared).cast_mut(), Ordering::Release);
    Ok(Some(shared.open(engine(shared.disk().clone())?, owner)?))
}

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or a leaked box, which lives for ever.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

fn engine(disk: Arc<Disk>) -> Result<Arc<dyn Engine>, swapfile::OpenError> {
    let config = Config { threads: ENGINE_THREADS, ..Config::default() };
    engine_on(disk, &config, &spawn)
}

fn spawn(work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    let work = Box::into_raw(Box::new(work));
    match threads::spawn(engine_thread, work as usize) {
        Ok(()) => {
            UNCOUNTED.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }
        Err(error) => {
            // SAFETY: made above; no thread has it.
            drop(unsafe { Box::from_raw(work) });
            Err(error)
        }
    }
}

/// What the engine's threads run.
pub extern "C" fn engine_thread(work: usize) {
    thread::name(c"uzswap-disk");
    // SAFETY: leaked by `spawn` for this thread.
    let work = unsafe { Box::from_raw(work as *mut Box<dyn FnOnce() + Send>) };
    work();
}

/// Has the engine's threads be counted as the pager's, once there is one.
pub fn count_threads(pager: &pager::Pager) {
    (0..UNCOUNTED.swap(0, Ordering::AcqRel)).for_each(|_| pager.add_own_thread());
}

/// The file of this process's pager, if it has one.
fn own() -> Option<&'static Arc<SwapFile>> {
    paging::pager().and_then(|pager| pager.store().swap_file())
}

/// In a forked child that begins without what its parent had: wipes the parent's keys.
pub fn forget() {
    own().into_iter().for_each(|file| file.forget_keys());
    if let Some(shared) = shared() {
        // Its number means something else here.
        std::mem::forget(shared.disk().clone());
    }
    let_go();
}

/// Lets go of the file, which no pager has any more.
pub fn let_go() {
    let shared = SHARED.swap(std::ptr::null_mut(), Ordering::AcqRel);
    UNCOUNTED.store(0, Ordering::Release);
    if !shared.is_null() {
        // SAFETY: leaked by `open`; the pager that used it is gone.
        drop(unsafe { Box::from_raw(shared) });
    }
}

/// The first number behind the file's.
pub fn numbers_end() -> i32 {
    shared().map_or(0, |shared| shared.disk().descriptor() + 1)
}

/// Whether forked children can go on with what is in the swap file.
pub fn can_be_inherited() -> bool {
    shared().is_none_or(|shared| shared.disk().descriptor() < NUMBER_MAX)
}

/// What a child is given of the swap file.
pub struct Inheritance {
    row: Option<ForkedRow>,
}

impl Inheritance {
    /// Makes a row for a child that was forked and changed nothing yet; `None` when there is none
    /// left.
    pub fn new() -> Option<Inheritance> {
        match own() {
            None => Some(Inheritance { row: None }),
            Some(file) => file.fork_row(UNBORN).ok().map(|row| Inheritance { row: Some(row) }),
        }
    }

    /// The row as it is told to the child, and the file; `None` without a swap file.
    pub fn told(&self) -> Option<(u64, i32)> {
        let row = self.row.as_ref()?;
        Some((row.number() as u64, shared()?.disk().descriptor()))
    }

    /// The child has been told.
    pub fn hand_over(self) {
        if let Some(row) = self.row {
            row.leave_to_child();
        }
    }
}

/// In a forked child: continues with the row that its parent made and the file that it sent. Before
/// any other use of the pager. `others` are descriptors that came before and keep out of the way of
/// the file's number.
///
/// # Errors
/// When the file cannot have its number, or no thread can be started.
pub fn inherit(row: u64, file: i32, others: &mut [i32; 2]) -> Result<(), Box<dyn std::error::Error>> {
    let (Some(shared), Some(own)) = (shared(), own()) else {
        return Err("its parent had no swap file".into());
    };
    let above = thread::renumber_above(file, numbers_end())?;
    for other in others {
        *other = thread::renumber_above(*other, numbers_end())?;
    }
    thread::renumber(above, shared.disk().descriptor())?;
    UNCOUNTED.store(0, Ordering::Release);
    let engine = engine(shared.disk().clone())?;
    let row = own.forked_row(row as usize);
    paging::pager().expect("it has the file").store().inherit_swap(row, UNBORN, engine);
    Ok(())
}

/// In a forked child that has its place in the ledger. The name is its own in the whole tree: if it
/// has become another user's, it continues with its parent's file.
pub fn note_place(owner: u32) {
    if let Some(file) = own() {
        file.set_owner(owner);
    }
}
