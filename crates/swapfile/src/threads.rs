//! The engine of a file: pread(2) and pwrite(2), by threads that the caller starts.
//!
//! A thread that waits for a transfer which no other thread has taken does it itself. So a single
//! transfer needs no thread switch, and without engine threads the callers do everything.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use sys::files;

use crate::disk::Disk;
use crate::engine::{Done, Engine, Kind, Lane, Room, Transfer, LANE_DEPTH};
use crate::sync::lock;

/// Starts a thread that runs the given function until the engine is dropped.
pub type Spawn<'a> = &'a dyn Fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// The engine.
pub struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Arc<Disk>,
    queue: Mutex<Queue>,
    /// Signalled when there is work, or the engine ends.
    work: Condvar,
    /// Threads that run a job. A fork waits for 0: it copies memory that they may change or lock.
    busy: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

struct Job {
    lane: Arc<Ended>,
    transfer: Transfer,
}

#[derive(Default)]
struct Ended {
    done: Mutex<VecDeque<Done>>,
    changed: Condvar,
}

impl Threads {
    /// An engine with `threads` threads, started by `spawn`, beside its callers' own.
    pub fn new(disk: Arc<Disk>, threads: usize, spawn: Spawn<'_>) -> io::Result<Threads> {
        let shared = Arc::new(Shared {
            disk,
            queue: Mutex::default(),
            work: Condvar::new(),
            busy: AtomicUsize::new(0),
        });
        let engine = Threads { shared };
        for _ in 0..threads {
            let shared = engine.shared.clone();
            spawn(Box::new(move || shared.serve()))?;
        }
        Ok(engine)
    }
}

impl Shared {
    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                self.busy.fetch_add(1, Ordering::SeqCst);
                drop(queue);
                self.run(job);
                self.busy.fetch_sub(1, Ordering::SeqCst);
                queue = lock(&self.queue);
            } else if queue.closed {
                return;
            } else {
                queue = self.work.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }

    fn run(&self, job: Job) {
        let Job { lane, mut transfer } = job;
        let result = self.disk.run(&mut transfer);
        lock(&lane.done).push_back(Done { transfer, result });
        lane.changed.notify_one();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.work.notify_all();
    }
}

impl Engine for Threads {
    fn is_direct(&self) -> bool {
        self.shared.disk.is_direct
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        let (shared, ended) = (self.shared.clone(), Arc::default());
        Ok(Box::new(ThreadsLane { shared, ended, own: None, in_flight: 0 }))
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        files::reserve(&self.shared.disk.file, offset, len)
    }

    fn release(&self, offset: u64, len: u64) -> io::Result<()> {
        files::punch(&self.shared.disk.file, offset, len)
    }

    fn room(&self) -> io::Result<Room> {
        files::room(&self.shared.disk.file)
    }

    fn is_idle(&self) -> bool {
        lock(&self.shared.queue).jobs.is_empty() && self.shared.busy.load(Ordering::SeqCst) == 0
    }
}

struct ThreadsLane {
    shared: Arc<Shared>,
    ended: Arc<Ended>,
    /// A read that this thread does itself while others do the rest.
    own: Option<Transfer>,
    in_flight: usize,
}

impl ThreadsLane {
    fn publish(&mut self, transfer: Transfer) {
        let lane = self.ended.clone();
        lock(&self.shared.queue).jobs.push_back(Job { lane, transfer });
        self.shared.work.notify_one();
    }

    /// One of this lane's transfers that no thread has taken.
    fn take_back(&self) -> Option<Transfer> {
        let mut queue = lock(&self.shared.queue);
        let at = queue.jobs.iter().position(|job| Arc::ptr_eq(&job.lane, &self.ended))?;
        queue.jobs.remove(at).map(|job| job.transfer)
    }
}

impl Lane for ThreadsLane {
    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn push(&mut self, transfer: Transfer) {
        transfer.assert_valid();
        assert!(self.in_flight < LANE_DEPTH, "more transfers than the lane is deep");
        self.in_flight += 1;
        match transfer.kind {
            Kind::Read if self.own.is_none() => self.own = Some(transfer),
            _ => self.publish(transfer),
        }
    }

    fn pop(&mut self) -> Option<Done> {
        if self.in_flight == 0 {
            return None;
        }
        if let Some(done) = self.try_pop() {
            return Some(done);
        }
        if let Some(mut transfer) = self.own.take().or_else(|| self.take_back()) {
            let result = self.shared.disk.run(&mut transfer);
            self.in_flight -= 1;
            return Some(Done { transfer, result });
        }
        let mut done = lock(&self.ended.done);
        loop {
            if let Some(done) = done.pop_front() {
                self.in_flight -= 1;
                return Some(done);
            }
            done = self.ended.changed.wait(done).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn try_pop(&mut self) -> Option<Done> {
        let done = lock(&self.ended.done).pop_front();
        self.in_flight -= usize::from(done.is_some());
        done
    }
}

impl Drop for ThreadsLane {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
