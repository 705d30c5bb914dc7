//! The kernel's counters, by their names in kernel tables. All are the machine's, not the job's:
//! with no other swap in use that is the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const VMSTAT: [&str; 8] =
    ["zswpout", "zswpin", "zswpwb", "pswpout", "pswpin", "pgmajfault", "swap_ra", "swap_ra_hit"];
/// From debugfs, if it is mounted.
const REJECTS: [&str; 7] = [
    "reject_compress_poor",
    "reject_compress_fail",
    "reject_alloc_fail",
    "reject_reclaim_fail",
    "reject_kmemcache_fail",
    "pool_limit_hit",
    "written_back_pages",
];
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// All counters at one time.
#[derive(Debug, Default)]
pub struct Counters {
    values: BTreeMap<String, u64>,
    /// Whole folios stored, by their size in KiB.
    folios: BTreeMap<u64, u64>,
}

impl Counters {
    pub fn now() -> Self {
        let mut counters = Counters::default();
        counters.add_vmstat(&fs::read_to_string("/proc/vmstat").unwrap_or_default());
        for name in REJECTS {
            if let Some(value) = number(&Path::new("/sys/kernel/debug/zswap").join(name)) {
                counters.values.insert(name.to_owned(), value);
            }
        }
        for entry in fs::read_dir(HUGE_PAGES).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let size = name.to_str().and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"));
            let size = size.and_then(|size| size.parse::<u64>().ok());
            if let (Some(size), Some(value)) = (size, number(&entry.path().join("stats/zswpout"))) {
                counters.folios.insert(size, value);
            }
        }
        counters
    }

    fn add_vmstat(&mut self, text: &str) {
        for line in text.lines() {
            let Some((name, value)) = line.split_once(' ') else { continue };
            if let (true, Ok(value)) = (VMSTAT.contains(&name), value.parse()) {
                self.values.insert(name.to_owned(), value);
            }
        }
    }

    /// The increase of each counter from here to `later`.
    pub fn until(&self, later: &Counters) -> BTreeMap<String, u64> {
        let difference = |(name, value): (&String, &u64)| {
            (name.clone(), value.saturating_sub(self.values.get(name).copied().unwrap_or(0)))
        };
        later.values.iter().map(difference).collect()
    }

    /// Pages stored from here to `later`, by the size of their folios; the rest were single pages.
    pub fn folios_until(&self, later: &Counters) -> BTreeMap<String, u64> {
        let mut single = self.until(later).get("zswpout").copied().unwrap_or(0);
        let mut pages = BTreeMap::new();
        for (size, value) in &later.folios {
            let folios = value.saturating_sub(self.folios.get(size).copied().unwrap_or(0));
            if folios > 0 {
                pages.insert(format!("{size}kB"), folios * size / 4);
                single = single.saturating_sub(folios * size / 4);
            }
        }
        pages.insert("4kB".to_owned(), single);
        pages
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_counted_and_folios_are_not_counted_twice() {
        let counters = |vmstat: &str, folios: &[(u64, u64)]| {
            let mut counters = Counters::default();
            counters.add_vmstat(vmstat);
            counters.folios = folios.iter().copied().collect();
            counters
        };
        let before = counters("zswpout 100\nnr_free_pages 7\n", &[(64, 5), (2048, 0)]);
        let after = counters("zswpout 600\nzswpin 9\nnr_free_pages 8\n", &[(64, 15), (2048, 0)]);
        let wanted = [("zswpin", 9), ("zswpout", 500)].map(|(name, value)| (name.to_owned(), value));
        assert_eq!(before.until(&after), BTreeMap::from(wanted));
        let wanted = [("4kB", 340), ("64kB", 160)].map(|(name, value)| (name.to_owned(), value));
        assert_eq!(before.folios_until(&after), BTreeMap::from(wanted));
    }
}
