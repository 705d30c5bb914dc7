//! A trace for simulations: pages numbered without gaps, in the order of their addresses, sixteen
//! numbers a block.

use std::collections::{BTreeMap, HashMap};

use replacement::policy::BLOCK_PAGES;
use replacement::trace::Reference;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A page, by its number, is used.
    Use(u32),
    /// Pages are given back: `first..end`.
    Drop {
        first: u32,
        /// Exclusive.
        end: u32,
    },
}

/// A string of references.
#[derive(Debug, Default)]
pub struct References {
    events: Vec<Event>,
    blocks: u32,
    peak: usize,
}

impl References {
    /// From a trace. A process's pages are given back after its last event.
    pub fn new(trace: &[Reference]) -> Self {
        let block_of = |page: u64| page / BLOCK_PAGES as u64;
        let mut blocks = BTreeMap::new();
        let mut last = HashMap::new();
        for (at, reference) in trace.iter().enumerate() {
            last.insert(reference.process, at);
            if reference.discarded == 0 {
                blocks.insert((reference.process, block_of(reference.page)), 0u32);
            }
        }
        for (number, block) in blocks.values_mut().enumerate() {
            *block = number as u32;
        }
        let mut events = Vec::with_capacity(trace.len());
        for (at, reference) in trace.iter().enumerate() {
            let process = reference.process;
            match reference.discarded {
                1.. => {
                    let end = reference.page.saturating_add(reference.discarded);
                    let range = (process, block_of(reference.page))..=(process, block_of(end));
                    for (&(_, block), &number) in blocks.range(range) {
                        let base = block * BLOCK_PAGES as u64;
                        let first = reference.page.max(base);
                        let end = end.min(base + BLOCK_PAGES as u64);
                        if first < end {
                            let at = |page: u64| number * BLOCK_PAGES as u32 + (page - base) as u32;
                            push_drop(&mut events, at(first), at(end));
                        }
                    }
                }
                0 => {
                    let number = blocks[&(process, block_of(reference.page))];
                    let page = number * BLOCK_PAGES as u32 + (reference.page % BLOCK_PAGES as u64) as u32;
                    events.push(Event::Use(page));
                }
            }
            if last[&process] == at {
                let mut own = blocks.range((process, 0)..=(process, u64::MAX)).map(|(_, number)| *number);
                if let Some(first) = own.next() {
                    let last = own.next_back().unwrap_or(first);
                    push_drop(&mut events, first * BLOCK_PAGES as u32, (last + 1) * BLOCK_PAGES as u32);
                }
            }
        }
        Self::of(events, blocks.len() as u32)
    }

    /// From events over the pages of `blocks` blocks.
    pub fn of(events: Vec<Event>, blocks: u32) -> Self {
        let mut references = References { events, blocks, peak: 0 };
        let mut live = vec![false; references.pages()];
        let mut count = 0usize;
        for event in &references.events {
            match *event {
                Event::Use(page) => {
                    count += usize::from(!std::mem::replace(&mut live[page as usize], true));
                    references.peak = references.peak.max(count);
                }
                Event::Drop { first, end } => {
                    for live in &mut live[first as usize..end as usize] {
                        count -= usize::from(std::mem::take(live));
                    }
                }
            }
        }
        references
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Pages numbered, used or not.
    pub fn pages(&self) -> usize {
        self.blocks as usize * BLOCK_PAGES
    }

    /// Most pages in use at one time.
    pub fn peak_pages(&self) -> usize {
        self.peak
    }
}

fn push_drop(events: &mut Vec<Event>, first: u32, end: u32) {
    match events.last_mut() {
        Some(Event::Drop { end: last, .. }) if *last == first => *last = end,
        _ => events.push(Event::Drop { first, end }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbered_by_address_and_dropped_where_they_are() {
        let trace = [(1, 1000, 0), (2, 17, 0), (1, 5, 0), (1, 4, 997), (1, 1001, 0)]
            .map(|(process, page, discarded)| Reference { process, page, discarded });
        let references = References::new(&trace);
        assert_eq!(
            references.events(),
            [
                Event::Use(16 + 8),
                Event::Use(32 + 1),
                Event::Drop { first: 32, end: 48 },
                Event::Use(5),
                Event::Drop { first: 4, end: 16 + 9 },
                Event::Use(16 + 9),
                Event::Drop { first: 0, end: 32 },
            ]
        );
        assert_eq!((references.pages(), references.peak_pages()), (48, 2));
    }
}
