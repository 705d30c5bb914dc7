//! Readahead: which faults continue a sequential stream, and how far to look ahead.
//!
//! Each thread has a few streams: the page where the last window ended, the window's size, and
//! whether the stream descends. A fault that continues a stream multiplies its window by four, up
//! to the limit. Any other fault starts a stream with a window of one page, so random access pays
//! for one page only. The next fault, behind that page or in front of it, decides the direction.
//! Only streams over out pages descend. Entries are single words, so races do no harm.
//!
//! Neighbours sometimes fault by chance, and the pages read ahead are wasted. A window counts as
//! used if the thread's next fault continues it, and as wasted if its stream is replaced first. If
//! the kernel shows which pages are used, these decide instead. Used windows are counted for every
//! size, separately for out pages in each direction and for first touches. A size whose windows are
//! mostly wasted is not used, except for an occasional attempt.
//!
//! Outside of streams, a page's neighbours may come along with it ([`Clusters`]). Pages that
//! left together lie together in the swap file, so reading an aligned cluster costs hardly more
//! than one page; from memory, each costs about half of a fault. But each page that comes in
//! evicts another: neighbours pay only if they are needed far sooner than the evicted pages. So
//! some faults bring their page alone, as a lone read: do watched neighbours fault within the
//! next faults? While neighbours do not pay, every fault is a lone read.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use address_space::units::{PageMask, PageNumber};

const THREADS: usize = 64;
const STREAMS: usize = 4;
const NEXT_BITS: u32 = 56;
/// The most pages of a cluster, which a fault that begins a stream may have brought.
const CLUSTER_MAX: u64 = 8;
/// Window sizes: 1 to 128 pages.
const SIZES: usize = 8;
/// Outcomes remembered. Beyond that, both counts are halved.
const OUTCOMES: u32 = 128;
/// Per cent of windows that must be continued. A wasted page costs 1/5 of a fault, and another
/// page.
const PAYS_PERCENT: u32 = 55;
/// Windows of a size that initially count as continued.
const ASSUMED: u32 = 8;
/// One window in sixteen ignores the outcomes.
const TRY_EVERY: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    Out,
    Untouched,
}

/// Outcomes, for example of windows of one size: ended in the high 16 bits, continued in the low.
#[derive(Default)]
pub struct Outcomes(AtomicU32);

impl Outcomes {
    pub fn note(&self, continued: bool) {
        let word = self.0.load(Ordering::Relaxed);
        let (mut ended, mut kept) = (word >> 16, word & 0xffff);
        match continued {
            true => kept += 1,
            false => ended += 1,
        }
        if ended + kept > OUTCOMES {
            (ended, kept) = (ended / 2, kept / 2);
        }
        self.0.store(ended << 16 | kept, Ordering::Relaxed);
    }

    /// Whether enough were continued.
    pub fn pays(&self, percent: u32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let (ended, kept) = (word >> 16, (word & 0xffff) + ASSUMED);
        kept * 100 >= (kept + ended) * percent
    }
}

/// Pages read ahead: the number whose use is known, and the number used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uses {
    pub seen: u64,
    pub used: u64,
}

impl Uses {
    /// Whether two thirds were used: each unused page replaces one that often returns.
    fn is_enough(self) -> bool {
        self.used * 3 >= self.seen * 2
    }
}

pub struct Streams {
    entries: [[AtomicU64; STREAMS]; THREADS],
    turn: [AtomicU64; THREADS],
    window_log_max: u32,
    outcomes: [[Outcomes; SIZES]; 3],
    tries: AtomicU32,
}

#[derive(Debug, Clone, Copy)]
pub struct Stream {
    row: usize,
    column: usize,
    log: u32,
    over: Over,
    descends: bool,
    /// Pages of the stream's last window, or of a replaced stream's, that are seen to be unused.
    pub wasted: u64,
}

impl Stream {
    pub fn window(&self) -> usize {
        1 << self.log
    }

    /// Pages of the window from the faulting one on. The others are in front of it.
    pub fn ahead(&self) -> usize {
        if self.descends {
            1
        } else {
            self.window()
        }
    }
}

/// The last window of a stream.
#[derive(Clone, Copy)]
struct Last {
    over: Over,
    descends: bool,
    log: u32,
    /// Key of the page behind its end, or in front of its start if the stream descends.
    next: u64,
}

impl Last {
    /// The window as a word: direction, kind, logarithm and end. Never zero.
    fn entry(self) -> u64 {
        let head =
            self.log | u32::from(self.descends) << 3 | u32::from(self.over == Over::Untouched) << 4 | 32;
        u64::from(head) << NEXT_BITS | self.next & ((1 << NEXT_BITS) - 1)
    }

    fn of(entry: u64) -> Option<Self> {
        let head = (entry >> NEXT_BITS) as u32;
        let over = if head & 16 == 0 { Over::Out } else { Over::Untouched };
        let next = entry & ((1 << NEXT_BITS) - 1);
        (entry != 0).then_some(Last { over, descends: head & 8 != 0, log: head & 7, next })
    }

    /// Whether the stream descends, if a fault at `page` continues it.
    fn continues(&self, page: PageNumber, over: Over) -> Option<bool> {
        let page = page.key();
        // Some pages behind a window may have been in memory.
        let gap = 1 << self.log;
        match self.descends {
            true => (over == Over::Out && self.next.wrapping_sub(page) < gap).then_some(true),
            false if page.wrapping_sub(self.next) < gap => Some(false),
            // A single page has no direction yet, nor has a cluster.
            false => {
                let back = self.next.wrapping_sub(page);
                (self.log == 0 && (2..=CLUSTER_MAX + 1).contains(&back) && over == Over::Out).then_some(true)
            }
        }
    }

    /// The pages that came with the faulting one.
    fn ahead(&self) -> Range<PageNumber> {
        let ahead = (1 << self.log) - 1;
        let (start, end) = match self.descends {
            true => (self.next + 1, self.next + 1 + ahead),
            false => (self.next.saturating_sub(ahead), self.next),
        };
        PageNumber::of_key(start)..PageNumber::of_key(end)
    }
}

impl Streams {
    /// Windows grow up to `window_max` pages, a power of two, at most 128.
    pub fn new(window_max: usize) -> Self {
        assert!(window_max.is_power_of_two() && window_max < 1 << SIZES);
        Streams {
            entries: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            turn: std::array::from_fn(|_| AtomicU64::new(0)),
            window_log_max: window_max.trailing_zeros(),
            outcomes: std::array::from_fn(|_| std::array::from_fn(|_| Outcomes::default())),
            tries: AtomicU32::new(0),
        }
    }

    fn outcomes(&self, over: Over, descends: bool, log: u32) -> &Outcomes {
        let kind = if over == Over::Untouched { 2 } else { usize::from(descends) };
        &self.outcomes[kind][log as usize]
    }

    /// The window after a used one of size `log`: up to four times as long, if such windows pay.
    fn grown(&self, over: Over, descends: bool, log: u32) -> u32 {
        let most = (log + 2).min(self.window_log_max);
        let pays = |log: &u32| self.outcomes(over, descends, *log).pays(PAYS_PERCENT);
        match (1..=most).rev().find(pays) {
            Some(best) if best == most => most,
            _ if self.tries.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRY_EVERY) => most,
            best => best.unwrap_or(0),
        }
    }

    /// Finds or starts the stream of a fault at `page` by `thread`. `uses` returns the uses of a
    /// range of pages, if they are tracked. It is called for the last window of the stream, or of a
    /// replaced one.
    pub fn find(
        &self,
        thread: u32,
        page: PageNumber,
        over: Over,
        uses: impl Fn(Range<PageNumber>) -> Option<Uses>,
    ) -> Stream {
        let row = thread as usize % THREADS;
        for (column, entry) in self.entries[row].iter().enumerate() {
            let Some(last) = Last::of(entry.load(Ordering::Relaxed)) else { continue };
            let Some(descends) = last.continues(page, over) else { continue };
            let wasted = self.judge(over, last, true, &uses);
            let log = self.grown(over, descends, last.log);
            return Stream { row, column, log, over, descends: descends && log > 0, wasted };
        }
        let column = self.turn[row].fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
        let last = Last::of(self.entries[row][column].load(Ordering::Relaxed));
        let wasted = last.map_or(0, |last| self.judge(last.over, last, false, &uses));
        Stream { row, column, log: 0, over, descends: false, wasted }
    }

    /// Records among the outcomes of `over` whether a window was used. `continued` says whether its
    /// thread faulted behind it. Returns the number of pages seen to be read ahead in vain.
    fn judge(
        &self,
        over: Over,
        last: Last,
        continued: bool,
        uses: impl Fn(Range<PageNumber>) -> Option<Uses>,
    ) -> u64 {
        if last.log == 0 {
            return 0;
        }
        let seen = match last.over {
            Over::Out => uses(last.ahead()).filter(|uses| uses.seen > 0),
            // Pages that are filled or mapped come unarmed.
            Over::Untouched => None,
        };
        let used = seen.map_or(continued, Uses::is_enough);
        self.outcomes(over, last.descends, last.log).note(used);
        seen.map_or(0, |uses| uses.seen - uses.used)
    }

    pub fn ended(&self, stream: Stream, window: Range<PageNumber>) {
        let Stream { row, column, log, over, descends, .. } = stream;
        let next = if descends { window.start.key().wrapping_sub(1) } else { window.end.key() };
        self.entries[row][column].store(Last { over, descends, log, next }.entry(), Ordering::Relaxed);
    }
}

/// Lone reads that are remembered, and the faults within which a neighbour must be needed.
const LONE_READS: usize = 256;
const SOON: u32 = 256;
/// While neighbours pay, one fault in eight is a lone read.
const LONE_EVERY: u32 = 8;

/// The lone reads. Entries are single words, so races do no harm.
pub struct Clusters {
    /// Pages of an aligned cluster: 4 or 8.
    pages: usize,
    /// Per cent of the lone reads whose watched neighbours must fault.
    pays_percent: u32,
    /// Whether a lone read watches all neighbours, of which any may fault, or one.
    watches_all: bool,
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
        Clusters::new(4, PAYS_PERCENT, true)
    }

    /// For pages in the pool. A page that comes in vain costs most of a fault.
    pub fn in_pool() -> Self {
        Clusters::new(CLUSTER_MAX as usize, 75, false)
    }

    fn new(pages: usize, pays_percent: u32, watches_all: bool) -> Self {
        Clusters {
            pages,
            pays_percent,
            watches_all,
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
    /// could come.
    pub fn comes_whole(&self, page: PageNumber, others: PageMask) -> bool {
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
        if self.outcomes.pays(self.pays_percent) && !fault.is_multiple_of(LONE_EVERY) {
            return true;
        }
        // Keep an undecided lone read: replacing it would count only those that end early.
        if lone_read.load(Ordering::Relaxed) == 0 {
            let watched = if self.watches_all { others } else { chosen(others, fault) };
            let word = (cluster << WATCHED_BITS | u64::from(watched)) << FAULT_BITS | u64::from(fault);
            lone_read.store(word, Ordering::Relaxed);
        }
        false
    }
}

/// One of the bits that are set.
fn chosen(mut bits: u32, number: u32) -> u32 {
    for _ in 0..number / LONE_EVERY % bits.count_ones() {
        bits &= bits - 1;
    }
    bits & bits.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(streams: &Streams, thread: u32, page: u64, over: Over) -> Stream {
        streams.find(thread, PageNumber::of_key(page), over, unseen)
    }

    fn unseen(_pages: Range<PageNumber>) -> Option<Uses> {
        None
    }

    /// Records the whole window. Returns the page behind it, or in front of it.
    fn end(streams: &Streams, stream: Stream, page: u64) -> u64 {
        let end = page + stream.ahead() as u64;
        let start = end - stream.window() as u64;
        streams.ended(stream, PageNumber::of_key(start)..PageNumber::of_key(end));
        if stream.descends {
            start - 1
        } else {
            end
        }
    }

    /// The windows of faults, each at the end of the last window.
    fn run(streams: &Streams, thread: u32, start: u64, faults: usize) -> Vec<usize> {
        let mut page = start;
        (0..faults)
            .map(|_| {
                let stream = find(streams, thread, page, Over::Out);
                page = end(streams, stream, page);
                stream.window()
            })
            .collect()
    }

    #[test]
    fn descending_streams_widen_as_ascending_ones_also_two_in_turn() {
        let streams = Streams::new(64);
        let mut windows = [const { Vec::new() }; 3];
        let mut pages = [100_000, 200_000, 300_000];
        for fault in 0..5 {
            for (index, (page, windows)) in pages.iter_mut().zip(&mut windows).enumerate() {
                let stream = find(&streams, 1, *page, Over::Out);
                windows.push((stream.window(), stream.ahead()));
                let next = end(&streams, stream, *page);
                // The first two descend, and find some pages in memory; the third ascends.
                *page = match (index, fault) {
                    (2, _) => next,
                    (_, 0) => *page - 1,
                    (_, fault) => next - fault % 3,
                };
            }
        }
        assert_eq!(windows[0], [(1, 1), (4, 1), (16, 1), (64, 1), (64, 1)]);
        assert_eq!(windows[1], windows[0]);
        assert_eq!(windows[2], [(1, 1), (4, 4), (16, 16), (64, 64), (64, 64)]);
        let stream = find(&streams, 1, pages[0] - 64, Over::Out);
        assert_eq!(stream.window(), 1, "too far away");
        // First touches are awaited upwards only.
        streams
            .ended(find(&streams, 2, 500, Over::Untouched), PageNumber::of_key(500)..PageNumber::of_key(501));
        assert_eq!(find(&streams, 2, 499, Over::Untouched).window(), 1);
    }

    #[test]
    fn pages_that_came_in_front_of_a_fault_are_looked_at() {
        let streams = Streams::new(64);
        for (page, ahead) in [(1000, 0..0), (999, 0..0), (995, 996..999), (979, 980..995)] {
            let stream = streams.find(1, PageNumber::of_key(page), Over::Out, |pages| {
                assert_eq!(pages.start.key()..pages.end.key(), ahead);
                Some(Uses { seen: 3, used: 3 })
            });
            end(&streams, stream, page);
        }
    }

    #[test]
    fn sequential_faults_widen_and_random_ones_do_not() {
        let streams = Streams::new(64);
        assert_eq!(run(&streams, 7, 1000, 5), [1, 4, 16, 64, 64]);
        for page in [5, 900_000, 17, 333] {
            assert_eq!(run(&streams, 7, page, 1), [1]);
        }
        let page = 1000 + 1 + 4 + 16 + 64 + 64;
        assert_eq!(run(&streams, 7, page, 1), [1], "random faults have pushed the stream out");
    }

    #[test]
    fn several_streams_of_a_thread_and_of_others_do_not_disturb_each_other() {
        let streams = Streams::new(16);
        for round in 0..3u64 {
            for (thread, base) in [(1, 10_000), (1, 20_000), (1, 30_000), (2, 10_000)] {
                let start: u64 = [0, 1, 5][round as usize];
                let window = run(&streams, thread, base + start, 1);
                assert_eq!(window, [[1, 4, 16][round as usize]]);
            }
        }
    }

    #[test]
    fn a_stream_continues_behind_pages_in_memory() {
        let streams = Streams::new(64);
        assert_eq!(run(&streams, 1, 100, 2), [1, 4]);
        assert_eq!(run(&streams, 1, 105 + 3, 1), [16], "three pages behind the window were there");
        assert_eq!(run(&streams, 1, 124 + 16, 1), [1], "too far away");
    }

    #[test]
    fn windows_that_were_in_vain_are_not_made_any_more_until_they_pay() {
        let streams = Streams::new(64);
        let mut windows = Vec::new();
        // Two neighbours fault, and nothing behind them.
        for turn in 0..400u64 {
            for page in [turn * 1000, turn * 1000 + 1] {
                let stream = find(&streams, 3, page, Over::Out);
                assert_eq!(stream.wasted, 0, "whether the pages were used is not known");
                end(&streams, stream, page);
                windows.push(stream.window());
            }
        }
        let late = &windows[400..];
        let wide = late.iter().filter(|window| **window > 1).count();
        assert!(wide * 10 < late.len(), "{wide} of {} windows", late.len());
        assert!(wide > 0, "they are tried now and then");
        assert!(windows[..20].contains(&4));
        let first = find(&streams, 3, 1, Over::Untouched);
        streams.ended(first, PageNumber::of_key(1)..PageNumber::of_key(2));
        assert_eq!(find(&streams, 3, 2, Over::Untouched).window(), 4);
        let later = run(&streams, 9, 1 << 30, 600);
        assert_eq!(later[599], 64, "{later:?}");
    }

    #[test]
    fn windows_that_are_continued_and_not_used_are_in_vain() {
        // A thread that uses every fourth page.
        let widest = |uses: Option<Uses>| {
            let streams = Streams::new(64);
            let (mut page, mut wide) = (0, 0);
            for fault in 0..1000 {
                let stream = streams.find(3, PageNumber::of_key(page), Over::Out, |_| uses);
                wide += u32::from(fault >= 500 && stream.window() > 1);
                page = end(&streams, stream, page);
            }
            wide
        };
        let wide = |seen, used| widest(Some(Uses { seen, used }));
        assert_eq!((widest(None), wide(0, 0)), (500, 500), "nothing is seen");
        assert!(wide(3, 1) < 100, "{}", wide(3, 1));
        assert_eq!((wide(3, 2), wide(1, 1)), (500, 500), "what came with it is used");
    }

    #[test]
    fn windows_whose_pages_are_seen_to_be_used_are_not_in_vain() {
        // Each stream ends behind its second window. The test says how much of it is used.
        let play = |used_percent: u64| {
            let streams = Streams::new(64);
            let (mut wide, mut ahead, mut wasted) = (0, 0, 0);
            for turn in 0..400u64 {
                for page in [turn * 1000, turn * 1000 + 1] {
                    let uses = |pages: Range<PageNumber>| {
                        assert_eq!(pages.start.key() % 1000, 2, "behind the page that was asked for");
                        let seen = (pages.end - pages.start) as u64;
                        Some(Uses { seen, used: seen * used_percent / 100 })
                    };
                    let stream = streams.find(3, PageNumber::of_key(page), Over::Out, uses);
                    wide += usize::from(stream.window() > 1);
                    ahead += stream.window() as u64 - 1;
                    wasted += stream.wasted;
                    end(&streams, stream, page);
                }
            }
            (wide, ahead, wasted)
        };
        let (wide, _, wasted) = play(100);
        assert_eq!((wide, wasted), (400, 0));
        let (wide, ahead, wasted) = play(67);
        assert!(wide == 400 && wasted * 3 > ahead - 30 && wasted * 2 < ahead, "{wasted} of {ahead}");
        assert!(play(0).0 < 60, "{:?}", play(0));
    }
}

#[cfg(test)]
mod cluster_tests {
    use super::*;

    fn comes_whole(clusters: &Clusters, page: u64) -> bool {
        clusters.comes_whole(PageNumber::of_key(page), PageMask::ALL)
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
                let came = clusters.comes_whole(number, out);
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
            !clusters.comes_whole(PageNumber::of_key(random(&mut state) % 100_000), PageMask::NONE)
        }));
        assert!(clusters.comes_whole(PageNumber::of_key(1), PageMask::ALL), "neighbours still pay");
    }
}
