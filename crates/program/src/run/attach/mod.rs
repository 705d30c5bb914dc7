//! Bringing the agent into processes that no dynamic loader brings it to: static programs, ones
//! whose loader was not asked, ones that were started after their user, root or namespaces had
//! changed.
//!
//! A process costs nothing before it has grown. Then one of its threads is stopped for some system
//! calls that make one more thread; that one maps the agent and runs it, and nothing else of the
//! process changes. It takes less than 2 ms, most of which the program runs on.
//!
//! A process can delay readers of its memory: by a userfaultfd that it serves itself, by a file
//! system that it serves. So each attempt has a thread of its own, and the supervisor waits for
//! none. It is a thread and no process: where an ordinary user may trace descendants alone (Yama),
//! a thread of the supervisor may and a child of it may not; and one that is waited for in vain
//! keeps what it holds, so that a process that is slow for honest reasons is never let go with
//! registers that are not its own. What the tracing itself needs is in the kernel: rights are
//! compared while a thread is held.

mod image;
mod injection;
mod process;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

pub use self::image::Image;
use self::injection::{Failure, Order};
use self::process::Identity;
pub use self::process::{anonymous_bytes, has_agent, is_above_us, program_of, runs_setuid_program, FileId};
pub use self::tree::{descendants, has_children};

/// Processes up to this size are let alone: a pager would take more than it could save.
const GROWN_BYTES: u64 = 8 << 20;
/// Between looks, at least.
const LOOK: Duration = Duration::from_millis(20);
/// Looking takes at most one part in so many of the supervisor's time.
const LOOK_SHARE: u32 = 30;
/// But no program is to be done before it is looked at, on a machine so busy that a look is
/// interrupted for long.
const LOOK_MAX: Duration = Duration::from_millis(250);
/// An agent that was brought says hello within this time, on a busy machine too.
const HELLO: Duration = Duration::from_secs(20);
/// A process that cannot be stopped is tried again for so long.
const BUSY: Duration = Duration::from_secs(60);

/// An attempt that takes longer is said to have failed, though it may still succeed.
const HOPELESS: Duration = Duration::from_secs(10);
/// Attempts at a time: those of processes that make them wait keep their places.
const ATTEMPTS_MAX: usize = 256;
/// An attempt reads texts of /proc, and writes a stack of two pages.
const STACK_BYTES: usize = 256 << 10;

/// What is known of one process.
struct Known {
    identity: Identity,
    since: Instant,
    state: State,
}

enum State {
    /// It could not be stopped so far.
    Waiting,
    /// A thread is at it, since then.
    Trying(JoinHandle<Result<(), Failure>>, Instant),
    /// The same, for so long that it has been given up.
    Lost(JoinHandle<Result<(), Failure>>),
    /// The agent is there, and will say hello.
    Brought,
    /// It cannot be managed.
    Refused,
}

impl State {
    fn is_brought(&self) -> bool {
        matches!(self, State::Brought)
    }

    fn is_pending(&self) -> bool {
        matches!(self, State::Trying(..) | State::Lost(_))
    }
}

/// Looks for such processes, and brings the agent.
pub struct Attacher {
    image: Arc<Image>,
    path: String,
    socket: String,
    known: HashMap<i32, Known>,
    members: Vec<i32>,
    next: Instant,
    grown_bytes: u64,
    has_noted_full: bool,
}

impl Attacher {
    /// For the tree whose processes find their supervisor at `socket` and the agent at `path`, with
    /// so many bytes to share.
    pub fn new(image: Image, path: String, socket: &str, budget_bytes: u64) -> Self {
        Attacher {
            image: Arc::new(image),
            path,
            socket: socket.to_owned(),
            known: HashMap::new(),
            members: Vec::new(),
            next: Instant::now(),
            grown_bytes: GROWN_BYTES.min(budget_bytes / 8).max(4 << 20),
            has_noted_full: false,
        }
    }

    /// When the next look is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// The processes of the tree at the last look.
    pub fn members(&self) -> &[i32] {
        &self.members
    }

    /// Looks at the tree if it is time to. `managed` are processes that have an agent. Returns
    /// those that cannot be managed and why, each once.
    pub fn look(&mut self, except: Option<i32>, managed: &[i32]) -> Vec<String> {
        let start = Instant::now();
        if start < self.next {
            return Vec::new();
        }
        self.members = descendants(except);
        let mut notes = self.take_results();
        let alive = &self.members;
        self.known.retain(|pid, known| {
            // With the next program of the process comes another look.
            let is_settled =
                known.state.is_brought() && managed.contains(pid) && known.since.elapsed() > HELLO;
            known.state.is_pending() || (alive.contains(pid) && !is_settled)
        });
        for pid in self.members.clone() {
            let has_grown = || process::anonymous_bytes(pid).is_some_and(|bytes| bytes >= self.grown_bytes);
            // One that gives up rights is between two connections.
            let is_rejoining = || !self.known.contains_key(&pid) && process::has_agent(pid);
            if !managed.contains(&pid) && has_grown() && !is_rejoining() {
                notes.extend(self.consider(pid));
            }
        }
        self.next = Instant::now() + (start.elapsed() * LOOK_SHARE).clamp(LOOK, LOOK_MAX);
        notes
    }

    /// The agent of a process has said that it cannot work there.
    pub fn note_refusal(&mut self, pid: i32) {
        if let Some(known) = self.known.get_mut(&pid).filter(|known| known.state.is_brought()) {
            known.state = State::Refused;
        }
    }

    /// Takes what attempts have come to; returns what is to be said.
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
                        Err(Failure::Gone | Failure::NotOurs) => continue,
                        Err(Failure::Anothers) => (State::Refused, None),
                        Err(Failure::NotYet) if known.since.elapsed() < BUSY => (State::Waiting, None),
                        Err(Failure::NotYet) => (State::Refused, Some("it could not be stopped".to_owned())),
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

    /// Has the agent brought into a process that has none, if that is possible; else says why not.
    fn consider(&mut self, pid: i32) -> Option<String> {
        let identity = Identity::of(pid)?;
        let now = Instant::now();
        let since = match self.known.get(&pid) {
            // The program that it runs by now.
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
        let order = Order { image, path, socket, pid, identity };
        let attempt =
            Builder::new().name("uzswap-attach".to_owned()).stack_size(STACK_BYTES).spawn(move || {
                // SAFETY: changes an attribute of this thread: it polls for stops that come within
                // microseconds.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
                injection::bring(&order)
            });
        let state = attempt.map_or(State::Waiting, |thread| State::Trying(thread, now));
        self.known.insert(pid, Known { identity, since, state });
        None
    }
}

/// What is said of a process that is left alone; nothing of one that has ended.
fn note(pid: i32, why: &str) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{}: {why}", name.trim_end()))
}
