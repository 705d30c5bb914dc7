//! Where pages go when the pool must shrink.

use std::collections::BTreeMap;

use acomp::Page;

use crate::config::Group;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{lock, Mutex};

/// A page could not be written back.
#[derive(Debug, thiserror::Error)]
pub enum WritebackError {
    /// The medium failed.
    #[error("writeback failed")]
    Io(#[from] std::io::Error),
    /// There is no room.
    #[error("no room for writeback")]
    Full,
}

/// The owner of the pages' next home: a swap file, a slower store.
///
/// For up to 16 neighbouring pages at a time, page `i` of the mask being key `key + i`, the store
/// calls [`claim`](Writeback::claim), then, with no lock held, [`write`](Writeback::write), and at
/// last [`finish`](Writeback::finish) with the group's lock held. If a page is loaded, overwritten
/// or invalidated in between, it is not in `finish`'s mask of written ones, and `write`'s copy of
/// it is stale. So `finish` is the moment at which a page's home changes: a thread that finds a
/// page missing in the store after a call that began when it was there finds it written.
///
/// Implementations must not call the store.
pub trait Writeback: Send + Sync {
    /// Whether pages of the group can be written back at all, now. Decides if incompressible pages
    /// are kept raw.
    fn enabled(&self, group: Group) -> bool {
        let _ = group;
        true
    }

    /// Which of the pages may be written now. Pages that their owner has in its hands are left out:
    /// they are warm.
    fn claim(&self, group: Group, key: u64, mask: u16) -> u16 {
        let _ = (group, key);
        mask
    }

    /// Writes the pages of the mask, in order.
    ///
    /// # Errors
    /// When any page was not written; none of them counts as written then, and
    /// [`finish`](Writeback::finish) is called with no page written.
    fn write(&self, group: Group, key: u64, mask: u16, pages: &[&Page]) -> Result<(), WritebackError>;

    /// The end for the pages of `claimed`: those of `written` left the store, their only copy is
    /// the one written; the others stayed or changed. Called with locks held: must be short and
    /// must not wait.
    fn finish(&self, group: Group, key: u64, claimed: u16, written: u16) {
        let _ = (group, key, claimed, written);
    }
}

/// Pages written back to a table in memory: for tests, and to see what writeback does to a
/// workload.
#[derive(Default)]
pub struct MemoryWriteback {
    pages: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    /// Written, and not yet finished.
    pending: BTreeMap<(u16, u64), Box<Page>>,
    /// At home here.
    home: BTreeMap<(u16, u64), Box<Page>>,
}

impl MemoryWriteback {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a page back, if it is at home here.
    pub fn take(&self, group: Group, key: u64) -> Option<Box<Page>> {
        lock(&self.pages).home.remove(&(group.0, key))
    }

    /// Pages at home here.
    pub fn len(&self) -> usize {
        lock(&self.pages).home.len()
    }

    /// Whether no page is at home here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Writeback for MemoryWriteback {
    fn write(&self, group: Group, key: u64, mask: u16, pages: &[&Page]) -> Result<(), WritebackError> {
        let mut written = lock(&self.pages);
        for (slot, page) in crate::group::slots(mask).zip(pages) {
            written.pending.insert((group.0, key + slot as u64), Box::new(**page));
        }
        Ok(())
    }

    fn finish(&self, group: Group, key: u64, claimed: u16, done: u16) {
        let mut written = lock(&self.pages);
        for slot in crate::group::slots(claimed) {
            let at = (group.0, key + slot as u64);
            let page = written.pending.remove(&at);
            if done >> slot & 1 == 1 {
                written.home.insert(at, page.expect("written before it is finished"));
            }
        }
    }
}

/// Writeback that fails with EIO, after some writes that succeed and vanish: for tests.
pub struct FailingWriteback {
    successes: AtomicU64,
}

impl FailingWriteback {
    /// The first `successes` writes succeed.
    pub fn after(successes: u64) -> Self {
        FailingWriteback { successes: AtomicU64::new(successes) }
    }
}

impl Writeback for FailingWriteback {
    fn write(&self, _group: Group, _key: u64, _mask: u16, _pages: &[&Page]) -> Result<(), WritebackError> {
        let left =
            self.successes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match left {
            Ok(_) => Ok(()),
            Err(_) => Err(std::io::Error::from_raw_os_error(5).into()),
        }
    }
}
