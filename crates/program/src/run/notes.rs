//! What happened in a tree, in words: lines for the terminal and for the report.

use std::io::Write;
use std::time::{Duration, Instant};

use super::aside::Aside;
use crate::plain::plain;

/// Most lines of each kind in the report.
const LINES_MAX: usize = 1000;
/// Lines that processes may say at once, and then one for each pause.
const SAID_AT_ONCE: u32 = 100;
const SAID_PAUSE: Duration = Duration::from_millis(200);

/// How long a terminal is waited for at the end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Writes lines: a process of the tree can stop the terminal.
static LINES: Aside = Aside::new(1);

/// Lines, bounded in number.
pub struct Notes {
    unmanaged: Vec<String>,
    failures: Vec<String>,
    /// Processes that a failure of uzswap ended.
    broken: Vec<u32>,
    /// When there is no terminal any more.
    said_after_end: Option<Vec<String>>,
    /// Lines that processes may still say, and when there is one more.
    may_say: u32,
    may_say_at: Instant,
}

impl Notes {
    pub fn new() -> Self {
        Notes {
            unmanaged: Vec::new(),
            failures: Vec::new(),
            broken: Vec::new(),
            said_after_end: None,
            may_say: SAID_AT_ONCE,
            may_say_at: Instant::now(),
        }
    }

    /// Notes a program that runs without uzswap.
    pub fn note_unmanaged(&mut self, what: &str) {
        let what = plain(what);
        if self.unmanaged.len() < LINES_MAX && !self.unmanaged.contains(&what) {
            self.unmanaged.push(what);
        }
    }

    /// Notes that there are no descriptors for some process.
    pub fn note_shortage(&mut self) {
        self.note_unmanaged("some processes: uzswap is out of descriptors: raise `ulimit -n`");
    }

    /// Says and notes what broke in uzswap itself.
    pub fn note_failure(&mut self, failure: String) {
        self.tell(&failure);
        if self.failures.len() < LINES_MAX {
            self.failures.push(failure);
        }
    }

    /// Notes what broke in the uzswap of one process, and ended it.
    pub fn note_broken(&mut self, pid: u32, text: &[u8]) {
        if self.failures.len() < LINES_MAX {
            self.failures.push(format!("process {pid}: {}", plain(&String::from_utf8_lossy(text))));
            self.broken.push(pid);
        }
    }

    /// Shows a process's line, unless there were too many.
    pub fn say(&mut self, pid: i32, text: &[u8]) {
        let refill = self.may_say_at.elapsed().as_millis() / SAID_PAUSE.as_millis();
        if refill > 0 {
            self.may_say = SAID_AT_ONCE.min(self.may_say.saturating_add(refill.min(1000) as u32));
            self.may_say_at = Instant::now();
        }
        if self.may_say > 0 {
            self.may_say -= 1;
            self.tell(&format!("process {pid}: {}", plain(&String::from_utf8_lossy(text))));
        }
    }

    /// Waits until what was said is on the terminal, but not for ever.
    pub fn settle(&self) {
        LINES.settle(PATIENCE);
    }

    /// Keeps lines for the report from now on: there is no terminal any more.
    pub fn leave_terminal(&mut self) {
        self.said_after_end = Some(Vec::new());
    }

    /// Says a line on the terminal; after the program's end, in the report.
    fn tell(&mut self, line: &str) {
        match &mut self.said_after_end {
            None if LINES.waiting() < LINES_MAX => {
                let line = format!("uzswap: {line}\n");
                LINES.run(move || {
                    let _ = std::io::stderr().write_all(line.as_bytes());
                });
            }
            None => {}
            Some(said) if said.len() < LINES_MAX => said.push(line.to_owned()),
            Some(_) => {}
        }
    }

    /// Programs that ran without uzswap.
    pub fn unmanaged(&self) -> &[String] {
        &self.unmanaged
    }

    /// What broke in uzswap itself, and ended a process.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Whether a failure of uzswap ended that process.
    pub fn has_broken(&self, pid: u32) -> bool {
        self.broken.contains(&pid)
    }

    /// What was to be said after the program's end.
    pub fn said_after_end(&self) -> &[String] {
        self.said_after_end.as_deref().unwrap_or_default()
    }
}
