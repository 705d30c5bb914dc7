//! The supervisor: waits for the program, keeps the ledgers, serves the tree's processes.

pub mod books;
pub mod front;
pub mod job;
pub mod nested;
pub mod signals;
pub mod swap;

use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ledger::wire::{self, Kind, Packet, Received};
use ledger::Live;

use sys::privileged::PrivilegedFile;

use crate::rights;
use crate::run::peers::blocking::Foreign;
use crate::run::peers::connections::{Connections, HELLO, RESERVED};
use crate::run::peers::lending;
use crate::run::report::history::History;
use crate::run::report::notes::Notes;
use crate::run::report::output::Output;
use crate::run::report::peaks::Peaks;
use crate::run::report::progress::Progress;
use crate::run::supervisor::books::Books;
use crate::run::supervisor::job::{Attached, Job};
use crate::run::supervisor::signals::Signals;
use crate::run::tree::attach::{self, Attacher};
use crate::run::tree::claims::Claims;
use crate::run::tree::orphans::Orphans;
use crate::run::tree::shares::{Relative, Shares};
use crate::run::tree::strangers::Strangers;
use crate::run::Options;
use crate::top::find::name_of;

const PACKETS_MAX: usize = 32;
const SAMPLE: Duration = Duration::from_millis(10);
/// The same while the tree is far from its budget.
const SAMPLE_IDLE: Duration = Duration::from_millis(50);
/// Interval of samples of the users' uses, while there are several users.
const SAMPLE_USERS: Duration = Duration::from_millis(2);
/// Interval of looks for processes that never said hello.
const STRANGERS: Duration = Duration::from_millis(500);

/// How long an agent may take to notice the end of its program.
const AGENT_ENDS: Duration = Duration::from_millis(50);

/// How long a program's threads may all wait uninterruptibly before it keeps an ended agent.
const CLEARS: Duration = Duration::from_secs(2);

pub struct Supervisor {
    pub(super) books: Books,
    recorder: Option<OwnedFd>,
    pub(super) connections: Connections,
    signals: Signals,
    attacher: Attacher,
    job: Job,
    /// The signal that ended the program.
    pub(super) signal: Option<i32>,
    has_dumped: bool,
    orphans: Orphans,
    /// Programs and agents whose connections ended, and when: after a change of user they join
    /// again.
    rejoining: Vec<([i32; 2], Instant)>,
    claims: Claims,
    shares: Shares,
    strangers: Strangers,
    pub(super) notes: Notes,
    pub(super) figures: Peaks,
    /// Recorded if there will be a report.
    pub(super) history: Option<History>,
    /// Shown while the program runs.
    pub(super) progress: Option<Progress>,
}

/// Resources opened for a tree.
pub struct Opened {
    pub books: Books,
    /// The pipe for recorded references, if any.
    pub recorder: Option<OwnedFd>,
    /// The socket to which processes connect.
    pub listener: OwnedFd,
}

/// Makes orphans this process's children, from the first agent on: so it sees the tree's end.
pub fn adopt_orphans() {
    // SAFETY: changes an attribute of this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

impl Supervisor {
    pub fn new(opened: Opened, signals: Signals, attacher: Attacher, job: Job) -> Self {
        let Opened { books, recorder, listener } = opened;
        let root = job.root();
        let connections = Connections::new(listener, root.clone());
        Supervisor {
            books,
            recorder,
            connections,
            signals,
            attacher,
            job,
            orphans: Orphans::new(move || root.members()),
            rejoining: Vec::new(),
            claims: Claims::default(),
            shares: Shares::default(),
            strangers: Strangers::default(),
            signal: None,
            has_dumped: false,
            notes: Notes::new(),
            figures: Peaks::default(),
            history: None,
            progress: None,
        }
    }

    /// Returns whether the program ran before.
    pub fn is_attached(&self) -> bool {
        matches!(self.job, Job::Attached(_))
    }

    /// Records what the reports show, and shows the progress, if they are wanted.
    pub fn watch(&mut self, options: &Options, output: &Output) {
        self.history = (!output.is_empty()).then(History::new);
        let shows_progress = options.progress && std::io::stderr().is_terminal();
        self.progress = shows_progress.then(Progress::new);
    }

    /// Serves until the program has ended, or has all its pages and no pager; returns its status,
    /// or 125 if its pager ended it or it cannot have one.
    pub fn serve(&mut self) -> i32 {
        let mut strangers_at = Instant::now() + STRANGERS;
        let mut sampled: Option<Instant> = None;
        loop {
            self.poll();
            if sampled.is_none_or(|at| at.elapsed() >= SAMPLE) {
                self.sample();
                sampled = Some(Instant::now());
            } else {
                self.books.relay();
            }
            self.attach();
            if let Some(line) = self.progress.as_mut().and_then(|progress| progress.look(&self.books)) {
                self.notes.show(line);
            }
            if let Some(status) = self.take_signals() {
                // The last packets of processes are still in their sockets.
                self.drain();
                self.notes.hide();
                self.notes.settle();
                let has_broken = self.notes.has_broken(self.job.program() as u32);
                return if has_broken { crate::command_line::EXIT_FAILED } else { status };
            }
            if Instant::now() >= strangers_at {
                self.look_for_strangers();
                self.look_for_shared_memory();
                self.look_for_wrong_figures();
                self.connections.end_broken();
                self.end_gone();
                strangers_at = Instant::now() + STRANGERS;
            }
        }
    }

    fn attach(&mut self) {
        let is_leaving = matches!(self.job, Job::Attached(Attached { is_leaving: true, .. }));
        if Instant::now() < self.attacher.next || is_leaving {
            return;
        }
        // A process that connects says hello in time, or it is not managed.
        self.rejoining.retain(|(_, since)| since.elapsed() < HELLO);
        // A process that has executed another program has lost its agent and may need one.
        let rejoining = self.rejoining.iter().map(|(pids, _)| *pids);
        let rejoining = rejoining.filter(|[_, agent]| attach::is_agent(*agent));
        let connected = self.connections.all.iter().filter(|one| one.counts());
        let managed: Vec<i32> =
            connected.map(|one| [one.program, one.peer.pid]).chain(rejoining).flatten().collect();
        for note in self.attacher.look(&managed) {
            self.notes.note_unmanaged(&note);
        }
        for (agent, number) in self.attacher.take_waiting() {
            self.connections.take_from(agent, number, &mut self.notes);
        }
        if let Job::Started { guardian, .. } = &self.job {
            guardian.note_members(&self.attacher.members);
        }
    }

    fn poll(&mut self) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = vec![entry(self.signals.descriptor()), entry(self.connections.listener())];
        polled.extend(self.connections.all.iter().map(|connection| entry(connection.socket())));
        let near = self.books.total_bytes > self.books.settings.budget_bytes / 2;
        let timeout = match (self.books.has_several_users(), near) {
            (true, _) => SAMPLE_USERS,
            (false, true) => SAMPLE,
            (false, false) => SAMPLE_IDLE,
        };
        let timeout = timeout.min(self.attacher.next.saturating_duration_since(Instant::now()));
        let (count, timeout_ms) = (polled.len() as libc::nfds_t, timeout.as_millis() as i32 + 1);
        // SAFETY: the array has the given length.
        unsafe { libc::poll(polled.as_mut_ptr(), count, timeout_ms) };
        for index in (0..self.connections.all.len()).rev() {
            if polled[index + 2].revents != 0 && !self.answer(index) {
                self.end(index);
            }
        }
        if polled[1].revents != 0 {
            self.connections.accept_waiting(&mut self.notes);
        }
        self.orphans.watch_waiting();
        for failure in self.orphans.said() {
            self.notes.note_failure(failure);
        }
    }

    /// Reads the packets of one process; returns false when its connection has ended or must end.
    fn answer(&mut self, index: usize) -> bool {
        for _ in 0..PACKETS_MAX {
            let connection = &mut self.connections.all[index];
            let (socket, pid) = (connection.socket(), connection.peer.pid);
            let Received { packet, descriptors, sender, lacks_descriptors, is_cut } = match wire::peek(socket)
            {
                Ok(Some(received)) => received,
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // Reported once, before the packets that arrived earlier.
                Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => continue,
                Err(_) => return self.refuse(),
            };
            // Another thread closes these, and closes them last: the packet drops duplicates only.
            let [mut descriptor, _further] = descriptors.map(|descriptor| descriptor.map(Foreign::from));
            if lacks_descriptors {
                self.notes.note_shortage();
                // A packet carries at most one descriptor. Freeing the spare makes room to receive
                // it; the packet is handled without it.
                self.connections.spare = None;
                descriptor = match wire::peek(socket) {
                    Ok(Some(again)) if !again.is_cut => {
                        again.descriptors.map(|one| one.map(Foreign::from))[0].take()
                    }
                    _ => return true,
                };
            }
            let is_right = sender == Some(pid) && (lacks_descriptors || !is_cut);
            if !is_right || wire::drop_next(socket).is_err() {
                return self.refuse();
            }
            if !self.heard(index, &packet, descriptor.filter(|_| !lacks_descriptors)) {
                return self.refuse();
            }
        }
        true
    }

    fn refuse(&mut self) -> bool {
        self.connections.refused += 1;
        false
    }

    /// Handles a packet; returns false for one that no process may send.
    fn heard(&mut self, index: usize, packet: &Packet, descriptor: Option<Foreign>) -> bool {
        match packet.kind() {
            Some(Kind::Hello) => {
                if let Some(program) = &descriptor {
                    self.connections.all[index].note_program(program);
                }
                return self.hello(index, packet.number != 0);
            }
            Some(Kind::Say) => self.say(index, packet.text()),
            Some(Kind::Broken) => {
                let pid = self.connections.program_of(self.connections.all[index].peer.pid) as u32;
                self.notes.note_broken(pid, packet.text());
                self.say(index, packet.text());
            }
            Some(Kind::Unmanaged) => {
                let pid = self.connections.program_of(self.connections.all[index].peer.pid);
                let text = String::from_utf8_lossy(packet.text());
                self.notes.note_unmanaged(&format!("{}: {text}", name_of(pid as u32)));
                self.attacher.note_refusal(pid);
            }
            Some(Kind::Keep) => {
                if let Some(descriptor) = self.with_room(descriptor) {
                    self.connections.all[index].keep(descriptor);
                }
            }
            Some(Kind::Swap) => return self.give_swap(index, packet.number),
            Some(Kind::Open) => {
                let connection = &mut self.connections.all[index];
                let file = PrivilegedFile::from_number(packet.number);
                let opened = file.and_then(|what| lending::lend(&connection.peer, what));
                return connection.give(&Packet::new(Kind::Opened, packet.number, 0), opened.as_ref());
            }
            Some(Kind::Agree) => {
                let connection = &mut self.connections.all[index];
                let agreed = descriptor.is_some_and(|userfaultfd| {
                    lending::entitled(&connection.peer).is_some()
                        && rights::agree(userfaultfd.as_raw_fd(), packet.token)
                });
                return connection.give(&Packet::new(Kind::Agreed, (!agreed).into(), 0), None::<&OwnedFd>);
            }
            Some(Kind::Record) => {
                let connection = &mut self.connections.all[index];
                let recorder = self.recorder.as_ref().and_then(|pipe| pipe.try_clone().ok());
                let recorder = recorder.filter(|_| lending::entitled(&connection.peer).is_some());
                return connection.give(&Packet::new(Kind::Recorded, 0, 0), recorder.as_ref());
            }
            Some(Kind::Done) => self.connections.all[index].is_done(packet.text()),
            Some(Kind::Offer) if self.connections.all[index].place.is_some() => {
                if let Some(socket) = self.with_room(descriptor) {
                    self.connections.all[index].offer(socket);
                }
            }
            Some(Kind::Take) if self.connections.all[index].place.is_none() => {
                return self.give_offered(index, packet.token);
            }
            Some(
                Kind::Welcome
                | Kind::Refused
                | Kind::Swapped
                | Kind::Opened
                | Kind::Agreed
                | Kind::Recorded
                | Kind::Offer
                | Kind::Take
                | Kind::Taken,
            )
            | None => return false,
        }
        true
    }

    /// Returns a descriptor to keep, unless too few are left.
    fn with_room(&mut self, descriptor: Option<Foreign>) -> Option<Foreign> {
        let is_short = |one: &Foreign| self.connections.is_short(one, RESERVED / 2);
        if descriptor.as_ref().is_some_and(is_short) {
            self.notes.note_shortage();
            return None;
        }
        descriptor
    }

    /// Gives a program the socket with that cookie, if its agent offered it. Agents take nothing.
    fn give_offered(&mut self, index: usize, cookie: u64) -> bool {
        let agents = self.connections.agents_of(&self.connections.all[index].peer);
        let offered = agents.into_iter().find_map(|agent| {
            // The offer may still be in the agent's socket.
            self.answer(agent);
            self.connections.all[agent].take_offered(cookie)
        });
        self.connections.all[index].give(&Packet::new(Kind::Taken, 0, 0), offered.as_ref())
    }

    /// Ends connections whose process has ended. Other processes and descriptors in transit, in
    /// what that process offered for example, can keep its socket open.
    fn end_gone(&mut self) {
        for index in (0..self.connections.all.len()).rev() {
            if !self.connections.all[index].peer.is_there() {
                // Its last words.
                self.answer(index);
                self.end(index);
            }
        }
    }

    /// Gives a process its place; returns false for a second one, which would never be released.
    fn hello(&mut self, index: usize, is_child: bool) -> bool {
        if !self.connections.may_have_place(index) {
            return false;
        }
        let connection = &mut self.connections.all[index];
        let (socket, pid) = (connection.socket(), connection.program);
        let Some(owner) = connection.peer.owner() else { return false };
        match self.books.join(owner, pid as u32) {
            Ok(place) => {
                if let Job::Attached(attached) = &mut self.job {
                    attached.note_managed(pid, self.books.settings.budget_bytes);
                }
                connection.place = Some((place, owner));
                if is_child {
                    let slot = self.books.tree.slot(place);
                    slot.note_forked();
                    let live = Live { place, pid: pid as u32, slot };
                    self.shares
                        .note_child(&self.books, &Relative { live, agent: connection.peer.pid as u32 });
                }
                if let Some(history) = &mut self.history {
                    history.joined(pid as u32, place);
                }
                let (_, number) = ledger::Tree::at(place);
                let welcome = Packet::new(Kind::Welcome, number as u32, swap::owner_of(place).into());
                let _ = wire::send_with(socket, &welcome, &self.books.files(place));
            }
            Err(why) => {
                self.notes.note_unmanaged(&why);
                let _ = wire::send(socket, &Packet::new(Kind::Refused, 0, 0), None);
            }
        }
        true
    }

    fn give_swap(&mut self, index: usize, number: u32) -> bool {
        let connection = &mut self.connections.all[index];
        let owner = connection.peer.owner();
        let place = connection.place.filter(|(_, before)| owner == Some(*before));
        let part = place.and_then(|(place, _)| {
            self.books.swap_part(place, number).unwrap_or_else(|why| {
                self.notes.note_unmanaged(&why);
                None
            })
        });
        connection.give(&Packet::new(Kind::Swapped, number, 0), part.as_ref())
    }

    fn say(&mut self, index: usize, text: &[u8]) {
        let connection = &mut self.connections.all[index];
        if connection.may_say() {
            let pid = connection.peer.pid;
            self.notes.say(self.connections.program_of(pid), text);
        }
    }

    fn end(&mut self, index: usize) {
        let connection = self.connections.all.swap_remove(index);
        let Some((place, owner)) = connection.place else { return };
        if let Some(history) = &mut self.history {
            history.left(place, &self.books.tree);
        }
        self.books.leave(place);
        self.claims.forget(place);
        let agent = connection.peer.pid;
        if let Job::Attached(attached) = &mut self.job {
            let own = connection.agents_memory;
            attached.ended.push(attach::Left { program: connection.program, agent, own });
        }
        self.rejoining.push(([connection.program, agent], Instant::now()));
        self.orphans.adopt(connection.kept, agent as u32, owner);
    }

    fn drain(&mut self) {
        // Also accept connections made for a last message, behind as many others as can wait.
        for _ in 0..32 {
            if !self.connections.accept_waiting(&mut self.notes) {
                break;
            }
        }
        for index in (0..self.connections.all.len()).rev() {
            if !self.answer(index) {
                self.end(index);
            }
        }
    }

    fn sample(&mut self) {
        let peak_before = self.books.total_peak_bytes;
        self.books.audit();
        let all = &self.connections.all;
        let agent_of = |place| {
            let mut has_place = all.iter().filter(|one| one.place.is_some_and(|(own, _)| own == place));
            has_place.next().map(|one| one.peer.pid as u32)
        };
        self.shares.look(&self.books, agent_of);
        if let Some(history) = &mut self.history {
            history.sample(&self.books.tree, self.books.total_bytes);
        }
        if let Job::Attached(attached) = &mut self.job {
            let (total, budget) = (self.books.total_bytes, self.books.settings.budget_bytes);
            if attached.is_leaving {
                self.books.total_peak_bytes = peak_before;
                return;
            }
            if !attached.has_settled {
                self.books.total_peak_bytes = total;
                attached.has_settled = total > 0 && total <= budget;
                return;
            }
        }
        self.figures.sample(&self.books);
    }

    fn look_for_wrong_figures(&mut self) {
        let live: Vec<_> = self.books.tree.live().collect();
        let budget = self.books.settings.budget_bytes;
        for one in live {
            let kernel = attach::anonymous_bytes(one.pid as i32);
            let judged = kernel.map(|kernel| {
                let others = self.books.share(one.place).others_bytes;
                let own = kernel.saturating_sub(others);
                self.claims.judge(one.place, one.slot.resident_bytes(), own, budget)
            });
            let known = judged.flatten();
            self.figures.wrong_figures += u64::from(known.is_some());
            self.books.know(one.place, known);
        }
    }

    /// Handles signals; returns the program's exit status once it has ended.
    fn take_signals(&mut self) -> Option<i32> {
        while let Some(signal) = self.signals.next() {
            match (&mut self.job, signal.number) {
                (_, libc::SIGCHLD) => {}
                (Job::Attached(attached), libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT) => {
                    attached.is_leaving = attached.is_leaving || self.books.can_leave();
                }
                // SAFETY: stops this process until it is continued.
                (Job::Attached(_), libc::SIGTSTP) => unsafe {
                    libc::raise(libc::SIGSTOP);
                },
                (Job::Attached(_), _) => {}
                (Job::Started { front, .. }, libc::SIGTSTP) if !signal.from_process => front.stop(),
                (Job::Started { child, .. }, number) if signal.from_process => {
                    // SAFETY: a signal to our own child.
                    unsafe { libc::kill(*child, number) };
                }
                _ => {}
            }
        }
        let status = self.reap();
        match &self.job {
            Job::Started { .. } => status,
            Job::Attached(attached) => self.has_left(attached),
        }
    }

    /// Returns a status when no process is left that this one pages.
    fn has_left(&self, attached: &Attached) -> Option<i32> {
        if self.attacher.has_refused(attached.pid) {
            // Descendants may have been refused, too.
            let name = name_of(attached.pid as u32);
            let mut notes = self.notes.unmanaged.iter().rev();
            let why =
                notes.find(|note| note.starts_with(&name)).map_or("it cannot be managed", String::as_str);
            eprintln!("uzswap: process {}: {why}", attached.pid);
            return Some(crate::command_line::EXIT_FAILED);
        }
        if attached.is_leaving {
            self.books.tree.live().for_each(|live| live.slot.want_leave());
        }
        let placed = self.connections.all.iter().filter(|one| one.place.is_some());
        let managed: Vec<i32> = placed.map(|one| one.program).collect();
        let has_left =
            || attached.is_leaving && !self.attacher.is_trying() && !self.attacher.awaits(&managed);
        let is_over = attached.has_ended() || has_left();
        let is_alone = managed.is_empty();
        // Without this process, pages of an agent that was killed would read as zeroes.
        (is_alone && is_over && !self.orphans.are_any()).then_some(0)
    }

    /// Returns whether the program's core dump lacks pages: a dump leaves out evicted pages.
    pub fn has_partial_dump(&self) -> bool {
        self.has_dumped && self.figures.stored_pages_peak > 0
    }

    fn reap(&mut self) -> Option<i32> {
        // A process cannot be identified after it has been waited for.
        self.connections.accept_waiting(&mut self.notes);
        loop {
            let mut status = 0;
            // SAFETY: the status is writable.
            let pid = unsafe {
                // __WNOTHREAD excludes threads that other threads of this process trace.
                libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED | libc::__WNOTHREAD)
            };
            if pid <= 0 {
                return None;
            }
            let Job::Started { child, front, .. } = &self.job else { continue };
            if pid != *child {
                continue;
            }
            if libc::WIFSTOPPED(status) {
                // The shell must see its job stop, and continues both processes. A sender of
                // SIGSTOP to the program alone also continues it alone, unnoticed here.
                if !matches!(libc::WSTOPSIG(status), libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                    continue;
                }
                front.stop();
                // SAFETY: a signal to our own child.
                unsafe { libc::kill(*child, libc::SIGCONT) };
            } else if libc::WIFEXITED(status) {
                return Some(libc::WEXITSTATUS(status));
            } else if libc::WIFSIGNALED(status) {
                self.has_dumped = libc::WCOREDUMP(status);
                self.signal = Some(libc::WTERMSIG(status));
                return Some(128 + libc::WTERMSIG(status));
            }
        }
    }

    fn look_for_strangers(&mut self) {
        let managed: Vec<i32> =
            self.connections.all.iter().flat_map(|one| [one.program, one.peer.pid]).collect();
        for name in self.strangers.look(&self.job.root().members(), &managed) {
            self.notes.note_unmanaged(&format!("{name}: its pager does not reach this process"));
        }
    }

    /// Shared memory is not paged and not in the budget. The largest process counts.
    fn look_for_shared_memory(&mut self) {
        let resident = self.books.tree.live().filter_map(|live| shared_bytes(live.pid));
        self.figures.shared_bytes = resident.fold(self.figures.shared_bytes, u64::max);
    }

    /// Removes the traces of agents from the programs that go on without them.
    pub fn clear_agents(&self) {
        let Job::Attached(attached) = &self.job else { return };
        let began = Instant::now();
        for left in &attached.ended {
            while attach::clear(left).is_none() && left.is_there() && began.elapsed() < CLEARS {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Ends the front with the program's status, and serves the processes that outlive the program
    /// (daemons) until the last has ended. A child that has not said hello yet counts.
    pub fn serve_remainder(&mut self, status: i32) {
        self.drain();
        self.notes.settle();
        // An agent ends as soon as it has noticed the end of its program.
        let began = Instant::now();
        loop {
            self.reap();
            if self.has_no_tree() {
                return;
            }
            if began.elapsed() > AGENT_ENDS {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: gives up the terminal, so that no reader of a pipe waits for this process.
        unsafe {
            libc::setsid();
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            for standard in 0..3 {
                libc::dup2(null, standard);
            }
        }
        self.notes.leave_terminal();
        self.books.set_supervisor(std::process::id());
        if let Job::Started { front, .. } = &self.job {
            front.dismiss(status);
        }
        while !self.has_no_tree() {
            self.poll();
            self.sample();
            self.connections.end_broken();
            self.attach();
            while self.signals.next().is_some() {}
            self.reap();
        }
        self.drain();
    }

    fn has_no_tree(&self) -> bool {
        !self.job.root().has_members()
    }
}

/// Resident pages of a process's shared mappings, memfds and System V segments.
fn shared_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(sys::procfs::path_of(pid as i32, "status")?).ok()?;
    sys::procfs::kilobytes_field(text.as_bytes(), b"RssShmem:")
}
