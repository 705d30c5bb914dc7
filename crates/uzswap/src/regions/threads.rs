//! The space's threads: a control thread, which measures and serves requests, handlers, which serve
//! faults, and workers, which compress.
//!
//! They are the C library's threads, unlike those inside a program under `run`: none of their
//! memory is paged. They have a file table of their own, so that no close() of the process reaches
//! their descriptors, and no signal handlers run in them.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;

use pager::{Config, Pager, Watch, BLOCK_BYTES};
use swapfile::SwapFile;
use sys::{memory, thread};

use super::counters::Counters;
use super::mailbox::Request;
use super::space::{Builder, Inner, SpaceError};
use crate::{Pool, PoolConfig};

/// Between measurements while no region exists.
const IDLE_NS: u64 = 1_000_000_000;
/// Between checks whether the program has ended.
const ENDED_LOOK_NS: u64 = 50_000_000;
/// Threads of the swap file's engine.
const ENGINE_THREADS: usize = 2;
/// Attempts to register the address space: each waits a while for calls of other threads.
const REGISTER_TRIES: usize = 100;

type Started = Result<(), SpaceError>;

pub(super) fn start(inner: &'static Inner, settings: Builder) -> Started {
    let (tell, told) = sync_channel(1);
    let system = |source| SpaceError::System { what: "a thread", source };
    spawn(inner.counters, "uzswap", move || control(inner, &settings, &tell)).map_err(system)?;
    told.recv().expect("the control thread replies, or ends the process")
}

/// Starts a thread whose panic ends the process: no other thread would serve its faults.
fn spawn(
    counters: &'static Counters,
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let body = move || {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            counters.end(format_args!("a thread of the pager broke: {}", text.unwrap_or("it panicked")));
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

impl Counters {
    /// Ends the process with a message: the alternative is a wrong byte, or waiting for ever.
    pub(super) fn end(&self, what: std::fmt::Arguments<'_>) -> ! {
        let text = pager::FixedText::new(format_args!("the process is ended: {what}"));
        pager::Accounts::broken(self, text.as_str());
        pager::end_process()
    }
}

fn control(inner: &'static Inner, settings: &Builder, tell: &SyncSender<Started>) {
    thread::hold_signals();
    thread::hurry();
    // If that is forbidden, the table is the process's, whose files must stay open.
    if thread::leave_file_table().is_ok() {
        thread::close_all_files();
    }
    match set_up(inner, settings) {
        Ok(pager) => {
            let _ = tell.send(Ok(()));
            watch(inner, pager);
        }
        Err(error) => _ = tell.send(Err(error)),
    }
}

fn set_up(inner: &'static Inner, settings: &Builder) -> Result<&'static Pager, SpaceError> {
    let mut cpus = [0; pager::HANDLERS_MAX];
    let cpu_count = thread::allowed_cpus(&mut cpus).max(1);
    let config = Config {
        staging_pages: pager::staging_pages(settings.ram_bytes),
        handlers: cpu_count,
        own: Vec::new(),
        only: Some(inner.range.clone()),
        kept: pager::NamedPages::NONE,
        records: false,
        without_tracking: true,
        executable: false,
    };
    let algorithm = crate::registry().find(&settings.compressor)?;
    let store = Pool::new(
        PoolConfig {
            max_groups: pager::POOL_GROUPS,
            verify: settings.verify,
            swap: swap_file(inner, settings)?,
            ..PoolConfig::default()
        },
        algorithm,
    )?;
    let pager: &'static Pager = Box::leak(Box::new(Pager::new(config, store, inner.counters)?));
    check_range(inner, pager)?;
    for role in pager.roles(&cpus[..cpu_count]) {
        let name = role.name().to_str().expect("names are ASCII");
        spawn(inner.counters, name, move || pager.play(role))
            .map_err(|source| SpaceError::System { what: "a thread", source })?;
    }
    if pager.store().swap_file().is_some() {
        (0..ENGINE_THREADS).for_each(|_| pager.add_own_thread());
    }
    let _ = inner.pager.set(pager);
    if !pager.reports_forks() {
        inner.inherit(false);
    }
    Ok(pager)
}

/// The swap file, if configured. In the file table of the space's threads.
fn swap_file(inner: &'static Inner, settings: &Builder) -> Result<Option<Arc<SwapFile>>, SpaceError> {
    if settings.swap_bytes == 0 {
        return Ok(None);
    }
    let config = swapfile::Config {
        directory: settings.swap_directory.clone(),
        size_bytes: settings.swap_bytes,
        threads: ENGINE_THREADS,
        ..swapfile::Config::default()
    };
    Ok(Some(SwapFile::open(&config, &|work| spawn(inner.counters, "uzswap-disk", work))?))
}

/// Registers the range, and checks the result: pages in an unregistered range would never be
/// evicted.
fn check_range(inner: &Inner, pager: &Pager) -> Result<(), SpaceError> {
    let system = |source| SpaceError::System { what: "registering the address space", source };
    let start = inner.range.start;
    let at = NonNull::new(start as *mut u8).expect("not null");
    // SAFETY: the space's own range, which is not used yet.
    unsafe { memory::make_accessible(at, BLOCK_BYTES) }.map_err(system)?;
    // Retried, since other threads of the process may be changing mappings.
    let is_registered = (0..REGISTER_TRIES).any(|_| {
        pager.refresh_mappings();
        pager.manages(start..start + BLOCK_BYTES)
    });
    // SAFETY: as above.
    unsafe { memory::make_inaccessible(at, BLOCK_BYTES) }.map_err(system)?;
    match is_registered {
        true => Ok(()),
        false => Err(system(std::io::ErrorKind::ResourceBusy.into())),
    }
}

fn watch(inner: &'static Inner, pager: &'static Pager) {
    let mut watch = Watch::default();
    let mut looked_ns = 0;
    loop {
        let bell = inner.mailbox.bell();
        inner.mailbox.answer(|request| match request {
            Request::Look => pager.refresh_mappings(),
            Request::Halt => pager.halt(),
            Request::GoOn => pager.resume(),
        });
        end_if_program_ended(pager, &mut looked_ns);
        let next_ns = if pager.is_halted() { IDLE_NS } else { pager.watch(&mut watch).1 };
        let is_idle = inner.counters.regions.load(Ordering::Relaxed) == 0;
        inner.mailbox.sleep(bell, if is_idle { IDLE_NS } else { next_ns });
    }
}

/// Ends the process when all of the program's threads have ended: the space's threads would
/// otherwise keep it for ever.
fn end_if_program_ended(pager: &Pager, looked_ns: &mut u64) {
    let now = sys::now_ns();
    if now.wrapping_sub(*looked_ns) < ENDED_LOOK_NS {
        return;
    }
    *looked_ns = now;
    if let Some(status) = sys::threads::first_has_ended() {
        if sys::threads::count().is_some_and(|all| all <= pager.own_threads() + 1) {
            thread::end_process_as(status);
        }
    }
}
