//! What the program's threads and the agent's say to each other, where `preload` is in the program.
//!
//! Neither runs code of the other: their C libraries differ, and with them what a thread's
//! registers point at. All of it is plain numbers that any thread may read and write at any time.
//! It lies in the shared object's memory, which fork() copies with the rest.

use core::ops::Range;
use core::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// No request is pending.
pub const IDLE: u32 = 0;

/// What is asked about a range.
pub mod kind {
    /// Register it: it is a new private anonymous mapping.
    pub const ORDINARY: u32 = 0;
    /// Look at all mappings: only /proc/self/maps tells what this one is.
    pub const UNKNOWN: u32 = 1;
    /// Let go of the range for good: the program has a userfaultfd of its own for it.
    pub const RELEASE: u32 = 2;
    /// Fill no frame again from now on: the program hands out references to its pages.
    pub const REFERENCES: u32 = 3;
}

/// How far a fork, or the end of paging, is.
pub mod halt {
    /// Everybody works.
    pub const RUNNING: u32 = 0;
    /// The control thread is to stand still.
    pub const ASKED: u32 = 1;
    /// It does.
    pub const HALTED: u32 = 2;
    /// In a child whose control thread is taking over.
    pub const TAKING: u32 = 3;
}

/// Why paging ends for good.
pub mod end {
    /// It does not.
    pub const NONE: u32 = 0;
    /// mlockall().
    pub const LOCKED: u32 = 1;
    /// A seccomp filter for all threads.
    pub const FILTERED: u32 = 2;
    /// The program has opened its own memory as a file.
    pub const OPENED: u32 = 3;
    /// A fork by a system call with a stack of its own, which the kernel does not report.
    pub const BARE_FORK: u32 = 4;
}

/// Why a fork brings everything in, where that is to be said.
pub mod brings_in {
    /// Nothing is to be said.
    pub const NONE: u32 = 0;
    /// The limit on descriptors is too low for a child's pager.
    pub const DESCRIPTORS: u32 = 1;
    /// The forking thread may not have a userfaultfd.
    pub const USERFAULTFD: u32 = 2;
    /// The forking thread cannot open its own files in /proc.
    pub const PROC: u32 = 3;
    /// The control thread may not take its end of the connection.
    pub const CHANNEL: u32 = 4;
}

/// What is asked when the process is about to end, and what came of it.
pub mod ending {
    /// It is not.
    pub const NO: u32 = 0;
    /// Everything is to come in if another process has this memory.
    pub const ASKED: u32 = 1;
    /// It is in, and paging has ended.
    pub const SHARED: u32 = 2;
}

/// What a forked child's control thread does first: the number of its connection to the parent's,
/// or this.
pub const RESTART: usize = usize::MAX;

/// Mappings that are waited for.
#[repr(C)]
pub struct Announcement {
    /// Held by the thread that asks.
    pub one: AtomicU32,
    /// [`IDLE`], or the number of the question that is waited for; woken when it is answered.
    pub state: AtomicU32,
    /// The last question's number.
    asked: AtomicU32,
    /// Of [`kind`].
    kind: AtomicU32,
    /// First byte, and the first behind.
    range: [AtomicUsize; 2],
}

/// The pending request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Which one it is. Who asks may give up and another ask something else, at any moment.
    pub number: u32,
    /// Of [`kind`].
    pub kind: u32,
    /// What it is about.
    pub range: Range<usize>,
}

impl Announcement {
    const fn new() -> Self {
        let [one, state, asked, kind] = [const { AtomicU32::new(0) }; 4];
        Announcement { one, state, asked, kind, range: [const { AtomicUsize::new(0) }; 2] }
    }

    /// Asks; returns the question's number. The caller has `one`, and wakes who is to answer.
    pub fn ask(&self, range: Range<usize>, kind: u32) -> u32 {
        let number = self.asked.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.asked.store(number, Ordering::Relaxed);
        // A thread that sees any of it sees that the request before is over.
        self.range[0].store(range.start, Ordering::Release);
        self.range[1].store(range.end, Ordering::Release);
        self.kind.store(kind, Ordering::Release);
        self.state.store(number, Ordering::Release);
        number
    }

    /// Whether a question is still waited for.
    pub fn is_open(&self, number: u32) -> bool {
        self.state.load(Ordering::Acquire) == number
    }

    /// Gives up waiting, or forgets who did. The caller has `one`, or is alone.
    pub fn give_up(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// What is waited for, if anything is.
    pub fn question(&self) -> Option<Question> {
        let number = self.state.load(Ordering::Acquire);
        let [start, end] = self.range.each_ref().map(|bound| bound.load(Ordering::Relaxed));
        let kind = self.kind.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // Another one was asked while this one was read.
        let is_whole = number != IDLE && self.state.load(Ordering::Relaxed) == number;
        is_whole.then_some(Question { number, kind, range: start..end })
    }

    /// Completes a request; returns whether a thread still waits for it and must be woken.
    pub fn answer(&self, number: u32) -> bool {
        self.state.compare_exchange(number, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Words that are noted.
const CLEARED_MAX: usize = 256;

/// Addresses whose pages stay: the first one noted, and the last `CLEARED_MAX` less one.
#[repr(C)]
pub struct Cleared {
    noted: AtomicUsize,
    /// Notes that can be read.
    readable: AtomicUsize,
    each: [AtomicUsize; CLEARED_MAX],
}

impl Cleared {
    const fn new() -> Self {
        let each = [const { AtomicUsize::new(0) }; CLEARED_MAX];
        Cleared { noted: AtomicUsize::new(0), readable: AtomicUsize::new(0), each }
    }

    /// Notes a word. It can be read when this returns.
    pub fn note(&self, address: usize) {
        if address == 0 || self.each.iter().any(|noted| noted.load(Ordering::Relaxed) == address) {
            return;
        }
        let index = match self.noted.fetch_add(1, Ordering::Relaxed) {
            // That of the program's first thread is musl's for all of them.
            0 => 0,
            later => 1 + (later - 1) % (CLEARED_MAX - 1),
        };
        self.each[index].store(address, Ordering::Release);
        self.readable.fetch_add(1, Ordering::Release);
    }

    /// Changes with each note, after that can be read.
    pub fn count(&self) -> usize {
        self.readable.load(Ordering::Acquire)
    }

    /// Calls `each` with the words.
    pub fn for_each(&self, each: &mut dyn FnMut(usize)) {
        let noted = self.each.iter().map(|noted| noted.load(Ordering::Acquire));
        noted.filter(|address| *address != 0).for_each(each);
    }
}

/// Processes that share this memory: children of vfork() and clone() with CLONE_VM that have not
/// executed a program yet.
#[repr(C)]
pub struct Sharing {
    /// Calls under way that make one, and return when it shares no more.
    pub calls: AtomicU32,
    /// Others may have been made, and nothing tells when they end.
    pub uncounted: AtomicU32,
    /// One a word: the kernel clears it when that process shares this memory no more.
    pub counted: [AtomicU32; COUNTED_MAX],
}

/// Processes with a word of their own.
const COUNTED_MAX: usize = 16;

/// Whether another process shares this memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsShared {
    /// None does.
    No,
    /// One may.
    Perhaps,
    /// One does.
    Yes,
}

impl Sharing {
    const fn new() -> Self {
        let [calls, uncounted] = [const { AtomicU32::new(0) }; 2];
        Sharing { calls, uncounted, counted: [const { AtomicU32::new(0) }; COUNTED_MAX] }
    }

    /// What is known.
    pub fn is_shared(&self) -> IsShared {
        let is_set = |word: &AtomicU32| word.load(Ordering::Acquire) != 0;
        match () {
            () if self.counted.iter().any(is_set) => IsShared::Yes,
            () if is_set(&self.calls) || is_set(&self.uncounted) => IsShared::Perhaps,
            () => IsShared::No,
        }
    }

    /// A word for one more process; `None` when there is none left.
    pub fn count(&self) -> Option<&AtomicU32> {
        self.counted
            .iter()
            .find(|word| word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// In a forked child: its memory is its own.
    pub fn forget(&self) {
        let all = self.counted.iter().chain([&self.calls, &self.uncounted]);
        all.for_each(|word| word.store(0, Ordering::Release));
    }
}

/// What [`Forks::quiet`] says when the control thread makes no call any more.
pub const QUIET: u32 = 2;

/// Forks, and what they depend on.
#[repr(C)]
pub struct Forks {
    /// Of [`halt`]; woken at each change.
    pub state: AtomicU32,
    /// Held by the thread that forks.
    pub one: AtomicU32,
    /// Paging has ended for good.
    pub stopped: AtomicU32,
    /// The control thread, stopped, is to make no call but the one that it waits in (1), and does
    /// ([`QUIET`]).
    pub quiet: AtomicU32,
    /// The control thread's number, as /proc has it; 0 while unknown.
    pub thread: AtomicU32,
    /// The control thread is to end, with what else the agent has, as long as there is no pager;
    /// reset where it cannot.
    pub leaving: AtomicU32,
    /// The process is about to end ([`ending`]).
    pub ending: AtomicU32,
    /// The control thread attends to a fork: the child cannot do without this process yet. Woken
    /// when that is over.
    pub attending: AtomicU32,
    /// A seccomp filter may be in force in forked children.
    pub filtered: AtomicU32,
    /// Forked children may not have all of the memory.
    pub wiped: AtomicU32,
    /// This process has forked or was forked.
    pub forked: AtomicU32,
    /// The kernel does not report forks to the pager.
    pub unreported: AtomicU32,
    /// What a child's pager may not open, the supervisor opens for it.
    pub lends: AtomicU32,
    /// Descriptors that a child's pager needs.
    pub descriptors: AtomicU32,
    /// The forking thread's root directory is none that a child's pager can work in: it is given
    /// the agent's.
    pub outside: AtomicU32,
    /// Why this process's forks bring everything in, of [`brings_in`]; 0 when that was said.
    pub why: AtomicU32,
    /// The control thread stands by this fork with everything left out.
    pub keeps: AtomicU32,
    /// The forking thread.
    pub forker: AtomicU32,
    /// Its connection to the control thread, -1 when everything is to come in.
    pub connection: AtomicI32,
    /// The control thread's end of it in the forking thread's file table, -1 for none.
    pub other_end: AtomicI32,
    /// What the kernel calls that end (SO_COOKIE): the number may be another's in another table.
    pub cookie: AtomicU64,
    /// Forks may leave everything out.
    pub can_keep: AtomicU32,
    /// The stack and the thread pointer of a control thread that is ready to be made in a child, 0
    /// for none. On the stack lie a place for its argument, and what it runs.
    pub spare: [AtomicUsize; 2],
}

/// The agent's rights, and who asks whether it has more than the program.
#[repr(C)]
pub struct Credentials {
    /// The last question's number; the control thread looks, and takes the program's rights if they
    /// are less for good.
    pub asked: AtomicU32,
    /// The number of the last question that it has looked into; woken when that changes.
    pub answered: AtomicU32,
    /// The agent's users and groups: real, effective, saved.
    pub users: [AtomicU32; 3],
    /// See above.
    pub groups: [AtomicU32; 3],
    /// Capabilities that are permitted to it.
    pub permitted: AtomicU64,
    /// All of these are known.
    pub is_known: AtomicU32,
}

/// All of it.
#[repr(C)]
pub struct ControlPage {
    /// Whether there is a control thread to answer.
    pub is_alive: AtomicU32,
    /// Whether there is a pager.
    pub has_pager: AtomicU32,
    /// Counted up and woken to have the control thread look.
    pub nudge: AtomicU32,
    /// The program hands out references to its pages, or may; more than once it is known that the
    /// pager heard of it.
    pub references: AtomicU32,
    /// Of [`end`], until it is said.
    pub end: AtomicU32,
    /// Threads of the agent.
    pub threads: AtomicU32,
    /// What the kernel clears when threads end, beside words in their control blocks.
    pub cleared: Cleared,
    /// Robust mutexes, which the kernel marks when their owners end.
    pub robust: Cleared,
    /// Address of the bytes that this user's processes of the tree use, a 64-bit number; 0 while
    /// unknown.
    pub total: AtomicUsize,
    /// Address of what the other users' processes use; set before the former.
    pub others: AtomicUsize,
    /// The use at which memory is registered, in bytes.
    pub tight_bytes: AtomicU64,
    /// The agent's memory: first byte, and the first behind.
    pub arena: [AtomicUsize; 2],
    /// See there.
    pub announcement: Announcement,
    /// See there.
    pub forks: Forks,
    /// See there.
    pub credentials: Credentials,
    /// See there.
    pub sharing: Sharing,
}

impl ControlPage {
    /// Nothing said.
    pub const fn new() -> Self {
        const fn word() -> AtomicU32 {
            AtomicU32::new(0)
        }
        const fn pair() -> [AtomicUsize; 2] {
            [AtomicUsize::new(0), AtomicUsize::new(0)]
        }
        ControlPage {
            is_alive: word(),
            has_pager: word(),
            nudge: word(),
            references: word(),
            end: word(),
            threads: word(),
            cleared: Cleared::new(),
            robust: Cleared::new(),
            total: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            tight_bytes: AtomicU64::new(0),
            arena: pair(),
            announcement: Announcement::new(),
            forks: Forks {
                state: word(),
                one: word(),
                stopped: word(),
                quiet: word(),
                thread: word(),
                leaving: word(),
                ending: word(),
                attending: word(),
                filtered: word(),
                wiped: word(),
                forked: word(),
                unreported: word(),
                lends: word(),
                descriptors: word(),
                outside: word(),
                why: word(),
                keeps: word(),
                forker: word(),
                connection: AtomicI32::new(-1),
                other_end: AtomicI32::new(-1),
                cookie: AtomicU64::new(0),
                can_keep: word(),
                spare: pair(),
            },
            credentials: Credentials {
                asked: word(),
                answered: word(),
                users: [word(), word(), word()],
                groups: [word(), word(), word()],
                permitted: AtomicU64::new(0),
                is_known: word(),
            },
            sharing: Sharing::new(),
        }
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

    /// The first thread gave up, the second asked something else, and took the first one's answer
    /// for its own.
    #[test]
    fn an_answer_that_is_late_answers_nobody_else() {
        let announcement = Announcement::new();
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
    fn processes_that_share_memory_are_counted_until_the_kernel_clears_their_words() {
        let sharing = Sharing::new();
        assert_eq!(sharing.is_shared(), IsShared::No);
        sharing.calls.store(1, Ordering::Relaxed);
        assert_eq!(sharing.is_shared(), IsShared::Perhaps);
        let words: Vec<&AtomicU32> = std::iter::from_fn(|| sharing.count()).collect();
        assert_eq!((words.len(), sharing.is_shared()), (COUNTED_MAX, IsShared::Yes));
        sharing.calls.store(0, Ordering::Relaxed);
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        assert_eq!(sharing.is_shared(), IsShared::No);
        sharing.uncounted.store(1, Ordering::Relaxed);
        assert!(sharing.count().is_some() && sharing.is_shared() == IsShared::Yes);
        sharing.forget();
        assert_eq!(sharing.is_shared(), IsShared::No);
    }

    #[test]
    fn the_first_word_and_the_last_ones_are_noted() {
        let cleared = Cleared::new();
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
        let announcement = Announcement::new();
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
