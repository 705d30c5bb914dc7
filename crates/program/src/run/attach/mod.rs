//! Bringing the agent into processes that no dynamic loader brings it to: static programs, ones whose loader was not
//! asked, ones that were started after their user, root or namespaces had changed.
//!
//! A process costs nothing before it has grown. Then one of its threads is stopped for some system calls that make one
//! more thread; that one maps the agent and runs it, and nothing else of the process changes. It takes less than 2 ms, most of which
//! the program runs on.

mod image;
mod injection;
mod process;
mod tree;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::image::Image;
use self::injection::Failure;
use self::process::Identity;
pub use self::process::{anonymous_bytes, is_above_us};
pub use self::tree::{descendants, has_children};

/// Processes up to this size are let alone: a pager would take more than it could save.
const GROWN_BYTES: u64 = 8 << 20;
/// Between looks, at least.
const LOOK: Duration = Duration::from_millis(20);
/// Looking takes at most one part in so many of the supervisor's time.
const LOOK_SHARE: u32 = 30;
/// But no program is to be done before it is looked at, on a machine so busy that a look is interrupted for long.
const LOOK_MAX: Duration = Duration::from_millis(250);
/// An agent that was brought says hello within this time, on a busy machine too.
const HELLO: Duration = Duration::from_secs(20);
/// A process that cannot be stopped is tried again for so long.
const BUSY: Duration = Duration::from_secs(60);

/// What is known of one process.
struct Known {
    identity: Identity,
    since: Instant,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    /// It could not be stopped so far.
    Waiting,
    /// A thread of it is being traced, and did not stop yet. Not let go of before it does: it would never go on.
    Stopping,
    /// The agent is there, and will say hello.
    Brought,
    /// It cannot be managed.
    Refused,
}

/// Looks for such processes, and brings the agent.
pub struct Attacher {
    image: Image,
    socket: String,
    known: HashMap<i32, Known>,
    next: Instant,
    grown_bytes: u64,
}

impl Attacher {
    /// For the tree whose processes find their supervisor at `socket`, with so many bytes to share.
    ///
    /// # Errors
    /// When the agent cannot be read, or there is no memory file for it.
    pub fn new(socket: &str, budget_bytes: u64) -> Result<Self> {
        Ok(Attacher {
            image: Image::new(crate::embedded::AGENT).context("cannot prepare the agent")?,
            socket: socket.to_owned(),
            known: HashMap::new(),
            next: Instant::now(),
            grown_bytes: GROWN_BYTES.min(budget_bytes / 8).max(4 << 20),
        })
    }

    /// Where the agent is for processes that bring it themselves.
    pub fn path(&self) -> String {
        self.image.path()
    }

    /// When the next look is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Looks at the tree if it is time to. `managed` are processes that have an agent. Answers those that cannot be
    /// managed and why, each once.
    pub fn look(&mut self, except: Option<i32>, managed: &[i32]) -> Vec<String> {
        let start = Instant::now();
        if start < self.next {
            return Vec::new();
        }
        let alive = descendants(except);
        self.known.retain(|pid, known| {
            let is_there = alive.contains(pid);
            // With the next program of the process comes another look.
            is_there
                && !(known.state == State::Brought && managed.contains(pid) && known.since.elapsed() > HELLO)
        });
        let mut notes = Vec::new();
        for pid in alive {
            let is_stopping = self.known.get(&pid).is_some_and(|known| known.state == State::Stopping);
            let has_grown = || process::anonymous_bytes(pid).is_some_and(|bytes| bytes >= self.grown_bytes);
            // One that gives up rights is between two connections.
            let is_rejoining = || !self.known.contains_key(&pid) && process::has_agent(pid);
            if is_stopping || (!managed.contains(&pid) && has_grown() && !is_rejoining()) {
                notes.extend(self.consider(pid));
            }
        }
        self.next = Instant::now() + (start.elapsed() * LOOK_SHARE).clamp(LOOK, LOOK_MAX);
        notes
    }

    /// The agent of a process has said that it cannot work there.
    pub fn note_refusal(&mut self, pid: i32) {
        if let Some(known) = self.known.get_mut(&pid).filter(|known| known.state == State::Brought) {
            known.state = State::Refused;
        }
    }

    /// Brings the agent into a process that has none, if that is possible; else says why not.
    fn consider(&mut self, pid: i32) -> Option<String> {
        let identity = Identity::of(pid)?;
        let now = Instant::now();
        let mut waiting = None;
        let since = match self.known.get(&pid) {
            // Whatever it runs by now.
            Some(known) if known.state == State::Stopping => {
                waiting = process::traced_thread(pid);
                known.since
            }
            Some(known) if known.identity == identity => match known.state {
                State::Refused => return None,
                State::Brought if known.since.elapsed() < HELLO => return None,
                State::Brought => {
                    self.known.insert(pid, Known { identity, since: now, state: State::Refused });
                    return note(pid, "its agent was not heard of");
                }
                State::Waiting | State::Stopping => known.since,
            },
            _ => now,
        };
        if waiting.is_none() && process::is_anothers(pid, &self.socket) {
            self.known.insert(pid, Known { identity, since, state: State::Refused });
            return None;
        }
        let result = injection::bring(&self.image, pid, &self.socket, waiting);
        let (state, why) = match result {
            Ok(()) => (State::Brought, None),
            Err(Failure::Stopping) => (State::Stopping, None),
            Err(Failure::NotYet) if since.elapsed() < BUSY => (State::Waiting, None),
            Err(Failure::NotYet) => (State::Refused, Some("it could not be stopped".to_owned())),
            Err(Failure::Gone | Failure::NotOurs) => {
                self.known.remove(&pid);
                return None;
            }
            Err(Failure::Refused(why)) => (State::Refused, Some(why)),
        };
        self.known
            .insert(pid, Known { identity, since: if state == State::Brought { now } else { since }, state });
        why.and_then(|why| note(pid, &why))
    }
}

/// What is said of a process that is left alone; nothing of one that has ended meanwhile.
fn note(pid: i32, why: &str) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{}: {why}", name.trim_end()))
}
