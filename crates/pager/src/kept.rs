//! Pages that must never be out, because the kernel accesses them without fault service.
//!
//! * An ending thread gets no fault service: its accesses to missing pages fail in the kernel. It
//!   clears the word that pthread_join() waits for, and marks the robust mutexes that it holds. If
//!   these pages were out, other threads would wait for ever. Both start in the thread control
//!   block, whose list leads to the mutexes.
//! * set_tid_address(2) and clone(2) can put that word anywhere. All threads of musl clear one
//!   word, the lock of its thread list, which every thread takes before it ends. The kernel tells
//!   the word only to its own thread. So the agent reads it on entry and when a thread starts
//!   (`preload/threads.rs`), as the thread may end before the next look, and `preload/cleared.rs`
//!   records later changes. Without the preload object, only looks find threads.
//! * A robust mutex may be taken, and its owner end, between two looks. `preload/robust.rs` records
//!   each that the C library initialises. Records count at once: the page is no longer chosen.
//! * /proc/PID/cmdline and environ read the program's initial strings, and return nothing if they
//!   are out: ps, pgrep, killall and service managers would not find the process.
//!
//! If such a page is out, it is brought in: its thread may have started between two looks.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};

use address_space::units::{pages_in, BlockNumber, PageMask, PageNumber};
use address_space::{AddressSpace, Inbound};
use sys::procfs::{self, ProcFile};
use sys::{threads, PAGE_SIZE};

use crate::config::NamedPages;
use crate::quiesce::Quiesce;

/// Least time between scans of the list of threads.
const LOOK_NS: u64 = 20_000_000;
/// Scans take at most 1/20 of the time.
const LOOK_SHARE: u64 = 20;
/// Time between scans for the arguments, which prctl(2) can move.
const ARGUMENTS_NS: u64 = 1_000_000_000;
/// Arguments and environment may be megabytes. At most this part of the budget stays.
const ARGUMENTS_PART: u64 = 16;
/// The cleared word precedes the list of robust mutexes by this distance, in glibc's control blocks
/// of all architectures (struct pthread: `tid`, `robust_head`). On x86-64 the alignment of the
/// block puts both in one page; on aarch64 it does not.
const CLEARED_BEFORE_BYTES: usize = 16;
/// Mutexes per thread that the kernel visits: ROBUST_LIST_LIMIT.
const MUTEXES_MAX: usize = 2048;
/// Most pages that stay for threads.
const PAGES_MAX: usize = 16384;

/// Such pages, ascending.
pub(crate) struct KeptPages {
    pages: RwLock<Vec<PageNumber>>,
    named: NamedPages,
    /// The count of named addresses at the last look.
    seen: AtomicUsize,
    last: Mutex<LastSearch>,
}

#[derive(Default)]
struct LastSearch {
    next_ns: u64,
    arguments: [Range<usize>; 2],
    arguments_ns: u64,
}

/// The kept pages of a control block, by its list of robust mutexes. Usually both are one page.
fn pages_of_block(list: usize) -> [PageNumber; 2] {
    [list.saturating_sub(CLEARED_BEFORE_BYTES), list].map(PageNumber::of)
}

impl KeptPages {
    pub fn new(named: NamedPages) -> Self {
        let pages = RwLock::new(Vec::new());
        KeptPages { pages, named, seen: AtomicUsize::new(0), last: Mutex::new(LastSearch::default()) }
    }

    /// The kept pages of a block.
    pub fn of(&self, at: BlockNumber) -> PageMask {
        let pages = self.pages.read().expect("no panic while held");
        let first = pages.partition_point(|page| *page < at.page(0));
        let inside = pages[first..].iter().take_while(|page| page.block() == at);
        let mut mask: PageMask = inside.map(|page| page.index()).collect();
        if (self.named.count)() != self.seen.load(Ordering::Relaxed) {
            (self.named.each)(&mut |address| {
                let page = PageNumber::of(address);
                if page.block() == at {
                    mask |= page.mask();
                }
            });
        }
        mask
    }

    fn set(&self, mut pages: Vec<PageNumber>) {
        pages.sort_unstable();
        pages.dedup();
        *self.pages.write().expect("no panic while held") = pages;
    }
}

/// Calls `each` with every address that the kernel uses for a thread's robust mutexes. `read` reads
/// words of the program, and fails for out pages: then a later look finds the rest.
fn for_each_robust(list: usize, read: impl Fn(usize) -> Option<usize>, mut each: impl FnMut(usize)) {
    // struct robust_list_head: the first entry, the offset from entries to their mutexes, and the
    // entry being added or removed. The lowest bit of an address marks priority inheritance.
    let words = [0, 1, 2].map(|index| read(list + index * size_of::<usize>()));
    let [Some(first), Some(offset), Some(pending)] = words else { return };
    let mut note = |entry: usize| {
        each(entry);
        each(entry.wrapping_add(offset));
    };
    if pending & !1 != 0 {
        note(pending & !1);
    }
    let mut entry = first & !1;
    for _ in 0..MUTEXES_MAX {
        if entry == list || entry == 0 {
            return;
        }
        note(entry);
        let Some(next) = read(entry) else { return };
        entry = next & !1;
    }
}

impl KeptPages {
    /// Finds kept pages from time to time, and brings in those that are out, unless there is a
    /// halt. `budget` limits the arguments; `own_page` is a page of the caller.
    pub(crate) fn look(
        &self,
        now_ns: u64,
        budget: u64,
        program: &AddressSpace,
        quiesce: &Quiesce,
        own_page: usize,
    ) {
        let mut look = self.last.lock().expect("no panic while held");
        if now_ns < look.next_ns {
            return;
        }
        let mut pages = Vec::new();
        let count = (self.named.count)();
        (self.named.each)(&mut |address| pages.push(PageNumber::of(address)));
        // Such reads fail at once for missing pages: the kernel asks no userfaultfd.
        let memory = ProcFile::open(c"/proc/self/mem").ok();
        let read = |address: usize| {
            let mut word = [0; size_of::<usize>()];
            let is_whole = memory?.read_at(&mut word, address as u64).len() == word.len();
            is_whole.then(|| usize::from_ne_bytes(word))
        };
        let saw_all = threads::for_each(|thread| {
            let Some(list) = threads::robust_list(thread).filter(|_| pages.len() < PAGES_MAX) else { return };
            pages.extend(pages_of_block(list));
            for_each_robust(list, read, |address| pages.push(PageNumber::of(address)));
        });
        memory.into_iter().for_each(ProcFile::close);
        if now_ns.wrapping_sub(look.arguments_ns) > ARGUMENTS_NS {
            (look.arguments, look.arguments_ns) = (procfs::arguments(), now_ns);
        }
        let most = pages_in((budget / ARGUMENTS_PART) as usize);
        let arguments = look
            .arguments
            .iter()
            .flat_map(|range| (PageNumber::of(range.start).address()..range.end).step_by(PAGE_SIZE));
        pages.extend(arguments.take(most).map(PageNumber::of));
        // Without a descriptor for listing threads, keep the pages of the last look.
        if saw_all {
            self.set(pages);
            self.seen.store(count, Ordering::Relaxed);
        }
        if !quiesce.is_on() {
            self.bring_in(program, own_page);
        }
        look.next_ns = now_ns + LOOK_NS.max((sys::now_ns() - now_ns) * LOOK_SHARE);
    }

    fn bring_in(&self, program: &AddressSpace, own_page: usize) {
        let pages = self.pages.read().expect("no panic while held");
        let out: Vec<_> = pages.iter().copied().filter(|page| program.is_out(*page)).collect();
        drop(pages);
        if !out.is_empty() {
            let mut inbound = Inbound::new(own_page);
            for page in out {
                // If an event prevents it, the next look retries.
                program.fault_in_block(&mut inbound, page.block());
            }
            inbound.frames.empty_out(&program.staging);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    use address_space::units::{bytes_of, BLOCK_BYTES};

    /// The cleared word is in the page before the list's.
    #[test]
    fn a_control_block_across_two_pages() {
        assert_eq!(pages_of_block(bytes_of(5)), [bytes_of(4), bytes_of(5)].map(PageNumber::of));
        assert_eq!(pages_of_block(bytes_of(5) + CLEARED_BEFORE_BYTES), [PageNumber::of(bytes_of(5)); 2]);
    }

    #[test]
    fn the_pages_of_a_block_that_stay() {
        let kept = KeptPages::new(NamedPages::NONE);
        let block = BlockNumber::of(0);
        let kept_of = |number| kept.of(block + number).bits();
        kept.set(vec![block.page(16)]);
        assert_eq!([0, 1].map(kept_of), [0, 1]);
        kept.set([19, 5, 16, 16].map(|index| block.page(index)).to_vec());
        assert_eq!([0, 1, 2].map(kept_of), [1 << 5, 0b1001, 0]);
    }

    #[test]
    fn pages_named_since_the_last_look_stay() {
        let named = NamedPages {
            count: || 2,
            each: |each| [BLOCK_BYTES, 2 * BLOCK_BYTES + 7].map(each).into_iter().collect(),
        };
        let kept = KeptPages::new(named);
        let block = BlockNumber::of(0);
        assert_eq!([0, 1, 2, 3].map(|number| kept.of(block + number).bits()), [0, 1, 1, 0]);
        kept.seen.store(2, Ordering::Relaxed);
        assert!(kept.of(block + 1).is_empty(), "looks find it from then on");
    }

    #[test]
    fn a_thread_s_robust_mutexes_are_found_as_far_as_they_are_there() {
        let found = |memory: &[(usize, usize)]| {
            let memory: HashMap<_, _> = memory.iter().copied().collect();
            let mut found = Vec::new();
            for_each_robust(0x100, |at| memory.get(&at).copied(), |address| found.push(address));
            found
        };
        let head = |first, pending| [(0x100, first), (0x108, 0usize.wrapping_sub(0x20)), (0x110, pending)];
        assert_eq!(found(&head(0x100, 0)), [0; 0], "none is held");
        assert_eq!(found(&head(0x100, 0x5020)), [0x5020, 0x5000], "one is being taken");
        let two = [&head(0x1021, 0)[..], &[(0x1020, 0x2020), (0x2020, 0x101)]].concat();
        assert_eq!(found(&two), [0x1020, 0x1000, 0x2020, 0x2000]);
        assert_eq!(found(&two[..4]), [0x1020, 0x1000, 0x2020, 0x2000], "the second is out");
        assert_eq!(found(&two[..3]), [0x1020, 0x1000], "both are");
        assert_eq!(found(&two[..2]), [0; 0]);
        let ring = [&head(0x1020, 0)[..], &[(0x1020, 0x1020)]].concat();
        assert_eq!(found(&ring).len(), 2 * MUTEXES_MAX);
    }
}
