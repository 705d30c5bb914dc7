//! What a forked child gets of the pages that are out here.

use sys::procfs::ProcFile;
use sys::userfaultfd::{Message, Stop, MESSAGES_MAX};
use sys::{maps, PAGE_SIZE};

use super::block::PageState;
use super::fork_point::ForkPoint;
use super::guard::Registration;
use super::{Guard, Pages};
use crate::accounts::Counter;
use crate::sync::sleep_ns;
use crate::units::{index_of, page_at, BLOCK_PAGES};

/// A change of the child's address space since the fork.
#[derive(Debug, Clone, Copy)]
enum Change {
    Gone { start: usize, end: usize },
    Moved { from: usize, to: usize, len: usize },
}

impl Change {
    /// What an event says of it.
    fn of(event: Message) -> Option<Change> {
        match event {
            Message::Remove { start, end } | Message::Unmap { start, end } => {
                Some(Change::Gone { start, end })
            }
            Message::Remap { from, to, len } => Some(Change::Moved { from, to, len }),
            Message::Fault { .. } | Message::Fork { .. } => None,
        }
    }
}

/// One process that pages are handed to.
struct Descendant {
    guard: Guard,
    changes: Vec<Change>,
}

/// The memory of a forked child that pages are handed to, which may change, and be forked itself,
/// while they are.
pub(crate) struct ChildMemory {
    /// The child, and its children.
    descendants: Vec<Descendant>,
    /// What the parent did to its mappings at about that time.
    fork_point: ForkPoint,
    /// What the child gets without its bytes.
    wiped: Vec<(usize, usize)>,
    /// All of them have ended, or become other programs.
    is_over: bool,
}

impl Descendant {
    /// Notes what the process did: until an event is read, nothing can be copied into it, and its
    /// thread waits. Returns a child of its own, which lacks what it lacks.
    fn read_changes(&mut self) -> Option<Descendant> {
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        while self.guard.reports().read(&mut messages, 1) == 1 {
            match messages[0] {
                Message::Fork { descriptor } => {
                    return Some(Descendant {
                        guard: self.guard.of_child(descriptor),
                        changes: self.changes.clone(),
                    });
                }
                // A fault is served by the page that comes; those whose page never comes are woken
                // at the end.
                message => self.changes.extend(Change::of(message)),
            }
        }
        None
    }

    /// Whether a mapping was registered at `at` when the process was made.
    fn first_registration(&self, at: usize) -> Registration {
        let change = self.changes.iter().find_map(|change| match *change {
            Change::Gone { start, end } if (start..end).contains(&at) => Some(Registration::Registered),
            Change::Moved { from, len, .. } if (from..from + len).contains(&at) => {
                Some(Registration::Registered)
            }
            Change::Moved { to, len, .. } if (to..to + len).contains(&at) => Some(Registration::Changing),
            _ => None,
        });
        change.unwrap_or_else(|| self.guard.registration(at))
    }

    /// Where a page of the parent is by now; `None` when it is gone.
    fn place_of(&self, at: usize) -> Option<usize> {
        self.changes.iter().try_fold(at, |at, change| match *change {
            Change::Gone { start, end } if (start..end).contains(&at) => None,
            Change::Moved { from, to, len } if (from..from + len).contains(&at) => Some(at - from + to),
            // What was at the target of a move before is gone.
            Change::Moved { to, len, .. } if (to..to + len).contains(&at) => None,
            _ => Some(at),
        })
    }
}

impl ChildMemory {
    /// Of the child with this guard. `changes` are the child's own since the fork that have been
    /// read already.
    pub fn new(guard: Guard, changes: impl Iterator<Item = Message>) -> Self {
        ChildMemory {
            descendants: vec![Descendant { guard, changes: changes.filter_map(Change::of).collect() }],
            fork_point: ForkPoint::default(),
            wiped: Vec::new(),
            is_over: false,
        }
    }

    /// Notes what the parent did at about the time of the fork, in order; the first `applied` of it
    /// are known to its table.
    pub fn place_among(&mut self, reports: Vec<Message>, applied: usize) {
        self.fork_point = ForkPoint::find(reports, applied, |at| self.descendants[0].first_registration(at));
    }

    /// Leaves out what the parent has asked the kernel to leave out (MADV_WIPEONFORK).
    pub fn leave_out_wiped(&mut self) {
        let Ok(smaps) = ProcFile::open_own(c"smaps") else { return };
        maps::for_each_wiped(&smaps, &mut [0; 8192], |start, end| self.wiped.push((start, end)));
        smaps.close();
    }

    /// Which page of the parent the child misses at `at`, the other way round; `None` for none.
    pub fn source_of(&self, at: usize) -> Option<usize> {
        let at = self.descendants[0].changes.iter().rev().try_fold(at, |at, change| match *change {
            Change::Gone { start, end } if (start..end).contains(&at) => None,
            Change::Moved { from, to, len } if (to..to + len).contains(&at) => Some(at - to + from),
            Change::Moved { from, len, .. } if (from..from + len).contains(&at) => None,
            _ => Some(at),
        })?;
        self.fork_point.in_table(at)
    }

    /// Fills a page that the parent has at `at`, in the child and all that it forked before.
    fn fill(&mut self, at: usize, with: impl Fn(&Guard, usize) -> Option<Stop>) {
        if self.wiped.iter().any(|(start, end)| (*start..*end).contains(&at)) {
            return;
        }
        let Some(at) = self.fork_point.in_child(at) else { return };
        let (mut index, mut gone) = (0, 0);
        while index < self.descendants.len() {
            let descendant = &mut self.descendants[index];
            if let Some(child) = descendant.read_changes() {
                self.descendants.push(child);
                continue;
            }
            match descendant.place_of(at).and_then(|place| with(&descendant.guard, place)) {
                // It has to run before the kernel lets pages in again, or memory is short for
                // everybody. A process that is stopped keeps its relatives waiting, never wrong;
                // one that is killed ends this.
                Some(Stop::Again | Stop::NoMemory) => sleep_ns(20_000),
                stop => {
                    gone += usize::from(stop == Some(Stop::Gone));
                    index += 1;
                }
            }
        }
        self.is_over = gone == self.descendants.len();
    }

    /// Copies a page that the parent has at `at`.
    pub fn give(&mut self, at: usize, page: &[u8; PAGE_SIZE]) {
        // SAFETY: fills a missing page of the child with its own content.
        self.fill(at, |guard, place| unsafe { guard.copy(place, page.as_ptr() as usize, PAGE_SIZE) }.stop);
    }

    /// Ends it: what is not there is zeroes from now on.
    pub fn close(self) {
        self.descendants.iter().for_each(|descendant| descendant.guard.reports().close());
    }
}

impl Pages {
    /// A fork went past the library's fork handlers: the child's memory lacks what is out here. It
    /// is given all of that. Nothing has come in since the kernel copied the parent: it refuses to
    /// fill pages from the first managed mapping it copies until the event is read, and from then
    /// on no thread has a [`super::mover::Quiet`] until this is over.
    pub(super) fn populate_child(&self, descriptor: i32, reports: Vec<Message>, applied: usize) {
        let mut child = ChildMemory::new(self.guard().of_child(descriptor), std::iter::empty());
        child.place_among(reports, applied);
        child.leave_out_wiped();
        self.hand_over_all(&mut child);
        self.accounts.add(Counter::Forks, 1);
        child.close();
    }

    /// Copies everything that is out into a child.
    pub fn hand_over_all(&self, child: &mut ChildMemory) {
        let mut page = [0u8; PAGE_SIZE];
        for base in self.table.busy(0, sys::memory::USER_END) {
            for index in 0..BLOCK_PAGES {
                let at = page_at(base, index);
                if self.read_out(at, &mut page) {
                    child.give(at, &page);
                }
            }
            if child.is_over {
                break;
            }
        }
    }

    /// Reads a page that is out; false when it is not.
    pub fn read_out(&self, at: usize, page: &mut [u8; PAGE_SIZE]) -> bool {
        let Some(block) = self.table.lock_existing(at) else { return false };
        let index = index_of(at);
        match block.state(index) {
            PageState::Staged => {
                let source = self.staging.address(block.slot(), index);
                // SAFETY: staged pages stay until the block's lock is released.
                *page = unsafe { *(source as *const [u8; PAGE_SIZE]) };
                true
            }
            PageState::Stored => {
                self.load_copy(at, page);
                true
            }
            _ => false,
        }
    }
}
