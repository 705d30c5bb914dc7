//! Plays traces under replacement policies.
//!
//! Every policy has the same memory, in pages. What differs is what it sees: the pager's sees faults
//! and evictions alone; LRU and the kernel's two lists see every use, as hardware and simulations
//! do; MIN sees the future, and is the bound for all.

mod list;
mod lru;
mod min;
mod pager;
mod references;
#[cfg(test)]
mod shapes;
mod two_lists;

pub use references::{Event, References};

/// A policy in a simulated memory.
pub trait Replacement {
    /// Whether a page is in memory.
    fn has(&self, page: u32) -> bool;
    /// A page that is in memory is used. `at` is the event's number.
    fn hit(&mut self, page: u32, at: usize);
    /// A page comes in because it is needed; others go for it if need be.
    fn admit(&mut self, page: u32, first_touch: bool, at: usize);
    /// A page that is in memory is given back.
    fn remove(&mut self, page: u32);
    /// Pages that were looked at to find some that can go.
    fn looks(&self) -> u64 {
        0
    }
    /// What else there is to say.
    fn note(&self) -> String {
        String::new()
    }
}

/// What became of a trace under one policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Uses in the trace.
    pub uses: u64,
    /// Pages touched for the first time: no policy avoids them.
    pub first_touches: u64,
    /// Pages that had to be brought in.
    pub pages_in: u64,
    /// Pages looked at to find some that can go.
    pub looks: u64,
    /// What else there is to say.
    pub note: String,
}

/// The policies there are, by name.
pub const POLICIES: [&str; 5] = ["pager", "tracking", "lru", "kernel", "min"];

/// A policy by name, for a memory of so many pages; `None` when there is none of that name.
pub fn policy<'a>(name: &str, references: &'a References, pages: usize) -> Option<Box<dyn Replacement + 'a>> {
    let count = references.pages();
    Some(match name {
        "pager" => Box::new(pager::Pager::new(references, pages)),
        "tracking" => Box::new(pager::Pager::tracking(references, pages)),
        "lru" => Box::new(lru::Lru::new(count, pages)),
        "kernel" => Box::new(two_lists::TwoLists::new(count, pages)),
        "min" => Box::new(min::Min::new(references, pages)),
        _ => return None,
    })
}

/// Plays a trace.
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
