//! Whether a page's neighbours are read from disk along with it.
//!
//! Pages that left together lie together in the swap file, so reading an aligned cluster costs
//! hardly more than one page. But each page that comes in evicts another, which is written:
//! neighbours pay only if they are needed far sooner than the evicted pages. So some faults read
//! their page alone, as a lone read: does another page of the cluster fault within the next faults?
//! While neighbours do not pay, every fault is a lone read.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use address_space::units::PageNumber;

use super::readahead::Outcomes;

/// Pages of an aligned cluster.
pub const CLUSTER_PAGES: usize = 4;
/// Lone reads that are remembered, and the disk faults within which a neighbour must be needed.
const LONE_READS: usize = 256;
const SOON: u32 = 256;
/// While neighbours pay, one fault in eight is a lone read.
const TRY_EVERY: u32 = 8;

/// The lone reads. Entries are single words, so races do no harm.
pub struct Clusters {
    /// The cluster's number (high 40 bits), the page in it, 22 bits of the fault's number. 0: none.
    lone_reads: [AtomicU64; LONE_READS],
    faults: AtomicU32,
    outcomes: Outcomes,
}

const FAULT_BITS: u32 = 22;
const PAGE_BITS: u32 = CLUSTER_PAGES.trailing_zeros();
const FAULT_MASK: u32 = (1 << FAULT_BITS) - 1;

impl Clusters {
    pub fn new() -> Self {
        Clusters {
            lone_reads: std::array::from_fn(|_| AtomicU64::new(0)),
            faults: AtomicU32::new(1),
            outcomes: Outcomes::default(),
        }
    }

    pub fn comes_whole(&self, page: PageNumber) -> bool {
        let page = page.key();
        let fault = self.faults.fetch_add(1, Ordering::Relaxed) & FAULT_MASK;
        let (cluster, within) = (page / CLUSTER_PAGES as u64, page % CLUSTER_PAGES as u64);
        let lone_read =
            &self.lone_reads[(cluster.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % LONE_READS];
        let seen = lone_read.load(Ordering::Relaxed);
        if seen != 0 {
            let is_soon = fault.wrapping_sub(seen as u32) & FAULT_MASK <= SOON;
            let of = seen >> (FAULT_BITS + PAGE_BITS);
            let is_same_page = seen >> FAULT_BITS & (CLUSTER_PAGES as u64 - 1) == within;
            if of == cluster && is_soon && !is_same_page {
                lone_read.store(0, Ordering::Relaxed);
                self.outcomes.note(true);
            } else if !is_soon {
                lone_read.store(0, Ordering::Relaxed);
                self.outcomes.note(false);
            }
        }
        if self.outcomes.pays() && !fault.is_multiple_of(TRY_EVERY) {
            return true;
        }
        // Keep an undecided lone read: replacing it would count only those that end early.
        if lone_read.load(Ordering::Relaxed) == 0 {
            let word = (cluster << PAGE_BITS | within) << FAULT_BITS | u64::from(fault);
            lone_read.store(word, Ordering::Relaxed);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of whole clusters in the later half of these faults.
    fn whole(pages: impl Iterator<Item = u64>) -> f64 {
        let clusters = Clusters::new();
        let whole: Vec<bool> = pages.map(|page| clusters.comes_whole(PageNumber::of_key(page))).collect();
        let later = &whole[whole.len() / 2..];
        later.iter().filter(|whole| **whole).count() as f64 / later.len() as f64
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn pages_at_random_come_alone() {
        let mut state = 88_172_645_463_325_252;
        let share = whole((0..20_000).map(|_| random(&mut state) % 100_000));
        assert!(share < 0.05, "{share}");
    }

    #[test]
    fn clusters_whose_pages_are_wanted_one_after_the_other_come_whole() {
        // Random places with two pages each, the second needed a little later. If the whole cluster
        // was read, the second does not fault.
        let mut state = 88_172_645_463_325_252;
        let clusters = Clusters::new();
        let (mut whole, mut faults) = (0, 0);
        let mut later: Option<u64> = None;
        for turn in 0..20_000 {
            if let Some(page) = later.take() {
                clusters.comes_whole(PageNumber::of_key(page));
                faults += 1;
            }
            let page = (random(&mut state) % 100_000) * 8;
            let came = clusters.comes_whole(PageNumber::of_key(page));
            faults += 1;
            whole += u32::from(came && turn >= 10_000);
            later = (!came).then_some(page + 2);
        }
        assert!(whole > 8000 && faults < 30_000, "{whole} of 10,000 came whole, with {faults} faults");
    }

    #[test]
    fn changed_clusters_are_noticed() {
        let clusters = Clusters::new();
        let mut state = 88_172_645_463_325_252;
        let mut share = |alone: bool| {
            let mut whole = 0;
            for _ in 0..10_000 {
                let page = (random(&mut state) % 100_000) * 8;
                let came = clusters.comes_whole(PageNumber::of_key(page));
                whole += u32::from(came);
                if !came && !alone {
                    clusters.comes_whole(PageNumber::of_key(page + 1));
                }
            }
            f64::from(whole) / 10_000.0
        };
        assert!(share(true) < 0.2);
        assert!(share(false) > 0.6);
        assert!(share(true) < 0.2);
    }
}
