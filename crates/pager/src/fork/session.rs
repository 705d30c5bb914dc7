//! One fork: the faults that wait, the children, and what these lack.
//!
//! Invariants: a held fault is served once, or held again. Once a child exists, events of this
//! process are stashed and none is applied. If something cannot be recorded (too many pages copied,
//! a mapping changed by a child), the session is *torn*: the child gets copies and starts again.

use std::collections::VecDeque;

use address_space::units::PageNumber;
use address_space::{ChildMemory, Guard};
use sys::userfaultfd::Message;

use crate::config::HANDLERS_MAX;
use crate::fault::{Fault, Handler};

/// How long faults of threads other than the forking one wait for the fork to begin.
pub(super) const PATIENCE_NS: u64 = 10_000_000;
/// How long any fault waits for a child to take over before the forking thread has returned.
const HELD_UP_NS: u64 = 20_000_000;
const HELD_MAX: usize = 128;
/// Most pages copied into a child before it takes over. The C library touches a few dozen.
pub const COPIED_MAX: usize = 400;

/// The children of one fork, and their missing pages.
#[derive(Default)]
pub(super) struct Children {
    /// Their userfaultfds. All but one are from bare system calls, or children of those.
    pub(super) list: Vec<i32>,
    pub(super) gates: Vec<i32>,
    /// Addresses of the pages copied into the first child.
    pub(super) copied: Vec<u64>,
    born_ns: u64,
    /// Mapping changes by child: children of other threads' forks already run.
    pub(super) changes: Vec<(usize, Message)>,
    /// Some got all their memory and are no longer served.
    pub(super) has_completed: bool,
}

/// One fork, from the moment when all threads stand still.
pub struct ForkSession {
    forker: u32,
    pub(super) since_ns: u64,
    pub(super) guard: Guard,
    pub(super) handler: Handler,
    /// Faults read and not yet served, in order, at most [`HELD_MAX`].
    pub(super) held: VecDeque<Fault>,
    pub(super) children: Children,
    /// The child's copy of the arena is useless.
    pub(super) torn: bool,
    /// The forking thread has returned from its fork.
    is_back: bool,
    /// Events of this process since the kernel started to copy, in order. The table stays as it was
    /// at the fork until the child has what it needs.
    pub(super) stash: Vec<Message>,
}

impl ForkSession {
    /// A fork by thread `forker` that starts now. `own_page` is a page of the caller.
    pub(super) fn new(guard: Guard, forker: u32, own_page: usize) -> Self {
        ForkSession {
            forker,
            since_ns: sys::now_ns(),
            guard,
            handler: Handler::new(HANDLERS_MAX, own_page),
            held: VecDeque::with_capacity(HELD_MAX),
            children: Children { copied: Vec::with_capacity(COPIED_MAX), ..Children::default() },
            torn: false,
            is_back: false,
            stash: Vec::new(),
        }
    }

    /// Records that the forking thread has returned and no longer waits.
    pub fn note_back(&mut self) {
        self.is_back = true;
    }

    pub(super) fn can_hold(&self) -> bool {
        self.held.len() < HELD_MAX
    }

    /// Records a page that was copied into the child. The child cannot learn of too many.
    pub(super) fn note_copied(&mut self, at: PageNumber) {
        match self.children.copied.len() < COPIED_MAX {
            true => self.children.copied.push(at.address() as u64),
            false => self.torn = true,
        }
    }

    pub(super) fn add_child(&mut self, descriptor: i32) {
        if self.children.list.is_empty() {
            self.children.born_ns = sys::now_ns();
        }
        self.children.list.push(descriptor);
    }

    /// Adds a child's own child, which lacks the same pages.
    pub(super) fn add_grandchild(&mut self, child: usize, descriptor: i32) {
        let grandchild = self.children.list.len();
        self.children.list.push(descriptor);
        let inherited: Vec<_> =
            self.children.changes.iter().filter(|(number, _)| *number == child).copied().collect();
        self.children.changes.extend(inherited.into_iter().map(|(_, change)| (grandchild, change)));
    }

    /// Whether a fault need not wait for the fork to begin.
    pub(super) fn is_due(&self, fault: &Fault, now_ns: u64) -> bool {
        fault.thread == self.forker || now_ns > self.since_ns + PATIENCE_NS
    }

    /// Whether a fault must be served before the children have taken over.
    pub(super) fn is_held_up(&self, now_ns: u64) -> bool {
        let has_waiters = !self.held.is_empty() && !self.children.list.is_empty();
        has_waiters && !self.is_back && now_ns > self.children.born_ns + HELD_UP_NS
    }

    pub(super) fn memory_of(&self, child: usize) -> ChildMemory {
        let changes =
            self.children.changes.iter().filter(|(number, _)| *number == child).map(|(_, change)| *change);
        let mut memory = ChildMemory::new(self.guard.of_child(self.children.list[child]), changes);
        memory.place_among(self.stash.clone(), 0);
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::userfaultfd::Userfaultfd;

    fn session() -> ForkSession {
        // No descriptor: these tests do not call the kernel.
        ForkSession::new(Guard::new(Userfaultfd::from_descriptor(-1), 0), 7, 0)
    }

    fn fault(thread: u32) -> Fault {
        Fault { page: PageNumber::default(), write: true, thread, read_ns: 0 }
    }

    #[test]
    fn faults_of_the_forking_thread_are_due_at_once_and_others_after_a_while() {
        let session = session();
        let (begin, end) = (session.since_ns, session.since_ns + PATIENCE_NS + 1);
        assert!(session.is_due(&fault(7), begin));
        assert!(!session.is_due(&fault(8), begin) && session.is_due(&fault(8), end));
    }

    #[test]
    fn a_fault_holds_up_a_session_with_children_until_the_forking_thread_is_back() {
        let mut session = session();
        session.held.push_back(fault(7));
        assert!(!session.is_held_up(u64::MAX), "there is no child");
        session.add_child(3);
        assert!(!session.is_held_up(session.children.born_ns) && session.is_held_up(u64::MAX));
        session.note_back();
        assert!(!session.is_held_up(u64::MAX));
    }

    #[test]
    fn a_grandchild_misses_the_changes_that_its_parent_missed() {
        let mut session = session();
        session.add_child(3);
        session.add_child(4);
        let change = |start| Message::Unmap { start, end: start + 1 };
        session.children.changes = vec![(0, change(10)), (1, change(20)), (0, change(30))];
        session.add_grandchild(0, 5);
        let starts: Vec<usize> = session
            .children
            .changes
            .iter()
            .filter_map(|(number, change)| match change {
                Message::Unmap { start, .. } if *number == 2 => Some(*start),
                _ => None,
            })
            .collect();
        assert_eq!((session.children.list.len(), starts), (3, vec![10, 30]));
    }

    #[test]
    fn copied_pages_are_noted_up_to_a_limit() {
        let mut session = session();
        (0..COPIED_MAX).for_each(|page| session.note_copied(PageNumber::default() + page));
        assert_eq!((session.children.copied.len(), session.torn), (COPIED_MAX, false));
        session.note_copied(PageNumber::default());
        assert_eq!((session.children.copied.len(), session.torn), (COPIED_MAX, true));
    }
}
