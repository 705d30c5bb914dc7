//! Plays traces under replacement policies.
//!
//! Every policy has the same memory, in pages, but sees different events: the pager's sees faults
//! and evictions alone; LRU and the kernel's two lists see every use, as hardware and simulations
//! do; MIN sees the future, and is the bound for all.

mod ordered;
mod pager;
mod references;
#[cfg(test)]
mod shapes;
mod two_lists;

pub use references::{Event, References};

pub trait Replacement {
    fn has(&self, page: u32) -> bool;
    /// A page in memory is used. `at` is the event's number.
    fn hit(&mut self, page: u32, at: usize);
    /// A needed page comes in; others leave for it if memory is full.
    fn admit(&mut self, page: u32, first_touch: bool, at: usize);
    /// A page in memory is given back.
    fn remove(&mut self, page: u32);
    /// Pages that were scanned to find pages to evict.
    fn looks(&self) -> u64 {
        0
    }
    /// Further results, as text.
    fn note(&self) -> String {
        String::new()
    }
}

/// A trace's result under one policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    pub uses: u64,
    /// Pages touched for the first time: no policy avoids them.
    pub first_touches: u64,
    pub pages_in: u64,
    pub looks: u64,
    pub note: String,
}

pub const POLICIES: [&str; 5] = ["pager", "tracking", "lru", "kernel", "min"];

/// A policy by name, for a memory of `pages`; `None` for an unknown name.
pub fn policy<'a>(name: &str, references: &'a References, pages: usize) -> Option<Box<dyn Replacement + 'a>> {
    Some(match name {
        "pager" => Box::new(pager::Pager::new(references, pages)),
        "tracking" => Box::new(pager::Pager::tracking(references, pages)),
        "lru" => Box::new(ordered::Ordered::lru(references, pages)),
        "kernel" => Box::new(two_lists::TwoLists::new(references.pages(), pages)),
        "min" => Box::new(ordered::Ordered::min(references, pages)),
        _ => return None,
    })
}

pub fn play(references: &References, policy: &mut dyn Replacement) -> Outcome {
    let mut touched = vec![false; references.pages()];
    let mut outcome = Outcome::default();
    for (at, event) in references.events().iter().enumerate() {
        match *event {
            Event::Use(page) => {
                outcome.uses += 1;
                if policy.has(page) {
                    policy.hit(page, at);
                    continue;
                }
                let first = !std::mem::replace(&mut touched[page as usize], true);
                match first {
                    true => outcome.first_touches += 1,
                    false => outcome.pages_in += 1,
                }
                policy.admit(page, first, at);
            }
            Event::Drop { first, end } => {
                for page in first..end {
                    touched[page as usize] = false;
                    if policy.has(page) {
                        policy.remove(page);
                    }
                }
            }
        }
    }
    outcome.looks = policy.looks();
    outcome.note = policy.note();
    outcome
}
