//! This object's side of the control page.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use doorway::control_page::ControlPage;
use doorway::PAGE_SIZE;

use crate::{cleared, sharing, system};

/// The agent gets the address of this page.
pub static CONTROL_PAGE: ControlPage = ControlPage::new();

static PROCESS: AtomicI32 = AtomicI32::new(0);

/// A page that the kernel wipes in forked children.
#[repr(align(4096))]
struct Page([AtomicU32; PAGE_SIZE / size_of::<u32>()]);

static WIPED: Page = Page([const { AtomicU32::new(0) }; PAGE_SIZE / size_of::<u32>()]);

pub fn note_process() {
    let own = system::process_id();
    PROCESS.store(own, Ordering::Release);
    CONTROL_PAGE.process.store(own as u32, Ordering::Release);
    let _ = CONTROL_PAGE.lineage.compare_exchange(0, own as u32, Ordering::AcqRel, Ordering::Relaxed);
    CONTROL_PAGE.number.store(system::number_in_proc().unwrap_or(own as u32), Ordering::Release);
    CONTROL_PAGE.first_word.store(cleared::of_this_thread(), Ordering::Release);
    let is_wiped = system::wipe_in_children((&raw const WIPED).addr(), PAGE_SIZE);
    WIPED.0[0].store(is_wiped.into(), Ordering::Release);
}

/// Whether the agent works for this process. A child of a bare clone() has a copy of the memory, or
/// shares it, and has no agent that replies or releases locks. Makes no system call under a filter,
/// which may forbid all: a process that shares the memory unseen is then taken for its creator.
pub fn is_own_process() -> bool {
    let is_known = is_set(&CONTROL_PAGE.forks.filtered) && is_set(&WIPED.0[0]) && !sharing::is_possible();
    is_known || PROCESS.load(Ordering::Acquire) == system::process_id()
}

/// Whether a control thread serves requests.
pub fn is_alive() -> bool {
    CONTROL_PAGE.is_alive.load(Ordering::Acquire) != 0
}

pub fn has_pager() -> bool {
    CONTROL_PAGE.has_pager.load(Ordering::Acquire) != 0
}

pub fn is_agents(address: usize) -> bool {
    let [start, end] = CONTROL_PAGE.arena.each_ref().map(|bound| bound.load(Ordering::Relaxed));
    (start..end).contains(&address)
}

pub fn nudge() {
    CONTROL_PAGE.nudge.fetch_add(1, Ordering::Release);
    system::wake(&CONTROL_PAGE.nudge);
}

/// Whether `bytes` more would bring all processes so near their budget that memory is registered.
pub fn is_tight_with(bytes: usize) -> bool {
    let addresses = [&CONTROL_PAGE.total, &CONTROL_PAGE.others]
        .map(|word| word.load(Ordering::Acquire) as *const AtomicU64);
    // SAFETY: null, or in the ledger and its board, which stay mapped.
    let parts = addresses.map(|address| unsafe { address.as_ref() });
    // Another process may have written anything there.
    let sum = parts
        .into_iter()
        .flatten()
        .fold(bytes as u64, |sum, part| sum.saturating_add(part.load(Ordering::Relaxed)));
    parts[0].is_some() && sum >= CONTROL_PAGE.tight_bytes.load(Ordering::Relaxed)
}

pub fn set(word: &AtomicU32) {
    word.store(1, Ordering::Release);
}

pub fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) != 0
}
