//! The pager's policy on strings of references whose best outcome is known.

use super::{play, policy, Event, References, POLICIES};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

fn uses(pages: impl Iterator<Item = u64>) -> References {
    let mut last = 0;
    let events = pages.map(|page| {
        last = last.max(page as u32);
        Event::Use(page as u32)
    });
    let events: Vec<Event> = events.collect();
    References::of(events, last / 16 + 1)
}

fn pages_in(name: &str, references: &References, pages: usize) -> u64 {
    let mut policy = policy(name, references, pages).unwrap();
    let outcome = play(references, &mut *policy);
    println!(
        "{name}: {} in of {} uses; {} looks; {}",
        outcome.pages_in, outcome.uses, outcome.looks, outcome.note
    );
    outcome.pages_in
}

#[test]
fn a_loop_over_half_as_much_again_as_memory_keeps_most_pages_that_fit() {
    for memory in [2000u64, 3000, 4000, 6000, 8000, 12_000] {
        let pages = memory * 3 / 2;
        let rounds = |count: u64| uses((0..count).flat_map(|_| 0..pages));
        // After learning: the pages that forty rounds bring in and ten do not.
        let kept = |name| {
            let at = memory as usize;
            30 * pages - (pages_in(name, &rounds(40), at) - pages_in(name, &rounds(10), at))
        };
        let (own, tracking, min) = (kept("pager"), kept("tracking"), kept("min"));
        assert_eq!(kept("lru"), 0, "what it is to be better than");
        assert!(own * 10 >= min * 7 && tracking * 10 >= min * 7, "{own}, {tracking} of {min} in {memory}");
    }
}

#[test]
fn hot_pages_stay_among_cold_ones_as_if_their_use_was_seen() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..600_000u64).map(|_| match random.below(10) {
        0..7 => random.below(1000) * 7,
        _ => random.below(20_000),
    }));
    let own = pages_in("pager", &references, 4000);
    assert!(own * 100 < pages_in("lru", &references, 4000) * 105);
}

#[test]
fn skewed_use_is_known_by_returning_pages() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..600_000u64).map(|_| {
        let part = random.below(1 << 30) as f64 / (1u64 << 30) as f64;
        20_000f64.powf(part) as u64 * 7919 % 20_011
    }));
    let own = pages_in("pager", &references, 5000);
    assert!(own < pages_in("lru", &references, 5000) && own < pages_in("kernel", &references, 5000));
}

#[test]
fn formerly_hot_pages_leave_when_others_become_hot() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..800_000u64).map(|at| match random.below(10) {
        0..8 => at / 200_000 * 3000 + random.below(3000),
        _ => random.below(20_000),
    }));
    let own = pages_in("pager", &references, 4000);
    assert!(own < pages_in("lru", &references, 4000));
}

#[test]
fn the_pager_is_within_two_percent_of_lru_at_random() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..400_000u64).map(|_| random.below(8000)));
    let own = pages_in("pager", &references, 4000);
    assert!(own * 100 < pages_in("lru", &references, 4000) * 102);
}

#[test]
fn min_is_the_bound_and_policies_keep_to_their_memory() {
    let mut random = Random(1_234_567);
    for _ in 0..40 {
        let (pages, memory) = (random.below(300) + 70, random.below(60) as usize + 16);
        let mut events = Vec::new();
        for _ in 0..4000 {
            let page = random.below(pages) as u32;
            match random.below(50) {
                0 => events.push(Event::Drop {
                    first: page,
                    end: (page + 1 + random.below(20) as u32).min(pages as u32),
                }),
                _ => events.push(Event::Use(page)),
            }
        }
        let references = References::of(events, pages.div_ceil(16) as u32);
        let min = pages_in("min", &references, memory);
        for name in POLICIES {
            let mut policy = policy(name, &references, memory).unwrap();
            let outcome = play(&references, &mut *policy);
            assert!(outcome.pages_in >= min, "{name}: {} against {min}", outcome.pages_in);
            let held = (0..references.pages() as u32).filter(|page| policy.has(*page)).count();
            assert!(held <= memory, "{name} holds {held} of {memory}");
        }
    }
}

#[test]
fn hot_pages_stay_where_uses_are_seen() {
    let mut random = Random(88_172_645_463_325_252);
    // Nearly all memory is in use all the time, beside data that are used once.
    let references = uses((0..900_000u64).map(|at| match random.below(20) {
        0 => 3600 + at / 20,
        _ => random.below(3600),
    }));
    let tracking = pages_in("tracking", &references, 4000);
    let (pager, lru) = (pages_in("pager", &references, 4000), pages_in("lru", &references, 4000));
    assert!(tracking * 4 < pager * 3 && tracking * 3 < lru, "{tracking} of {pager} and {lru}");
}
