//! Pages that must never be out: what the kernel writes when a thread ends.
//!
//! A thread that is ending gets no fault service: the kernel answers its accesses to missing pages with an error. It clears the
//! word that pthread_join() waits for, and marks the robust mutexes that the thread holds; were these pages out, somebody would
//! wait for ever. Both begin in the thread control block, whose pages with them stay in memory. (Pages with robust mutexes are
//! locked in memory by `preload/robust.rs`.)
//!
//! musl has all threads clear one word, the lock of its list of threads, which every thread takes before it ends. The kernel
//! tells of that word to its thread alone, so it is asked for where the agent is brought in.

use std::sync::RwLock;

use sys::{threads, PAGE_SIZE};

use crate::pager::Pager;
use crate::pages::BLOCK_BYTES;

/// Between looks at the list of threads.
const LOOK_NS: u64 = 20_000_000;
/// The word that is cleared comes this long before the list of robust mutexes, in glibc's control blocks of all architectures
/// (struct pthread: `tid`, `robust_head`). x86-64 aligns the block so that both are in one page; aarch64 does not.
const CLEARED_BEFORE_BYTES: usize = 16;
/// Threads that are followed.
const THREADS_MAX: usize = 8192;

/// Addresses of such pages, in order.
pub(crate) struct KeptPages {
    pages: RwLock<Vec<usize>>,
}

fn page_of(address: usize) -> usize {
    address & !(PAGE_SIZE - 1)
}

/// Those of a thread's control block, by where its list of robust mutexes is; both are one, mostly.
fn pages_of_block(list: usize) -> [usize; 2] {
    [page_of(list.saturating_sub(CLEARED_BEFORE_BYTES)), page_of(list)]
}

impl KeptPages {
    /// That of an address, before threads were looked at.
    pub fn new(address: Option<usize>) -> Self {
        KeptPages { pages: RwLock::new(address.map(page_of).into_iter().collect()) }
    }

    /// The pages of the block at `base` that stay.
    pub fn of(&self, base: usize) -> u32 {
        let pages = self.pages.read().expect("no panic while held");
        let first = pages.partition_point(|page| *page < base);
        let inside = pages[first..].iter().take_while(|page| **page < base + BLOCK_BYTES);
        inside.fold(0, |mask, page| mask | 1 << ((page - base) / PAGE_SIZE))
    }

    fn set(&self, mut pages: Vec<usize>) {
        pages.sort_unstable();
        pages.dedup();
        *self.pages.write().expect("no panic while held") = pages;
    }
}

impl Pager {
    /// Looks at the threads there are, now and then.
    pub(crate) fn keep_thread_blocks(&self, looked_ns: &mut u64, now_ns: u64) {
        if now_ns.wrapping_sub(*looked_ns) < LOOK_NS {
            return;
        }
        *looked_ns = now_ns;
        let mut pages: Vec<usize> = self.config.kept.map(page_of).into_iter().collect();
        let saw_all = threads::for_each(|thread| {
            if pages.len() < THREADS_MAX {
                pages.extend(threads::robust_list(thread).map(pages_of_block).into_iter().flatten());
            }
        });
        // Without a descriptor to list the threads with, those of the last look stay.
        if saw_all {
            self.kept.set(pages);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// The word that is cleared is the one before the list's page.
    #[test]
    fn a_control_block_across_two_pages() {
        assert_eq!(pages_of_block(5 * PAGE_SIZE), [4 * PAGE_SIZE, 5 * PAGE_SIZE]);
        assert_eq!(pages_of_block(5 * PAGE_SIZE + CLEARED_BEFORE_BYTES), [5 * PAGE_SIZE; 2]);
    }

    #[test]
    fn the_pages_of_a_block_that_stay() {
        let kept = KeptPages::new(Some(BLOCK_BYTES + 777));
        assert_eq!((kept.of(0), kept.of(BLOCK_BYTES)), (0, 1));
        kept.set(vec![BLOCK_BYTES + 3 * PAGE_SIZE, 5 * PAGE_SIZE, BLOCK_BYTES, BLOCK_BYTES]);
        assert_eq!((kept.of(0), kept.of(BLOCK_BYTES), kept.of(2 * BLOCK_BYTES)), (1 << 5, 0b1001, 0));
    }
}
