//! Figures of a pool.

use std::sync::atomic::Ordering;

use sys::PAGE_SIZE;

use crate::class::Geometry;
use crate::pool::Pool;

/// Figures of one size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// Slot size, chain length and slots of the class.
    pub geometry: Geometry,
    /// Objects of the class's sizes, in any zspage.
    pub objects: u64,
    /// Requested bytes.
    pub payload_bytes: u64,
    /// Zspages of the class.
    pub zspages: u64,
    /// Objects in them, of the class's sizes or smaller. The others are in mixed zspages, or in
    /// slots of larger classes.
    pub objects_in_class: u64,
    /// Free slots in its zspages.
    pub free_slots: u64,
}

/// Figures of a pool. They are not a consistent snapshot while other threads allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Objects.
    pub objects: u64,
    /// Requested bytes, without objects in segments.
    pub payload_bytes: u64,
    /// Bytes of resident pages, as [`Pool::bytes`].
    pub pool_bytes: u64,
    /// Bytes of cached pages, which are in no zspage.
    pub cached_bytes: u64,
    /// Bytes of the rest, as [`Pool::metadata_bytes`].
    pub metadata_bytes: u64,
    /// Zspages of classes.
    pub class_zspages: u64,
    /// Mixed zspages.
    pub mixed_zspages: u64,
    /// Bytes of freed objects in mixed zspages.
    pub mixed_dead_bytes: u64,
}

impl Stats {
    /// Bytes of pages that are not payload: rounding, tails, free slots, cached pages.
    pub fn waste_bytes(&self) -> u64 {
        self.pool_bytes.saturating_sub(self.payload_bytes)
    }

    /// [`waste_bytes`](Self::waste_bytes) and metadata, in percent of the payload; 0 if empty.
    pub fn waste_percent(&self) -> f64 {
        match self.payload_bytes {
            0 => 0.0,
            payload => (self.waste_bytes() + self.metadata_bytes) as f64 * 100.0 / payload as f64,
        }
    }
}

impl Pool {
    /// Figures of the whole pool.
    pub fn stats(&self) -> Stats {
        let (counts, mixed_dead_bytes) = self.shards.count(0..self.table.len() as u16);
        let used = self.class_lists().iter().filter(|list| list.was_used());
        Stats {
            objects: counts.iter().map(|count| count.0).sum::<u64>() + self.shared_objects() as u64,
            payload_bytes: counts.iter().map(|count| count.1).sum(),
            pool_bytes: self.bytes() as u64,
            cached_bytes: self.supplies.iter().map(|supply| (supply.cached_pages() * PAGE_SIZE) as u64).sum(),
            metadata_bytes: self.metadata_bytes() as u64,
            class_zspages: used.map(|list| u64::from(list.zspages())).sum(),
            mixed_zspages: self.shards.totals().mixed_zspages.load(Ordering::Relaxed) as u64,
            mixed_dead_bytes,
        }
    }

    /// Figures of every class that has objects or zspages, smallest first.
    pub fn class_stats(&self) -> impl Iterator<Item = ClassStats> + '_ {
        let classes = 0..self.table.len() as u16;
        let (counts, _) = self.shards.count(classes.clone());
        classes.zip(counts).filter_map(|(class, (objects, payload_bytes))| {
            let geometry = self.table.geometry(class);
            let (zspages, objects_in_class, free_slots) = (0, 0, 0);
            let mut stats =
                ClassStats { geometry, objects, payload_bytes, zspages, objects_in_class, free_slots };
            for node in 0..self.supplies.len() as u8 {
                let (list, _) = self.class_list(node, class);
                if list.was_used() {
                    stats.zspages += u64::from(list.zspages());
                    stats.objects_in_class += u64::from(list.lists().objects);
                    stats.free_slots += u64::from(list.room());
                }
            }
            (stats.objects > 0 || stats.zspages > 0).then_some(stats)
        })
    }
}
