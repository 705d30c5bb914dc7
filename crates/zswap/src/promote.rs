//! Promotion makes objects of cold pages denser, if the compressor has a second tier: oldest leaves
//! first, each once while its pages stay.
//!
//! It pins the pages as a reader does: a thread that wants one of them waits for at most sixteen
//! objects.

use acomp::{Object, PromoteRequest, TierSample, UnitError, MAX_BATCH};

use crate::config::{Group, NODES_MAX};
use crate::group::{slots, Freed, GroupCell};
use crate::leaf::{Entry, LEAF_PAGES};
use crate::zswap::handle_of;
use crate::Zswap;

/// An object that would shrink by less than this stays: it would only move.
const SAVED_MIN: usize = 32;

/// Result of promotion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromoteReport {
    /// Leaves of up to sixteen pages that had their turn.
    pub leaves: u64,
    /// Pages whose objects became denser.
    pub pages: u64,
    /// Bytes saved.
    pub bytes: u64,
}

struct Cold {
    key_high: u32,
    pinned: u16,
    entries: [Entry; LEAF_PAGES],
}

impl Zswap {
    /// Whether the current compressor has a second tier.
    pub fn has_tiers(&self) -> bool {
        self.pools.current(1).pool().algorithm.tiers().is_some()
    }

    /// Sizes in both tiers of some recently stored pages; `None` without a second tier.
    pub fn tier_sample(&self) -> Option<TierSample> {
        self.pools.current(1).pool().algorithm.tiers().map(|tiers| tiers.sample())
    }

    /// Sets whether all stores with this compressor use its second tier, if any, at once.
    pub fn set_dense(&self, dense: bool) {
        if let Some(tiers) = self.pools.current(1).pool().algorithm.tiers() {
            tiers.set_dense(dense);
        }
    }

    /// Promotes the pages of up to `leaves_max` leaves of a group without a turn yet, oldest first,
    /// while leaves that had their turn are at most `cold_percent` of the group's. Fewer leaves in
    /// the report mean that there are no more.
    pub fn promote(&self, group: Group, cold_percent: u32, leaves_max: u64) -> PromoteReport {
        let mut report = PromoteReport::default();
        let Some(cell) = self.group(group) else { return report };
        for node in 0..NODES_MAX {
            while report.leaves < leaves_max {
                let Some(cold) = self.pin_cold(cell, node, cold_percent) else { break };
                report.leaves += 1;
                if cold.pinned != 0 {
                    self.promote_leaf(cell, &cold, &mut report);
                }
            }
        }
        report
    }

    fn pin_cold(&self, cell: &GroupCell, node: usize, cold_percent: u32) -> Option<Cold> {
        let mut guard = cell.lock();
        let state = &mut *guard;
        let (tried, leaves) = (u64::from(state.lru.tried_leaves(node)), u64::from(state.lru.leaves(node)));
        if (tried + 1) * 100 > leaves * u64::from(cold_percent) {
            return None;
        }
        let name = state.lru.try_next(&mut state.tree, &self.slabs, node)?;
        let leaf = state.tree.leaf(&self.slabs, name);
        let mut cold = Cold { key_high: leaf.key_high, pinned: 0, entries: [Entry(0); LEAF_PAGES] };
        if leaf.writing() != 0 {
            return Some(cold);
        }
        for slot in slots(leaf.objects() & !leaf.busy) {
            let entry = leaf.entry(slot);
            let pool = self.pools.of_objects(entry.pool());
            if entry.pages() == 1
                && !entry.is_raw()
                && pool.algorithm.tiers().is_some()
                && !pool.objects.is_shared(handle_of(entry))
            {
                cold.pinned |= 1 << slot;
                cold.entries[slot] = entry;
            }
        }
        leaf.busy |= cold.pinned;
        Some(cold)
    }

    fn promote_leaf(&self, cell: &GroupCell, cold: &Cold, report: &mut PromoteReport) {
        let mut dense = [Entry(0); LEAF_PAGES];
        let mut done = 0;
        let mut rest = cold.pinned;
        while rest != 0 {
            let batch = self.promote_batch(&cold.entries, rest, &mut dense, &mut done);
            rest &= !batch;
        }
        let mut freed = Freed::new();
        let mut saved = 0;
        let mut state = cell.lock();
        let name = state.tree.find(&self.slabs, cold.key_high).expect("pinned pages stay");
        let leaf = state.tree.leaf(&self.slabs, name);
        for slot in slots(done) {
            let before = leaf.replace(slot, dense[slot]);
            saved += (before.len() - dense[slot].len()) as u64;
            freed.push(before);
        }
        cell.numbers().bytes.sub(saved);
        cell.unpin(&mut state, &self.slabs, name, cold.pinned);
        drop(state);
        self.free(&mut freed);
        report.pages += u64::from(done.count_ones());
        report.bytes += saved;
    }

    /// Promotes the first pages of `mask` that are of one pool, as many as a request holds. Returns
    /// which it tried; `done` and `dense` receive the results.
    fn promote_batch(
        &self,
        entries: &[Entry; LEAF_PAGES],
        mask: u16,
        dense: &mut [Entry; LEAF_PAGES],
        done: &mut u16,
    ) -> u16 {
        let id = entries[mask.trailing_zeros() as usize].pool();
        let pool = self.pools.of_objects(id);
        let mut batch = [0; MAX_BATCH];
        let (mut len, mut tried) = (0, 0);
        for slot in slots(mask).filter(|slot| entries[*slot].pool() == id).take(pool.batch) {
            batch[len] = slot;
            len += 1;
            tried |= 1 << slot;
        }
        let batch = &batch[..len];

        let mut worker = pool.worker(sys::cpu::current());
        let worker = &mut *worker;
        let mut rooms = worker.buffers.chunks_exact_mut(self.config.unit_size);
        let mut outputs: [&mut [u8]; MAX_BATCH] = std::array::from_fn(|n| match batch.get(n) {
            Some(&slot) => {
                let room = entries[slot].len().saturating_sub(SAVED_MIN);
                &mut rooms.next().expect("a room a unit")[..room]
            }
            None => &mut [],
        });
        let mut results = [Err(UnitError::NoSpace); MAX_BATCH];
        {
            let guards: [Option<zsmalloc::ReadGuard<'_>>; MAX_BATCH] =
                std::array::from_fn(|n| Some(pool.objects.read(handle_of(entries[*batch.get(n)?]))));
            let objects = guards.each_ref().map(|guard| match guard {
                Some(guard) => Object::whole(guard.bytes()),
                None => Object::default(),
            });
            worker.context.promote(&mut PromoteRequest {
                objects: &objects[..len],
                outputs: &mut outputs[..len],
                results: &mut results[..len],
            });
            // Released before any allocation, which may move objects.
        }

        let mut contents: [&[u8]; MAX_BATCH] = [&[]; MAX_BATCH];
        let mut owners = [0; MAX_BATCH];
        let mut count = 0;
        for (n, &slot) in batch.iter().enumerate() {
            if let Ok(bytes @ 1..) = results[n] {
                contents[count] = &outputs[n][..bytes];
                owners[count] = slot;
                count += 1;
            }
        }
        let contents = &contents[..count];
        let mut handles = [zsmalloc::Handle::DANGLING; MAX_BATCH];
        let handles = &mut handles[..count];
        let node = entries[batch[0]].node() as u8;
        if count == 0 || pool.objects.put_bulk(contents, node, handles).is_err() {
            if pool.keeps_account {
                contents.iter().for_each(|object| pool.algorithm.forget(Object::whole(object), 1));
            }
            return tried;
        }
        self.pools.retain(id, count);
        for ((&slot, handle), bytes) in owners[..count].iter().zip(handles).zip(contents) {
            dense[slot] = entries[slot].with_object(handle.to_raw().get(), bytes.len());
            *done |= 1 << slot;
        }
        tried
    }
}
