//! The processes that a supervisor serves: a program that it starts, or one that ran before.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::run::supervisor::front::Front;
use crate::run::tree::attach::{Left, Root};
use crate::run::tree::guardian::Guardian;
use crate::size::Size;
use crate::top::find::name_of;

pub enum Job {
    /// A program that this process has started.
    Started { child: i32, front: Front, guardian: Guardian },
    /// A process that ran before.
    Attached(Attached),
}

/// A process that ran before its supervisor, and outlives it.
pub struct Attached {
    pub pid: i32,
    process: Arc<OwnedFd>,
    /// Whether the user is told when it has a pager.
    is_told: bool,
    /// Its memory fits the budget, or did: from then on the budget must hold, until it is left.
    pub has_settled: bool,
    /// Its pages come in, and its pager ends.
    pub is_leaving: bool,
    /// All agents that have ended.
    pub ended: Vec<Left>,
}

impl Attached {
    pub fn new(pid: i32, process: Arc<OwnedFd>, is_told: bool) -> Self {
        Attached { pid, process, is_told, has_settled: false, is_leaving: false, ended: Vec::new() }
    }

    /// Tells the user that a process has a pager, if it is the one that was meant.
    pub fn note_managed(&mut self, pid: i32, budget_bytes: u64) {
        if pid == self.pid && self.is_told {
            let (name, budget) = (name_of(pid as u32), Size::from(budget_bytes));
            eprintln!("uzswap: process {pid} ({name}) is paged within {budget}; Ctrl-C leaves it");
        }
    }

    /// Returns whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let mut polled = libc::pollfd { fd: self.process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut polled, 1, 0) == 1 }
    }
}

impl Job {
    pub fn root(&self) -> Root {
        match self {
            Job::Started { guardian, .. } => Root::own(Some(guardian.pid)),
            Job::Attached(attached) => Root::of(attached.pid, attached.process.clone()),
        }
    }

    /// The process whose end ends the run.
    pub fn program(&self) -> i32 {
        match self {
            Job::Started { child, .. } => *child,
            Job::Attached(attached) => attached.pid,
        }
    }
}
