//! Whether a page's neighbours come along with it.
//!
//! Pages that left together lie together in the swap file, so reading an aligned cluster costs
//! hardly more than one page; from memory, each costs about half of a fault. But each page that
//! comes in evicts another: neighbours pay only if they are needed far sooner than the evicted
//! pages. So some faults bring their page alone, as a lone read: do watched neighbours fault within
//! the next faults? While neighbours do not pay, every fault is a lone read.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use address_space::units::{PageMask, PageNumber};

use super::readahead::Outcomes;

/// Lone reads that are remembered, and the faults within which a neighbour must be needed.
const LONE_READS: usize = 256;
const SOON: u32 = 256;
/// While neighbours pay, one fault in eight is a lone read.
const TRY_EVERY: u32 = 8;

/// The lone reads. Entries are single words, so races do no harm.
pub struct Clusters {
    /// Pages of an aligned cluster: 4 or 8.
    pages: usize,
    /// Per cent of the lone reads whose watched neighbours must fault.
    pays_percent: u32,
    /// The cluster's number (high 36 bits), its watched pages, 20 bits of the fault's number. 0:
    /// none.
    lone_reads: [AtomicU64; LONE_READS],
    faults: AtomicU32,
    outcomes: Outcomes,
}

const FAULT_BITS: u32 = 20;
const WATCHED_BITS: u32 = 8;
const FAULT_MASK: u32 = (1 << FAULT_BITS) - 1;

impl Clusters {
    /// For pages in the swap file.
    pub fn on_disk() -> Self {
        Clusters::new(4, 55)
    }

    /// For pages in the pool. A page that comes in vain costs most of a fault.
    pub fn in_pool() -> Self {
        Clusters::new(8, 75)
    }

    fn new(pages: usize, pays_percent: u32) -> Self {
        Clusters {
            pages,
            pays_percent,
            lone_reads: std::array::from_fn(|_| AtomicU64::new(0)),
            faults: AtomicU32::new(1),
            outcomes: Outcomes::default(),
        }
    }

    /// The pages of a page's cluster.
    pub fn of(&self, page: PageNumber) -> Range<PageNumber> {
        let first = page.block().page(page.index() / self.pages * self.pages);
        first..first + self.pages
    }

    /// Whether a faulting page's cluster comes with it. `others` are the pages of its block that
    /// could come. A lone read watches all of them if `any`, otherwise one.
    pub fn comes_whole(&self, page: PageNumber, others: PageMask, any: bool) -> bool {
        let key = page.key();
        let fault = self.faults.fetch_add(1, Ordering::Relaxed) & FAULT_MASK;
        let (cluster, within) = (key / self.pages as u64, (key % self.pages as u64) as u32);
        let others = others.bits() >> (page.index() as u32 - within);
        let others = others & ((1 << self.pages) - 1) & !(1 << within);
        let lone_read =
            &self.lone_reads[(cluster.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % LONE_READS];
        let seen = lone_read.load(Ordering::Relaxed);
        if seen != 0 {
            let is_soon = fault.wrapping_sub(seen as u32) & FAULT_MASK <= SOON;
            let is_of = seen >> (FAULT_BITS + WATCHED_BITS) == cluster;
            let is_watched = seen >> (FAULT_BITS + within) & 1 != 0;
            match (is_soon, is_of && is_watched) {
                (true, true) => {
                    lone_read.store(0, Ordering::Relaxed);
                    self.outcomes.note(true);
                }
                (true, false) if is_of => return false,
                (true, false) => {}
                (false, _) => {
                    lone_read.store(0, Ordering::Relaxed);
                    self.outcomes.note(false);
                }
            }
        }
        if others == 0 {
            return false;
        }
        if self.outcomes.pays(self.pays_percent) && !fault.is_multiple_of(TRY_EVERY) {
            return true;
        }
        // Keep an undecided lone read: replacing it would count only those that end early.
        if lone_read.load(Ordering::Relaxed) == 0 {
            let watched = if any { others } else { chosen(others, fault) };
            let word = (cluster << WATCHED_BITS | u64::from(watched)) << FAULT_BITS | u64::from(fault);
            lone_read.store(word, Ordering::Relaxed);
        }
        false
    }
}

/// One of the bits that are set.
fn chosen(mut bits: u32, number: u32) -> u32 {
    for _ in 0..number / TRY_EVERY % bits.count_ones() {
        bits &= bits - 1;
    }
    bits & bits.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_whole(clusters: &Clusters, page: u64) -> bool {
        clusters.comes_whole(PageNumber::of_key(page), PageMask::ALL, true)
    }

    /// The share of whole clusters in the later half of these faults.
    fn whole(pages: impl Iterator<Item = u64>) -> f64 {
        let clusters = Clusters::on_disk();
        let whole: Vec<bool> = pages.map(|page| comes_whole(&clusters, page)).collect();
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
        let clusters = Clusters::on_disk();
        let (mut whole, mut faults) = (0, 0);
        let mut later: Option<u64> = None;
        for turn in 0..20_000 {
            if let Some(page) = later.take() {
                comes_whole(&clusters, page);
                faults += 1;
            }
            let page = (random(&mut state) % 100_000) * 8;
            let came = comes_whole(&clusters, page);
            faults += 1;
            whole += u32::from(came && turn >= 10_000);
            later = (!came).then_some(page + 2);
        }
        assert!(whole > 8000 && faults < 30_000, "{whole} of 10,000 came whole, with {faults} faults");
    }

    #[test]
    fn changed_clusters_are_noticed() {
        let clusters = Clusters::on_disk();
        let mut state = 88_172_645_463_325_252;
        let mut share = |alone: bool| {
            let mut whole = 0;
            for _ in 0..10_000 {
                let page = (random(&mut state) % 100_000) * 8;
                let came = comes_whole(&clusters, page);
                whole += u32::from(came);
                if !came && !alone {
                    comes_whole(&clusters, page + 1);
                }
            }
            f64::from(whole) / 10_000.0
        };
        assert!(share(true) < 0.2);
        assert!(share(false) > 0.6);
        assert!(share(true) < 0.2);
    }

    /// Plays faults on clusters of the pool at random: each page of a cluster is out and, with this
    /// chance in per cent, needed. Returns the share of whole clusters in the later half.
    fn whole_in_pool(needed_percent: u64) -> f64 {
        let (clusters, mut state) = (Clusters::in_pool(), 88_172_645_463_325_252);
        let (mut whole, turns) = (0, 10_000);
        for turn in 0..turns {
            let first = random(&mut state) % 100_000 * 8;
            let mut out = PageMask::ALL;
            for page in first..first + 8 {
                let number = PageNumber::of_key(page);
                let is_needed = random(&mut state) % 100 < needed_percent;
                if !is_needed || (out & number.mask()).is_empty() {
                    continue;
                }
                let came = clusters.comes_whole(number, out, false);
                out = if came { PageMask::NONE } else { out & !number.mask() };
                whole += u32::from(came && turn >= turns / 2);
            }
        }
        f64::from(whole) / f64::from(turns / 2)
    }

    #[test]
    fn pages_of_the_pool_come_along_if_three_in_four_are_needed() {
        let shares = [20, 50, 65, 85, 100].map(whole_in_pool);
        assert!(shares[..3].iter().all(|share| *share < 0.1), "{shares:?}");
        assert!(shares[3..].iter().all(|share| *share > 0.7), "{shares:?}");
    }

    #[test]
    fn a_page_without_others_that_are_out_is_no_evidence() {
        let (clusters, mut state) = (Clusters::in_pool(), 88_172_645_463_325_252);
        assert!((0..10_000).all(|_| {
            !clusters.comes_whole(PageNumber::of_key(random(&mut state) % 100_000), PageMask::NONE, false)
        }));
        assert!(clusters.comes_whole(PageNumber::of_key(1), PageMask::ALL, false), "neighbours still pay");
    }
}
