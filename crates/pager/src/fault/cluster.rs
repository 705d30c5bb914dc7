//! Whether a page's neighbours come from disk along with it.
//!
//! Pages that left together lie together in the swap file, so that reading an aligned cluster costs
//! hardly more than reading one of its pages. But each that comes in has another one go out, which
//! is written: neighbours pay when they are wanted *soon*, far sooner than what goes in their
//! place. So some faults bring their page alone, as a trial, and it is counted in how many trials
//! another page of the cluster is wanted within the next faults. While neighbours do not pay, every
//! fault is a trial.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::readahead::Outcomes;

/// Pages of a cluster, aligned to as many.
pub const CLUSTER_PAGES: usize = 4;
/// Trials that are remembered, and the faults from disk within which a neighbour must be wanted.
const TRIALS: usize = 256;
const SOON: u32 = 256;
/// While neighbours pay, one fault in so many is a trial.
const TRY_EVERY: u32 = 8;

/// What is known of clusters. Entries are single words, raced upon without harm.
pub struct Clusters {
    /// Number of the cluster above, 40 bits; below it the page in the cluster and 22 bits of the
    /// fault's number. 0: none.
    trials: [AtomicU64; TRIALS],
    faults: AtomicU32,
    outcomes: Outcomes,
}

const FAULT_BITS: u32 = 22;
const PAGE_BITS: u32 = CLUSTER_PAGES.trailing_zeros();
const FAULT_MASK: u32 = (1 << FAULT_BITS) - 1;

impl Clusters {
    /// Nothing is known yet: clusters come whole.
    pub fn new() -> Self {
        Clusters {
            trials: std::array::from_fn(|_| AtomicU64::new(0)),
            faults: AtomicU32::new(1),
            outcomes: Outcomes::default(),
        }
    }

    /// Whether the cluster of the wanted `page` is to come whole.
    pub fn comes_whole(&self, page: u64) -> bool {
        let fault = self.faults.fetch_add(1, Ordering::Relaxed) & FAULT_MASK;
        let (cluster, within) = (page / CLUSTER_PAGES as u64, page % CLUSTER_PAGES as u64);
        let trial = &self.trials[(cluster.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % TRIALS];
        let seen = trial.load(Ordering::Relaxed);
        if seen != 0 {
            let is_soon = fault.wrapping_sub(seen as u32) & FAULT_MASK <= SOON;
            let of = seen >> (FAULT_BITS + PAGE_BITS);
            let is_same_page = seen >> FAULT_BITS & (CLUSTER_PAGES as u64 - 1) == within;
            if of == cluster && is_soon && !is_same_page {
                trial.store(0, Ordering::Relaxed);
                self.outcomes.note(true);
            } else if !is_soon {
                trial.store(0, Ordering::Relaxed);
                self.outcomes.note(false);
            }
        }
        if self.outcomes.pays() && !fault.is_multiple_of(TRY_EVERY) {
            return true;
        }
        // One that is not decided yet stays: to forget it would count those alone that are decided
        // early.
        if trial.load(Ordering::Relaxed) == 0 {
            let word = (cluster << PAGE_BITS | within) << FAULT_BITS | u64::from(fault);
            trial.store(word, Ordering::Relaxed);
        }
        false
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// The share of the later half of these faults whose clusters come whole.
    fn whole(pages: impl Iterator<Item = u64>) -> f64 {
        let clusters = Clusters::new();
        let answers: Vec<bool> = pages.map(|page| clusters.comes_whole(page)).collect();
        let later = &answers[answers.len() / 2..];
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
        // Places at random, but two pages at each, and the second a little later: if the cluster
        // came, no fault asks for it.
        let mut state = 88_172_645_463_325_252;
        let clusters = Clusters::new();
        let (mut whole, mut faults) = (0, 0);
        let mut later: Option<u64> = None;
        for turn in 0..20_000 {
            if let Some(page) = later.take() {
                clusters.comes_whole(page);
                faults += 1;
            }
            let page = (random(&mut state) % 100_000) * 8;
            let came = clusters.comes_whole(page);
            faults += 1;
            whole += u32::from(came && turn >= 10_000);
            later = (!came).then_some(page + 2);
        }
        assert!(whole > 8000 && faults < 30_000, "{whole} of 10,000 came whole, with {faults} faults");
    }

    #[test]
    fn what_changes_is_noticed() {
        let clusters = Clusters::new();
        let mut state = 88_172_645_463_325_252;
        let mut share = |alone: bool| {
            let mut whole = 0;
            for _ in 0..10_000 {
                let page = (random(&mut state) % 100_000) * 8;
                let came = clusters.comes_whole(page);
                whole += u32::from(came);
                if !came && !alone {
                    clusters.comes_whole(page + 1);
                }
            }
            f64::from(whole) / 10_000.0
        };
        assert!(share(true) < 0.2);
        assert!(share(false) > 0.6);
        assert!(share(true) < 0.2);
    }
}
