//! Reads of /proc that may block for as long as a process likes.
//!
//! Some files of /proc are read from the process's own memory, which it can withhold, or need a
//! lock that such a reader holds. Threads do these reads for the supervisor.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Maximum threads. Each process that blocks its reader keeps one.
const THREADS_MAX: usize = 64;
/// A look needs little more than a buffer.
const STACK_BYTES: usize = 64 << 10;
/// Queued looks. Further ones are refused.
const WAITING_MAX: usize = 4096;

type Asked<T> = (u64, Box<dyn FnOnce() -> T + Send>);

/// Threads that look, and their results. Blocked threads end with this process.
pub struct Looks<T> {
    ask: Sender<Asked<T>>,
    asked: Arc<Mutex<Receiver<Asked<T>>>>,
    found: Sender<(u64, T)>,
    results: Receiver<(u64, T)>,
    threads: usize,
    unfinished: Arc<AtomicUsize>,
    /// Looks asked for whose results have not been taken.
    pending: usize,
}

impl<T> Default for Looks<T> {
    /// Starts without threads, which are made on demand.
    fn default() -> Self {
        let (ask, asked) = mpsc::channel();
        let (found, results) = mpsc::channel();
        let asked = Arc::new(Mutex::new(asked));
        Looks { ask, asked, found, results, threads: 0, unfinished: Arc::default(), pending: 0 }
    }
}

impl<T: Send + 'static> Looks<T> {
    /// Queues a look with the result's `number`; returns whether it was accepted. It may never end.
    pub fn ask(&mut self, number: u64, look: impl FnOnce() -> T + Send + 'static) -> bool {
        let is_busy = self.unfinished.load(Ordering::Relaxed) >= self.threads;
        if self.pending >= WAITING_MAX || (is_busy && !self.add_thread() && self.threads == 0) {
            return false;
        }
        self.pending += 1;
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        self.ask.send((number, Box::new(look))).is_ok()
    }

    #[cfg(test)]
    pub fn is_busy(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) > 0
    }

    fn add_thread(&mut self) -> bool {
        if self.threads >= THREADS_MAX {
            return false;
        }
        let (asked, found, unfinished) = (self.asked.clone(), self.found.clone(), self.unfinished.clone());
        let thread =
            Builder::new().name("uzswap-look".to_owned()).stack_size(STACK_BYTES).spawn(move || loop {
                let next = asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((number, look)) = next else { return };
                let is_wanted = found.send((number, look())).is_ok();
                unfinished.fetch_sub(1, Ordering::Release);
                if !is_wanted {
                    return;
                }
            });
        self.threads += usize::from(thread.is_ok());
        thread.is_ok()
    }

    pub fn take(&mut self) -> Option<(u64, T)> {
        self.results.try_recv().ok().inspect(|_| self.pending -= 1)
    }

    pub fn take_until(&mut self, limit: Instant) -> Option<(u64, T)> {
        if self.pending == 0 {
            return None;
        }
        let result = self.results.recv_timeout(limit.saturating_duration_since(Instant::now())).ok();
        result.inspect(|_| self.pending -= 1)
    }
}

/// Looks once; returns `None` if that takes longer than `limit`.
pub fn look_within<T: Send + 'static>(
    limit: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let mut looks = Looks::default();
    looks.ask(0, look);
    looks.take_until(Instant::now() + limit).map(|(_, found)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn looks_that_never_end_delay_no_other() {
        let mut looks = Looks::default();
        let (keep, kept) = mpsc::channel::<()>();
        let kept = Arc::new(Mutex::new(kept));
        for number in 0..THREADS_MAX as u64 - 1 {
            let kept = kept.clone();
            assert!(looks.ask(number, move || kept.lock().unwrap().recv().unwrap_or(())));
        }
        assert!(looks.ask(999, || ()));
        assert_eq!(looks.take_until(Instant::now() + LONG), Some((999, ())));
        assert_eq!((looks.take(), looks.threads), (None, THREADS_MAX));
        drop(keep);
        let mut found: Vec<u64> =
            std::iter::from_fn(|| looks.take_until(Instant::now() + LONG)).map(|one| one.0).collect();
        found.sort_unstable();
        assert_eq!(found, (0..THREADS_MAX as u64 - 1).collect::<Vec<_>>());
        assert_eq!((looks.pending, looks.take()), (0, None));
    }

    #[test]
    fn the_number_of_looks_is_bounded() {
        let mut looks = Looks::default();
        let (keep, kept) = mpsc::channel::<()>();
        let kept = Arc::new(Mutex::new(kept));
        let asked = (0..2 * WAITING_MAX as u64).filter(|number| {
            let kept = kept.clone();
            looks.ask(*number, move || kept.lock().unwrap().recv().unwrap_or(()))
        });
        assert_eq!(asked.count(), WAITING_MAX);
        drop(keep);
        assert_eq!(std::iter::from_fn(|| looks.take_until(Instant::now() + LONG)).count(), WAITING_MAX);
    }

    #[test]
    fn one_look_has_its_limit() {
        assert_eq!(look_within(LONG, || 7), Some(7));
        assert_eq!(look_within(Duration::ZERO, || std::thread::sleep(LONG)), None);
    }
}
