//! Sets up, publishes and removes the pager of this process, and starts its threads.

use std::sync::atomic::{AtomicPtr, Ordering};

use pager::{Accounts, Config, NamedPages, Pager, ThreadRole};
use sys::thread;
use zswap::{Forms, Requests, Zswap};

use crate::accounts::{self, Ledgered};
use crate::control_page::{self, control_page, is_set};
use crate::state::AGENT;
use crate::{fork, start, swap, threads};

/// Leaked boxes, or null: in a forked child the parent's stay.
pub(crate) struct Paging {
    pager: AtomicPtr<Pager>,
    accounts: AtomicPtr<Ledgered>,
}

impl Paging {
    pub(crate) const fn new() -> Self {
        let (pager, accounts) = (std::ptr::null_mut(), std::ptr::null_mut());
        Paging { pager: AtomicPtr::new(pager), accounts: AtomicPtr::new(accounts) }
    }
}

/// Why a process is not managed if its forks are neither announced nor reported.
const BARE_FORKS: &str =
    "its forks cannot be seen, as it does not load uzswap's object: run as root, or `sudo setcap \
    cap_sys_ptrace+ep` the uzswap program";

/// Keeps the environment's specification of emulated accelerators.
pub fn remember_emulation(spec: &str) {
    let _ = AGENT.start.emulate.set(spec.to_owned());
}

/// The pager, once there is one.
pub fn pager() -> Option<&'static Pager> {
    // SAFETY: null or a leaked box, which lives for ever.
    unsafe { AGENT.paging.pager.load(Ordering::Acquire).as_ref() }
}

/// The process's accounts, once there is a pager.
pub fn accounts() -> Option<&'static Ledgered> {
    // SAFETY: null, or a leaked box.
    unsafe { AGENT.paging.accounts.load(Ordering::Acquire).as_ref() }
}

/// In a forked child: forgets the pager. The parent's tables stay as unused memory; its key is
/// wiped. The record that a control thread exists stays: the program's threads that wait for this
/// one's reply would otherwise continue.
pub fn forget_pager() {
    control_page().has_pager.store(0, Ordering::Release);
    swap::forget();
    AGENT.paging.pager.store(std::ptr::null_mut(), Ordering::Release);
}

/// Closes the desk at which the program's threads ask the pager.
pub fn close_desk() {
    control_page().has_pager.store(0, Ordering::SeqCst);
    control_page().total.store(0, Ordering::Release);
    control_page().others.store(0, Ordering::Release);
}

/// Unpublishes and returns the pager. No other thread has a reference to it.
pub fn take_pager() -> Option<Box<Pager>> {
    let pager = AGENT.paging.pager.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null or a leaked box without users: all other threads have ended.
    (!pager.is_null()).then(|| unsafe { Box::from_raw(pager) })
}

/// Makes the pager and its threads. Fails if this process cannot be managed.
pub fn set_up(accounts: &'static Ledgered) -> Result<&'static Pager, Box<dyn std::error::Error>> {
    if let Some(why) = accounts::too_few_descriptors() {
        return Err(why.into());
    }
    let without = accounts.ledger().settings().without;
    accounts.open_recorder();
    let mut cpus = [0; pager::HANDLERS_MAX];
    let cpu_count = thread::allowed_cpus(&mut cpus);
    let config = Config {
        staging_pages: pager::staging_pages(accounts.budget()),
        handlers: cpu_count,
        own: start::own_ranges(),
        only: None,
        kept: NamedPages {
            count: || control_page().cleared.count().wrapping_add(control_page().robust.count()),
            each: |each| {
                control_page().cleared.for_each(each);
                control_page().robust.for_each(each);
            },
        },
        executable: pager::executable::dominates(),
        records: accounts.records(),
        without_tracking: without & ledger::WITHOUT_TRACKING != 0,
    };
    let store = make_store(accounts)?;
    let pager: &'static Pager = Box::leak(Box::new(Pager::new(config, store, accounts)?));
    swap::count_threads(pager);
    // Without a report, its children would find zeroes in place of evicted pages.
    if !pager.reports_forks() {
        if !control_page::is_shared() {
            return Err(BARE_FORKS.into());
        }
        control_page().forks.unreported.store(1, Ordering::Release);
    }
    accounts.keep(pager.descriptor());
    accounts.slot().into_iter().for_each(ledger::Slot::set_managed);
    AGENT.paging.pager.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    control_page().pagers.fetch_add(1, Ordering::AcqRel);
    // SeqCst here and in the fence below: this thread publishes the pager before it checks for
    // references, and a thread notes its reference before it checks for a pager.
    control_page().has_pager.store(1, Ordering::SeqCst);
    AGENT.paging.accounts.store(std::ptr::from_ref(accounts).cast_mut(), Ordering::Release);
    let can_fork = pager.can_fork() && swap::can_be_inherited() && pager.store().survives_fork();
    std::sync::atomic::fence(Ordering::SeqCst);
    if is_set(&control_page().references) {
        pager.stop_recycling();
    }
    start_threads(pager)?;
    if can_fork {
        fork::keep();
    }
    Ok(pager)
}

/// Makes the pool, with the user's swap file if there is one.
fn make_store(accounts: &'static Ledgered) -> Result<Zswap, Box<dyn std::error::Error>> {
    let settings = accounts.ledger().settings();
    let mut registry = acomp::Registry::new();
    codecs::register_all(&mut registry);
    // Starts no threads: engines of emulated devices work in the submitting thread.
    #[cfg(feature = "iaa")]
    iaa::register_with(
        &mut registry,
        iaa::Options { emulate: AGENT.start.emulate.get().cloned(), inline: true },
    );
    let algorithm = registry.find(&settings.compressor)?;
    // The supervisor's own notice covers a run on emulated devices.
    #[cfg(feature = "iaa")]
    if let Some(notice) = iaa::take_notice().filter(|_| !settings.is_emulated) {
        accounts.say(&notice);
    }
    let swap_file = match settings.swap_bytes {
        0 => Ok(None),
        _ => swap::open(
            accounts.socket(),
            accounts.owner(),
            settings.without & ledger::WITHOUT_ENCRYPTION != 0,
        ),
    };
    let swap_file = swap_file.map_err(|error| format!("the swap file: {error}"))?;
    let store = Zswap::new(
        zswap::Config {
            max_groups: pager::POOL_GROUPS,
            verify: settings.verify || cfg!(debug_assertions),
            batch: settings.batch as usize,
            tally: Some(tally),
            load_tally: Some(tally_load),
            swap: swap_file,
            ..Default::default()
        },
        algorithm,
    )?;
    Ok(store)
}

fn tally(forms: &Forms) {
    if let Some(slot) = accounts().and_then(Ledgered::slot) {
        for (number, pages) in forms.pages.iter().enumerate().filter(|(_, pages)| **pages > 0) {
            slot.add_form(number, u64::from(*pages));
        }
        slot.add(ledger::Counter::Batches, forms.compress.count.into());
        slot.add(ledger::Counter::EmulatedBatches, forms.compress.emulated.into());
        slot.add(ledger::Counter::CompressUnits, forms.compress.units.into());
    }
}

fn tally_load(requests: &Requests) {
    if let Some(slot) = accounts().and_then(Ledgered::slot) {
        slot.add(ledger::Counter::DecompressBatches, requests.count.into());
        slot.add(ledger::Counter::EmulatedBatches, requests.emulated.into());
        slot.add(ledger::Counter::DecompressUnits, requests.units.into());
    }
}
const _: () = assert!(zswap::FORMS_MAX == ledger::FORMS_MAX);

/// Starts the threads that page, also after a fork.
pub fn start_threads(pager: &'static Pager) -> std::io::Result<()> {
    let mut cpus = [0; pager::HANDLERS_MAX];
    let cpu_count = thread::allowed_cpus(&mut cpus).min(pager.handlers_max()).max(1);
    for role in pager.roles(&cpus[..cpu_count]) {
        match role {
            ThreadRole::Handler { number, cpu } => threads::spawn(handler, number << 32 | cpu),
            ThreadRole::Worker => threads::spawn(worker, 0),
            ThreadRole::Writer => threads::spawn(writer, 0),
            ThreadRole::Reader(number) => threads::spawn(reader, number),
        }?;
    }
    Ok(())
}

/// Whether `entry` is the handlers' entry point.
pub fn is_handler(entry: usize) -> bool {
    entry == handler as *const () as usize
}

fn play(role: ThreadRole) {
    // None if setting up failed later.
    pager().into_iter().for_each(|pager| pager.play(role));
}

extern "C" fn handler(word: usize) {
    play(ThreadRole::Handler { number: word >> 32, cpu: word & 0xffff_ffff });
}

extern "C" fn worker(_: usize) {
    play(ThreadRole::Worker);
}

extern "C" fn writer(_: usize) {
    play(ThreadRole::Writer);
}

extern "C" fn reader(number: usize) {
    play(ThreadRole::Reader(number));
}
