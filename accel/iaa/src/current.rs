//! The current table, read without a lock while other threads replace it.
//!
//! A context stores in its *anchor* the table it reads. A replaced table is freed when no anchor
//! names it; with it goes its hold on queues. So using a queue costs one store and one load a
//! request, and neither a lock nor a counter that processors share.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::table::Table;

/// The table that a context reads.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Anchor(AtomicPtr<Table>);

/// The current table and earlier ones still being read.
pub(crate) struct Current {
    table: AtomicPtr<Table>,
    /// For threads that replace tables or make contexts.
    behind: Mutex<Behind>,
}

struct Behind {
    anchors: Vec<Arc<Anchor>>,
    retired: Vec<Retired>,
}

/// A table from `Box::into_raw`. Not a `Box`, which would claim unique access.
struct Retired(*mut Table);

// SAFETY: tables are Send; this is one.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` and taken out of `Current::table`, once. Dropped when no
        // anchor names it, or with `Current`, which pins borrow.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A reference to the current table.
pub(crate) struct Pinned<'a> {
    table: &'a Table,
    anchor: &'a Anchor,
}

impl std::ops::Deref for Pinned<'_> {
    type Target = Table;

    fn deref(&self) -> &Table {
        self.table
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.anchor.0.store(ptr::null_mut(), Ordering::Release);
    }
}

impl Current {
    pub fn new(table: Table) -> Self {
        let behind = Behind { anchors: Vec::new(), retired: Vec::new() };
        Current { table: AtomicPtr::new(Box::into_raw(Box::new(table))), behind: Mutex::new(behind) }
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new anchor. It is forgotten once its context has dropped it.
    pub fn anchor(&self) -> Arc<Anchor> {
        let anchor = Arc::new(Anchor::default());
        let mut behind = self.behind();
        behind.anchors.retain(|anchor| Arc::strong_count(anchor) > 1);
        behind.anchors.push(Arc::clone(&anchor));
        anchor
    }

    /// Holds on to the current table. `anchor` is from [`Current::anchor`]; its context's `&mut`
    /// ensures that one thread uses it at a time.
    #[inline]
    pub fn pin<'a>(&'a self, anchor: &'a Anchor) -> Pinned<'a> {
        let mut table = self.table.load(Ordering::Acquire);
        loop {
            // Sequentially consistent, as are the load below and the other side's accesses: either
            // this thread sees the new table, or the thread that replaced the table sees this
            // anchor.
            anchor.0.store(table, Ordering::SeqCst);
            let now = self.table.load(Ordering::SeqCst);
            if now == table {
                break;
            }
            table = now;
        }
        // SAFETY: the table was current after the anchor named it, so it is not freed before the
        // pin's drop clears the anchor. It is never written.
        Pinned { table: unsafe { &*table }, anchor }
    }

    pub fn replace(&self, table: Table) {
        let mut behind = self.behind();
        let before = self.table.swap(Box::into_raw(Box::new(table)), Ordering::SeqCst);
        behind.retired.push(Retired(before));
        Self::free_unused(&mut behind);
    }

    /// Frees retired tables that no thread reads. Returns the number left.
    pub fn reap(&self) -> usize {
        let mut behind = self.behind();
        Self::free_unused(&mut behind);
        behind.retired.len()
    }

    fn free_unused(behind: &mut Behind) {
        let anchors = &behind.anchors;
        behind
            .retired
            .retain(|table| anchors.iter().any(|anchor| ptr::eq(anchor.0.load(Ordering::SeqCst), table.0)));
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        drop(Retired(*self.table.get_mut()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_table_is_kept_while_it_is_looked_at() {
        let current = Current::new(Table::empty());
        let (first, second) = (current.anchor(), current.anchor());
        let pinned = current.pin(&first);
        current.replace(Table::empty());
        assert_eq!(current.reap(), 1);
        assert!(!ptr::eq(&*pinned, &*current.pin(&second)));
        current.replace(Table::empty());
        assert_eq!(current.reap(), 1);
        drop(pinned);
        assert_eq!(current.reap(), 0);
    }

    #[test]
    fn tables_are_replaced_under_readers() {
        let current = Current::new(Table::empty());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let anchor = current.anchor();
                    while !done.load(Ordering::Relaxed) {
                        // Reads freed memory if the scheme is wrong; sanitizers and allocators
                        // notice.
                        assert!(current.pin(&anchor).choose(0, true, 1).0.is_empty());
                    }
                });
            }
            for _ in 0..20_000 {
                current.replace(Table::empty());
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(current.reap(), 0);
    }
}
