//! Segments, exchanged with relatives: memory files of pages that they have in common since a fork.
//!
//! A process shows the descriptors of its segments in its place in the ledger, and a relative takes
//! them by pidfd_getfd(2). The kernel permits that to a process that may read all of the other's
//! memory (ptrace(2)), so no process learns more than it could before. A memory file can also be
//! opened through /proc, for which Yama asks no question: where it restricts ptrace(2), processes
//! of ordinary users exchange nothing.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::Mutex;

use ledger::{FileOffer, Ledger, OFFERS};
use sys::{process, shared};

use crate::state::AGENT;

/// How long a segment is shown: relatives look each 10 ms, but may be stopped.
const SHOWN_NS: u64 = 1_000_000_000;
/// How long it is open after that: a relative that has read its number gets no other file.
const OPEN_NS: u64 = 1_000_000_000;
/// Files that are no segments, or may not be taken, before nothing more is taken.
const UNKNOWN_MAX: u32 = 4;

/// Whether files are exchanged.
#[repr(u32)]
enum Exchanges {
    Unknown,
    Yes,
    No,
}

/// The segments that this process shows, and those of others that it has seen.
pub(crate) struct Exchange {
    exchanges: AtomicU32,
    shown: Mutex<[Option<Shown>; OFFERS]>,
    turn: AtomicUsize,
    seen: Mutex<Vec<(usize, FileOffer)>>,
    unknown: AtomicU32,
}

/// A segment that is or was shown, and since when.
struct Shown {
    file: OwnedFd,
    since_ns: u64,
}

impl Exchange {
    pub(crate) const fn new() -> Self {
        Exchange {
            exchanges: AtomicU32::new(Exchanges::Unknown as u32),
            shown: Mutex::new([const { None }; OFFERS]),
            turn: AtomicUsize::new(0),
            seen: Mutex::new(Vec::new()),
            unknown: AtomicU32::new(0),
        }
    }
}

/// Whether this process and its relatives can take files from each other.
pub fn are_exchanged() -> bool {
    let known = &AGENT.exchange.exchanges;
    if known.load(Ordering::Relaxed) == Exchanges::Unknown as u32 {
        let can = may_show() && can_exchange();
        known.store(if can { Exchanges::Yes } else { Exchanges::No } as u32, Ordering::Relaxed);
    }
    known.load(Ordering::Relaxed) == Exchanges::Yes as u32
}

/// Whether each process that can open this one's files may read its memory.
fn may_show() -> bool {
    // SAFETY: returns a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    is_root
        || match std::fs::read("/proc/sys/kernel/yama/ptrace_scope") {
            Ok(scope) => scope.first() == Some(&b'0'),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
}

/// Whether this process gets a segment from itself: neither filter nor setting forbids the calls.
fn can_exchange() -> bool {
    let taken = shared::holding(zswap::SEGMENT_NAME, b"a segment").and_then(|file| {
        let own = process::handle(std::process::id() as i32)?;
        process::descriptor_of(&own, file.as_raw_fd())
    });
    taken.is_ok_and(|file| shared::is_sealed(file.as_fd()))
}

/// In a forked child, which has closed its parent's files, and when rights have changed.
pub fn forget() {
    AGENT.exchange.exchanges.store(Exchanges::Unknown as u32, Ordering::Relaxed);
    AGENT.exchange.unknown.store(0, Ordering::Relaxed);
    let mut shown = AGENT.exchange.shown.lock().expect("no panic while held");
    shown.iter_mut().filter_map(Option::take).for_each(|shown| std::mem::forget(shown.file));
}

/// Shows relatives a segment, unless too many are shown.
pub fn show(ledger: &Ledger, own: usize, file: OwnedFd) {
    let Ok(number) = u16::try_from(file.as_raw_fd()) else { return };
    let mut shown = AGENT.exchange.shown.lock().expect("no panic while held");
    let Some(place) = shown.iter().position(Option::is_none) else { return };
    let turn = AGENT.exchange.turn.fetch_add(1, Ordering::Relaxed) as u16;
    shown[place] = Some(Shown { file, since_ns: sys::now_ns() });
    ledger.slot(own).offer(place, Some(FileOffer { process: std::process::id(), number, turn }));
}

/// Takes a segment of a relative that this process has not seen.
pub fn take(ledger: &Ledger, own: usize) -> Option<OwnedFd> {
    hide_old(ledger, own);
    let lineage = ledger.slot(own).lineage();
    let mut seen = AGENT.exchange.seen.lock().expect("no panic while held");
    let relatives = ledger.live().filter(|(index, _, slot)| *index != own && slot.lineage() == lineage);
    let offers = relatives.flat_map(|(index, _, slot)| slot.offers().map(|offer| (index, offer)));
    let offers: Vec<_> = offers.filter_map(|(index, offer)| Some((index, offer?))).collect();
    seen.retain(|known| offers.contains(known));
    let new = offers.into_iter().filter(|offer| lineage != 0 && !seen.contains(offer));
    let new: Vec<_> = new.collect();
    for (index, offer) in new {
        seen.push((index, offer));
        let taken = process::handle(offer.process as i32)
            .and_then(|handle| process::descriptor_of(&handle, offer.number.into()));
        match taken {
            Ok(file) if shared::is_sealed(file.as_fd()) => return Some(file),
            // Closing an unknown file may take for ever.
            Ok(file) => std::mem::forget(file),
            // A relative that may not be inspected.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(_) => continue,
        }
        if AGENT.exchange.unknown.fetch_add(1, Ordering::Relaxed) + 1 == UNKNOWN_MAX {
            AGENT.exchange.exchanges.store(Exchanges::No as u32, Ordering::Relaxed);
            return None;
        }
    }
    None
}

/// Hides segments that relatives have had time to take, and closes them later.
fn hide_old(ledger: &Ledger, own: usize) {
    let now = sys::now_ns();
    let mut shown = AGENT.exchange.shown.lock().expect("no panic while held");
    for (place, one) in shown.iter_mut().enumerate() {
        let Some(since_ns) = one.as_ref().map(|one| one.since_ns) else { continue };
        let age_ns = now.saturating_sub(since_ns);
        if age_ns > SHOWN_NS {
            ledger.slot(own).offer(place, None);
        }
        if age_ns > SHOWN_NS + OPEN_NS {
            *one = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// A hostile relative's place and a stranger's, beside this process's.
    #[test]
    fn only_sealed_files_of_relatives_are_taken() {
        let mut keeper = ledger::Keeper::create(&ledger::Settings::default(), 1).unwrap();
        let [own, relative, stranger] = [(); 3].map(|()| keeper.claim(std::process::id()).unwrap());
        let ledger = keeper.ledger();
        ledger.slot(own).set_lineage(7);
        ledger.slot(relative).set_lineage(7);
        ledger.slot(stranger).set_lineage(8);
        let (process, mut turn) = (std::process::id(), 0);
        let mut offer = |index, process, file: &OwnedFd| {
            turn += 1;
            let offer = FileOffer { process, number: file.as_raw_fd() as u16, turn };
            ledger.slot(index).offer(0, Some(offer));
        };
        let segment = shared::holding(c"segment", b"bytes").unwrap();
        assert!(take(&ledger, own).is_none(), "nothing is shown");
        offer(stranger, process, &segment);
        assert!(take(&ledger, own).is_none());
        offer(relative, process, &segment);
        assert_eq!(shared::len_of(take(&ledger, own).unwrap().as_fd()).unwrap(), 5);
        assert!(take(&ledger, own).is_none(), "it was taken");
        // The number is in use again.
        offer(relative, process, &segment);
        assert!(take(&ledger, own).is_some());
        offer(relative, u32::MAX, &segment);
        assert!(take(&ledger, own).is_none() && are_exchanged(), "its process has ended");

        let open = shared::create(c"segment", 4096).unwrap();
        for file in [OwnedFd::from(File::open("/dev/zero").unwrap()), open] {
            for _ in 0..UNKNOWN_MAX / 2 {
                assert!(are_exchanged());
                offer(relative, process, &file);
                assert!(take(&ledger, own).is_none());
            }
        }
        assert!(!are_exchanged(), "no more of that");
        forget();
        show(&ledger, own, segment);
        let shown = ledger.slot(own).offers();
        assert_eq!(shown.iter().flatten().count(), 1);
    }
}
