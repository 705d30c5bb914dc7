//! Where a pager reports to and learns its budget from.

/// What is counted. The names of the report follow the kernel's where the meaning matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Faults served.
    Faults,
    /// Nanoseconds between reading faults and having served them.
    FaultNs,
    /// Pages moved back from staging, never compressed: second chances.
    Refaults,
    /// Pages loaded from the pool.
    PagesIn,
    /// Pages stored in the pool.
    PagesOut,
    /// Calls that stored pages: folios, or what was evicted of one, all or nothing.
    Batches,
    /// Pages stored by calls that stored one page, and see [`Count::STORED`].
    Stored4k,
    /// By calls of 2 and 3 pages.
    Stored8k,
    /// By calls of 4 to 7 pages.
    Stored16k,
    /// By calls of 8 to 15 pages.
    Stored32k,
    /// By calls of 16 pages, the most there are.
    Stored64k,
    /// Pages refused because they did not shrink.
    Poor,
    /// Pages refused for other reasons.
    Refused,
    /// Pages given on first touch.
    ZeroFilled,
    /// Times the budget was exceeded with nothing left to evict.
    OverBudget,
    /// Pages brought in because paging had to end.
    BroughtIn,
    /// Forks prepared for.
    Forks,
    /// Stored pages whose objects were made denser.
    Promoted,
    /// Pages written to the swap file.
    PagesWritten,
    /// Faults served by reading from the swap file.
    DiskFaults,
    /// Pages that came in with them.
    DiskPagesIn,
    /// Nanoseconds that reading from the swap file took.
    DiskReadNs,
    /// Requests to read from it.
    DiskReads,
    /// Bytes written to it.
    SwapBytesWritten,
    /// Bytes read from it.
    SwapBytesRead,
    /// Bytes of objects written to it for the first time.
    SwapObjectBytes,
    /// Nanoseconds that writes took together.
    SwapWriteNs,
    /// Bytes written by cleaning.
    SwapBytesCleaned,
    /// Segments cleaned.
    SwapSegmentsCleaned,
    /// Nanoseconds spent cleaning.
    SwapCleanNs,
    /// Writes that found no room.
    SwapNoSpace,
    /// Writes that failed and were given up.
    SwapWritesFailed,
    /// Reads that failed, or found something else than was written.
    SwapReadsFailed,
    /// Nanoseconds that faults waited for pages to be written.
    SwapWaitNs,
    /// Pages that came back because they were needed, from staging or the pool.
    Returned,
    /// Sum of their distances: pages that came in between a page's going and its return.
    ReturnDistance,
    /// Present pages that were looked at to find some that can go.
    LookedAt,
    /// Of these, were left where they are.
    Spared,
    /// Pages that went only to learn whether they return.
    Tried,
    /// Pages that came in ahead of any use.
    ReadAhead,
    /// Of these, pages of windows behind which the thread did not go on.
    ReadAheadWasted,
}

impl Count {
    /// Pages stored, by the binary logarithm of the pages that the call stored.
    pub const STORED: [Count; 5] =
        [Count::Stored4k, Count::Stored8k, Count::Stored16k, Count::Stored32k, Count::Stored64k];
}

/// The ledger as a pager sees it: a budget shared with others, and places for figures. Implementations are plain
/// atomics on shared memory: every method may be called on the fault path.
pub trait Accounts: Sync {
    /// Bytes that all processes together may use.
    fn budget(&self) -> u64;
    /// Bytes that all processes together use, as last published.
    fn total(&self) -> u64;
    /// Publishes this process's use: anonymous resident bytes, and what of it is pool and staging.
    fn publish(&self, resident: u64, pool: u64, staged: u64, stored_pages: u64);
    /// Adds to a counter.
    fn add(&self, count: Count, by: u64);
    /// Notes one fault's latency.
    fn fault(&self, ns: u64);
    /// Notes the latency of a fault that was served by reading from the swap file.
    fn disk_fault(&self, _ns: u64) {}
    /// Where one range is paged of a process that has other memory, too: what of it is the range's and the pager's was counted
    /// just now. What [`Accounts::publish`] says in between is a difference, and none where others gave memory back.
    fn counted(&self, _resident: u64) {}
    /// Processes that share the budget and have a pager each, this one included.
    fn pagers(&self) -> usize {
        1
    }
    /// Publishes what this process has in the swap file: pages, and the bytes of their objects.
    fn publish_disk(&self, _pages: u64, _bytes: u64) {}
    /// When references are recorded: a thread needed a page. May wait.
    fn reference(&self, page: u64, write: bool, thread: u32, time_ns: u64) {
        let _ = (page, write, thread, time_ns);
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
    fn add(&self, _: Count, _: u64) {}
    fn fault(&self, _: u64) {}
    fn say(&self, text: &str) {
        eprintln!("{text}");
    }
}
