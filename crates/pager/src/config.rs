//! Configuration of a pager, errors of its start, and texts without heap memory.

use std::ops::Range;

use sys::userfaultfd::OpenError;
use sys::PAGE_SIZE;

use crate::units::{BLOCK_BYTES, BLOCK_PAGES};

/// Most handler threads.
pub const HANDLERS_MAX: usize = 64;
/// Four blocks.
const STAGING_PAGES_MIN: usize = 4 * BLOCK_PAGES;

/// Configuration of a pager.
#[derive(Debug, Clone)]
pub struct Config {
    /// Most pages that may be staged at once.
    pub staging_pages: usize,
    /// Handler threads that will run, at most [`HANDLERS_MAX`].
    pub handlers: usize,
    /// Ranges that are never touched: the arena, the pager's own code and data.
    pub own: Vec<Range<usize>>,
    /// The only range to page; `None` for the whole address space.
    pub only: Option<Range<usize>>,
    /// Addresses that the kernel writes for ending threads. Their pages stay in memory.
    pub kept: NamedPages,
    /// Page executable memory, and no other: see [`crate::executable`].
    pub executable: bool,
    /// Make every reference fault: no readahead, and the budget is for the program's pages alone,
    /// without the pool and staging. For recorders.
    pub records: bool,
    /// Do not use access tracking (Linux 7.3).
    pub without_tracking: bool,
}

#[cfg(test)]
impl Config {
    pub(crate) fn for_tests(staging_pages: usize) -> Self {
        Config {
            staging_pages,
            handlers: 2,
            own: Vec::new(),
            only: None,
            kept: NamedPages::NONE,
            records: false,
            without_tracking: false,
            executable: false,
        }
    }

    pub(crate) fn store_for_tests() -> zswap::Zswap {
        let mut registry = acomp::Registry::new();
        codecs::register_all(&mut registry);
        let config = zswap::Config { max_groups: crate::POOL_GROUPS, verify: true, ..Default::default() };
        zswap::Zswap::new(config, registry.find("lz4").unwrap()).unwrap()
    }
}

/// Returns the most pages that may be staged at once in a program with this budget: fewer if their
/// address space would take more than half of the arena's rest.
pub fn staging_pages(budget_bytes: u64) -> usize {
    let wanted = (budget_bytes / 100).clamp(4 << 20, 256 << 20) as usize / PAGE_SIZE;
    // Each page may have a block to itself, and extents have an eighth of that on top.
    let page_bytes = BLOCK_BYTES + BLOCK_BYTES / 8;
    let fitting = sys::arena::left_bytes().map_or(wanted, |left| left / 2 / page_bytes);
    wanted.min(fitting.max(STAGING_PAGES_MIN))
}

/// A pager could not be created.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    /// No userfaultfd.
    Userfaultfd(#[from] OpenError),
    /// No memory, or no /proc.
    #[error("{what}: {source}")]
    System {
        /// The failed action.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// Text of limited length without heap memory.
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
    /// A counter that increases after `each` names another address.
    pub count: fn() -> usize,
    /// Calls the function with each address.
    pub each: fn(&mut dyn FnMut(usize)),
}

impl NamedPages {
    /// No addresses.
    pub const NONE: NamedPages = NamedPages { count: || 0, each: |_| {} };
}
