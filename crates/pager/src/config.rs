//! How a pager works, why there is none, and texts that need no heap.

use std::ops::Range;

use sys::userfaultfd::OpenError;

/// Most handler threads.
pub const HANDLERS_MAX: usize = 64;

/// How a pager works.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pages that may be staged at once.
    pub staging_pages: usize,
    /// Handler threads that will run; at most [`HANDLERS_MAX`].
    pub handlers: usize,
    /// Ranges never to be touched: the arena, the pager's own code and data.
    pub own: Vec<Range<usize>>,
    /// The only range to be paged; `None` for the whole address space.
    pub only: Option<Range<usize>>,
    /// What the kernel writes for threads that are ending, beside words in their control blocks:
    /// the pages stay in memory.
    pub kept: NamedPages,
    /// Page memory that may be executed, and leave other memory where it is: see
    /// [`crate::executable`].
    pub executable: bool,
    /// Have every reference be seen: nothing is brought in ahead, and the budget is for the
    /// program's pages alone, without the pool and staging. For recorders.
    pub records: bool,
    /// Do without access tracking although the kernel has it (Linux 7.3).
    pub without_tracking: bool,
}

/// Returns how much may be on its way in or out at once, in a program with this budget.
pub fn staging_bytes(budget_bytes: u64) -> usize {
    (budget_bytes / 100).clamp(4 << 20, 256 << 20) as usize
}

/// A pager could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No userfaultfd.
    #[error(transparent)]
    Userfaultfd(#[from] OpenError),
    /// No memory, or /proc is not there.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// Text of limited length that needs no heap.
pub struct FixedText {
    bytes: [u8; 400],
    len: usize,
}

impl FixedText {
    /// Formats `what`, cut at the end if too long.
    pub fn new(what: std::fmt::Arguments<'_>) -> Self {
        let mut text = FixedText { bytes: [0; 400], len: 0 };
        let _ = std::fmt::Write::write_fmt(&mut text, what);
        text
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or("(message cut inside a character)")
    }
}

impl std::fmt::Write for FixedText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = (self.bytes.len() - self.len).min(text.len());
        self.bytes[self.len..self.len + room].copy_from_slice(&text.as_bytes()[..room]);
        self.len += room;
        Ok(())
    }
}

/// Addresses whose pages stay in memory.
#[derive(Debug, Clone, Copy)]
pub struct NamedPages {
    /// A number that changes when there is another address, after `each` names it.
    pub count: fn() -> usize,
    /// Calls back with each address.
    pub each: fn(&mut dyn FnMut(usize)),
}

impl NamedPages {
    /// No addresses.
    pub const NONE: NamedPages = NamedPages { count: || 0, each: |_| {} };
}
