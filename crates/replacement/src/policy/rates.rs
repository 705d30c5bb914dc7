//! How soon evicted pages of each class return, and which classes that makes the pager evict.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::{Class, AGES, CLASSES, TICKS};

/// Share of returns and time out kept per tick: halves after 2/3 of a memory's arrivals.
const KEPT: f32 = 1.0 - 1.0 / 32.0;
/// Share of the pages out kept per tick: pages out for long leave, as if they never return.
const GONE: f32 = 1.0 - 1.0 / (16 * TICKS) as f32;
/// The classes evicted hold at least this share of the pages that the hand passes; more, up to
/// about the second, if that costs less.
const SHARE: f32 = 1.0 / 24.0;
const SHARE_MOST: f32 = 1.0 / 8.0;
/// They hold less, but at least this share, if the next class returns this many times as soon as
/// they do, and at least this part of the arrivals are returns.
const SHARE_LEAST: f32 = 1.0 / 500.0;
const CONTRAST: f32 = 4.0;
const RETURNED_PART: f32 = 0.25;
/// Cost of passing a page without evicting it, by that of a page that returns. A return takes 300
/// times as long, but the rates of small classes are uncertain: with 1/20 and less, jobs took
/// longer (`bench/results/replacement/share.csv`).
const PASSED: f32 = 1.0 / 7.0;
/// Pages beside an evicted page go along if their rate is at most this multiple: one page more out
/// of a block costs a fraction of another block.
const COMPANY: f32 = 2.0;
/// Weight, in page ticks, of a class's assumed rate.
const ASSUMED: f32 = 64.0;
/// Classes evicted before the hand has passed anything: never seen to return, and old.
const FIRST: u64 = 0b1110_0000;

/// Bit sets of the classes whose pages are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Going {
    /// Classes evicted in every block.
    pub first: u64,
    /// These, and the classes that go along with them.
    pub along: u64,
}

#[derive(Default)]
struct Account {
    /// Pages out now as f32, with fractions. The next three count since the last tick: evictions
    /// minus returns, needed returns, present pages that the hand passed.
    out: AtomicU32,
    went: AtomicI64,
    returned: AtomicU64,
    seen: AtomicU64,
    /// Decayed sums, as f32: returns, page ticks out, present pages seen.
    returns: AtomicU32,
    exposure: AtomicU32,
    present: AtomicU32,
}

pub(super) struct Rates {
    accounts: [Account; CLASSES],
}

fn get(cell: &AtomicU32) -> f32 {
    f32::from_bits(cell.load(Ordering::Relaxed))
}

fn set(cell: &AtomicU32, value: f32) {
    cell.store(value.to_bits(), Ordering::Relaxed);
}

/// Returns the assumed rate, in returns per tick and page: recent arrivals are in use.
fn assumed(class: Class) -> f32 {
    const BY_SCORE: [f32; 8] = [0.6, 8.0, 4.0, 2.0, 1.2, 0.5, 0.2, 0.8];
    const BY_AGE: [f32; 8] = [1.4, 1.3, 1.2, 1.1, 1.0, 0.95, 0.9, 0.8];
    const NEVER_BACK: [f32; 8] = [5.0, 4.0, 3.0, 2.5, 1.7, 1.2, 1.0, 0.8];
    let by_age = if class / AGES == 0 { NEVER_BACK } else { BY_AGE };
    BY_SCORE[usize::from(class / AGES)] * by_age[usize::from(class % AGES)] / TICKS as f32
}

impl Rates {
    pub fn new() -> Self {
        Rates { accounts: std::array::from_fn(|_| Account::default()) }
    }

    pub fn went(&self, class: Class) {
        self.accounts[usize::from(class)].went.fetch_add(1, Ordering::Relaxed);
    }

    pub fn returned(&self, class: Class, needed: bool) {
        let account = &self.accounts[usize::from(class)];
        account.went.fetch_sub(1, Ordering::Relaxed);
        account.returned.fetch_add(needed.into(), Ordering::Relaxed);
    }

    pub fn seen(&self, class: Class) {
        self.accounts[usize::from(class)].seen.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a tick.
    pub fn age(&self) {
        for account in &self.accounts {
            let went = account.went.swap(0, Ordering::Relaxed) as f32;
            let out = (get(&account.out) * GONE + went).max(0.0);
            set(&account.out, out);
            let returned = account.returned.swap(0, Ordering::Relaxed) as f32;
            set(&account.returns, get(&account.returns) * KEPT + returned);
            set(&account.exposure, get(&account.exposure) * KEPT + out);
        }
        self.note_seen();
    }

    /// Notes the pages that the hand passed. Recent ones weigh more.
    pub fn note_seen(&self) {
        for account in &self.accounts {
            let seen = account.seen.swap(0, Ordering::Relaxed) as f32;
            set(&account.present, get(&account.present) * 0.75 + seen);
        }
    }

    fn rate(&self, class: Class, tick_pages: u64) -> f32 {
        let account = &self.accounts[usize::from(class)];
        // Most pages never returned: their assumed rate weighs more, by a tick's arrivals.
        let weight = if class / AGES == 0 { ASSUMED + tick_pages as f32 } else { ASSUMED };
        (get(&account.returns) + assumed(class) * weight) / (get(&account.exposure) + weight)
    }

    /// Returns the classes to evict, those with the lowest rates. The fewer, the more pages the
    /// hand passes for each that leaves; the more, the more return. `tick_pages` pages arrive in a
    /// tick.
    pub fn choose(&self, tick_pages: u64, sees_uses: bool) -> Going {
        let mut order: [(f32, Class); CLASSES] =
            std::array::from_fn(|class| (self.rate(class as Class, tick_pages), class as Class));
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let all: f32 = self.accounts.iter().map(|account| get(&account.present)).sum();
        if all == 0.0 {
            return Going { first: FIRST, along: FIRST };
        }
        let (mut out, mut returning) = (0.0, 0.0);
        for (rate, class) in order {
            let its = get(&self.accounts[usize::from(class)].out);
            (out, returning) = (out + its, returning + its * rate);
        }
        // As many pages leave as come, for the first time or again.
        let new = (tick_pages as f32 - returning).max(0.0);
        // Where uses are seen, simulations do best with the first share alone.
        let (most_share, contrast) = if sees_uses { (SHARE, f32::MAX) } else { (SHARE_MOST, CONTRAST) };
        let many_return = returning > tick_pages as f32 * RETURNED_PART;
        let (mut chosen, mut least, mut held, mut weighed) = (1, f32::MAX, 0.0, 0.0);
        for (count, (rate, class)) in (1..).zip(order) {
            let is_few = held < all * SHARE;
            let differs = held > all * SHARE_LEAST && rate * held > weighed * contrast;
            if held > all * most_share || is_few && differs && many_return {
                break;
            }
            let present = get(&self.accounts[usize::from(class)].present);
            (held, weighed) = (held + present, weighed + present * rate);
            let returns = out * weighed / held.max(1.0);
            let cost = returns + (new + returns) * all / held.max(1.0) * PASSED;
            if is_few || cost < least {
                (chosen, least) = (count, cost);
            }
        }
        let most = order[chosen - 1].0 * COMPANY;
        let set = |count: usize| order[..count].iter().fold(0, |set, (_, class)| set | 1 << class);
        let along = order.partition_point(|(rate, _)| *rate <= most).max(chosen);
        Going { first: set(chosen), along: set(along) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Class = 7;
    const RETURNING: Class = AGES;

    /// Classes of a memory of 1000 pages, of which `old` never returned and the others return soon.
    /// Of the latter, `out` are out.
    fn going(old: usize, out: usize) -> u64 {
        let rates = Rates::new();
        (0..out).for_each(|_| rates.went(RETURNING));
        (0..old).for_each(|_| rates.seen(OLD));
        (old..1000).for_each(|_| rates.seen(RETURNING));
        rates.age();
        rates.choose(32, false).first
    }

    #[test]
    fn most_of_memory_stays_where_it_returns_soon() {
        let has = |set: u64, class: Class| set >> class & 1 == 1;
        let few = going(10, 100);
        assert!(has(few, OLD) && !has(few, RETURNING), "{few:b}");
        assert!(has(going(10, 0), RETURNING), "nothing has returned");
        assert!(has(going(2, 100), RETURNING), "too few others");
        assert!(!has(going(200, 0), RETURNING), "enough others");
    }
}
