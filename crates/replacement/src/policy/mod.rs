//! The pager's policy: it learns from the pages that return which pages to evict.
//!
//! A pager in user space sees a page arrive and leave, but not its uses in memory. It can measure
//! how soon pages return after eviction. So each page has a *class*: its score (how soon it
//! returned in the past) and its age (how long it has been in memory since). The policy measures
//! each class's *rate* of return: returns, divided by pages out times the time they were out. It
//! evicts pages of the classes with the lowest rates:
//!
//! - Pages that are used once return at no rate at any age. They are evicted first, at no cost to
//!   the others.
//! - In a loop over more pages than memory holds, the pages just used return last. They are
//!   evicted, and the others stay.
//! - Pages of a collector's nursery and of hot tables return at once when tried. Their score keeps
//!   them in memory.
//! - When a program's use changes, tried pages of formerly hot classes do not return, and these
//!   classes are evicted.
//!
//! To measure the classes that stay, the policy evicts one block in `TRY_EVERY` that the hand
//! passes. This *ageing sample* replaces a use bit for every page, which only hardware could set.
//!
//! A *tick* is the arrival, first or repeated, of 1/32 of the pages that memory holds. If several
//! processes share a budget, memory is a process's part of it ([`Policy::set_memory`]). With ticks
//! of the whole budget, all pages of one of thirty processes had arrived in the last tick and none
//! could be evicted: the hand looked at 600 pages for each eviction.

mod history;
mod leaps;
mod rates;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use history::{each, Class, History, Page, Score, BLOCK_PAGES};
pub use leaps::Leaps;
use rates::Rates;

/// Ticks in which as many pages arrive as memory holds.
pub const TICKS: u64 = 32;
/// Number of classes.
pub const CLASSES: usize = 64;
/// One in this many blocks that the hand passes is tried, regardless of its class.
const TRY_EVERY: u64 = 256;
/// Ticks of arrivals before the policy saw any: registration begins when the budget is mostly used.
const UNSEEN_TICKS: u64 = 8;
/// Ticks, before that, over which the arrivals of pages found later are spread.
const FOUND_TICKS: u64 = 16;
/// Assumed age, in ticks, of a page whose arrival was not seen: its mapping was not registered yet.
const UNNOTED_TICKS: u64 = 4;
/// Score of a page that was read ahead.
const AHEAD: Score = 7;

/// The state of a policy: counters and rates, no pages.
pub struct Policy {
    tick_pages: AtomicU64,
    came: AtomicU64,
    returned: AtomicU64,
    /// Needed returns by ticks out.
    returned_after: [AtomicU64; TICKS as usize],
    tick: AtomicU64,
    /// Value of `came` at which the present tick ends.
    tick_ends: AtomicU64,
    /// Bit sets of the classes evicted now, and of these with their company.
    going: AtomicU64,
    along: AtomicU64,
    rates: Rates,
    /// Whether pages leave that relatives share.
    common_leave: AtomicBool,
    /// Whether the kernel reports uses ([`Policy::choose_tracked`]).
    sees_uses: AtomicBool,
}

/// The policy's choice among a block's pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choice {
    /// Pages to evict.
    pub going: u32,
    /// Pages of `going` that are evicted only to learn whether they return.
    pub tried: u32,
}

/// The policy's choice if the kernel reports which pages are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Pages to evict.
    pub going: u32,
    /// Pages of `going` that are evicted only to learn whether they return.
    pub tried: u32,
    /// Pages to arm. They are evicted at the next look unless they are used until then.
    pub arm: u32,
    /// Pages used since they were armed.
    pub used: u32,
}

/// Pages that came back because they were needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Returned {
    /// Their number.
    pub pages: u64,
    /// Sum of their distances: the arrivals between a page's eviction and its return.
    pub distance_pages: u64,
}

impl Policy {
    /// Creates the policy of a memory of about `pages` pages.
    pub fn new(pages: u64) -> Self {
        let tick_pages = tick_of(pages);
        let rates = Rates::new();
        let going = rates.choose(tick_pages, false);
        let count = || AtomicU64::new(0);
        Policy {
            tick_pages: AtomicU64::new(tick_pages),
            came: count(),
            returned: count(),
            returned_after: [const { AtomicU64::new(0) }; TICKS as usize],
            tick: AtomicU64::new(UNSEEN_TICKS),
            tick_ends: AtomicU64::new(tick_pages),
            going: AtomicU64::new(going.first),
            along: AtomicU64::new(going.along),
            rates,
            common_leave: AtomicBool::new(false),
            sees_uses: AtomicBool::new(false),
        }
    }

    /// Sets the size of memory. Ignores changes below 1/4: the past was counted in old ticks.
    pub fn set_memory(&self, pages: u64) {
        let (old, new) = (self.tick_pages.load(Ordering::Relaxed), tick_of(pages));
        if new.abs_diff(old) * 4 > old {
            self.tick_pages.store(new, Ordering::Relaxed);
            self.tick_ends.fetch_min(self.came.load(Ordering::Relaxed) + new, Ordering::Relaxed);
        }
    }

    /// Notes pages touched for the first time.
    pub fn touched(&self, history: &History, mask: u32) {
        let tick = self.pass(mask);
        each(mask).for_each(|index| history.set_in(index, 0, tick));
    }

    /// Notes pages of `mask` found in memory that arrived before the policy saw any. The order of
    /// calls is the assumed order of arrival: `nth` pages of about `of` came earlier.
    pub fn found(&self, history: &History, mask: u32, nth: u64, of: u64) {
        let before = FOUND_TICKS - (nth * FOUND_TICKS / of.max(1)).min(FOUND_TICKS - 1);
        let came = 0u64.wrapping_sub(before);
        each(mask).filter(|index| history.is_blank(*index)).for_each(|index| history.set_in(index, 0, came));
    }

    /// Notes the return of the pages of `mask`, of which `needed` caused faults and the others came
    /// along. In a long run the needed page is merely the first. It gets the score of the others,
    /// because otherwise each run would leave one page behind when all others are evicted.
    pub fn returned(&self, history: &History, mask: u32, needed: u32, in_run: bool) -> Returned {
        let mut sum = Returned::default();
        let tick = self.pass(mask);
        for index in each(mask) {
            let Page::Out { class, went } = history.page(index) else {
                history.set_in(index, 0, tick);
                continue;
            };
            let is_needed = needed >> index & 1 != 0;
            let ticks = history::distance(went, tick);
            self.rates.returned(class, is_needed);
            let old = class / AGES;
            let score = match is_needed && !in_run {
                true => score_of(old, ticks),
                false => AHEAD,
            };
            if is_needed {
                sum.pages += 1;
                if let Some(count) = self.returned_after.get(usize::from(ticks)) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                sum.distance_pages += u64::from(ticks) * self.tick_pages.load(Ordering::Relaxed);
            }
            history.set_in(index, score, tick);
        }
        self.returned.fetch_add(sum.pages, Ordering::Relaxed);
        sum
    }

    /// Returns the number of pages that have returned because they were needed.
    pub fn all_returned(&self) -> u64 {
        self.returned.load(Ordering::Relaxed)
    }

    /// Returns the same by ticks out, for less than a memory's worth of ticks.
    pub fn returned_after(&self) -> [u64; TICKS as usize] {
        std::array::from_fn(|ticks| self.returned_after[ticks].load(Ordering::Relaxed))
    }

    /// Notes evictions.
    pub fn evicted(&self, history: &History, mask: u32) {
        let tick = self.tick.load(Ordering::Relaxed);
        for index in each(mask) {
            let class = class_of(history.page(index), tick);
            self.rates.went(class);
            history.set_out(index, class, tick);
        }
    }

    /// Whether pages leave that relatives share, too.
    pub fn common_leave(&self) -> bool {
        self.common_leave.load(Ordering::Relaxed)
    }

    /// Sets whether they do.
    pub fn let_common_leave(&self, leave: bool) {
        self.common_leave.store(leave, Ordering::Relaxed);
    }

    /// Advances time by the arrivals of `mask`. Returns the tick before that.
    fn pass(&self, mask: u32) -> u64 {
        let count = u64::from(mask.count_ones());
        let came = self.came.fetch_add(count, Ordering::Relaxed) + count;
        let (tick, ends) = (self.tick.load(Ordering::Relaxed), self.tick_ends.load(Ordering::Relaxed));
        let next = ends + self.tick_pages.load(Ordering::Relaxed);
        // Only the first thread to reach the end of a tick ends it.
        if came >= ends
            && self.tick_ends.compare_exchange(ends, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.tick.fetch_add(1, Ordering::Relaxed);
            self.rates.age();
            self.choose_classes();
        }
        tick
    }

    /// Chooses the classes again, from what the hand saw: it finished a round without an eviction.
    pub fn decide_anew(&self) {
        self.rates.note_seen();
        self.choose_classes();
    }

    fn choose_classes(&self) {
        let sees_uses = self.sees_uses.load(Ordering::Relaxed);
        let going = self.rates.choose(self.tick_pages.load(Ordering::Relaxed), sees_uses);
        self.going.store(going.first, Ordering::Relaxed);
        self.along.store(going.along, Ordering::Relaxed);
    }

    /// Chooses the pages of `present` to evict. `chance` is any number that differs from look to
    /// look. Also notes pages without a history.
    pub fn choose(&self, history: &History, present: u32, chance: u64) -> Choice {
        let tick = self.tick.load(Ordering::Relaxed);
        let going = self.going.load(Ordering::Relaxed);
        let along = self.along.load(Ordering::Relaxed);
        let mut choice = Choice::default();
        let mut company = 0;
        for index in each(present) {
            if history.is_blank(index) {
                history.set_in(index, 0, tick - UNNOTED_TICKS);
            }
            let page = history.page(index);
            let class = class_of(page, tick);
            self.rates.seen(class);
            let is_old = !is_new(page, tick);
            choice.going |= u32::from(going >> class & 1 != 0 && is_old) << index;
            company |= u32::from(along >> class & 1 != 0 && is_old) << index;
        }
        if choice.going != 0 {
            choice.going |= company;
        }
        if chance.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (TRY_EVERY - 1) == 0 {
            let tried = each(present & !choice.going).filter(|index| !is_new(history.page(*index), tick));
            choice.tried = tried.fold(0, |tried, index| tried | 1 << index);
            choice.going |= choice.tried;
        }
        choice
    }

    /// As [`Policy::choose`], if the kernel reports which pages are `armed`: not used since they
    /// were armed. A page to evict is armed first, and evicted if it is still armed at the next
    /// look. Looking at a page in use this way costs an eighth of evicting it.
    pub fn choose_tracked(&self, history: &History, present: u32, armed: u32, chance: u64) -> Tracked {
        let tick = self.tick.load(Ordering::Relaxed);
        let mut tracked = Tracked::default();
        self.sees_uses.store(true, Ordering::Relaxed);
        for index in each(present & !armed) {
            if history.is_armed(index) {
                tracked.used |= 1 << index;
                if let Page::In { score, came } = history.page(index) {
                    history.set_in(index, score_in_use(score, history::age(came, tick)), tick);
                }
            }
        }
        let choice = self.choose(history, present, chance);
        tracked.going = choice.going & armed;
        tracked.tried = choice.tried & armed;
        tracked.arm = (self.nearly(history, present) | choice.going) & !armed & !tracked.used;
        each(tracked.arm).for_each(|index| history.set_armed(index));
        tracked
    }

    /// Returns the pages of classes that are evicted first or as company.
    fn nearly(&self, history: &History, present: u32) -> u32 {
        let tick = self.tick.load(Ordering::Relaxed);
        let along = self.along.load(Ordering::Relaxed);
        let is_near = |index: &usize| {
            let page = history.page(*index);
            along >> class_of(page, tick) & 1 != 0 && !is_new(page, tick)
        };
        each(present).filter(is_near).fold(0, |mask, index| mask | 1 << index)
    }

    /// Notes pages that arrived armed: they were moved in without being needed.
    pub fn came_armed(&self, history: &History, mask: u32) {
        each(mask).for_each(|index| history.set_armed(index));
    }
}

fn tick_of(pages: u64) -> u64 {
    (pages / TICKS).max(1)
}

const AGES: u8 = 8;

/// Whether a page arrived so recently that it was hardly used.
fn is_new(page: Page, tick: u64) -> bool {
    matches!(page, Page::In { came, .. } if history::age(came, tick) == 0)
}

fn class_of(page: Page, tick: u64) -> Class {
    match page {
        Page::In { score, came } => {
            let age = match history::age(came, tick) {
                0..2 => 0,
                2..4 => 1,
                4..8 => 2,
                8..16 => 3,
                16..24 => 4,
                24..32 => 5,
                32..64 => 6,
                _ => 7,
            };
            score * AGES + age
        }
        // The page returned unseen.
        Page::Out { class, .. } => class,
    }
}

fn score_of(old: Score, ticks: u16) -> Score {
    let new = match ticks {
        0..2 => 1,
        2..4 => 2,
        4..12 => 3,
        12..32 => 4,
        32..96 => 5,
        _ => 6,
    };
    match old {
        0 | AHEAD => new,
        // Halfway, so that repeated returns reach it.
        old if old < new => old + (new - old).div_ceil(2),
        old => old - (old - new).div_ceil(2),
    }
}

/// Returns the score of a page of score `old` that was used within the last `ticks` ticks, as if it
/// had returned after half of them. The score never rises, because the page may have been used
/// often.
fn score_in_use(old: Score, ticks: u16) -> Score {
    let new = score_of(old, ticks / 2);
    match old {
        0 | AHEAD => new,
        old => new.min(old),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_that_is_seen_brings_a_score_nearer() {
        assert_eq!([0, AHEAD].map(|old| score_in_use(old, 40)), [4, 4], "nothing was known");
        assert_eq!([3, 4, 5, 6].map(|old| score_in_use(old, 6)), [2, 3, 3, 4], "halfway");
        assert_eq!([1, 2, 3].map(|old| score_in_use(old, 200)), [1, 2, 3], "and never further");
        let policy = Policy::new(1024);
        let history = History::default();
        policy.touched(&history, 1);
        history.set_armed(0);
        assert_eq!(policy.choose_tracked(&history, 1, 0, 1).used, 1);
        assert_eq!(history.page(0), Page::In { score: 1, came: UNSEEN_TICKS as u16 });
    }

    #[test]
    fn pages_found_first_are_the_oldest_and_those_that_came_unseen_are_between() {
        let policy = Policy::new(1024);
        let history = History::default();
        policy.touched(&history, 1);
        for (nth, index) in (1..6).enumerate() {
            policy.found(&history, 1 << index, nth as u64, 5);
        }
        policy.found(&history, !0, 5, 5);
        let age = |index| match history.page(index) {
            Page::In { score: 0, came } => u64::from(history::age(came, UNSEEN_TICKS)),
            page => panic!("{page:?}"),
        };
        assert_eq!(age(0), 0, "its arrival was seen");
        assert_eq!([1, 2, 3, 4, 5].map(age), [16, 13, 10, 7, 4].map(|ticks| UNSEEN_TICKS + ticks));
        assert_eq!(age(6), UNSEEN_TICKS + 1, "the last ones");
        assert!((6..16).all(|index| age(index) == age(6)));
    }

    /// Once they counted as the oldest of all, and pages that a program had just filled went first.
    #[test]
    fn pages_that_come_unseen_are_not_old() {
        let policy = Policy::new(1024);
        let history = History::default();
        // Three memories' worth of arrivals later.
        (0..3 * TICKS).for_each(|_| _ = policy.pass(0xffff) + policy.pass(0xffff));
        let tick = policy.tick.load(Ordering::Relaxed);
        assert_eq!(tick, UNSEEN_TICKS + 3 * TICKS);
        assert_eq!(policy.choose(&history, 1, 1), Choice::default());
        let came = (tick - UNNOTED_TICKS) as u16;
        assert_eq!(
            [0, 1].map(|index| history.page(index)),
            [came, 0].map(|came| Page::In { score: 0, came })
        );
    }

    #[test]
    fn the_first_page_of_a_run_is_remembered_as_the_others_are() {
        let policy = Policy::new(1024);
        let returned = |in_run| {
            let history = History::default();
            policy.touched(&history, 0xffff);
            policy.evicted(&history, 0xffff);
            assert_eq!(policy.returned(&history, 0xffff, 1, in_run).pages, 1, "one was needed");
            (history.page(0), history.page(1))
        };
        let (first, other) = returned(true);
        assert_eq!(first, other);
        let (first, other) = returned(false);
        assert_ne!(first, other);
    }

    /// A process whose part of the budget is a thirtieth: all its pages were new, and none could be
    /// evicted, until nearly all of them had been exchanged.
    #[test]
    fn in_a_smaller_memory_pages_are_old_sooner() {
        let policy = Policy::new(32 * TICKS * 30);
        let (history, others) = (History::default(), History::default());
        let is_old = || !is_new(history.page(0), policy.tick.load(Ordering::Relaxed));
        policy.touched(&others, 0xffff);
        policy.set_memory(32 * TICKS);
        let mut ticks = policy.tick.load(Ordering::Relaxed);
        // Ticks of 32 pages, which are two blocks.
        for _ in 0..8 {
            policy.touched(&others, 0xffff);
            policy.touched(&others, 0xffff);
            ticks += 1;
            assert_eq!(policy.tick.load(Ordering::Relaxed), ticks);
        }
        policy.touched(&history, 0xffff);
        assert!(!is_old());
        (0..2).for_each(|_| policy.touched(&others, 0xffff));
        assert!(is_old());
        // Too small a change to count.
        policy.set_memory(38 * TICKS);
        assert_eq!(policy.tick_pages.load(Ordering::Relaxed), 32);
        policy.set_memory(u64::MAX);
        assert_eq!(policy.tick_pages.load(Ordering::Relaxed), u64::MAX / TICKS);
    }

    #[test]
    fn returns_are_counted_by_how_long_pages_were_out() {
        let policy = Policy::new(32 * TICKS);
        let (history, others) = (History::default(), History::default());
        let pass_ticks = |ticks: u64| (0..2 * ticks).for_each(|_| policy.touched(&others, 0xffff));
        policy.touched(&history, 0xffff);
        policy.evicted(&history, 0xffff);
        pass_ticks(3);
        policy.returned(&history, 0x00ff, 0x0003, false);
        assert_eq!((policy.all_returned(), policy.returned_after()[3]), (2, 2));
        pass_ticks(TICKS);
        policy.returned(&history, 0xff00, 0xff00, false);
        assert_eq!(policy.all_returned(), 10);
        assert_eq!(policy.returned_after().iter().sum::<u64>(), 2, "the others were out for longer");
    }

    #[test]
    fn a_page_that_hardly_returns_sooner_goes_along_with_its_neighbours() {
        let policy = Policy::new(1 << 20);
        let history = History::default();
        // Blank pages never returned. The first evictions need an age of 3/4 of a memory.
        assert_eq!(policy.choose(&history, 0xffff, 1).going, 0);
        let tick_pages = policy.tick_pages.load(Ordering::Relaxed);
        assert_eq!(
            policy.rates.choose(tick_pages, false),
            rates::Going { first: 0b1110_0000, along: 0b1110_0000 }
        );
        for _ in 0..100 {
            policy.rates.seen(7);
            policy.rates.seen(6);
            policy.rates.seen(0);
        }
        policy.rates.note_seen();
        let going = policy.rates.choose(tick_pages, false);
        // Assumed rates: 0.8 for the oldest, 0.9 to 1.2 for younger, 3 and more for new pages.
        assert_eq!((going.first >> 7 & 1, going.first & 0x7f), (1, 0));
        assert_eq!(going.along & 0xff, 0b1110_0000);
    }

    #[test]
    fn company_goes_with_pages_that_go_and_never_by_itself() {
        const MEMORY: u64 = 1024;
        let policy = Policy::new(MEMORY);
        let pass_ticks = |ticks: u64| {
            let others = History::default();
            (0..ticks * MEMORY / TICKS / 16).for_each(|_| policy.touched(&others, 0xffff));
        };
        let [old, mixed, young] = std::array::from_fn(|_| History::default());
        policy.touched(&old, 0xffff);
        policy.touched(&mixed, 0x000f);
        pass_ticks(48);
        policy.touched(&mixed, 0x00f0);
        policy.touched(&young, 0xffff);
        pass_ticks(8);
        policy.touched(&mixed, 0x0f00);
        pass_ticks(20);
        policy.touched(&mixed, 0xf000);
        let chance = 1;
        for history in [&old, &mixed, &young] {
            policy.choose(history, 0xffff, chance);
        }
        policy.decide_anew();
        // Age 76 is evicted first, 28 returns hardly sooner, 20 sooner; new pages are kept.
        assert_eq!(policy.choose(&mixed, 0xffff, chance), Choice { going: 0x00ff, tried: 0 });
        assert_eq!(policy.choose(&mixed, 0xfff0, chance).going, 0, "nothing that it could go along with");
        assert_eq!(policy.choose(&young, 0xffff, chance).going, 0, "as before");
    }
}
