//! Brings the agent into processes that no dynamic loader brings it to: static programs, loaders
//! that ignore LD_PRELOAD, and programs started after a change of user, root or namespaces.
//!
//! A small process costs nothing. Once it has grown, the supervisor stops one of its threads for a
//! few system calls, which make a process that shares its memory. That process maps the agent and
//! runs it; nothing else of the program changes. An attempt takes less than 2 ms, and the program
//! runs for most of it.
//!
//! A process can delay readers of its memory by a userfaultfd or a file system that it serves. So
//! each attempt has a thread of its own, and the supervisor waits for none. A child process would
//! not do: under Yama an ordinary user may trace only descendants. After an attach, which needs the
//! right to trace any process, the thread has a child that finishes if the supervisor is killed. A
//! blocked thread keeps its hold, so that a slow process is never released with foreign registers.
//! Rights are compared while a thread is held.

mod apart;
mod image;
mod injection;
mod process;
mod references;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

pub use self::image::Image;
pub use self::injection::{clear, Left};
use self::injection::{Failure, Order};
pub use self::process::{
    anonymous_bytes, has_agent, is_above_us, is_agent, program_of, runs_setuid_program, FileId,
};
use self::process::{Agent, Identity};
pub use self::tree::Root;

/// Smaller processes are skipped: a pager would cost more than it saves.
const GROWN_BYTES: u64 = 8 << 20;
/// Minimum interval between looks.
const LOOK: Duration = Duration::from_millis(20);
/// Looks take at most 1/30 of the supervisor's time.
const LOOK_SHARE: u32 = 30;
/// Maximum interval: short programs must be seen even if a busy machine interrupts a look.
const LOOK_MAX: Duration = Duration::from_millis(250);
/// Time limit for the agent's hello, on a busy machine.
const HELLO: Duration = Duration::from_secs(20);
/// Time during which stopping a process is retried.
const BUSY: Duration = Duration::from_secs(60);

/// Reports an attempt as failed after this time. It may still succeed.
const HOPELESS: Duration = Duration::from_secs(10);
/// Concurrent attempts. Blocked attempts keep their places.
const ATTEMPTS_MAX: usize = 256;
/// An attempt reads texts of /proc and writes a stack of two pages.
const STACK_BYTES: usize = 256 << 10;

struct Known {
    identity: Identity,
    since: Instant,
    state: State,
}

enum State {
    Waiting,
    Trying(JoinHandle<Result<(), Failure>>, Instant),
    /// A running attempt that was reported as failed.
    Lost(JoinHandle<Result<(), Failure>>),
    Brought,
    Refused,
}

impl State {
    fn is_pending(&self) -> bool {
        matches!(self, State::Trying(..) | State::Lost(_))
    }
}

/// Finds unmanaged processes and brings them the agent.
pub struct Attacher {
    image: Arc<Image>,
    path: String,
    socket: String,
    root: Root,
    known: HashMap<i32, Known>,
    /// The tree's processes at the last look.
    pub members: Vec<i32>,
    /// Supervisors of runs inside of this one, which were named.
    inner: Vec<i32>,
    /// Agents that wait for the supervisor, with the descriptors that they offer.
    waiting: Vec<(i32, i32)>,
    /// The time of the next look.
    pub next: Instant,
    grown_bytes: u64,
    has_noted_full: bool,
}

impl Attacher {
    /// Creates the attacher for a supervisor that listens at `socket`, with the agent at `path`.
    pub fn new(image: Image, path: String, socket: &str, root: Root, budget_bytes: u64) -> Self {
        Attacher {
            image: Arc::new(image),
            path,
            socket: socket.to_owned(),
            root,
            known: HashMap::new(),
            members: Vec::new(),
            inner: Vec::new(),
            waiting: Vec::new(),
            next: Instant::now(),
            grown_bytes: GROWN_BYTES.min(budget_bytes / 8).max(4 << 20),
            has_noted_full: false,
        }
    }

    /// Looks at the tree if a look is due. `managed` processes have an agent. Returns each process
    /// that cannot be managed once, with the reason.
    pub fn look(&mut self, managed: &[i32]) -> Vec<String> {
        let start = Instant::now();
        if start < self.next {
            return Vec::new();
        }
        let mut inner = Vec::new();
        self.members = self.root.members_and(&mut inner);
        let mut notes = self.take_results();
        for run in inner.iter().filter(|run| !self.inner.contains(run)) {
            notes.extend(note(*run, "a run inside of this one, whose programs are not in this budget"));
        }
        self.inner = inner;
        let alive = &self.members;
        self.known.retain(|pid, known| {
            // Exec starts a new look at the process.
            let is_settled = matches!(known.state, State::Brought)
                && managed.contains(pid)
                && known.since.elapsed() > HELLO;
            known.state.is_pending() || (alive.contains(pid) && !is_settled)
        });
        let (mut grown, mut agents) = (Vec::new(), Vec::new());
        for pid in self.members.iter().copied().filter(|pid| !managed.contains(pid)) {
            let is_meant = self.root.is_attached() && pid == self.root.pid();
            let has_grown =
                || is_meant || process::anonymous_bytes(pid).is_some_and(|bytes| bytes >= self.grown_bytes);
            let agent = Agent::of(pid);
            agents.extend(agent.map(|_| pid));
            match agent {
                Some(Agent::Waits(number)) if has_grown() => self.waiting.push((pid, number)),
                None if has_grown() => grown.push(pid),
                _ => {}
            }
        }
        // A process that gives up rights is between two connections; an agent has its program's
        // name at first.
        let is_brought = |known: &Known| known.state.is_pending() || matches!(known.state, State::Brought);
        agents.extend(self.known.iter().filter(|(_, known)| is_brought(known)).map(|(pid, _)| pid));
        for pid in grown {
            if !agents.iter().any(|other| *other != pid && process::share_memory(pid, *other)) {
                notes.extend(self.consider(pid));
            }
        }
        self.next = Instant::now() + (start.elapsed() * LOOK_SHARE).clamp(LOOK, LOOK_MAX);
        notes
    }

    /// Takes the agents found by the last look that wait for the supervisor, with descriptors.
    pub fn take_waiting(&mut self) -> Vec<(i32, i32)> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns whether an agent is being brought into a process, a thread of which is held.
    pub fn is_trying(&self) -> bool {
        let is_running = |state: &State| match state {
            State::Trying(thread, _) => !thread.is_finished(),
            _ => false,
        };
        self.known.values().any(|known| is_running(&known.state))
    }

    /// Returns whether an agent has been brought into a process, and has yet to connect. `managed`
    /// processes have an agent that has.
    pub fn awaits(&self, managed: &[i32]) -> bool {
        let mut late = self.known.iter().filter(|(pid, _)| !managed.contains(pid));
        late.any(|(pid, known)| match known.state {
            State::Brought => known.since.elapsed() < HELLO && process::is_shared(*pid),
            State::Trying(_, begin) => begin.elapsed() < HELLO && process::is_shared(*pid),
            _ => false,
        })
    }

    /// Returns whether a process is not managed and will not be.
    pub fn has_refused(&self, pid: i32) -> bool {
        self.known.get(&pid).is_some_and(|known| matches!(known.state, State::Refused))
    }

    /// Notes that a process's agent cannot work there.
    pub fn note_refusal(&mut self, pid: i32) {
        if let Some(known) = self.known.get_mut(&pid).filter(|known| matches!(known.state, State::Brought)) {
            known.state = State::Refused;
        }
    }

    fn take_results(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        let pids: Vec<i32> = self.known.keys().copied().collect();
        for pid in pids {
            let Some(mut known) = self.known.remove(&pid) else { continue };
            let is_lost = matches!(known.state, State::Lost(_));
            known.state = match known.state {
                State::Trying(thread, _) | State::Lost(thread) if thread.is_finished() => {
                    let result = thread.join().unwrap_or(Err(Failure::Gone));
                    let (state, why) = match result {
                        Ok(()) => {
                            known.since = Instant::now();
                            (State::Brought, None)
                        }
                        Err(Failure::NotOurs) if self.root.is_attached() => {
                            (State::Refused, Some("it belongs to `uzswap run`".to_owned()))
                        }
                        Err(Failure::Anothers) if self.root.is_attached() => (
                            State::Refused,
                            Some("its environment names another supervisor (UZSWAP_SOCKET)".to_owned()),
                        ),
                        Err(Failure::Gone | Failure::NotOurs) => continue,
                        Err(Failure::Anothers) => (State::Refused, None),
                        Err(Failure::NotYet) if known.since.elapsed() < BUSY => (State::Waiting, None),
                        Err(Failure::NotYet) => (State::Refused, Some("it could not be stopped".to_owned())),
                        // The process has executed another program since.
                        Err(Failure::Refused(_)) if Identity::of(pid) != Some(known.identity) => continue,
                        Err(Failure::Refused(why)) => (State::Refused, Some(why)),
                    };
                    notes.extend(why.filter(|_| !is_lost).and_then(|why| note(pid, &why)));
                    state
                }
                State::Trying(thread, begin) if begin.elapsed() > HOPELESS => {
                    notes.extend(note(pid, "it makes who looks into it wait"));
                    State::Lost(thread)
                }
                state => state,
            };
            self.known.insert(pid, known);
        }
        notes
    }

    /// Starts an attempt on a process without an agent, or returns why there is none.
    fn consider(&mut self, pid: i32) -> Option<String> {
        let identity = Identity::of(pid)?;
        let now = Instant::now();
        let since = match self.known.get(&pid) {
            // The program that the process runs now.
            Some(known) if known.state.is_pending() => return None,
            Some(known) if known.identity == identity => match known.state {
                State::Brought if known.since.elapsed() < HELLO => return None,
                State::Brought => {
                    self.known.insert(pid, Known { identity, since: now, state: State::Refused });
                    return note(pid, "its agent was not heard of");
                }
                State::Waiting => known.since,
                _ => return None,
            },
            _ => now,
        };
        if self.known.values().filter(|known| known.state.is_pending()).count() >= ATTEMPTS_MAX {
            let is_first = !std::mem::replace(&mut self.has_noted_full, true);
            return is_first.then(|| "too many processes make who looks into them wait".to_owned());
        }
        let (image, path, socket) = (self.image.clone(), self.path.clone(), self.socket.clone());
        let order = Order { image, path, socket, is_attached: self.root.is_attached(), pid, identity };
        let attempt =
            Builder::new().name("uzswap-attach".to_owned()).stack_size(STACK_BYTES).spawn(move || {
                // SAFETY: changes this thread's timer slack: it polls for microseconds.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
                injection::bring(&order)
            });
        let state = attempt.map_or(State::Waiting, |thread| State::Trying(thread, now));
        self.known.insert(pid, Known { identity, since, state });
        None
    }
}

fn note(pid: i32, why: &str) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{}: {why}", name.trim_end()))
}
