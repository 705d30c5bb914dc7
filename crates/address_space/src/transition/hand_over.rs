//! Copies out pages into a forked child.

use sys::procfs::ProcFile;
use sys::userfaultfd::{Message, Stop, MESSAGES_MAX};
use sys::{maps, PAGE_SIZE};

use super::fork_point::{redo, undo, ForkPoint};
use crate::accounts::Counter;
use crate::address_space::AddressSpace;
use crate::space::block::PageState;
use crate::space::descriptor::Guard;
use crate::space::descriptor::Registration;
use crate::sync::sleep_ns;
use crate::units::{PageNumber, BLOCK_PAGES};

/// Whether a change took page `at` away, without moving it.
fn is_gone(change: Message, at: PageNumber) -> bool {
    let address = at.address();
    matches!(change, Message::Remove { start, end } | Message::Unmap { start, end } if (start..end).contains(&address))
}

struct Descendant {
    guard: Guard,
    changes: Vec<Message>,
}

/// The memory of a forked child that pages are copied into. It may change or be forked meantime.
pub struct ChildMemory {
    /// The child and its own forked children.
    descendants: Vec<Descendant>,
    /// The place of the fork among the parent's mapping changes.
    fork_point: ForkPoint,
    /// MADV_WIPEONFORK ranges, which the child gets without their bytes.
    wiped: Vec<(usize, usize)>,
    /// All descendants have ended or executed other programs.
    is_over: bool,
}

impl Descendant {
    /// Records the changes of the process, whose thread waits and which cannot be filled until an
    /// event is read. Returns its own forked child, which lacks the same pages.
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
                // Filling serves a fault. Closing wakes threads whose page never comes.
                Message::Fault { .. } => {}
                change => self.changes.push(change),
            }
        }
        None
    }

    fn first_registration(&self, at: PageNumber) -> Registration {
        let address = at.address();
        let change = self.changes.iter().find_map(|change| match *change {
            change if is_gone(change, at) => Some(Registration::Registered),
            Message::Remap { from, len, .. } if (from..from + len).contains(&address) => {
                Some(Registration::Registered)
            }
            Message::Remap { to, len, .. } if (to..to + len).contains(&address) => {
                Some(Registration::Changing)
            }
            _ => None,
        });
        change.unwrap_or_else(|| self.guard.registration(address))
    }

    /// The present place of a page of the parent. `None` if it is gone.
    fn place_of(&self, at: PageNumber) -> Option<PageNumber> {
        let redo = |at, change: &Message| redo(*change, at).filter(|_| !is_gone(*change, at));
        self.changes.iter().try_fold(at, redo)
    }
}

impl ChildMemory {
    /// `changes` are the child's own changes since the fork that have been read already.
    pub fn new(guard: Guard, changes: impl Iterator<Item = Message>) -> Self {
        ChildMemory {
            descendants: vec![Descendant { guard, changes: changes.collect() }],
            fork_point: ForkPoint::default(),
            wiped: Vec::new(),
            is_over: false,
        }
    }

    /// Finds the fork's place among `reports` in order. The table knows the first `applied`.
    pub fn place_among(&mut self, reports: Vec<Message>, applied: usize) {
        self.fork_point = ForkPoint::find(reports, applied, |at| self.descendants[0].first_registration(at));
    }

    /// Skips ranges that the parent excluded from forks (MADV_WIPEONFORK).
    pub fn leave_out_wiped(&mut self) {
        let Ok(smaps) = ProcFile::open_own(c"smaps") else { return };
        maps::for_each_wiped(&smaps, &mut [0; 8192], |start, end| self.wiped.push((start, end)));
        smaps.close();
    }

    /// The parent's page that the child misses in place of `at`, if any.
    pub fn source_of(&self, at: PageNumber) -> Option<PageNumber> {
        let undo = |at, change: &Message| undo(*change, at).filter(|_| !is_gone(*change, at));
        let at = self.descendants[0].changes.iter().rev().try_fold(at, undo)?;
        self.fork_point.in_table(at)
    }

    fn fill(&mut self, at: PageNumber, with: impl Fn(&Guard, PageNumber) -> Option<Stop>) {
        if self.wiped.iter().any(|(start, end)| (*start..*end).contains(&at.address())) {
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
                // The process must run before the kernel admits pages again, or memory is short for
                // all. A stopped process delays its relatives, but harms none. Killing it ends the
                // wait.
                Some(Stop::Again | Stop::NoMemory) => sleep_ns(20_000),
                stop => {
                    gone += usize::from(stop == Some(Stop::Gone));
                    index += 1;
                }
            }
        }
        self.is_over = gone == self.descendants.len();
    }

    /// Copies a page into the child.
    pub fn give(&mut self, at: PageNumber, bytes: &[u8; PAGE_SIZE]) {
        let source = bytes.as_ptr() as usize;
        // SAFETY: fills a missing page of the child with its own content.
        self.fill(at, |guard, place| unsafe { guard.copy(place.address(), source, PAGE_SIZE) }.stop);
    }

    /// Ends the copying. Pages missing from now on read as zeroes.
    pub fn close(self) {
        self.descendants.iter().for_each(|descendant| descendant.guard.reports().close());
    }
}

impl AddressSpace {
    /// Copies all out pages into the child.
    pub fn hand_over_all(&self, child: &mut ChildMemory) {
        let mut bytes = [0u8; PAGE_SIZE];
        for block in self.space.table.busy(0, sys::memory::USER_END) {
            for index in 0..BLOCK_PAGES {
                let at = block.page(index);
                if self.read_out(at, &mut bytes) {
                    child.give(at, &bytes);
                }
            }
            if child.is_over {
                break;
            }
        }
    }

    /// Reads an out page. Returns false if the page is not out.
    pub fn read_out(&self, at: PageNumber, bytes: &mut [u8; PAGE_SIZE]) -> bool {
        let Some(block) = self.space.table.lock_existing(at.block()) else { return false };
        let index = at.index();
        match block.state(index) {
            PageState::Staged => {
                let source = self.staging.address(block.staged_slot(), index);
                // SAFETY: staged pages stay while the block's lock is held.
                *bytes = unsafe { *(source as *const [u8; PAGE_SIZE]) };
                true
            }
            PageState::Stored => {
                self.load_copy(at, bytes);
                true
            }
            _ => false,
        }
    }
}

/// A fork bypassed the library's fork handlers, so the child lacks all out pages and gets
/// copies. No page was brought in since the kernel copied the parent: it refuses to fill pages
/// from the first managed mapping that it copies until the event is read. From then on no
/// thread has a [`crate::space::mover::Coherent`] until this function returns.
pub(crate) fn populate_child(memory: &AddressSpace, descriptor: i32, reports: Vec<Message>, applied: usize) {
    let mut child = ChildMemory::new(memory.guard().of_child(descriptor), std::iter::empty());
    child.place_among(reports, applied);
    child.leave_out_wiped();
    memory.hand_over_all(&mut child);
    memory.accounts.add(Counter::Forks, 1);
    child.close();
}
