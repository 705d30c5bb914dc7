//! LIRS (Jiang and Zhang, 2002): pages whose last two uses were close together stay; the others
//! share a hundredth of memory.

use super::list::{Rows, NOWHERE};
use super::Replacement;

/// The rows of both: the stack of recency, and the queue of those that go next.
const STACK: u8 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Low,
    High,
}

/// LIRS.
pub struct Lirs {
    stack: Rows,
    queue: Rows,
    state: Vec<State>,
    low: usize,
    high: usize,
    low_max: usize,
    pages: usize,
}

impl Lirs {
    /// A memory of `pages` of `count` pages.
    pub fn new(count: usize, pages: usize) -> Self {
        Lirs {
            stack: Rows::new(count, 1),
            queue: Rows::new(count, 1),
            state: vec![State::Absent; count],
            low: 0,
            high: 0,
            low_max: pages - (pages / 100).max(2).min(pages / 2),
            pages,
        }
    }

    /// The stack ends with a page of the low set.
    fn prune(&mut self) {
        while let Some(page) = self.stack.last(STACK).filter(|page| self.state[*page as usize] != State::Low)
        {
            self.stack.take(page);
        }
    }

    fn to_front(rows: &mut Rows, page: u32) {
        if rows.of(page) != NOWHERE {
            rows.take(page);
        }
        rows.push(STACK, page);
    }

    fn demote_last(&mut self) {
        self.prune();
        let Some(page) = self.stack.last(STACK) else { return };
        self.stack.take(page);
        self.state[page as usize] = State::High;
        (self.low, self.high) = (self.low - 1, self.high + 1);
        Self::to_front(&mut self.queue, page);
        self.prune();
    }
}

impl Replacement for Lirs {
    fn has(&self, page: u32) -> bool {
        self.state[page as usize] != State::Absent
    }

    fn hit(&mut self, page: u32, _at: usize) {
        match self.state[page as usize] {
            State::Low => {
                Self::to_front(&mut self.stack, page);
                self.prune();
            }
            _ if self.stack.of(page) != NOWHERE => {
                Self::to_front(&mut self.stack, page);
                self.state[page as usize] = State::Low;
                (self.low, self.high) = (self.low + 1, self.high - 1);
                self.queue.take(page);
                if self.low > self.low_max {
                    self.demote_last();
                }
            }
            _ => {
                Self::to_front(&mut self.stack, page);
                Self::to_front(&mut self.queue, page);
            }
        }
    }

    fn admit(&mut self, page: u32, _first_touch: bool, _at: usize) {
        while self.low + self.high >= self.pages {
            if self.high == 0 {
                self.demote_last();
            }
            let last = self.queue.last(STACK).expect("the high pages are queued");
            self.queue.take(last);
            self.state[last as usize] = State::Absent;
            self.high -= 1;
        }
        let was_seen = self.stack.of(page) != NOWHERE;
        Self::to_front(&mut self.stack, page);
        if was_seen || self.low < self.low_max {
            self.state[page as usize] = State::Low;
            self.low += 1;
            if self.low > self.low_max {
                self.demote_last();
            }
        } else {
            self.state[page as usize] = State::High;
            self.high += 1;
            Self::to_front(&mut self.queue, page);
        }
    }

    fn remove(&mut self, page: u32) {
        match self.state[page as usize] {
            State::Low => self.low -= 1,
            State::High => {
                self.high -= 1;
                self.queue.take(page);
            }
            State::Absent => return,
        }
        self.state[page as usize] = State::Absent;
        if self.stack.of(page) != NOWHERE {
            self.stack.take(page);
        }
        self.prune();
    }
}
