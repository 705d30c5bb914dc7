//! Configuration of a pager.

use std::ops::Range;

use address_space::Settings;

/// Most handler threads.
pub const HANDLERS_MAX: usize = 64;

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

impl Config {
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            staging_pages: self.staging_pages,
            executable: self.executable,
            without_tracking: self.without_tracking,
        }
    }
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
