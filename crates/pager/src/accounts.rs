//! Where a pager reports to and learns its budget from.

pub use ledger::Counter;

/// The ledger as a pager sees it: a budget shared with others, and places for figures.
/// Implementations are plain atomics on shared memory: every method may be called on the fault
/// path.
pub trait Accounts: Sync {
    /// Bytes that all processes together may use.
    fn budget(&self) -> u64;
    /// Bytes that all processes together use, as last published.
    fn total(&self) -> u64;
    /// Publishes this process's use: anonymous resident bytes, and what of it is pool and staging.
    fn publish(&self, resident: u64, pool: u64, staged: u64, stored_pages: u64);
    /// Adds to a counter.
    fn add(&self, counter: Counter, by: u64);
    /// Notes one fault's latency.
    fn fault(&self, ns: u64);
    /// Notes the latency of a fault that was served by reading from the swap file.
    fn disk_fault(&self, _ns: u64) {}
    /// Where one range is paged of a process that has other memory, too: what of it is the range's
    /// and the pager's was counted just now. What [`Accounts::publish`] says in between is a
    /// difference, and none where others gave memory back.
    fn counted(&self, _resident: u64) {}
    /// Processes that share the budget and have a pager each, this one included.
    fn pagers(&self) -> usize {
        1
    }
    /// Publishes what this process has in the swap file: pages, and the bytes of their objects.
    fn publish_disk(&self, _pages: u64, _bytes: u64) {}
    /// When references are recorded: a thread needed a page. May wait.
    fn reference(&self, page: u64) {
        let _ = page;
    }
    /// The same: `[start, end)` was given back by the program.
    fn forgotten(&self, start: usize, end: usize) {
        let _ = (start, end);
    }
    /// Tells the user something. Must not allocate.
    fn say(&self, text: &str);
    /// Tells the user why the process is about to be ended. Must not allocate.
    fn broken(&self, text: &str) {
        self.say(text);
    }
}

/// Nothing is short, for tests.
#[cfg(test)]
pub(crate) struct Plenty;

#[cfg(test)]
impl Accounts for Plenty {
    fn budget(&self) -> u64 {
        1 << 40
    }
    fn total(&self) -> u64 {
        0
    }
    fn publish(&self, _: u64, _: u64, _: u64, _: u64) {}
    fn add(&self, _: Counter, _: u64) {}
    fn fault(&self, _: u64) {}
    fn say(&self, text: &str) {
        eprintln!("{text}");
    }
}
