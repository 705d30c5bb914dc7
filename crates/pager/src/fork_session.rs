//! fork() with everything left where it is: the child inherits table, staging and pool as copies,
//! and pages itself.
//!
//! The arena is ordinary private memory, which fork() copies. A copy of it is of use only if no
//! thread of the pager changed it while the kernel was copying, and only the kernel knows when that
//! is: between the fork handlers' last word and the system call, the C library takes its locks,
//! touches memory that may be out, and waits for threads that wait for faults. So:
//!
//! * Workers and handlers stand still from before the call until after it. One thread attends, the
//!   control thread: it serves what must be served, and leaves the arena in order after each step.
//! * The userfaultfd reports forks: the kernel gives the child one of its own, with every
//!   registration, before the child runs. **At no time does the child have an unguarded missing
//!   page.** What the child touches before it has threads of its own is copied into it by the
//!   parent, which changes nothing until the child has taken over. The pages copied so are named to
//!   the child: its table says that they are out.
//! * The lowest page of the arena is guarded by a userfaultfd of its own, the *gate*, which refuses
//!   every operation from when fork() has come to that page until the event about it was read.
//!   After each step the control thread asks it. Not refused: what the step changed was in order
//!   before the first page of the arena was copied. Refused: the copy may be torn, and the child is
//!   not to use it. It gets copies of all that is out instead, and starts again.
//! * Faults of the forking thread cannot be the latter: it is not in the system call. Those of
//!   others wait a little.
//! * Once there is a child, no fault is served and no event is applied: what the child misses is
//!   what was out at the fork. But the child may be another thread's, by a bare system call, and
//!   the forking thread may need a page before it comes to its own fork, or behind it, from a child
//!   that has ended. So when that takes too long the children there are get copies of all that is
//!   out, and the session continues without them.
//!
//! The pages of staging are shared after a fork and cannot be moved: they are copied where they are
//! needed, or written to first. Ranges that the child does not have (MADV_DONTFORK) are forgotten
//! there.

use sys::maps;
use sys::memory::USER_END;
use sys::pagemap::Run;
use sys::procfs::{self, ProcFile};
use sys::userfaultfd::{feature, Message, Stop, MESSAGES_MAX, MISSING};
use sys::{arena, thread, PAGE_SIZE};

use crate::accounts::Counter;
use crate::config::{StartError, HANDLERS_MAX};
use crate::fault::{Fault, Handler};
use crate::gate;
use crate::pager::Pager;
use crate::pages::{Brought, ChildMemory, Guard};
use crate::registrations::is_private_memory;
use crate::sync::{Pagemap, Userfaultfd};

/// How long the faults of threads other than the forking one wait for the fork to begin.
const PATIENCE_NS: u64 = 10_000_000;
/// How long any fault waits for a child to take over while the forking thread has not come back.
const HELD_UP_NS: u64 = 20_000_000;
/// Faults read and not served yet.
const HELD_MAX: usize = 128;
/// Pages copied into a child before it takes over, at most; the C library touches a few dozen.
pub const COPIED_MAX: usize = 400;
/// Descriptors of pagers that can be inherited have lower numbers than this.
const NUMBERS: i32 = 64;

/// One fork, from the moment when everything stands still.
pub struct ForkSession {
    forker: u32,
    since_ns: u64,
    /// Over this process; children have the like.
    guard: Guard,
    handler: Handler,
    held: [Option<Fault>; HELD_MAX],
    held_count: usize,
    /// Of forks at the same time, all but one of them by bare system calls, and of forks of such
    /// children.
    children: Vec<i32>,
    gates: Vec<i32>,
    copied: [u64; COPIED_MAX],
    copied_count: usize,
    /// The child's copy of the arena is of no use.
    torn: bool,
    /// The forking thread has come back from its fork.
    is_back: bool,
    /// When the first of `children` was there.
    born_ns: u64,
    /// Children have got all of their memory, and are looked after no more.
    has_completed: bool,
    /// What children changed of their mappings in the session, by number: those of other threads'
    /// forks run already.
    changes: Vec<(usize, Message)>,
    /// Events of this process that were read since the kernel began to copy, in order: the table
    /// stays as it was at the fork until the child has what it needs.
    stash: Vec<Message>,
}

impl ForkSession {
    /// Notes that the forking thread has come back: it does not wait any more.
    pub fn note_back(&mut self) {
        self.is_back = true;
    }

    /// The memory of a child as it is by now.
    fn memory_of(&self, child: usize) -> ChildMemory {
        let changes = self.changes.iter().filter(|(number, _)| *number == child).map(|(_, change)| *change);
        let mut memory = ChildMemory::new(self.guard.of_child(self.children[child]), changes);
        memory.place_among(self.stash.clone(), 0);
        memory
    }
}

/// What a fork came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The child continues with its copies and these descriptors, which the caller closes. The
    /// pages are in place there.
    Inherits {
        /// Guards the child's memory.
        main: i32,
        /// Its gate.
        gate: i32,
        /// Addresses.
        copied: &'a [u64],
    },
    /// The child has all its memory and starts again.
    Complete,
    /// The child cannot go on.
    Lost,
}

impl ForkSession {
    /// Of a fork by thread `forker` that begins now.
    fn new(pager: &Pager, forker: u32) -> Self {
        ForkSession {
            forker,
            since_ns: sys::now_ns(),
            guard: *pager.pages.guard(),
            handler: Handler::new(HANDLERS_MAX, pager.own_page),
            held: [None; HELD_MAX],
            held_count: 0,
            children: Vec::new(),
            gates: Vec::new(),
            copied: [0; COPIED_MAX],
            copied_count: 0,
            torn: false,
            is_back: false,
            born_ns: 0,
            has_completed: false,
            changes: Vec::new(),
            stash: Vec::new(),
        }
    }
}

impl Pager {
    /// Whether forks can leave everything out at all.
    pub fn can_fork(&self) -> bool {
        self.gate.is_some() && self.pages.sink().is_some() && self.numbers_end() <= NUMBERS
    }

    /// The first number behind those of the pager's descriptors, which a child's have, too.
    pub fn numbers_end(&self) -> i32 {
        let Pager { pages, files, gate, .. } = self;
        let own = [pages.pagemap().descriptor(), files.statm.descriptor(), files.maps.descriptor()];
        let others = [pages.reports().descriptor(), files.rollup.descriptor()];
        let gate = gate.map(|gate| gate.descriptor());
        let sink = pages.sink().map(|sink| sink.descriptor());
        let all = own.into_iter().chain(others).chain(gate).chain(sink);
        all.max().map_or(0, |most| most + 1)
    }

    /// Has all threads stand still and begins to attend to a fork of thread `forker`; `None` when
    /// that cannot be watched. Call from a pager thread that is no worker and no handler; end with
    /// [`Pager::end_fork`].
    pub fn begin_fork(&self, forker: u32) -> Option<ForkSession> {
        let (gate, lowest) = (self.gate?, arena::lowest_pages()?);
        self.halt.still();
        self.reclaimer().still_swap();
        self.pages.apply_events();
        for page in lowest {
            // Present from now on: no thread ever waits for these pages.
            // SAFETY: a page of the arena that is never taken.
            unsafe { (page as *mut u64).write_volatile(1) };
        }
        let guarded = gate.register(lowest[0], PAGE_SIZE, MISSING).is_ok()
            && self.pages.reports().register(lowest[1], PAGE_SIZE, MISSING).is_ok();
        if !guarded {
            self.end_gate();
            self.halt.over();
            return None;
        }
        let mut session = ForkSession::new(self, forker);
        // The order of all events up to here must be known, since the child hears of no other.
        let give_up = session.since_ns + PATIENCE_NS;
        while self.pages.has_pending_events() && sys::now_ns() < give_up {
            self.attend(&mut session);
            self.pages.apply_events();
            thread::sleep_ns(20_000);
        }
        session.torn |= self.pages.has_pending_events();
        Some(session)
    }

    /// The descriptors to wait for, besides the caller's own; -1 for none.
    pub fn fork_descriptors(&self, session: &ForkSession) -> [i32; 3] {
        let main = if session.held_count < HELD_MAX { self.pages.reports().descriptor() } else { -1 };
        [
            main,
            self.gate.map_or(-1, |gate| gate.descriptor()),
            session.children.first().copied().unwrap_or(-1),
        ]
    }

    /// Whether there is something to look after that no descriptor tells: faults that wait for time
    /// to pass, further children.
    pub fn has_held(&self, session: &ForkSession) -> bool {
        session.held_count > 0 || session.children.len() > 1
    }

    /// Serves what there is to serve now.
    pub fn attend(&self, session: &mut ForkSession) {
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        // Faults that handlers had read and parked before they stood still: no handler serves them
        // now, and the forking thread may wait for a lock that such a thread holds.
        while session.held_count < HELD_MAX {
            let for_disk = || self.faults.unpark_for_disk().map(|(fault, _)| fault);
            let Some(fault) = self.faults.unpark().or_else(for_disk) else { break };
            session.held[session.held_count] = Some(fault);
            session.held_count += 1;
        }
        // The gate's guards are not needed for reading: no other thread reads or moves.
        while session.held_count < HELD_MAX && self.pages.reports().read(&mut messages, 1) == 1 {
            match messages[0] {
                Message::Fault { address, write, thread, .. } => {
                    let fault = Fault { address, write, thread, read_ns: sys::now_ns() };
                    session.held[session.held_count] = Some(fault);
                    session.held_count += 1;
                }
                Message::Fork { descriptor } => {
                    if session.children.is_empty() {
                        session.born_ns = sys::now_ns();
                    }
                    session.children.push(descriptor);
                }
                event => {
                    session.stash.push(event);
                    self.apply_stash(session);
                }
            }
        }
        if let Some(gate) = self.gate {
            while gate.read(&mut messages, 1) == 1 {
                if let Message::Fork { descriptor } = messages[0] {
                    session.gates.push(descriptor);
                }
            }
        }
        self.apply_stash(session);
        self.serve_held(session);
        for child in 0..session.children.len() {
            self.serve_child(session, child, &mut messages);
        }
        if self.is_held_up(session) {
            self.complete_children(session);
            self.apply_stash(session);
            // Before the next child comes.
            self.serve_held(session);
        }
    }

    /// Applies the events read, unless they are to wait.
    fn apply_stash(&self, session: &mut ForkSession) {
        while session.children.is_empty() && !session.stash.is_empty() {
            // Not refused: the kernel has not begun to copy, and what changed mappings did so
            // before it will.
            if !self.ask_gate(session) {
                break;
            }
            let event = session.stash.remove(0);
            self.pages.apply_now(event);
            self.ask_gate(session);
        }
    }

    /// Whether a fault must be served before the children have taken over.
    fn is_held_up(&self, session: &ForkSession) -> bool {
        let has_waiters = session.held_count > 0 && !session.children.is_empty();
        has_waiters && !session.is_back && sys::now_ns() > session.born_ns + HELD_UP_NS
    }

    /// Gives all children there are copies of all that is out. The one that is still to take over
    /// is told.
    fn complete_children(&self, session: &mut ForkSession) {
        for child in 0..session.children.len() {
            let mut memory = session.memory_of(child);
            memory.leave_out_wiped();
            self.pages.hand_over_all(&mut memory);
            memory.close();
        }
        session.children.clear();
        session.changes.clear();
        session.torn = true;
        session.has_completed = true;
    }

    /// Serves the faults of this process that may be served now.
    fn serve_held(&self, session: &mut ForkSession) {
        let mut kept = 0;
        for index in 0..session.held_count {
            let Some(fault) = session.held[index] else { continue };
            let is_due = fault.thread == session.forker || sys::now_ns() > session.since_ns + PATIENCE_NS;
            // Once there is a child, what it misses is served from the state at the time of the
            // fork.
            let is_done = session.children.is_empty() && session.stash.is_empty() && is_due && {
                let at = fault.address & !(PAGE_SIZE - 1);
                let brought = self.pages.bring(&mut session.handler.inbound, at, fault.write, 1);
                match brought {
                    Brought::NoMemory => _ = self.reclaimer().reclaim_step(),
                    Brought::Again | Brought::OnDisk => self.pages.apply_events(),
                    Brought::Done(_) => {}
                }
                session.handler.inbound.frames.empty_out(self.pages.staging());
                self.ask_gate(session);
                if matches!(brought, Brought::Done(_)) {
                    self.accounts.fault(sys::now_ns() - fault.read_ns);
                    self.accounts.add(Counter::Faults, 1);
                }
                matches!(brought, Brought::Done(_))
            };
            if !is_done {
                session.held[kept] = Some(fault);
                kept += 1;
            }
        }
        session.held_count = kept;
    }

    /// Whether the kernel has not begun to copy. If it has, that may have been before the arena was
    /// in order, which is noted.
    fn ask_gate(&self, session: &mut ForkSession) -> bool {
        let (Some(gate), Some(lowest)) = (self.gate, arena::lowest_pages()) else { return false };
        // The page is there: all but a fork answer EEXIST.
        let is_open = gate.zero(lowest[0], PAGE_SIZE).stop == Some(Stop::Exists);
        session.torn |= !is_open;
        is_open
    }

    /// Copies into a child what it waits for.
    fn serve_child(&self, session: &mut ForkSession, number: usize, messages: &mut [Message; MESSAGES_MAX]) {
        let child = session.guard.of_child(session.children[number]);
        while child.reports().read(messages, 1) == 1 {
            let at = match messages[0] {
                Message::Fault { address, .. } => address & !(PAGE_SIZE - 1),
                Message::Fork { descriptor } => {
                    let (grandchild, inherited) = (session.children.len(), session.changes.clone());
                    session.children.push(descriptor);
                    let of_child = inherited.into_iter().filter(|(other, _)| *other == number);
                    session.changes.extend(of_child.map(|(_, change)| (grandchild, change)));
                    continue;
                }
                change => {
                    // It does not have what the table says it has: it gets copies.
                    session.changes.push((number, change));
                    session.torn = true;
                    continue;
                }
            };
            let mut page = [0u8; PAGE_SIZE];
            let source = session.memory_of(number).source_of(at);
            let is_out = source.is_some_and(|source| self.pages.read_out(source, &mut page));
            let progress = match is_out {
                // SAFETY: fills a missing page of the child with its own content.
                true => unsafe { child.copy(at, page.as_ptr() as usize, PAGE_SIZE) },
                false => child.zero(at, PAGE_SIZE),
            };
            match progress.stop {
                // Something of its own is to be read before: it asks again, behind that.
                Some(Stop::Again | Stop::NoMemory) => thread::sleep_ns(20_000),
                _ if is_out => match session.copied.get_mut(session.copied_count) {
                    Some(entry) => {
                        *entry = at as u64;
                        session.copied_count += 1;
                    }
                    None => session.torn = true,
                },
                _ => {}
            }
            child.reports().wake(at, PAGE_SIZE);
        }
    }

    /// What becomes of the child, which is ready to take over, or will not be for a while. Serves
    /// it no more.
    pub fn settle<'a>(&self, session: &'a mut ForkSession, is_ready: bool) -> Outcome<'a> {
        if session.children.is_empty() {
            return if session.has_completed { Outcome::Complete } else { Outcome::Lost };
        }
        if is_ready && session.children.len() == 1 && session.gates.len() == 1 && !session.torn {
            let (main, gate) = (session.children.remove(0), session.gates.remove(0));
            return Outcome::Inherits { main, gate, copied: &session.copied[..session.copied_count] };
        }
        self.complete_children(session);
        Outcome::Complete
    }

    /// Reads reports of the gate that no thread waits for any more: a fork past the C library,
    /// while another one was attended to, reports to every userfaultfd that it copied, and its
    /// thread waits until each report is read. Until then the kernel lets no page in. To be called
    /// by the control thread between its looks, and by threads that wait for pages that do not come
    /// and may be waited for by that thread; not while a fork is attended to.
    pub fn dismiss_gate_reports(&self) {
        gate::dismiss_reports(self.gate);
    }

    fn end_gate(&self) {
        if let (Some(gate), Some(lowest)) = (self.gate, arena::lowest_pages()) {
            // Unregistered already, where registering failed.
            let _ = gate.unregister(lowest[0], PAGE_SIZE);
            let _ = self.pages.reports().unregister(lowest[1], PAGE_SIZE);
        }
    }

    /// All threads continue. What was not handed over is closed.
    pub fn end_fork(&self, mut session: ForkSession) {
        for descriptor in session.children.drain(..).chain(session.gates.drain(..)) {
            Userfaultfd::from_descriptor(descriptor).close();
        }
        self.end_gate();
        session.stash.drain(..).for_each(|event| self.pages.apply_now(event));
        self.halt.over();
        self.accounts.add(Counter::Forks, 1);
        self.note_relatives();
        for index in 0..session.held_count {
            if let Some(fault) = session.held[index] {
                self.serve(&mut session.handler, fault);
            }
        }
        // Those that did not fit in, and those that were read just now on the way to an event: a
        // handler that waits for messages would not see them.
        while let Some(fault) = self.faults.unpark() {
            self.serve(&mut session.handler, fault);
        }
        session.handler.inbound.frames.empty_out(self.pages.staging());
    }

    /// In the child: continues with copies of the parent's table, staging and pool. `main`, `gate`
    /// and `copied` are from [`Outcome::Inherits`]. Called by the first of the child's pager
    /// threads, which has a file table of its own, empty but for these and the caller's. The other
    /// threads are to be started afterwards.
    ///
    /// # Errors
    /// When files cannot be opened. The process must end then: its pages cannot be brought in.
    pub fn inherit(&self, main: i32, gate: i32, copied: &[u64]) -> Result<(), StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let own_gate = self.gate.expect("the parent had one");
        let end = self.numbers_end();
        let main = thread::renumber_above(main, end).map_err(system("userfaultfd"))?;
        let gate = thread::renumber_above(gate, end).map_err(system("userfaultfd"))?;
        let keep = |descriptor: i32, number: i32, what: &'static str| {
            let above = thread::renumber_above(descriptor, end).map_err(system(what))?;
            thread::renumber(above, number).map_err(system(what))
        };
        // Under the numbers that the parent's had.
        keep(main, self.pages.reports().descriptor(), "userfaultfd")?;
        keep(gate, own_gate.descriptor(), "userfaultfd")?;
        let sink = self.pages.sink().expect("without moves nothing is inherited");
        keep(Userfaultfd::open(feature::MOVE)?.descriptor(), sink.descriptor(), "userfaultfd")?;
        let pagemap = Pagemap::open().map_err(system("/proc/thread-self/pagemap"))?;
        keep(pagemap.descriptor(), self.pages.pagemap().descriptor(), "/proc/thread-self/pagemap")?;
        let files = [
            (c"statm", &self.files.statm, "/proc/thread-self/statm"),
            (c"maps", &self.files.maps, "/proc/thread-self/maps"),
            (c"smaps_rollup", &self.files.rollup, "/proc/thread-self/smaps_rollup"),
        ];
        for (name, file, what) in files {
            let opened = ProcFile::open_own(name).map_err(system(what))?;
            keep(opened.descriptor(), file.descriptor(), what)?;
        }
        // Staging has been guarded by `main` since the kernel made the child.
        sink.guard().map_err(system("staging"))?;
        self.end_gate();

        // The parent's threads are not here, and held nothing but what was in their frame caches.
        self.handlers.reset();
        self.reclaim.reset();
        self.reclaimer().reset_swap();
        self.faults.reset(|slot| self.pages.staging().give(slot));
        self.pages.reset_own_threads();
        self.pages.forget_reports();
        self.reset_grace();
        for at in copied {
            self.pages.forget_copied(*at as usize);
        }
        let mut registrations = self.registrations.lock().expect("no panic while held");
        // What is out and not mapped here is of no use, and must not be found in a mapping made
        // there later.
        registrations.for_each_gap(&self.files.maps, |start, end| self.pages.discard(start, end));
        self.discard_wiped().map_err(system("/proc/self/smaps"))?;
        registrations.note_changes(&self.pages);
        registrations.refresh(&self.files.maps, &self.pages, &self.config);
        drop(registrations);
        let mut buffer = [0; 128];
        let shared = procfs::anonymous_bytes(self.files.statm.read_at(&mut buffer, 0)).unwrap_or(0);
        // The parent accounts for all of it until both have measured their shares.
        self.gauge.set_discount(shared);
        self.note_relatives();
        self.halt.reset();
        Ok(())
    }
}

impl Pager {
    /// In the child: forgets what is out of mappings that the kernel wiped (MADV_WIPEONFORK, which
    /// no event reports). In such a mapping nothing is present. Only if there is a mapping with
    /// pages out and none present, the kernel is asked for its flags: that takes a look at every
    /// page.
    fn discard_wiped(&self) -> std::io::Result<()> {
        let (mut buffer, mut is_likely) = ([0; 8192], false);
        maps::for_each(&self.files.maps, &mut buffer, |mapping| {
            let (start, end) = (mapping.start, mapping.end.min(USER_END));
            is_likely |= is_private_memory(&mapping)
                && self.pages.table().busy(start, end).next().is_some()
                && self.pages.pagemap().present(start, end, &mut [Run::default()]).0 == 0;
        });
        if is_likely {
            let smaps = ProcFile::open(c"/proc/self/smaps")?;
            let forget = |start, end: usize| self.pages.discard(start, end.min(USER_END));
            maps::for_each_wiped(&smaps, &mut buffer, forget);
            smaps.close();
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pages::table::ALL_PAGES;
    use crate::pages::{BLOCK_BYTES, BLOCK_PAGES};
    use crate::trial::{blocks, pager, read};

    #[test]
    fn faults_that_are_parked_when_a_fork_is_over_are_served() {
        let Some(pager) = pager(false) else { return };
        let base = blocks(1);
        pager.register(base..base + BLOCK_BYTES);
        let mut spare = pager.pages.staging().take_empty();
        assert!(pager.pages.evict(&mut spare, base, ALL_PAGES, false));
        let session = ForkSession::new(pager, 0);
        for page in 0..BLOCK_PAGES {
            let address = base + page * PAGE_SIZE;
            assert!(pager.faults.park(Fault { address, write: true, thread: 1, read_ns: sys::now_ns() }));
        }
        pager.end_fork(session);
        assert!(!pager.faults.has_parked());
        assert_eq!(pager.pages.pages_out(), 0);
        assert!((0..BLOCK_PAGES).all(|page| read(base, page) == page + 1));
    }
}
