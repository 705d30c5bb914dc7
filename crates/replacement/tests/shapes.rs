//! The pager's policy on strings of references whose best outcome is known.

use replacement::simulate::{play, policy, Event, References};

/// A repeatable source of numbers.
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
    let events: Vec<Event> = pages.map(|page| Event::Use { page: page as u32, write: false }).collect();
    let last = events.iter().map(|event| match event {
        Event::Use { page, .. } => *page,
        Event::Drop { .. } => 0,
    });
    let blocks = last.max().unwrap_or(0) / 16 + 1;
    References::of(events, blocks)
}

/// Pages that each policy brings in.
fn pages_in<const N: usize>(names: [&str; N], references: &References, pages: usize) -> [u64; N] {
    names.map(|name| {
        let mut policy = policy(name, references, pages).unwrap();
        let outcome = play(references, &mut *policy);
        println!(
            "{name}: {} in of {} uses, {} looks; {}",
            outcome.pages_in, outcome.uses, outcome.looks, outcome.note
        );
        outcome.pages_in
    })
}

const ALL: [&str; 8] = replacement::simulate::POLICIES;

#[test]
fn a_loop_over_more_than_memory_keeps_most_of_what_can_be_kept() {
    let (pages, rounds) = (6000u64, 40u64);
    let references = uses((0..rounds).flat_map(|_| 0..pages));
    let memory = (pages * 2 / 3) as usize;
    let r = pages_in(ALL, &references, memory);
    let hits = |n: u64| rounds * pages - pages - n;
    println!("{:?}", r.map(hits));
}

#[test]
fn hot_pages_among_cold_ones() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..1_000_000u64).map(|_| match random.below(10) {
        0..7 => random.below(1000) * 7,
        _ => random.below(20_000),
    }));
    pages_in(ALL, &references, 4000);
}

#[test]
fn skewed() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..1_000_000u64).map(|_| {
        let u = random.below(1 << 30) as f64 / (1u64 << 30) as f64;
        let rank = (20_000f64.powf(u)) as u64;
        rank * 7919 % 20_011
    }));
    pages_in(ALL, &references, 5000);
}

#[test]
fn phases() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..1_000_000u64).map(|at| {
        let phase = at / 200_000;
        match random.below(10) {
            0..8 => phase * 3000 + random.below(3000),
            _ => random.below(20_000),
        }
    }));
    pages_in(ALL, &references, 4000);
}

#[test]
fn random_uniform() {
    let mut random = Random(88_172_645_463_325_252);
    let references = uses((0..1_000_000u64).map(|_| random.below(8000)));
    pages_in(ALL, &references, 4000);
}
