//! The supervisor: waits for the program, keeps the ledger, answers its processes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use ledger::wire::{self, Kind, Packet};
use ledger::Ledger;

use sys::capabilities;
use sys::lender::Lent;

use super::attach::{self, Attacher};
use super::guardian::Guardian;
use super::history::History;
use super::signals::Signals;
use super::swap::Swap;
use crate::rights;

/// Between looks at the figures for peaks.
const SAMPLE: Duration = Duration::from_millis(10);
/// The same while the tree is far from its budget.
const SAMPLE_IDLE: Duration = Duration::from_millis(50);
/// Between looks for processes that never said hello.
const STRANGERS: Duration = Duration::from_millis(500);

/// Most lines of each kind in the report.
const NOTES_MAX: usize = 1000;

/// Looks at which a process had the object and no connection, until it counts as a stranger: it may be slow.
const LOOKS: u32 = 10;

struct Connection {
    socket: OwnedFd,
    /// The process at the other end, by this process's numbers: it may be in another process namespace.
    pid: Option<u32>,
    slot: Option<usize>,
    /// Duplicates of its userfaultfds: while they are open, no close() of the program turns evicted pages to zeroes.
    kept: Vec<OwnedFd>,
}

/// A process that may be running without uzswap.
struct Suspect {
    pid: i32,
    name: String,
    /// Looks in a row at which it had no connection.
    looks: u32,
}

/// A descriptor on its way from a parent to its forked child.
struct Child {
    token: u64,
    descriptor: Option<OwnedFd>,
}

/// Serves one process tree.
pub struct Supervisor {
    ledger: Ledger,
    ledger_file: OwnedFd,
    swap: Option<Swap>,
    listener: OwnedFd,
    signals: Signals,
    guardian: Option<Guardian>,
    attacher: Attacher,
    child: i32,
    /// The program has left a core dump.
    has_dumped: bool,
    connections: Vec<Connection>,
    children: Vec<Child>,
    unmanaged: Vec<String>,
    /// What broke in uzswap itself.
    failures: Vec<String>,
    broken: Vec<u32>,
    known_strangers: Vec<i32>,
    /// Processes without a connection at the last look.
    suspects: Vec<Suspect>,
    pub(super) figures: Peaks,
    /// Taken down when there is to be a report.
    pub(super) history: Option<History>,
}

/// The largest figures seen.
#[derive(Debug, Default, Clone)]
pub struct Peaks {
    /// Pages stored when they were most, and the pool's bytes then.
    pub stored_pages_peak: u64,
    /// See above.
    pub pool_bytes_at_peak: u64,
    /// Pages stored at the last look with a live process.
    pub stored_pages: u64,
    /// The pool's bytes then.
    pub pool_bytes: u64,
    /// Most bytes over the budget.
    pub over_budget_bytes: u64,
    /// Most resident shared memory of one process, which is not paged.
    pub shared_bytes: u64,
    /// Pages in the swap file when they were most.
    pub disk_pages_peak: u64,
    /// Pages there, the bytes of their objects, and all bytes in use, at the last look with a live process that had some.
    pub disk_pages: u64,
    /// See above.
    pub disk_live_bytes: u64,
    /// See above.
    pub disk_used_bytes: u64,
    /// The most bytes in use.
    pub disk_used_peak_bytes: u64,
}

/// What was opened for a tree.
pub struct Opened {
    /// The ledger.
    pub ledger: Ledger,
    /// Its memory file.
    pub ledger_file: OwnedFd,
    /// The swap file.
    pub swap: Option<Swap>,
    /// Where processes connect.
    pub listener: OwnedFd,
}

impl Supervisor {
    /// Takes over what was opened for the tree.
    pub fn new(
        opened: Opened,
        signals: Signals,
        guardian: Guardian,
        attacher: Attacher,
        child: i32,
    ) -> Result<Self> {
        // Orphans of the tree come to us, so that the tree's end can be seen.
        // SAFETY: changes an attribute of this process.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        let Opened { ledger, ledger_file, swap, listener } = opened;
        Ok(Supervisor {
            ledger,
            ledger_file,
            swap,
            listener,
            signals,
            guardian: Some(guardian),
            attacher,
            child,
            connections: Vec::new(),
            children: Vec::new(),
            unmanaged: Vec::new(),
            failures: Vec::new(),
            broken: Vec::new(),
            known_strangers: Vec::new(),
            suspects: Vec::new(),
            has_dumped: false,
            figures: Peaks::default(),
            history: None,
        })
    }

    /// Notes a program that runs without uzswap.
    pub fn note_unmanaged(&mut self, what: &str) {
        if self.unmanaged.len() < NOTES_MAX && !self.unmanaged.iter().any(|known| known == what) {
            self.unmanaged.push(what.to_owned());
        }
    }

    /// Programs that ran without uzswap.
    pub fn unmanaged(&self) -> &[String] {
        &self.unmanaged
    }

    /// The swap file, if there is one.
    pub fn swap(&self) -> Option<&Swap> {
        self.swap.as_ref()
    }

    /// What broke in uzswap itself, and ended a process.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Serves until the program has ended; answers its exit status, or that of a failure when its own pager ended it.
    pub fn serve(&mut self) -> i32 {
        let mut strangers_at = Instant::now() + STRANGERS;
        loop {
            self.poll();
            self.sample();
            self.attach();
            if let Some(status) = self.take_signals() {
                // What processes said at their end is still in their sockets.
                self.drain();
                return if self.broken.contains(&(self.child as u32)) { crate::EXIT_FAILED } else { status };
            }
            if Instant::now() >= strangers_at {
                self.look_for_strangers();
                self.look_for_shared_memory();
                strangers_at = Instant::now() + STRANGERS;
            }
        }
    }

    /// Brings the agent to processes that have grown without one.
    fn attach(&mut self) {
        if Instant::now() < self.attacher.next() {
            return;
        }
        // Who has just said hello is known from its connection alone.
        let managed: Vec<i32> =
            self.connections.iter().filter_map(|one| one.pid).map(|pid| pid as i32).collect();
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        for note in self.attacher.look(guardian, &managed) {
            self.note_unmanaged(&note);
        }
        if let Some(guardian) = &self.guardian {
            guardian.note_members(self.attacher.members());
        }
    }

    fn poll(&mut self) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = vec![entry(self.signals.descriptor()), entry(self.listener.as_raw_fd())];
        polled.extend(self.connections.iter().map(|connection| entry(connection.socket.as_raw_fd())));
        let near = self.ledger.total_bytes() > self.ledger.budget_bytes() / 2;
        let timeout = if near { SAMPLE } else { SAMPLE_IDLE };
        let timeout = timeout.min(self.attacher.next().saturating_duration_since(Instant::now()));
        // SAFETY: as many entries as said.
        unsafe {
            libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout.as_millis() as i32 + 1)
        };
        for index in (0..self.connections.len()).rev() {
            if polled[index + 2].revents != 0 && !self.answer(index) {
                self.end(index);
            }
        }
        if polled[1].revents != 0 {
            self.accept();
        }
    }

    /// Takes a new connection; whether there was one.
    fn accept(&mut self) -> bool {
        // SAFETY: accepts without an address.
        let raw = unsafe {
            libc::accept4(
                self.listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            )
        };
        if raw >= 0 {
            // SAFETY: accepted just now.
            let socket = unsafe { OwnedFd::from_raw_fd(raw) };
            let pid = wire::peer(raw);
            self.connections.push(Connection { socket, pid, slot: None, kept: Vec::new() });
        }
        raw >= 0
    }

    /// Reads what one process sent; false when its connection has ended.
    fn answer(&mut self, index: usize) -> bool {
        loop {
            let socket = self.connections[index].socket.as_raw_fd();
            let (packet, descriptor) = match wire::receive(socket) {
                Ok(Some(received)) => received,
                Ok(None) => return false,
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            };
            // SAFETY: received just now, owned by nobody else.
            let descriptor = descriptor.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
            let ledger_file = self.ledger_file.as_raw_fd();
            let process = self.connections[index].pid;
            match packet.kind() {
                // Once: the slot it has would be in use for ever.
                Some(Kind::Hello) if self.connections[index].slot.is_some() => return false,
                Some(Kind::Hello) => match process.and_then(|pid| self.ledger.claim(pid)) {
                    Some(slot) => {
                        self.connections[index].slot = Some(slot);
                        if let (Some(history), Some(pid)) = (&mut self.history, process) {
                            history.joined(pid, slot);
                        }
                        let welcome = Packet::new(Kind::Welcome, slot as u32, 0);
                        let _ = wire::send(socket, &welcome, Some(ledger_file));
                    }
                    None => {
                        self.note_unmanaged("more processes at a time than the ledger has room for");
                        let _ = wire::send(socket, &Packet::new(Kind::Refused, 0, 0), None);
                    }
                },
                Some(Kind::Say) => {
                    let text = String::from_utf8_lossy(packet.text());
                    eprintln!("uzswap: process {}: {text}", process.unwrap_or(0));
                }
                Some(Kind::Broken) => {
                    let text = String::from_utf8_lossy(packet.text());
                    let failure = format!("process {}: {text}", process.unwrap_or(0));
                    eprintln!("uzswap: {failure}");
                    self.broken.extend(process);
                    if self.failures.len() < NOTES_MAX {
                        self.failures.push(failure);
                    }
                }
                Some(Kind::Unmanaged) => {
                    let pid = process.unwrap_or(0);
                    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    let text = String::from_utf8_lossy(packet.text());
                    self.note_unmanaged(&format!("{}: {text}", name.trim_end()));
                    self.attacher.note_refusal(pid as i32);
                }
                Some(Kind::Keep) => self.connections[index].kept.extend(descriptor),
                Some(Kind::Child) => self.children.push(Child { token: packet.token, descriptor }),
                Some(Kind::Fetch) => {
                    let found = self.children.iter().position(|child| child.token == packet.token);
                    let sent = found.and_then(|at| self.children.swap_remove(at).descriptor);
                    let reply = Packet::new(Kind::Fetched, 0, packet.token);
                    let _ = wire::send(socket, &reply, sent.as_ref().map(AsRawFd::as_raw_fd));
                    // The child holds it now; keep a duplicate for as long as it lives.
                    self.connections[index].kept.extend(sent);
                }
                Some(Kind::Swap) => {
                    let part = self.swap.as_ref().and_then(|swap| swap.part(packet.number));
                    let _ = wire::send(socket, &Packet::new(Kind::Swapped, packet.number, 0), part);
                }
                Some(Kind::Open) => {
                    let opened = self.of_tree(process).and_then(|pid| lent(packet.number, pid));
                    let reply = Packet::new(Kind::Opened, packet.number, 0);
                    let _ = wire::send(socket, &reply, opened.as_ref().map(AsRawFd::as_raw_fd));
                }
                Some(Kind::Agree) => {
                    let of_tree = self.of_tree(process).and(descriptor);
                    let agreed = of_tree
                        .is_some_and(|userfaultfd| rights::agree(userfaultfd.as_raw_fd(), packet.token));
                    let reply = Packet::new(Kind::Agreed, (!agreed).into(), 0);
                    let _ = wire::send(socket, &reply, None);
                }
                Some(Kind::Query) => {
                    let reply = Packet::new(Kind::Ledger, std::process::id(), 0);
                    let _ = wire::send(socket, &reply, Some(ledger_file));
                }
                Some(
                    Kind::Welcome
                    | Kind::Refused
                    | Kind::Fetched
                    | Kind::Ledger
                    | Kind::Swapped
                    | Kind::Opened
                    | Kind::Agreed,
                )
                | None => return false,
            }
        }
    }

    /// The process, if it is of this tree: whoever else finds the address gets no rights here.
    fn of_tree(&self, process: Option<u32>) -> Option<u32> {
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        let is_ours = |pid: i32| attach::descendants(guardian).contains(&pid) && !attach::is_above_us(pid);
        process.filter(|pid| is_ours(*pid as i32))
    }

    fn end(&mut self, index: usize) {
        let connection = self.connections.swap_remove(index);
        if let Some(slot) = connection.slot {
            // Its threads have ended, and with them what they were writing.
            self.swap.iter().for_each(|swap| swap.reap(slot));
            if let Some(history) = &mut self.history {
                history.left(slot, &self.ledger);
            }
            self.ledger.release(slot);
        }
    }

    fn drain(&mut self) {
        // Also from connections that were made for a last word.
        let mut waiting = libc::pollfd { fd: self.listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        while unsafe { libc::poll(&mut waiting, 1, 0) } > 0 && self.accept() {}
        for index in (0..self.connections.len()).rev() {
            if !self.answer(index) {
                self.end(index);
            }
        }
    }

    fn sample(&mut self) {
        self.ledger.note_peaks();
        if let Some(history) = &mut self.history {
            history.sample(&self.ledger);
        }
        let (mut pages, mut bytes, mut disk_pages, mut disk_bytes) = (0u64, 0u64, 0u64, 0u64);
        for (_, slot) in self.ledger.live() {
            pages = pages.saturating_add(slot.stored_pages());
            bytes = bytes.saturating_add(slot.pool_bytes());
            disk_pages = disk_pages.saturating_add(slot.disk_pages());
            disk_bytes = disk_bytes.saturating_add(slot.disk_bytes());
        }
        if let Some(swap) = self.swap.as_ref().filter(|_| disk_pages > 0) {
            let figures = &mut self.figures;
            figures.disk_pages_peak = figures.disk_pages_peak.max(disk_pages);
            (figures.disk_pages, figures.disk_live_bytes) = (disk_pages, disk_bytes);
            figures.disk_used_bytes = swap.used_bytes();
            figures.disk_used_peak_bytes = figures.disk_used_peak_bytes.max(figures.disk_used_bytes);
        }
        if pages > 0 {
            (self.figures.stored_pages, self.figures.pool_bytes) = (pages, bytes);
        }
        if pages > self.figures.stored_pages_peak {
            (self.figures.stored_pages_peak, self.figures.pool_bytes_at_peak) = (pages, bytes);
        }
        let over = self.ledger.total_bytes().saturating_sub(self.ledger.budget_bytes());
        self.figures.over_budget_bytes = self.figures.over_budget_bytes.max(over);
    }

    /// Handles signals; answers the program's exit status once it has ended.
    fn take_signals(&mut self) -> Option<i32> {
        while let Some(signal) = self.signals.next() {
            match signal.number {
                libc::SIGCHLD => {}
                libc::SIGTSTP if !signal.from_process => stop_self(),
                number if signal.from_process => {
                    // SAFETY: a signal to our own child.
                    unsafe { libc::kill(self.child, number) };
                }
                _ => {}
            }
        }
        self.reap()
    }

    /// Whether the program's core dump lacks pages: what is out when a process dumps its memory is left out of it.
    pub fn has_partial_dump(&self) -> bool {
        self.has_dumped && self.figures.stored_pages_peak > 0
    }

    fn reap(&mut self) -> Option<i32> {
        loop {
            let mut status = 0;
            // SAFETY: the status is writable.
            let pid = unsafe {
                // Not threads that other threads of this process trace.
                libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED | libc::__WNOTHREAD)
            };
            if pid <= 0 {
                return None;
            }
            if pid != self.child {
                continue;
            }
            if libc::WIFSTOPPED(status) {
                // The shell must see its job stop, and continues both. Whoever stops the program alone, by SIGSTOP,
                // continues it alone, and this process would not hear of it.
                if !matches!(libc::WSTOPSIG(status), libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
                    continue;
                }
                stop_self();
                // SAFETY: a signal to our own child.
                unsafe { libc::kill(self.child, libc::SIGCONT) };
            } else if libc::WIFEXITED(status) {
                return Some(libc::WEXITSTATUS(status));
            } else if libc::WIFSIGNALED(status) {
                self.has_dumped = libc::WCOREDUMP(status);
                return Some(128 + libc::WTERMSIG(status));
            }
        }
    }

    /// Notes descendants that have the object and no connection: they cannot reach this process.
    fn look_for_strangers(&mut self) {
        let managed: Vec<i32> = self.ledger.live().map(|(_, slot)| slot.pid() as i32).collect();
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        let mut suspects = Vec::new();
        for pid in attach::descendants(guardian) {
            if managed.contains(&pid) || self.known_strangers.contains(&pid) {
                continue;
            }
            // Young processes have not come to say hello yet, and zombies never will. Nor has a new program of an
            // old process, for long on a busy machine.
            let Some(name) = settled_name(pid).filter(|_| has_object(pid)) else { continue };
            let before = self.suspects.iter().find(|known| known.pid == pid && known.name == name);
            let looks = before.map_or(0, |known| known.looks) + 1;
            if looks >= LOOKS {
                self.note_unmanaged(&format!("{name}: its pager does not reach this process"));
                if self.known_strangers.len() > 1 << 16 {
                    self.known_strangers.clear();
                }
                self.known_strangers.push(pid);
            } else {
                suspects.push(Suspect { pid, name, looks });
            }
        }
        self.suspects = suspects;
    }

    /// Shared memory is not paged, nor in the budget. Of several processes that have the same, one counts.
    fn look_for_shared_memory(&mut self) {
        let resident = self.ledger.live().filter_map(|(_, slot)| shared_bytes(slot.pid()));
        self.figures.shared_bytes = resident.fold(self.figures.shared_bytes, u64::max);
    }

    /// When processes of the tree outlive the program (daemons), a forked copy of this process goes on serving them,
    /// and this one can end with the program's status at once.
    pub fn leave_remainder(&mut self) {
        self.drain();
        self.attacher.settle();
        if !self.connections.iter().any(|connection| connection.slot.is_some()) {
            return;
        }
        // SAFETY: no other thread of this process holds what the copy uses: attempts to bring the agent
        // are over, or wait inside the kernel and are forgotten.
        match unsafe { libc::fork() } {
            0 => {}
            -1 => return,
            _ => {
                self.guardian.take().into_iter().for_each(Guardian::hand_over);
                return;
            }
        }
        // SAFETY: gives up the terminal, so that nobody waits for this process on a pipe.
        unsafe {
            libc::setsid();
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            for standard in 0..3 {
                libc::dup2(null, standard);
            }
        }
        while self.connections.iter().any(|connection| connection.slot.is_some()) {
            self.poll();
            self.sample();
            self.attach();
        }
        self.guardian = None;
        // SAFETY: ends without running the parent's exit handlers a second time.
        unsafe { libc::_exit(0) };
    }
}

fn stop_self() {
    // SAFETY: stops this process until somebody continues it.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Whether the object is mapped in a process.
fn has_object(pid: i32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.contains(&*super::OBJECT_NAME.to_string_lossy())
}

/// Resident pages of a process's shared mappings, memory files and System V segments.
fn shared_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    sys::procfs::kilobytes_field(text.as_bytes(), b"RssShmem:")
}

/// A process's name, if it is alive and at least half a second old.
fn settled_name(pid: i32) -> Option<String> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let (name, started) = alive_in(&stat)?;
    let uptime: f64 =
        std::fs::read_to_string("/proc/uptime").ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    // SAFETY: asks for a constant.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    (uptime - started / ticks > 0.5).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Name and start, in ticks since the machine's, from the text of /proc/PID/stat, unless the process has ended. The name
/// may be any bytes, parentheses and spaces among them.
fn alive_in(stat: &[u8]) -> Option<(&[u8], f64)> {
    let (_, from_name) = stat.split_at(stat.iter().position(|byte| *byte == b'(')? + 1);
    let (name, rest) = from_name.split_at(from_name.iter().rposition(|byte| *byte == b')')?);
    let mut fields = rest[1..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = fields.next()?;
    let started = std::str::from_utf8(fields.nth(18)?).ok()?.parse().ok()?;
    (!matches!(state, b"Z" | b"X")).then_some((name, started))
}

/// Opens what a process of the tree may not open itself, if this process may.
fn lent(number: u32, pid: u32) -> Option<File> {
    match Lent::from_number(number)? {
        Lent::DeviceNode => OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok(),
        // Whoever opens it with that right has physical addresses in it.
        Lent::Pagemap => {
            capabilities::without(capabilities::SYS_ADMIN, || File::open(format!("/proc/{pid}/pagemap")).ok())
                .ok()?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_but_a_userfaultfd_is_agreed_on() {
        assert!(!rights::agree(File::open("/dev/zero").unwrap().as_raw_fd(), 0));
        let number = std::process::id();
        assert!(lent(2, number).is_none());
        assert!(lent(Lent::Pagemap as u32, number).is_some());
    }

    #[test]
    fn this_process_is_alive() {
        let stat = std::fs::read("/proc/self/stat").unwrap();
        let (name, started) = alive_in(&stat).unwrap();
        let comm = std::fs::read("/proc/self/comm").unwrap();
        assert!(comm.strip_suffix(b"\n") == Some(name) && started > 0.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_process_of_any_name_is_known(
            name in prop::collection::vec(any::<u8>(), 0..16), state in "[RSDZTX]", started in any::<u64>(),
        ) {
            let mut stat = b"17 (".to_vec();
            stat.extend(&name);
            let fields = "1 ".repeat(18);
            stat.extend(format!(") {state} {fields}{started} 5 6\n").bytes());
            let expected = (state != "Z" && state != "X").then_some((&name[..], started as f64));
            prop_assert_eq!(alive_in(&stat), expected);
        }

        #[test]
        fn any_text_is_a_process_or_none(text in prop::collection::vec(prop_oneof![Just(b')'), Just(b'('), Just(b' '), any::<u8>()], 0..200)) {
            if let Some((name, _)) = alive_in(&text) {
                prop_assert!(text.windows(name.len() + 2).any(|part| part[0] == b'(' && part[part.len() - 1] == b')'));
            }
        }
    }
}
