//! The store: the state of its calls, and its queries.

use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use acomp::{Algorithm, PAGE_SIZE, UNIT_SIZE_MAX};

use crate::balance::Balance;
use crate::common::Common;
use crate::config::{Config, Error, Group, KEY_BITS, NODES_MAX};
use crate::counters::{Counters, Events, GroupUsage};
use crate::group::{Freed, GroupCell};
use crate::leaf::{Entry, Leaf, LEAF_BYTES, LEAF_BYTES_WITH_SUMS, LEAF_PAGES};
use crate::pool::{Pool, Pools};
use crate::returned::Returned;
use crate::shrink::{Shrinker, CHANCES_MAX};
use crate::slab::Slab;
use crate::sync::atomic::Ordering;
use crate::sync::Mutex;
use crate::tree::{nodes_max, Slabs, NODE_BYTES};

/// Most leaves: 2^24 of 16 pages are 1 TiB of stored pages.
const LEAVES_MAX: usize = 1 << 24;
const NODES_TOTAL_MAX: usize = 1 << 24;
const CONTEXTS_MAX: usize = 4096;

/// The compressed pool. See the crate's documentation. Any thread may make any call at any time.
pub struct Zswap {
    pub(crate) config: Config,
    pub(crate) unit_pages: usize,
    pub(crate) slabs: Slabs,
    pub(crate) groups: Box<[OnceLock<Box<GroupCell>>]>,
    pub(crate) pools: Pools,
    pub(crate) events: Events,
    pub(crate) reached_full: AtomicBool,
    pub(crate) shrinker: Mutex<Shrinker>,
    pub(crate) balance: Balance,
    pub(crate) returned: Returned,
    pub(crate) common: Common,
    contexts: usize,
    nodes: usize,
    node_of_cpu: Box<[u8]>,
}

impl Zswap {
    /// Makes an empty store that compresses with `algorithm`.
    ///
    /// # Errors
    /// [`Error`] if a figure is out of range or there is no memory for contexts.
    pub fn new(config: Config, algorithm: Arc<dyn Algorithm>) -> Result<Zswap, Error> {
        check(&config)?;
        let cpus = sys::cpu::count();
        let contexts = if config.contexts == 0 { cpus.min(CONTEXTS_MAX) } else { config.contexts };
        let stride = if config.verify { LEAF_BYTES_WITH_SUMS } else { LEAF_BYTES };
        let node_of_cpu: Box<[u8]> =
            sys::cpu::nodes(cpus).into_iter().map(|node| (usize::from(node) % NODES_MAX) as u8).collect();
        let nodes = node_of_cpu.iter().max().map_or(1, |&node| node as usize + 1);
        let pool = Pool::new(&config, contexts, nodes, algorithm)?;
        Ok(Zswap {
            unit_pages: config.unit_size / PAGE_SIZE,
            slabs: Slabs {
                leaves: Slab::new(stride, 7, LEAVES_MAX),
                nodes: Slab::new(NODE_BYTES, 6, NODES_TOTAL_MAX),
            },
            groups: (0..config.max_groups).map(|_| OnceLock::new()).collect(),
            pools: Pools::new(pool),
            events: Events::default(),
            reached_full: AtomicBool::new(false),
            shrinker: Mutex::new(Shrinker::new(&config)?),
            balance: Balance::default(),
            returned: Returned::default(),
            common: Common::default(),
            contexts,
            nodes,
            node_of_cpu,
            config,
        })
    }

    /// Reserves tables for `pages` pages of neighbouring keys and for `bytes` of objects, so that a
    /// process over a stocked arena allocates only frames for objects later.
    ///
    /// # Errors
    /// ENOMEM if the arena is full.
    pub fn make_room(&self, pages: u64, bytes: u64) -> io::Result<()> {
        let leaves = usize::try_from(pages).unwrap_or(usize::MAX).div_ceil(LEAF_PAGES).min(LEAVES_MAX);
        self.slabs.leaves.reserve(leaves)?;
        self.slabs.nodes.reserve(nodes_max(leaves).min(NODES_TOTAL_MAX))?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.pools.each().try_for_each(|refs| refs.pool().objects.make_room(leaves * LEAF_PAGES, bytes))
    }

    /// Bytes of address space for new zspages without taking more.
    pub fn free_frame_bytes(&self) -> u64 {
        self.pools.each().map(|refs| refs.pool().objects.free_frame_bytes() as u64).sum()
    }

    /// Compresses later stores with `algorithm`. Stored pages stay readable; their pool is dropped
    /// with its last object, unless the same name is selected again before.
    ///
    /// # Errors
    /// [`Error`]; then the current compressor stays.
    pub fn set_compressor(&self, algorithm: Arc<dyn Algorithm>) -> Result<(), Error> {
        let name = algorithm.name().to_owned();
        self.pools.switch(&name, || Pool::new(&self.config, self.contexts, self.nodes, algorithm))
    }

    /// The name of the current compressor.
    pub fn compressor(&self) -> String {
        self.pools.current(1).pool().algorithm.name().to_owned()
    }

    /// Names of the living pools: the current one and those that drain.
    pub fn pools(&self) -> Vec<String> {
        self.pools.each().map(|refs| refs.pool().algorithm.name().to_owned()).collect()
    }

    /// Whether every algorithm in use survives a fork, made while no call is in progress.
    pub fn survives_fork(&self) -> bool {
        self.pools.each().all(|refs| refs.pool().algorithm.survives_fork())
    }

    /// Lets every compressor in use find devices that appeared or disappeared. For a few calls a
    /// second, from a thread that may block.
    pub fn maintain_compressors(&self) {
        self.pools.each().for_each(|refs| refs.pool().algorithm.maintain());
    }

    /// Which of up to 64 pages from `key` are in the pool or in the swap file: bit `i` for `key +
    /// i`.
    pub fn present(&self, group: Group, key: u64, count: usize) -> u64 {
        self.look(group, key, count, Leaf::present)
    }

    /// Which of them are in the swap file, so that a load reads it. One read returns pages of a
    /// block of sixteen that were written together.
    pub fn on_disk(&self, group: Group, key: u64, count: usize) -> u64 {
        self.look(group, key, count, Leaf::on_disk)
    }

    fn look(&self, group: Group, key: u64, count: usize, pages: fn(&Leaf) -> u16) -> u64 {
        // Keys beyond the last one have no page.
        let count = (1u64 << KEY_BITS).saturating_sub(key).min(count.min(64) as u64) as usize;
        self.group(group).map_or(0, |cell| cell.lock().pages(&self.slabs, key, count, pages))
    }

    /// Limits a group's compressed bytes. 0 refuses all its stores; `u64::MAX` lifts the limit.
    ///
    /// # Panics
    /// If the group's number is not below the configured maximum.
    pub fn set_group_limit(&self, group: Group, bytes: u64) {
        let cell = self.make_group(group).expect("a group within the configured maximum");
        cell.limit.store(bytes, Ordering::Relaxed);
    }

    /// Allows or forbids writeback of a group's pages. Allowed at first.
    ///
    /// # Panics
    /// If the group's number is not below the configured maximum.
    pub fn set_group_writeback(&self, group: Group, allowed: bool) {
        let cell = self.make_group(group).expect("a group within the configured maximum");
        cell.writeback.store(allowed, Ordering::Relaxed);
    }

    /// A group's usage.
    pub fn group_usage(&self, group: Group) -> GroupUsage {
        let Some(cell) = self.group(group) else { return GroupUsage::default() };
        let numbers = cell.numbers();
        GroupUsage {
            zswap: numbers.bytes.get(),
            zswapped: numbers.stored_pages.get() * PAGE_SIZE as u64,
            incompressible: numbers.incompressible.get(),
            zswpout: numbers.zswpout.get(),
            zswpin: numbers.zswpin.get(),
            zswpwb: numbers.zswpwb.get(),
            on_disk: numbers.on_disk_pages.get() * PAGE_SIZE as u64,
            disk_loads: numbers.disk_loads.get(),
        }
    }

    /// How many writeback turns skip a newly stored leaf.
    pub(crate) fn chances_of(&self, group: Group, key_high: u32) -> u8 {
        let came_back = self.config.swap.is_some() && self.returned.contains(group, key_high);
        if came_back {
            CHANCES_MAX
        } else {
            1
        }
    }

    /// Current values of all counters.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            pool_total_size: self.pool_bytes(),
            pool_limit_hit: self.events.pool_limit_hit.get(),
            reject_reclaim_fail: self.events.reject_reclaim_fail.get(),
            reject_compress_fail: self.events.reject_compress_fail.get(),
            reject_compress_poor: self.events.reject_compress_poor.get(),
            reject_alloc_fail: self.events.reject_alloc_fail.get(),
            reject_kmemcache_fail: self.events.reject_kmemcache_fail.get(),
            decompress_fail: self.events.decompress_fail.get(),
            disk_load_fail: self.events.disk_load_fail.get(),
            ..Counters::default()
        };
        for cell in self.cells() {
            let numbers = cell.numbers();
            counters.stored_pages += numbers.stored_pages.get();
            counters.stored_incompressible_pages += numbers.incompressible.get();
            counters.same_filled_pages += numbers.same_filled.get();
            counters.zswpout += numbers.zswpout.get();
            counters.zswpin += numbers.zswpin.get();
            counters.zswpwb += numbers.zswpwb.get();
            counters.on_disk_pages += numbers.on_disk_pages.get();
            counters.disk_loads += numbers.disk_loads.get();
        }
        counters.written_back_pages = counters.zswpwb;
        counters
    }

    /// Pages stored in the pool now.
    pub fn stored_pages(&self) -> u64 {
        self.cells().map(|cell| cell.numbers().stored_pages.get()).sum()
    }

    /// Bytes of all pages' objects, without the overhead of the arenas.
    pub fn compressed_bytes(&self) -> u64 {
        self.cells().map(|cell| cell.numbers().bytes.get()).sum()
    }

    /// Bytes of memory of the objects' arenas.
    pub fn pool_bytes(&self) -> u64 {
        self.pools.each().map(|refs| refs.pool().objects.bytes() as u64).sum()
    }

    /// Objects of all pools.
    pub fn objects(&self) -> u64 {
        self.pools.each().map(|refs| refs.pool().objects.stats().objects).sum()
    }

    /// Bytes of memory of tables, entries and lists; 0 if nothing is stored.
    pub fn table_bytes(&self) -> u64 {
        self.slabs.leaves.bytes() + self.slabs.nodes.bytes()
    }

    /// Bytes of memory of tables, entries, lists and handles.
    pub fn metadata_bytes(&self) -> u64 {
        let handles: u64 = self.pools.each().map(|refs| refs.pool().objects.metadata_bytes() as u64).sum();
        self.table_bytes() + handles
    }

    /// Bytes of memory that the arenas cache.
    pub fn cached_bytes(&self) -> u64 {
        self.pools.each().map(|refs| refs.pool().objects.cached_bytes() as u64).sum()
    }

    /// Gives the arenas' cached memory back to the system; returns how many bytes.
    pub fn trim(&self) -> u64 {
        let before = self.pool_bytes();
        self.pools.each().for_each(|refs| refs.pool().objects.trim());
        before.saturating_sub(self.pool_bytes())
    }

    /// In a forked process, before it stores or loads: keeps the pools' pages shared with
    /// relatives.
    pub fn inherit(&self) {
        self.pools.each().for_each(|refs| refs.pool().objects.inherit());
    }

    /// Whether relatives are there that may share the pools' pages. Call it now and then.
    pub fn note_relatives(&self, are_there: bool) {
        self.pools.each().for_each(|refs| refs.pool().objects.note_relatives(are_there));
    }

    /// Packs the objects of all pools more densely; returns how many bytes went back to the system.
    pub fn compact(&self) -> u64 {
        let pages: usize = self.pools.each().map(|refs| refs.pool().objects.compact()).sum();
        (pages * PAGE_SIZE) as u64
    }

    /// For tests: after `count` more leaves, the allocation of one fails, until `None`.
    #[doc(hidden)]
    pub fn fail_leaves_after(&self, count: Option<u32>) {
        self.slabs.leaves.fail_after(count);
    }

    /// For tests: after `count` more tree nodes, the allocation of one fails, until `None`.
    #[doc(hidden)]
    pub fn fail_nodes_after(&self, count: Option<u32>) {
        self.slabs.nodes.fail_after(count);
    }

    /// For tests: after `count` more objects of the current pool, one fails, until `None`.
    #[doc(hidden)]
    pub fn fail_objects_after(&self, count: Option<u32>) {
        self.pools.current(1).pool().objects.fail_object_after(count);
    }

    /// The group, if it was ever used.
    pub(crate) fn group(&self, group: Group) -> Option<&GroupCell> {
        self.groups.get(group.0 as usize)?.get().map(|cell| &**cell)
    }

    /// The group, made if it was never used.
    pub(crate) fn make_group(&self, group: Group) -> Option<&GroupCell> {
        Some(self.groups.get(group.0 as usize)?.get_or_init(|| Box::new(GroupCell::new())))
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = &GroupCell> {
        self.groups.iter().filter_map(|cell| cell.get().map(|cell| &**cell))
    }

    pub(crate) fn node_of(&self, cpu: usize) -> usize {
        self.node_of_cpu.get(cpu).copied().unwrap_or(0) as usize
    }

    /// Frees objects that are no longer in any table. Call it with no lock held.
    pub(crate) fn free(&self, freed: &mut Freed) {
        self.free_memory(freed, false);
        for entry in freed.on_disk() {
            let file = self.config.swap.as_ref().expect("what is on disk is in the swap file");
            file.free(entry.place());
            self.pools.put(entry.pool(), 1);
        }
        freed.clear();
    }

    /// Frees the memory of objects that have moved to the swap file; they still hold their pools.
    pub(crate) fn free_moved(&self, freed: &mut Freed) {
        assert!(freed.on_disk().is_empty());
        self.free_memory(freed, true);
        freed.clear();
    }

    fn free_memory(&self, freed: &Freed, moved: bool) {
        let mut handles = [zsmalloc::Handle::DANGLING; Freed::MAX];
        let mut rest = freed.as_slice();
        while let Some(first) = rest.first() {
            // Objects of one pool mostly come together.
            let pool = first.pool();
            let run = rest.iter().take_while(|entry| entry.pool() == pool).count();
            for (handle, entry) in handles.iter_mut().zip(&rest[..run]) {
                *handle = handle_of(*entry);
            }
            let of_objects = self.pools.of_objects(pool);
            if of_objects.keeps_account && !moved {
                for (&handle, entry) in handles.iter().zip(&rest[..run]) {
                    if !entry.is_raw() {
                        of_objects.forget_stored(handle, entry.pages());
                    }
                }
            }
            of_objects.objects.free_bulk(&handles[..run]);
            if !moved {
                self.pools.put(pool, run);
            }
            rest = &rest[run..];
        }
    }
}

pub(crate) fn handle_of(entry: Entry) -> zsmalloc::Handle {
    zsmalloc::Handle::from_raw(NonZeroU32::new(entry.handle()).expect("entries with objects have handles"))
}

pub(crate) fn in_range(key: u64, count: u64) -> bool {
    key.checked_add(count).is_some_and(|end| end <= 1 << KEY_BITS)
}

fn check(config: &Config) -> Result<(), Error> {
    let unit = config.unit_size;
    let is_unit = unit.is_power_of_two() && (PAGE_SIZE..=UNIT_SIZE_MAX).contains(&unit);
    let percent = usize::from(config.accept_threshold_percent);
    for (is_valid, what, value, wanted) in [
        (is_unit, "unit_size", unit, "4096, 8192, 16384, 32768 or 65536"),
        (config.batch <= acomp::MAX_BATCH, "batch", config.batch, "0 to 8"),
        (percent <= 100, "accept_threshold_percent", percent, "0 to 100"),
        (config.max_groups > 0, "max_groups", 0, "1 or more"),
        (config.contexts <= CONTEXTS_MAX, "contexts", config.contexts, "0 to 4096"),
    ] {
        if !is_valid {
            return Err(Error::Config { what, value: value as u64, wanted });
        }
    }
    Ok(())
}
