//! Storing a folio: all of its pages or none.

use acomp::Page;

use crate::batch::{Keys, Request};
use crate::config::{Group, StoreError};
use crate::group::GroupCell;
use crate::sync::atomic::Ordering;
use crate::zswap::in_range;
use crate::{Forms, Zswap};

impl Zswap {
    /// Stores consecutive pages from `key`. Older pages under these keys are removed, whether the
    /// call succeeds or not.
    ///
    /// # Errors
    /// [`StoreError`]; then nothing is stored under any of the keys.
    pub fn store(&self, group: Group, key: u64, pages: &[&Page]) -> Result<(), StoreError> {
        self.store_admitted(group, key, pages, |cell| {
            let raw_allowed = self.can_write_back(cell);
            self.admit(group, cell).map(|()| raw_allowed)
        })
    }

    /// As [`store`](Zswap::store), for pages without another copy: incompressible ones are kept
    /// raw, and no limit refuses them.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`] and [`StoreError::OutOfRange`]; then nothing is stored under any of
    /// the keys.
    pub fn store_any(&self, group: Group, key: u64, pages: &[&Page]) -> Result<(), StoreError> {
        self.store_admitted(group, key, pages, |_| Ok(true))
    }

    /// Stores pages if `admit` allows it; it returns whether they may be kept raw.
    fn store_admitted(
        &self,
        group: Group,
        key: u64,
        pages: &[&Page],
        admit: impl FnOnce(&GroupCell) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        if !in_range(key, pages.len() as u64) {
            return Err(StoreError::OutOfRange);
        }
        let cell = self.make_group(group).ok_or(StoreError::OutOfRange)?;
        let stored =
            admit(cell).and_then(|raw_allowed| self.store_folio(group, cell, key, pages, raw_allowed));
        if stored.is_err() {
            self.erase(cell, key, pages.len() as u64);
        }
        stored
    }

    fn store_folio(
        &self,
        group: Group,
        cell: &GroupCell,
        key: u64,
        pages: &[&Page],
        raw_allowed: bool,
    ) -> Result<(), StoreError> {
        let (cpu, keys) = (sys::cpu::current(), Keys::From(key));
        let node = self.node_of(cpu);
        let request = Request { group, cell, cpu, node, raw_allowed, keys, pages, is_whole: true };
        let mut forms = Forms::default();
        let mut done = 0;
        while done < pages.len() {
            let stored = self.store_batch(&request, done, &mut forms);
            if let Some(error) = stored.error {
                return Err(error);
            }
            done += stored.pages;
        }
        if let Some(tally) = self.config.tally {
            tally(&forms);
        }
        Ok(())
    }

    /// Checks the group's limit, then the pools'. Beyond one, stores are refused until use is down
    /// to its threshold.
    pub(crate) fn admit(&self, group: Group, cell: &GroupCell) -> Result<(), StoreError> {
        let limit = cell.limit.load(Ordering::Relaxed);
        if limit != u64::MAX {
            let bytes = || cell.numbers().bytes.get();
            let threshold = self.threshold_of(limit);
            if bytes() >= limit {
                cell.reached_full.store(true, Ordering::Relaxed);
            }
            if cell.reached_full.load(Ordering::Relaxed) {
                // As the kernel does: a synchronous try, and never at another group's expense.
                if bytes() > threshold && limit > 0 {
                    self.shrink_group(group, cell, threshold);
                }
                if limit == 0 || bytes() > threshold {
                    return Err(StoreError::GroupLimit);
                }
                cell.reached_full.store(false, Ordering::Relaxed);
            }
        }
        let max = self.config.max_pool_bytes;
        if max == u64::MAX {
            return Ok(());
        }
        let now = self.pool_bytes();
        if now >= max {
            self.events.pool_limit_hit.add(1);
            self.reached_full.store(true, Ordering::Relaxed);
        } else if self.reached_full.load(Ordering::Relaxed) && now <= self.accept_threshold() {
            self.reached_full.store(false, Ordering::Relaxed);
        }
        if self.reached_full.load(Ordering::Relaxed) {
            return Err(StoreError::PoolLimit);
        }
        Ok(())
    }
}
