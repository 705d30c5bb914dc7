//! Why a tree exceeded its budget: the figures at the largest excess, and their interpretation.

use std::time::{Duration, Instant};

use ledger::{Counter, Tree};

/// A cause must account for at least 1/2 of the excess.
const SHARE: u64 = 2;
/// A pool of 5/8 of the budget leaves the program too little.
const POOL_SHARE: (u64, u64) = (5, 8);
/// Interval within which a pager looks again after it found nothing to evict, on a busy machine.
const LOOKS: Duration = Duration::from_millis(500);

/// The largest excess over the budget, and the figures at that moment.
#[derive(Debug, Default, Clone)]
pub struct OverLimit {
    pub bytes: u64,
    budget_bytes: u64,
    is_paused: bool,
    pool_bytes: u64,
    poor_pages: u64,
    immovable_pages: u64,
    brought_in_pages: u64,
    forks: u64,
    kept_shared_pages: u64,
    /// A pager just found nothing to evict.
    is_stuck: bool,
    pauses: Pauses,
    stuck: Stuck,
}

/// When a pager last found nothing to evict.
#[derive(Debug, Default, Clone, Copy)]
struct Stuck {
    times: u64,
    since: Option<Instant>,
}

impl Stuck {
    fn note(&mut self, times: u64) -> bool {
        if times > self.times {
            *self = Stuck { times, since: Some(Instant::now()) };
        }
        self.since.is_some_and(|since| since.elapsed() < LOOKS)
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Pauses {
    /// A pause began, and the tree has exceeded its budget since: the pause is the cause.
    lasts: bool,
    /// Pages brought in by pauses, and the sum of all pages brought in at the last look.
    brought_in_pages: u64,
    seen_pages: u64,
}

impl Pauses {
    fn note(&mut self, is_paused: bool, is_over: bool, brought_in_pages: u64) {
        self.lasts = is_paused || self.lasts && is_over;
        if self.lasts {
            let more = brought_in_pages.saturating_sub(self.seen_pages);
            self.brought_in_pages = self.brought_in_pages.saturating_add(more);
        }
        self.seen_pages = brought_in_pages;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// `uzswap pause` brought all pages in.
    Paused,
    PagingEnded,
    Incompressible,
    /// The kernel does not let pages leave.
    Immovable,
    PoolFull,
    /// Compressed copies of what processes share would take more.
    Shared,
    /// Parent and child copy shared pages when they write to them.
    Forks,
    /// Memory was touched faster than pages could leave.
    Pace,
}

impl OverLimit {
    pub fn note(&mut self, tree: &Tree, total_bytes: u64, budget_bytes: u64) {
        let bytes = total_bytes.saturating_sub(budget_bytes);
        // The pages come in before the process reports that it is paused.
        let is_paused = tree.live().any(|live| live.slot.is_pause_wanted() || live.slot.is_paused());
        let brought_in_pages = tree.sum(Counter::BroughtIn);
        self.pauses.note(is_paused, bytes > 0, brought_in_pages);
        let is_stuck = self.stuck.note(tree.sum(Counter::OverBudget));
        if bytes > self.bytes {
            *self = OverLimit {
                bytes,
                budget_bytes,
                is_paused: self.pauses.lasts,
                pool_bytes: tree.live().fold(0, |sum, live| live.slot.own_pool_bytes().saturating_add(sum)),
                poor_pages: tree.sum(Counter::RejectCompressPoor),
                immovable_pages: tree.sum(Counter::Immovable),
                brought_in_pages: brought_in_pages.saturating_sub(self.pauses.brought_in_pages),
                forks: tree.sum(Counter::Forks),
                kept_shared_pages: tree.sum(Counter::KeptShared),
                is_stuck,
                pauses: self.pauses,
                stuck: self.stuck,
            };
        }
    }

    /// Returns whether a pause caused the largest excess.
    pub fn is_paused(&self) -> bool {
        self.cause() == Some(Cause::Paused)
    }

    fn cause(&self) -> Option<Cause> {
        if self.bytes == 0 {
            return None;
        }
        let explains = |pages: u64| pages.saturating_mul(4096) >= self.bytes / SHARE;
        let pool_max = self.budget_bytes / POOL_SHARE.1 * POOL_SHARE.0;
        Some(match self {
            _ if self.is_paused => Cause::Paused,
            _ if explains(self.brought_in_pages) => Cause::PagingEnded,
            _ if explains(self.poor_pages) => Cause::Incompressible,
            _ if explains(self.immovable_pages) => Cause::Immovable,
            _ if explains(self.kept_shared_pages) => Cause::Shared,
            _ if self.pool_bytes >= pool_max => Cause::PoolFull,
            // A pager that finds nothing to evict after a fork has only pages that relatives share.
            _ if self.forks > 0 => Cause::Forks,
            _ if self.is_stuck => Cause::Immovable,
            _ => Cause::Pace,
        })
    }

    pub fn reason(&self) -> Option<String> {
        let Self { brought_in_pages, poor_pages, forks, .. } = self;
        let text = match self.cause()? {
            Cause::Paused => "paging was paused (`uzswap pause`)".to_owned(),
            Cause::PagingEnded => format!("{brought_in_pages} pages came back because paging had to end"),
            Cause::Incompressible => format!("{poor_pages} pages did not compress"),
            Cause::Immovable => {
                "pages could not leave: they are read-only, locked or under a protection key".to_owned()
            }
            Cause::Shared => {
                "pages that forked processes share leave last, and free memory once all have moved them out"
                    .to_owned()
            }
            Cause::PoolFull => "what is compressed took most of it".to_owned(),
            Cause::Forks => format!("{forks} forks: pages shared with a child are copied when they change"),
            Cause::Pace => "memory was touched faster than pages could leave".to_owned(),
        };
        Some(text)
    }

    /// Returns advice, if there is any; `has_swap` says whether there is a swap file.
    pub fn advice(&self, has_swap: bool) -> Option<&'static str> {
        match self.cause()? {
            Cause::Incompressible | Cause::PoolFull if !has_swap => {
                Some("--swap SIZE lets pages that do not fit compressed go to a file on disk")
            }
            Cause::Shared => Some("a larger --ram, or fewer workers, leaves room for what they copy"),
            Cause::Forks => Some("a larger --ram leaves room for what parent and child copy"),
            Cause::Pace => Some("the excess is momentary; a lower --ram keeps the peak below a hard limit"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(change: impl FnOnce(&mut OverLimit)) -> OverLimit {
        let mut over = OverLimit { bytes: 16 << 20, budget_bytes: 128 << 20, ..OverLimit::default() };
        change(&mut over);
        over
    }

    #[test]
    fn the_cause_is_the_one_that_accounts_for_the_excess() {
        assert_eq!(OverLimit::default().cause(), None);
        assert_eq!(over(|_| ()).cause(), Some(Cause::Pace));
        // Eleven pages explain nothing of 16 MiB.
        assert_eq!(over(|one| one.poor_pages = 11).cause(), Some(Cause::Pace));
        assert_eq!(over(|one| one.poor_pages = 2048).cause(), Some(Cause::Incompressible));
        assert_eq!(over(|one| one.immovable_pages = 4096).cause(), Some(Cause::Immovable));
        assert_eq!(over(|one| one.brought_in_pages = 4096).cause(), Some(Cause::PagingEnded));
        assert_eq!(over(|one| one.pool_bytes = 90 << 20).cause(), Some(Cause::PoolFull));
        assert_eq!(over(|one| one.is_stuck = true).cause(), Some(Cause::Immovable));
        assert_eq!(over(|one| (one.is_stuck, one.forks) = (true, 3)).cause(), Some(Cause::Forks));
        let kept = over(|one| (one.kept_shared_pages, one.is_stuck) = (4096, true));
        assert_eq!(kept.cause(), Some(Cause::Shared));
        let paused = over(|one| (one.is_paused, one.brought_in_pages) = (true, 1 << 20));
        assert_eq!(paused.cause(), Some(Cause::Paused));
        assert_eq!(paused.advice(false), None, "a swap file is no help against a pause");
    }

    #[test]
    fn an_excess_is_the_pause_s_until_it_is_over() {
        let mut keeper = ledger::Keeper::create(&ledger::Settings::default(), 1).unwrap();
        keeper.claim(std::process::id()).unwrap();
        let slot = keeper.ledger().slot(0);
        let mut tree = Tree::default();
        tree.add(keeper.ledger());
        let mut over = OverLimit::default();
        let mut look = |total, change: &dyn Fn()| {
            change();
            over.note(&tree, total, 100 << 20);
            over.cause()
        };
        assert_eq!(look(90 << 20, &|| ()), None);
        // All pages come in before the process reports that it is paused.
        let comes_in = || {
            slot.want_pause(true);
            slot.add(Counter::BroughtIn, 10000);
        };
        assert_eq!(look(120 << 20, &comes_in), Some(Cause::Paused));
        // After the resume, pages leave gradually.
        let resumes = || slot.want_pause(false);
        assert_eq!(look(130 << 20, &resumes), Some(Cause::Paused));
        assert_eq!(look(90 << 20, &|| ()), Some(Cause::Paused));
        // A later, larger excess has its own cause; pages that a pause brought in do not count.
        assert_eq!(look(140 << 20, &|| ()), Some(Cause::Pace));
        let ends = || slot.add(Counter::BroughtIn, 10000);
        assert_eq!(look(150 << 20, &ends), Some(Cause::PagingEnded));
    }

    #[test]
    fn a_swap_file_is_advised_where_it_helps() {
        let poor = over(|one| one.poor_pages = 1 << 20);
        assert!(poor.advice(false).is_some_and(|advice| advice.contains("--swap")));
        assert_eq!(poor.advice(true), None);
        assert!(!over(|_| ()).advice(false).unwrap_or_default().contains("--swap"));
    }
}
