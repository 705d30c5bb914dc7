//! Where a pager reports its use and reads its budget.

use std::os::fd::OwnedFd;

pub use ledger::{Counter, Share};

use crate::units::PageNumber;

/// The ledger as a pager sees it: a shared budget and counters. Every method may be called on the
/// fault path; implementations are plain atomics on shared memory.
pub trait Accounts: Sync {
    /// Bytes that all processes together may use.
    fn budget(&self) -> u64;
    /// Bytes that all processes together use, as last published.
    fn total(&self) -> u64;
    /// The relatives' share in this process's memory, parts of which they have since a fork.
    fn share(&self) -> Share {
        Share::default()
    }
    /// Publishes this process's use: anonymous resident bytes, and its pool and staging.
    fn publish(&self, resident: u64, pool: u64, staged: u64, stored_pages: u64);
    /// Adds to a counter.
    fn add(&self, counter: Counter, by: u64);
    /// Records one fault's latency.
    fn fault(&self, ns: u64);
    /// Records the latency of a fault served from the swap file.
    fn disk_fault(&self, _ns: u64) {}
    /// If one range of a process with other memory is paged: the memory of the range and the pager
    /// has just been counted. Between counts, [`Accounts::publish`] gets a difference, which is
    /// zero after others returned memory.
    fn counted(&self, _resident: u64) {}
    /// Number of processes that share the budget and have a pager, including this one.
    fn pagers(&self) -> usize {
        1
    }
    /// Publishes how many of the stored pages are copies that it inherited from its parent.
    fn publish_inherited(&self, _pages: u64) {}
    /// Whether relatives can take files from each other ([`Accounts::show_segment`]).
    fn shares_segments(&self) -> bool {
        false
    }
    /// Publishes whether this process maps a segment. Returns the number of processes that do.
    fn note_segment(&self, _rank: u32, _maps: bool) -> u32 {
        1
    }
    /// Shows relatives a sealed memory file of pages in common.
    fn show_segment(&self, _file: OwnedFd) {}
    /// Takes the next such file of a relative. It is sealed.
    fn take_segment(&self) -> Option<OwnedFd> {
        None
    }
    /// Publishes this process's part of the swap file: pages, and the bytes of their objects.
    fn publish_disk(&self, _pages: u64, _bytes: u64) {}
    /// If references are recorded: a thread needed a page. May wait.
    fn reference(&self, _page: PageNumber) {}
    /// If references are recorded: the program discarded `[start, end)`.
    fn forgotten(&self, _start: usize, _end: usize) {}
    /// Sends the user a message. Must not allocate.
    fn say(&self, text: &str);
    /// Tells the user why the process will end. Must not allocate.
    fn broken(&self, text: &str) {
        self.say(text);
    }
}

/// Unlimited memory, for tests.
#[cfg(any(test, feature = "testing"))]
pub struct Plenty;

#[cfg(any(test, feature = "testing"))]
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
