//! A trace as simulations want it: pages numbered without gaps, in the order of their addresses,
//! sixteen numbers a block.

use std::collections::{BTreeMap, HashMap};

use crate::policy::BLOCK_PAGES;
use crate::trace::{Kind, Reference};

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A page is used.
    Use {
        /// Its number.
        page: u32,
        /// Whether it is written.
        write: bool,
    },
    /// Pages are given back: `first..end`.
    Drop {
        /// The first page.
        first: u32,
        /// Behind the last page.
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
    /// From a trace. What a process used is given back when it is heard of for the last time.
    pub fn new(trace: &[Reference]) -> Self {
        let block_of = |page: u64| page / BLOCK_PAGES as u64;
        let mut blocks = BTreeMap::new();
        let mut last = HashMap::new();
        for (at, reference) in trace.iter().enumerate() {
            last.insert(reference.process, at);
            if reference.kind != Kind::Discard {
                blocks.insert((reference.process, block_of(reference.page)), 0u32);
            }
        }
        for (number, block) in blocks.values_mut().enumerate() {
            *block = number as u32;
        }
        let mut events = Vec::with_capacity(trace.len());
        for (at, reference) in trace.iter().enumerate() {
            let process = reference.process;
            match reference.kind {
                Kind::Discard => {
                    let end = reference.page.saturating_add(reference.pages);
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
                kind => {
                    let number = blocks[&(process, block_of(reference.page))];
                    let page = number * BLOCK_PAGES as u32 + (reference.page % BLOCK_PAGES as u64) as u32;
                    events.push(Event::Use { page, write: kind == Kind::Write });
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

    /// From events over pages of so many blocks.
    pub fn of(events: Vec<Event>, blocks: u32) -> Self {
        let mut references = References { events, blocks, peak: 0 };
        let mut live = vec![false; references.pages()];
        let mut count = 0usize;
        for event in &references.events {
            match *event {
                Event::Use { page, .. } => {
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

    /// What happens, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Numbers of pages, used or not.
    pub fn pages(&self) -> usize {
        self.blocks as usize * BLOCK_PAGES
    }

    /// Most pages that were wanted at one time.
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
        let reference =
            |kind, process, page, pages| Reference { kind, process, thread: 0, page, pages, time_ns: 0 };
        let trace = [
            reference(Kind::Write, 1, 1000, 1),
            reference(Kind::Read, 2, 17, 1),
            reference(Kind::Read, 1, 5, 1),
            reference(Kind::Discard, 1, 4, 997),
            reference(Kind::Read, 1, 1001, 1),
        ];
        let references = References::new(&trace);
        let read = |page| Event::Use { page, write: false };
        assert_eq!(
            references.events(),
            [
                Event::Use { page: 16 + 8, write: true },
                read(32 + 1),
                Event::Drop { first: 32, end: 48 },
                read(5),
                Event::Drop { first: 4, end: 16 + 9 },
                read(16 + 9),
                Event::Drop { first: 0, end: 32 },
            ]
        );
        assert_eq!((references.pages(), references.peak_pages()), (48, 2));
    }
}
