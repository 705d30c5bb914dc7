//! Serving while all other threads stand still: faults of this process, and pages that a child
//! lacks.

use address_space::units::PageNumber;
use address_space::{Counter, FaultedIn};
use sys::userfaultfd::{Message, Stop, MESSAGES_MAX};
use sys::{thread, PAGE_SIZE};

use crate::fault::Fault;

use super::session::ForkSession;
use super::Forks;

impl Forks {
    /// See `Pager::attend`.
    pub fn attend(&self, session: &mut ForkSession) {
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        // Faults that handlers parked before they stood still. The forking thread may wait for a
        // lock that a faulting thread holds.
        while session.can_hold() {
            let disk = || Some(self.service.faults.disk.pop()?.0);
            let Some(fault) = self.service.faults.parked.pop().or_else(disk) else { break };
            session.held.push_back(fault);
        }
        // Reading needs no lock: no other thread reads or moves.
        while session.can_hold() && self.process.pages.reports().read(&mut messages, 1) == 1 {
            match messages[0] {
                Message::Fault { address, write, thread, .. } => {
                    let page = PageNumber::of(address);
                    session.held.push_back(Fault { page, write, thread, read_ns: sys::now_ns() });
                }
                Message::Fork { descriptor } => {
                    session.add_child(descriptor);
                }
                event => {
                    session.stash.push(event);
                    self.apply_stash(session);
                }
            }
        }
        self.service.gate.read_forks(|descriptor| session.children.gates.push(descriptor));
        self.apply_stash(session);
        self.serve_held(session);
        for child in 0..session.children.list.len() {
            self.serve_child(session, child, &mut messages);
        }
        if session.is_held_up(sys::now_ns()) {
            self.complete_children(session);
            self.apply_stash(session);
            self.serve_held(session);
        }
    }

    fn apply_stash(&self, session: &mut ForkSession) {
        while session.children.list.is_empty() && !session.stash.is_empty() {
            // Not refused: the kernel does not copy yet, so the mapping changes precede the fork.
            if !self.ask_gate(session) {
                break;
            }
            let event = session.stash.remove(0);
            self.process.pages.apply_now(event);
            self.ask_gate(session);
        }
    }

    /// Copies all out pages into every child. A child that still has to take over is told.
    pub(super) fn complete_children(&self, session: &mut ForkSession) {
        for child in 0..session.children.list.len() {
            let mut memory = session.memory_of(child);
            memory.leave_out_wiped();
            self.process.pages.hand_over_all(&mut memory);
            memory.close();
        }
        session.children.list.clear();
        session.children.changes.clear();
        session.torn = true;
        session.children.has_completed = true;
    }

    fn serve_held(&self, session: &mut ForkSession) {
        for _ in 0..session.held.len() {
            let Some(fault) = session.held.pop_front() else { break };
            let is_due = session.is_due(&fault, sys::now_ns());
            // After a child exists, its missing pages are served from the state at the fork.
            let is_done = session.children.list.is_empty() && session.stash.is_empty() && is_due && {
                let inbound = &mut session.handler.inbound;
                let brought = self.process.pages.fault_in(inbound, fault.page, fault.write, 1);
                match brought {
                    FaultedIn::NoMemory => _ = self.reclaimer.reclaim_step(),
                    FaultedIn::Again | FaultedIn::OnDisk => self.process.pages.apply_events(),
                    FaultedIn::Done(_) => {}
                }
                session.handler.inbound.frames.empty_out(&self.process.pages.staging);
                self.ask_gate(session);
                if matches!(brought, FaultedIn::Done(_)) {
                    self.process.accounts.fault(sys::now_ns() - fault.read_ns);
                    self.process.accounts.add(Counter::Faults, 1);
                }
                matches!(brought, FaultedIn::Done(_))
            };
            if !is_done {
                session.held.push_back(fault);
            }
        }
    }

    /// Whether the kernel does not copy yet. If it does, the copy may be torn.
    fn ask_gate(&self, session: &mut ForkSession) -> bool {
        let is_open = self.service.gate.is_open();
        session.torn |= !is_open;
        is_open
    }

    fn serve_child(&self, session: &mut ForkSession, number: usize, messages: &mut [Message; MESSAGES_MAX]) {
        let child = session.guard.of_child(session.children.list[number]);
        while child.reports().read(messages, 1) == 1 {
            let at = match messages[0] {
                Message::Fault { address, .. } => PageNumber::of(address),
                Message::Fork { descriptor } => {
                    session.add_grandchild(number, descriptor);
                    continue;
                }
                change => {
                    // The child differs from the table, so it gets copies.
                    session.children.changes.push((number, change));
                    session.torn = true;
                    continue;
                }
            };
            let mut bytes = [0u8; PAGE_SIZE];
            let source = session.memory_of(number).source_of(at);
            let is_out = source.is_some_and(|source| self.process.pages.read_out(source, &mut bytes));
            let progress = match is_out {
                // SAFETY: fills a missing page of the child with its own content.
                true => unsafe { child.copy(at.address(), bytes.as_ptr() as usize, PAGE_SIZE) },
                false => child.zero(at.address(), PAGE_SIZE),
            };
            match progress.stop {
                // The child has an unread event. It faults again after that.
                Some(Stop::Again | Stop::NoMemory) => thread::sleep_ns(20_000),
                _ if is_out => session.note_copied(at),
                _ => {}
            }
            child.reports().wake(at.address(), PAGE_SIZE);
        }
    }
}
