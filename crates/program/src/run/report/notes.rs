//! Messages about a tree, for the terminal and for the report.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::plain::plain;
use crate::run::peers::blocking::BlockingPool;

const LINES_MAX: usize = 1000;
/// Burst of lines that processes may print, and the interval at which one more is permitted.
const SAID_AT_ONCE: u32 = 100;
const SAID_PAUSE: Duration = Duration::from_millis(200);

/// How long the end waits for the terminal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Writes the lines: a process of the tree can stop the terminal.
static LINES: BlockingPool = BlockingPool::new(1);

pub struct Notes {
    /// Programs that ran without uzswap.
    pub unmanaged: Vec<String>,
    /// Failures of uzswap that ended a process.
    pub failures: Vec<String>,
    /// Processes that a failure of uzswap ended.
    broken: Vec<u32>,
    /// Set when the terminal is gone.
    said_after_end: Option<Vec<String>>,
    /// Lines that processes may still print, and the time of the next permission.
    may_say: u32,
    may_say_at: Instant,
    /// Whether the terminal's last line shows the progress.
    shows_progress: bool,
}

/// Returns to the line's start and erases it.
const ERASE: &str = "\r\x1b[K";

impl Notes {
    pub fn new() -> Self {
        Notes {
            unmanaged: Vec::new(),
            failures: Vec::new(),
            broken: Vec::new(),
            said_after_end: None,
            may_say: SAID_AT_ONCE,
            may_say_at: Instant::now(),
            shows_progress: false,
        }
    }

    /// Replaces the line of progress. It is left out while the terminal is stopped.
    pub fn show(&mut self, line: String) {
        if LINES.waiting() == 0 {
            self.shows_progress = true;
            LINES.run(move || write(&format!("{ERASE}{line}")));
        }
    }

    /// Erases the line of progress.
    pub fn hide(&mut self) {
        if std::mem::take(&mut self.shows_progress) {
            LINES.run(|| write(ERASE));
        }
    }

    pub fn note_unmanaged(&mut self, what: &str) {
        let what = plain(what);
        if self.unmanaged.len() < LINES_MAX && !self.unmanaged.contains(&what) {
            self.unmanaged.push(what);
        }
    }

    /// Notes that descriptors are missing for a process.
    pub fn note_shortage(&mut self) {
        self.note_unmanaged("some processes: uzswap is out of descriptors: raise `ulimit -n`");
    }

    pub fn note_failure(&mut self, failure: String) {
        self.tell(&failure);
        if self.failures.len() < LINES_MAX {
            self.failures.push(failure);
        }
    }

    /// Notes a failure of uzswap in one process, which it ended.
    pub fn note_broken(&mut self, pid: u32, text: &[u8]) {
        if self.failures.len() < LINES_MAX {
            self.failures.push(format!("process {pid}: {}", plain(&String::from_utf8_lossy(text))));
            self.broken.push(pid);
        }
    }

    /// Prints a process's line, within the limit.
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

    /// Waits until the terminal has all lines, for a bounded time.
    pub fn settle(&self) {
        LINES.settle(PATIENCE);
    }

    /// Keeps lines for the report from now on: the terminal is gone.
    pub fn leave_terminal(&mut self) {
        self.said_after_end = Some(Vec::new());
    }

    /// Prints a line on the terminal or, after the program's end, adds it to the report.
    fn tell(&mut self, line: &str) {
        self.hide();
        match &mut self.said_after_end {
            None if LINES.waiting() < LINES_MAX => {
                let line = format!("uzswap: {line}\n");
                LINES.run(move || write(&line));
            }
            None => {}
            Some(said) if said.len() < LINES_MAX => said.push(line.to_owned()),
            Some(_) => {}
        }
    }

    pub fn has_broken(&self, pid: u32) -> bool {
        self.broken.contains(&pid)
    }

    pub fn said_after_end(&self) -> &[String] {
        self.said_after_end.as_deref().unwrap_or_default()
    }
}

fn write(text: &str) {
    // The program's exit status does not depend on the terminal.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
