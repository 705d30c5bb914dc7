//! Pools: one compressor each, with its contexts and its zsmalloc arena. One is current; older ones
//! drain.

use std::cell::UnsafeCell;
use std::sync::Arc;

use acomp::{Algorithm, Context, MAX_BATCH};

use crate::config::{Config, Error, POOLS_MAX};
use crate::padded::Padded;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{lock, try_lock, Mutex, MutexGuard};

pub(crate) struct Pool {
    pub(crate) algorithm: Arc<dyn Algorithm>,
    pub(crate) objects: zsmalloc::Pool,
    pub(crate) batch: usize,
    /// Whether the algorithm counts its objects.
    pub(crate) keeps_account: bool,
    workers: Box<[Padded<Mutex<Worker>>]>,
}

/// The memory of one request at a time, shared by all CPUs and threads, as long-lived as its pool.
pub(crate) struct Worker {
    pub(crate) context: Box<dyn Context>,
    /// One unit of room per unit of a batch: destinations of compressions, and of units larger than
    /// a page.
    pub(crate) buffers: Box<[u8]>,
}

/// Most room for units per worker, so that large units do not need large workers.
const BUFFERS_BYTES_MAX: usize = 128 * 1024;

impl Pool {
    pub(crate) fn new(
        config: &Config,
        contexts: usize,
        nodes: usize,
        algorithm: Arc<dyn Algorithm>,
    ) -> Result<Self, Error> {
        let wish = match (config.batch, algorithm.batch_size()) {
            (0, 0 | 1) => MAX_BATCH,
            (0, own) => own,
            (set, _) => set,
        };
        let batch = wish.min(MAX_BATCH).min(BUFFERS_BYTES_MAX / config.unit_size).max(1);
        let worker = || -> Result<_, Error> {
            let buffers = vec![0; batch * config.unit_size].into_boxed_slice();
            Ok(Padded(Mutex::new(Worker { context: algorithm.context_for(config.unit_size)?, buffers })))
        };
        let workers = (0..contexts).map(|_| worker()).collect::<Result<_, _>>()?;
        let objects = zsmalloc::Pool::new(&zsmalloc::Config { chain: config.chain, nodes: nodes as u8 })?;
        let keeps_account = algorithm.keeps_account();
        Ok(Pool { algorithm, objects, batch, keeps_account, workers })
    }

    pub(crate) fn forget_stored(&self, handle: zsmalloc::Handle, pages: usize) {
        self.algorithm.forget(acomp::Object::whole(self.objects.read(handle).bytes()), pages);
    }

    /// A free worker, near `hint`; otherwise waits for the hint's own. The holder of a worker never
    /// waits for busy pages or for a group.
    pub(crate) fn worker(&self, hint: usize) -> MutexGuard<'_, Worker> {
        let first = hint % self.workers.len();
        let (before, from) = self.workers.split_at(first);
        let free = from.iter().chain(before).find_map(|worker| try_lock(worker));
        free.unwrap_or_else(|| lock(&self.workers[first]))
    }
}

/// States of a slot beyond any count of references.
const EMPTY: usize = usize::MAX;
const DYING: usize = usize::MAX - 1;
const REFS_MAX: usize = usize::MAX / 2;

/// Room for a pool. `refs` counts its users: every object in it, requests in progress, and being
/// current. The thread that drops the last reference, and sees no new one, drops the pool.
struct Slot {
    refs: AtomicUsize,
    pool: UnsafeCell<Option<Pool>>,
}

pub(crate) struct Pools {
    slots: [Slot; POOLS_MAX],
    current: AtomicUsize,
    switching: Mutex<()>,
}

// SAFETY: a slot's pool is shared only by holders of references, and Pool is Sync but for `Box<dyn
// Context>`, which is Send and behind a Mutex. It is written only by the switcher of an EMPTY slot,
// under `switching`, and dropped only by the one thread that turned 0 references to DYING.
unsafe impl Sync for Pools {}

/// References to a pool, returned on drop unless they were handed to objects.
pub(crate) struct PoolRefs<'a> {
    pools: &'a Pools,
    pub(crate) id: usize,
    count: usize,
}

impl Pools {
    pub(crate) fn new(first: Pool) -> Self {
        let slot = || Slot { refs: AtomicUsize::new(EMPTY), pool: UnsafeCell::new(None) };
        let pools = Pools {
            slots: std::array::from_fn(|_| slot()),
            current: AtomicUsize::new(0),
            switching: Mutex::new(()),
        };
        // SAFETY: no other thread knows the pools yet.
        unsafe { *pools.slots[0].pool.get() = Some(first) };
        pools.slots[0].refs.store(1, Ordering::Release);
        pools
    }

    fn try_get(&self, id: usize, count: usize) -> Option<PoolRefs<'_>> {
        let refs = &self.slots[id].refs;
        let mut now = refs.load(Ordering::Relaxed);
        loop {
            if now > REFS_MAX {
                return None;
            }
            match refs.compare_exchange_weak(now, now + count, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(PoolRefs { pools: self, id, count }),
                Err(other) => now = other,
            }
        }
    }

    /// Adds `count` references for objects to the pool of objects that stay during the call.
    pub(crate) fn retain(&self, id: usize, count: usize) {
        self.try_get(id, count).expect("its objects keep it").hand_over(count);
    }

    pub(crate) fn current(&self, count: usize) -> PoolRefs<'_> {
        loop {
            let id = self.current.load(Ordering::Acquire);
            if let Some(refs) = self.try_get(id, count) {
                return refs;
            }
            std::hint::spin_loop();
        }
    }

    /// The pool of objects that stay during the call: their pages are pinned, or the caller has
    /// taken them out of the tables and not freed them yet.
    pub(crate) fn of_objects(&self, id: usize) -> &Pool {
        debug_assert!((1..=REFS_MAX).contains(&self.slots[id].refs.load(Ordering::Relaxed)));
        // SAFETY: each object holds a reference, so the pool stays.
        unsafe { (*self.slots[id].pool.get()).as_ref().expect("referenced pools exist") }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = PoolRefs<'_>> {
        (0..POOLS_MAX).filter_map(|id| self.try_get(id, 1))
    }

    pub(crate) fn put(&self, id: usize, count: usize) {
        if count == 0 {
            return;
        }
        let slot = &self.slots[id];
        let before = slot.refs.fetch_sub(count, Ordering::AcqRel);
        debug_assert!(before >= count && before <= REFS_MAX);
        if before > count {
            return;
        }
        // If another thread has taken a reference since, that thread drops the pool later.
        if slot.refs.compare_exchange(0, DYING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // SAFETY: a DYING slot has no references and gives none; only one thread can have set
            // it.
            let pool = unsafe { (*slot.pool.get()).take() };
            debug_assert!(pool.is_some());
            drop(pool);
            slot.refs.store(EMPTY, Ordering::Release);
        }
    }

    /// Makes the pool of `name` current if one is alive, otherwise the one that `make` makes. The
    /// former current pool drains.
    pub(crate) fn switch(&self, name: &str, make: impl FnOnce() -> Result<Pool, Error>) -> Result<(), Error> {
        let _switching = lock(&self.switching);
        let alive = self.each().find(|refs| refs.pool().algorithm.name() == name);
        let next = match alive {
            // The reference of being current.
            Some(refs) => refs.keep(),
            None => {
                let empty = |slot: &Slot| slot.refs.load(Ordering::Acquire) == EMPTY;
                if !self.slots.iter().any(empty) {
                    return Err(Error::TooManyPools);
                }
                let pool = make()?;
                // Slots empty themselves but only this thread fills them.
                let id = self.slots.iter().position(empty).expect("there was one");
                // SAFETY: EMPTY, and `switching` is held.
                unsafe { *self.slots[id].pool.get() = Some(pool) };
                self.slots[id].refs.store(1, Ordering::Release);
                id
            }
        };
        let before = self.current.swap(next, Ordering::AcqRel);
        self.put(before, 1);
        Ok(())
    }
}

impl PoolRefs<'_> {
    pub(crate) fn pool(&self) -> &Pool {
        self.pools.of_objects(self.id)
    }

    /// Passes `count` references to objects.
    pub(crate) fn hand_over(&mut self, count: usize) {
        self.count -= count;
    }

    /// Keeps all references beyond this guard's life.
    fn keep(mut self) -> usize {
        self.count = 0;
        self.id
    }
}

impl Drop for PoolRefs<'_> {
    fn drop(&mut self) {
        self.pools.put(self.id, self.count);
    }
}
