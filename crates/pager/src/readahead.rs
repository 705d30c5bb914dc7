//! Readahead: which faults continue a sequential stream, and how far to look ahead.
//!
//! Each thread has a few remembered streams: the page where the last window ended, and the window's size. A fault that
//! continues one multiplies its window by four, up to the limit; any other fault starts a new stream with a window of
//! one page, so random access pays for one page only. Entries are single words, raced upon without harm.

use std::sync::atomic::{AtomicU64, Ordering};

const THREADS: usize = 64;
const STREAMS: usize = 4;
const NEXT_BITS: u32 = 56;

/// Streams of all threads.
pub struct Streams {
    entries: [[AtomicU64; STREAMS]; THREADS],
    turn: [AtomicU64; THREADS],
    window_log_max: u32,
}

/// The stream that a fault belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    row: usize,
    column: usize,
    log: u32,
}

impl Stream {
    /// Pages to bring in, the faulting one included.
    pub fn window(&self) -> usize {
        1 << self.log
    }
}

impl Streams {
    /// No streams yet; windows grow up to `window_max` pages, a power of two.
    pub fn new(window_max: usize) -> Self {
        assert!(window_max.is_power_of_two());
        Streams {
            entries: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            turn: std::array::from_fn(|_| AtomicU64::new(0)),
            window_log_max: window_max.trailing_zeros(),
        }
    }

    /// Finds or starts the stream of a fault at `page` by `thread`.
    pub fn find(&self, thread: u32, page: u64) -> Stream {
        let row = thread as usize % THREADS;
        for (column, entry) in self.entries[row].iter().enumerate() {
            let seen = entry.load(Ordering::Relaxed);
            if seen != 0 && seen & ((1 << NEXT_BITS) - 1) == page {
                let log = ((seen >> NEXT_BITS) as u32 + 2).min(self.window_log_max);
                return Stream { row, column, log };
            }
        }
        let column = self.turn[row].fetch_add(1, Ordering::Relaxed) as usize % STREAMS;
        Stream { row, column, log: 0 }
    }

    /// Notes where the window that was brought in ended.
    pub fn ended(&self, stream: Stream, next_page: u64) {
        let word = u64::from(stream.log) << NEXT_BITS | next_page & ((1 << NEXT_BITS) - 1);
        self.entries[stream.row][stream.column].store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_faults_widen_and_random_ones_do_not() {
        let streams = Streams::new(64);
        let (mut page, mut windows) = (1000, Vec::new());
        for _ in 0..5 {
            let stream = streams.find(7, page);
            windows.push(stream.window());
            page += stream.window() as u64;
            streams.ended(stream, page);
        }
        assert_eq!(windows, [1, 4, 16, 64, 64]);
        for page in [5, 900_000, 17, 333] {
            let stream = streams.find(7, page);
            assert_eq!(stream.window(), 1);
            streams.ended(stream, page + 1);
        }
        assert_eq!(streams.find(7, page).window(), 1, "random faults have pushed the stream out");
    }

    #[test]
    fn several_streams_of_a_thread_and_of_others_do_not_disturb_each_other() {
        let streams = Streams::new(16);
        for round in 0..3u64 {
            for (thread, base) in [(1, 10_000), (1, 20_000), (1, 30_000), (2, 10_000)] {
                let start: u64 = [0, 1, 5][round as usize];
                let stream = streams.find(thread, base + start);
                assert_eq!(stream.window(), [1, 4, 16][round as usize]);
                streams.ended(stream, base + start + stream.window() as u64);
            }
        }
    }
}
