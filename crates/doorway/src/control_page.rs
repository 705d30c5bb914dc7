//! Communication between the program's threads and the agent's, where `preload` is in the program.
//!
//! Neither runs the other's code: their C libraries differ, and so does the meaning of a thread's
//! registers. The page holds plain numbers that any thread may read and write at any time. It lies
//! in the shared object's memory, which fork() copies.

use core::ops::Range;
use core::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// No request is pending.
pub const IDLE: u32 = 0;

/// The request for a range.
pub mod kind {
    /// Register it: it is a new private anonymous mapping.
    pub const ORDINARY: u32 = 0;
    /// Look at all mappings: only /proc/self/maps shows what this one is.
    pub const UNKNOWN: u32 = 1;
    /// Release the range for good: the program has its own userfaultfd for it.
    pub const RELEASE: u32 = 2;
    /// Fill no freed frame from now on: the program hands out references to its pages.
    pub const REFERENCES: u32 = 3;
}

/// The state of a fork, or of the end of paging.
pub mod halt {
    /// All threads work.
    pub const RUNNING: u32 = 0;
    /// A thread asks the control thread to halt.
    pub const ASKED: u32 = 1;
    /// The control thread has halted.
    pub const HALTED: u32 = 2;
    /// In a child whose control thread is taking over.
    pub const TAKING: u32 = 3;
}

/// Why paging ends for good.
pub mod end {
    /// Paging continues.
    pub const NONE: u32 = 0;
    /// mlockall().
    pub const LOCKED: u32 = 1;
    /// A seccomp filter for all threads.
    pub const FILTERED: u32 = 2;
    /// The program has opened its own memory as a file.
    pub const OPENED: u32 = 3;
    /// A fork by a system call with its own stack, which the kernel does not report.
    pub const BARE_FORK: u32 = 4;
    /// The program is about to change its profile of a security module, which the agent would not
    /// have: the agent ends.
    pub const CONFINED: u32 = 5;
}

/// Why a fork brings everything in, if the user must be told.
pub mod brings_in {
    /// No reason to report.
    pub const NONE: u32 = 0;
    /// The limit on descriptors is too low for a child's pager.
    pub const DESCRIPTORS: u32 = 1;
    /// The forking thread may not open a userfaultfd.
    pub const USERFAULTFD: u32 = 2;
    /// The forking thread cannot open its own files in /proc.
    pub const PROC: u32 = 3;
    /// The control thread may not take its end of the connection.
    pub const CHANNEL: u32 = 4;
}

/// Tells a forked child's control thread to start again: it has no connection to the parent's.
pub const RESTART: usize = usize::MAX;

/// Requests about mappings.
#[repr(C)]
pub struct Announcement {
    /// Lock, held by the requesting thread.
    pub one: AtomicU32,
    /// [`IDLE`], or the number of the pending request; woken when it is completed.
    pub state: AtomicU32,
    /// Number of the last request.
    asked: AtomicU32,
    /// A value of [`kind`].
    kind: AtomicU32,
    /// First byte, and one past the last.
    range: [AtomicUsize; 2],
}

/// The pending request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Its number. The requesting thread may give up and another request may follow, at any moment.
    pub number: u32,
    /// A value of [`kind`].
    pub kind: u32,
    /// Its range.
    pub range: Range<usize>,
}

impl Announcement {
    /// Makes a request, returns its number. The caller holds `one`, and wakes the control thread.
    pub fn ask(&self, range: Range<usize>, kind: u32) -> u32 {
        let number = self.asked.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.asked.store(number, Ordering::Relaxed);
        // A thread that sees any of it sees that the previous request is over.
        self.range[0].store(range.start, Ordering::Release);
        self.range[1].store(range.end, Ordering::Release);
        self.kind.store(kind, Ordering::Release);
        self.state.store(number, Ordering::Release);
        number
    }

    /// Whether the request is still pending.
    pub fn is_open(&self, number: u32) -> bool {
        self.state.load(Ordering::Acquire) == number
    }

    /// Gives up the pending request. The caller holds `one`, or is alone.
    pub fn give_up(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// The pending request, if any.
    pub fn question(&self) -> Option<Question> {
        let number = self.state.load(Ordering::Acquire);
        let [start, end] = self.range.each_ref().map(|bound| bound.load(Ordering::Relaxed));
        let kind = self.kind.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // False if another request replaced it during the reads.
        let is_whole = number != IDLE && self.state.load(Ordering::Relaxed) == number;
        is_whole.then_some(Question { number, kind, range: start..end })
    }

    /// Completes a request; returns whether a thread still waits for it and must be woken.
    pub fn answer(&self, number: u32) -> bool {
        self.state.compare_exchange(number, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Most noted words.
const CLEARED_MAX: usize = 256;

/// Addresses whose pages stay: the first one noted, and the last `CLEARED_MAX` − 1.
#[repr(C)]
pub struct Cleared {
    noted: AtomicUsize,
    /// Number of readable notes.
    readable: AtomicUsize,
    each: [AtomicUsize; CLEARED_MAX],
}

impl Cleared {
    /// Notes a word. It is readable when this returns.
    pub fn note(&self, address: usize) {
        if address == 0 || self.each.iter().any(|noted| noted.load(Ordering::Relaxed) == address) {
            return;
        }
        let index = match self.noted.fetch_add(1, Ordering::Relaxed) {
            // The first thread's word stays: musl uses it for all threads.
            0 => 0,
            later => 1 + (later - 1) % (CLEARED_MAX - 1),
        };
        self.each[index].store(address, Ordering::Release);
        self.readable.fetch_add(1, Ordering::Release);
    }

    /// Increases with each note, once the note is readable.
    pub fn count(&self) -> usize {
        self.readable.load(Ordering::Acquire)
    }

    /// Calls `each` with every noted word.
    pub fn for_each(&self, each: &mut dyn FnMut(usize)) {
        let noted = self.each.iter().map(|noted| noted.load(Ordering::Acquire));
        noted.filter(|address| *address != 0).for_each(each);
    }
}

/// Processes that share this memory: children of vfork() and clone() with CLONE_VM that have not
/// executed a program yet.
#[repr(C)]
pub struct Sharing {
    /// Running calls that create such a process and return when it no longer shares the memory.
    pub calls: AtomicU32,
    /// Set if processes may exist whose end is not observed.
    pub uncounted: AtomicU32,
}

/// The state of forks and their preconditions.
#[repr(C)]
pub struct Forks {
    /// A value of [`halt`]; woken at each change.
    pub state: AtomicU32,
    /// Lock, held by the forking thread.
    pub one: AtomicU32,
    /// Paging has ended for good.
    pub stopped: AtomicU32,
    /// Asks the control thread to end with the agent, once everything is in.
    pub leaving: AtomicU32,
    /// Set while a fork's child needs this process. Woken when that is over.
    pub attending: AtomicU32,
    /// A seccomp filter may be in force in forked children.
    pub filtered: AtomicU32,
    /// Forked children may not have all of the memory.
    pub wiped: AtomicU32,
    /// This process has forked or was forked.
    pub forked: AtomicU32,
    /// The kernel does not report forks to the pager.
    pub unreported: AtomicU32,
    /// The supervisor opens files that a child's pager may not open.
    pub lends: AtomicU32,
    /// Number of descriptors that a child's pager needs.
    pub descriptors: AtomicU32,
    /// A child's pager cannot work in the forking thread's root directory: it gets the agent's.
    pub outside: AtomicU32,
    /// Why this process's forks bring everything in, a value of [`brings_in`]; 0 once reported.
    pub why: AtomicU32,
    /// The control thread serves this fork with all evicted pages left out.
    pub keeps: AtomicU32,
    /// The forking thread.
    pub forker: AtomicU32,
    /// Its connection to the control thread, -1 if the fork brings everything in.
    pub connection: AtomicI32,
    /// A connection for the next fork: the forking thread's end in the agent's file table, -1 for
    /// none.
    pub offered: AtomicI32,
    /// That end's SO_COOKIE, by which the forking thread knows it.
    pub cookie: AtomicU64,
    /// Forks may leave pages out.
    pub can_keep: AtomicU32,
    /// Whether the supervisor has the offered end, since the program may not take it: the process
    /// may not be inspected (PR_SET_DUMPABLE).
    pub is_lent: AtomicU32,
    /// The stack and the thread pointer of a prepared control thread for a child, 0 for none. The
    /// stack holds its argument and its function.
    pub spare: [AtomicUsize; 2],
}

/// The agent's rights, and requests to compare them with the program's.
#[repr(C)]
pub struct Credentials {
    /// Number of the last request. The control thread compares, and takes the program's rights if
    /// they have shrunk for good.
    pub asked: AtomicU32,
    /// Number of the last completed request; woken when it changes.
    pub answered: AtomicU32,
    /// The agent's users and groups: real, effective, saved.
    pub users: [AtomicU32; 3],
    /// The agent's groups: real, effective, saved.
    pub groups: [AtomicU32; 3],
    /// The agent's permitted capabilities.
    pub permitted: AtomicU64,
    /// Whether these fields are set.
    pub is_known: AtomicU32,
}

/// The shared memory.
#[repr(C)]
pub struct ControlPage {
    /// Whether a control thread serves requests. The kernel clears it when that thread ends.
    pub is_alive: AtomicU32,
    /// The program's process id: the agent is another process, which shares the memory.
    pub process: AtomicU32,
    /// The agent's process id, in the program's process namespace.
    pub agent: AtomicU32,
    /// `process` as /proc numbers it, which may be mounted for another process namespace.
    pub number: AtomicU32,
    /// Address of the word that the kernel clears when the program's first thread no longer has
    /// this memory; 0 while unknown.
    pub first_word: AtomicUsize,
    /// The process that loaded the object: its forked descendants have the same number until they
    /// execute a program.
    pub lineage: AtomicU32,
    /// Numbers that the agent writes here and reads back as the program's memory.
    pub nonce: AtomicU64,
    /// Whether there is a pager.
    pub has_pager: AtomicU32,
    /// Number of pagers that this process has had: each begins with all memory of the program.
    pub pagers: AtomicU32,
    /// Incremented and woken to make the control thread look.
    pub nudge: AtomicU32,
    /// 1 if the program may hand out references to its pages; above 1 once the pager knows.
    pub references: AtomicU32,
    /// Why paging ends, a value of [`end`], until reported.
    pub end: AtomicU32,
    /// Words that the kernel clears when threads end, except those in control blocks.
    pub cleared: Cleared,
    /// Robust mutexes, which the kernel marks when their owners end.
    pub robust: Cleared,
    /// Address of this user's part of the tree's use in bytes, 64 bits; 0 while unknown.
    pub total: AtomicUsize,
    /// Address of the number for the other users' processes; set before `total`.
    pub others: AtomicUsize,
    /// The use at which memory is registered, in bytes.
    pub tight_bytes: AtomicU64,
    /// The agent's memory: first byte, and one past the last.
    pub arena: [AtomicUsize; 2],
    /// Requests about mappings.
    pub announcement: Announcement,
    /// Forks.
    pub forks: Forks,
    /// The agent's rights.
    pub credentials: Credentials,
    /// Processes that share this memory.
    pub sharing: Sharing,
}

impl ControlPage {
    /// A control page of zeroes, with no connection.
    pub const fn new() -> Self {
        // SAFETY: numbers, for which zero is valid.
        let mut page: ControlPage = unsafe { core::mem::zeroed() };
        page.forks.connection = AtomicI32::new(-1);
        page.forks.offered = AtomicI32::new(-1);
        page
    }
}

impl Default for ControlPage {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first thread gave up; the second then took the reply to the first's request for its own.
    #[test]
    fn a_late_reply_completes_no_other_request() {
        let ControlPage { announcement, .. } = ControlPage::new();
        assert_eq!(announcement.question(), None);
        let first = announcement.ask(1..2, kind::ORDINARY);
        let question = announcement.question().expect("asked");
        assert_eq!(question, Question { number: first, kind: kind::ORDINARY, range: 1..2 });
        announcement.give_up();
        assert_eq!(announcement.question(), None);
        let second = announcement.ask(3..4, kind::RELEASE);
        assert!(!announcement.answer(first) && announcement.is_open(second) && !announcement.is_open(first));
        assert_eq!(announcement.question().expect("asked").range, 3..4);
        assert!(announcement.answer(second) && !announcement.is_open(second));
        assert_eq!(announcement.question(), None);
        announcement.asked.store(u32::MAX, Ordering::Relaxed);
        assert_ne!(announcement.ask(5..6, kind::UNKNOWN), IDLE);
    }

    #[test]
    fn the_first_word_and_the_last_ones_are_noted() {
        let ControlPage { cleared, .. } = ControlPage::new();
        let noted = || {
            let mut all = Vec::new();
            cleared.for_each(&mut |address| all.push(address));
            all.sort_unstable();
            all
        };
        cleared.note(0);
        assert_eq!((noted(), cleared.count()), (vec![], 0));
        for _ in 0..2 {
            (1..=CLEARED_MAX).for_each(|address| cleared.note(address));
        }
        assert_eq!((noted(), cleared.count()), ((1..=CLEARED_MAX).collect::<Vec<_>>(), CLEARED_MAX));
        (CLEARED_MAX + 1..=2 * CLEARED_MAX).for_each(|address| cleared.note(address));
        assert_eq!(noted(), [1].into_iter().chain(CLEARED_MAX + 2..=2 * CLEARED_MAX).collect::<Vec<_>>());
    }

    #[test]
    fn a_question_is_never_of_two() {
        let ControlPage { announcement, .. } = ControlPage::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..50_000usize {
                    let number = announcement.ask(turn..turn + 7, (turn % 4) as u32);
                    if turn % 3 != 0 {
                        announcement.give_up();
                        continue;
                    }
                    while announcement.is_open(number) {
                        std::thread::yield_now();
                    }
                }
                announcement.ask(usize::MAX..usize::MAX, 0);
            });
            loop {
                let Some(question) = announcement.question() else {
                    std::thread::yield_now();
                    continue;
                };
                if question.range.start == usize::MAX {
                    break;
                }
                assert_eq!(question.range.end, question.range.start + 7);
                assert_eq!(question.kind, (question.range.start % 4) as u32);
                announcement.answer(question.number);
            }
        });
    }
}
