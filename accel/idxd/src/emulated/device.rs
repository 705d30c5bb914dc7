//! One emulated device: queues, engines, and the steps between them.
//!
//! A descriptor goes *submit* (queue checks, fault drawn) - *dispatch* (an engine takes it: memory
//! is read and written here) - *completion* (the record is written, later if time is emulated).
//! [`super::Run`] chooses the thread of the last two; the steps are the same.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::codec::Codec;
use super::faults::{At, Fault, RETRY_STORM, SLOW_NS};
use super::spec::{Clock, EmulateSpec, QueueMode, Run, Work, ENTRIES, STEP_NS};
use super::validate::Rules;
use crate::{
    aecs, assumptions, flags, Completion, Descriptor, Opcode, Record, Refusal, Status, Submission,
    FAULT_WAS_WRITE,
};

/// An error that a device latches because no completion record can carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftwareError {
    /// A completion record address that is misaligned, or missing though requested.
    BadCompletionAddress(Status),
    /// A descriptor sent to a full dedicated queue; it is lost.
    QueueOverrun,
}

/// Counters of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStatistics {
    /// Descriptors taken.
    pub accepted: u64,
    /// Submissions refused.
    pub retried: u64,
    /// Completion records written, or that would have been.
    pub completed: u64,
    /// Descriptors that never complete: lost, aborted, halted, overrun.
    pub lost: u64,
}

#[derive(Clone, Copy)]
struct Job {
    descriptor: Descriptor,
    queue: usize,
    /// The portal that submitted it.
    portal: u64,
    fault: Fault,
    submitted_ns: u64,
}

/// A job that its engine has served, or is serving, and whose record is not written yet.
struct Pending {
    job: Job,
    record: Option<Record>,
    due_ns: u64,
}

struct Queue {
    size: usize,
    threshold: usize,
    mode: QueueMode,
    enabled: AtomicBool,
    is_open: AtomicBool,
    number: AtomicU64,
    storm: AtomicU32,
    accepted: AtomicU64,
    retried: AtomicU64,
    completed: AtomicU64,
    lost: AtomicU64,
}

/// The state behind the device's one lock.
struct Inside {
    /// Descriptors not yet taken by an engine, per queue. Never grows: capacities are the queues'
    /// sizes.
    waiting: Box<[VecDeque<Job>]>,
    /// Jobs under way. Never grows beyond entries and engines.
    pending: Vec<Pending>,
    free_ns: Box<[u64]>,
    /// The queue that the next free engine looks at first.
    next_queue: usize,
    software_error: Option<SoftwareError>,
    stopping: bool,
}

pub(crate) struct Device {
    queues: Box<[Queue]>,
    inside: Mutex<Inside>,
    wake: Condvar,
    halted: AtomicBool,
    /// Incremented at each removal and restoration: odd while the device is absent. A portal
    /// belongs to one epoch.
    epoch: AtomicU64,
    spec: EmulateSpec,
    /// Number of this device's first queue over all devices, for the faults.
    first_queue: u64,
    born: Instant,
    steps_ns: AtomicU64,
    /// Whether a submission may execute at once, past the queue: nothing waits and work takes no
    /// time.
    is_immediate: bool,
}

/// Working memory for executing threads, one per CPU that may execute at a time.
pub(crate) struct CodecPool {
    codecs: Box<[Mutex<Codec>]>,
    next: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics under these locks; if it did, the state would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CodecPool {
    pub fn new(count: usize) -> Self {
        assert!(count > 0);
        CodecPool { codecs: (0..count).map(|_| Mutex::new(Codec::new())).collect(), next: AtomicU32::new(0) }
    }

    fn take(&self) -> MutexGuard<'_, Codec> {
        let count = self.codecs.len();
        for codec in self.codecs.iter() {
            if let Ok(codec) = codec.try_lock() {
                return codec;
            }
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize % count;
        lock(&self.codecs[next])
    }
}

impl Device {
    pub fn new(spec: &EmulateSpec, index: u32) -> Self {
        let size = spec.queue_size() as usize;
        let queue = || Queue {
            size,
            threshold: if spec.threshold == 0 { size } else { spec.threshold as usize },
            mode: spec.mode,
            enabled: AtomicBool::new(true),
            is_open: AtomicBool::new(false),
            number: AtomicU64::new(0),
            storm: AtomicU32::new(0),
            accepted: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        let engines = spec.engines as usize;
        Device {
            queues: (0..spec.queues).map(|_| queue()).collect(),
            inside: Mutex::new(Inside {
                waiting: (0..spec.queues).map(|_| VecDeque::with_capacity(size)).collect(),
                pending: Vec::with_capacity(ENTRIES as usize + engines),
                free_ns: vec![0; engines].into_boxed_slice(),
                next_queue: 0,
                software_error: None,
                stopping: false,
            }),
            wake: Condvar::new(),
            halted: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            spec: spec.clone(),
            first_queue: u64::from(index * spec.queues),
            born: Instant::now(),
            steps_ns: AtomicU64::new(0),
            is_immediate: spec.run == Run::Inline
                && spec.latency_ns == 0
                && spec.faults == Default::default()
                && !matches!(spec.work, Work::Timed { .. }),
        }
    }

    fn now_ns(&self) -> u64 {
        match self.spec.clock {
            Clock::Real => self.born.elapsed().as_nanos() as u64,
            Clock::Steps => self.steps_ns.load(Ordering::Relaxed),
        }
    }

    /// # Safety
    /// As for [`crate::Portal::submit`].
    pub unsafe fn submit(
        &self,
        index: usize,
        (portal, revoked): (u64, &AtomicBool),
        descriptor: &Descriptor,
        pool: &CodecPool,
    ) -> Submission {
        let queue = &self.queues[index];
        if !queue.enabled.load(Ordering::Acquire) || revoked.load(Ordering::Acquire) {
            return Submission::Gone;
        }
        if self.halted.load(Ordering::Acquire) {
            // A halted device serves no portal: posted descriptors vanish.
            if queue.mode == QueueMode::Shared {
                queue.retried.fetch_add(1, Ordering::Relaxed);
                return Submission::Retry;
            }
            queue.accepted.fetch_add(1, Ordering::Relaxed);
            queue.lost.fetch_add(1, Ordering::Relaxed);
            return Submission::Accepted;
        }
        if self.is_immediate {
            queue.accepted.fetch_add(1, Ordering::Relaxed);
            let (descriptor, fault) = (*descriptor, Fault::None);
            let job = Job { descriptor, queue: index, portal, fault, submitted_ns: 0 };
            // SAFETY: the caller's promise.
            let record = unsafe { self.execute(&job, pool) };
            // SAFETY: the caller's promise.
            unsafe { self.complete(&job, record) };
            return Submission::Accepted;
        }
        self.enqueue(index, (portal, revoked), descriptor, pool)
    }

    fn enqueue(
        &self,
        index: usize,
        (portal, revoked): (u64, &AtomicBool),
        descriptor: &Descriptor,
        pool: &CodecPool,
    ) -> Submission {
        let queue = &self.queues[index];
        let refuse = || {
            queue.retried.fetch_add(1, Ordering::Relaxed);
            Submission::Retry
        };
        if queue.mode == QueueMode::Shared && queue.storm.load(Ordering::Relaxed) > 0 {
            queue.storm.fetch_sub(1, Ordering::Relaxed);
            return refuse();
        }
        let mut inside = lock(&self.inside);
        if revoked.load(Ordering::Acquire) {
            return Submission::Gone;
        }
        let waiting = inside.waiting[index].len();
        if queue.mode == QueueMode::Shared && waiting >= queue.threshold {
            return refuse();
        }
        // Numbered under the lock: the order of numbers is the order in the queue.
        let number = queue.number.fetch_add(1, Ordering::Relaxed);
        let fault = self.spec.faults.draw(self.spec.seed, self.first_queue + index as u64, number);
        match fault {
            Fault::Retry if queue.mode == QueueMode::Shared => {
                queue.storm.store(RETRY_STORM, Ordering::Relaxed);
                return refuse();
            }
            Fault::Disable => {
                queue.enabled.store(false, Ordering::Release);
                return Submission::Gone;
            }
            _ => {}
        }
        queue.accepted.fetch_add(1, Ordering::Relaxed);
        if waiting >= queue.size {
            inside.software_error = Some(SoftwareError::QueueOverrun);
            queue.lost.fetch_add(1, Ordering::Relaxed);
            return Submission::Accepted;
        }
        let job = Job { descriptor: *descriptor, queue: index, portal, fault, submitted_ns: self.now_ns() };
        inside.waiting[index].push_back(job);
        match self.spec.run {
            Run::Inline => self.pump(&mut inside, pool),
            Run::Poll => {}
            Run::Threads => {
                drop(inside);
                self.wake.notify_one();
            }
        }
        Submission::Accepted
    }

    /// Works and completes due jobs, in the polling thread.
    pub fn progress(&self, pool: &CodecPool) {
        if self.is_immediate || self.spec.run == Run::Threads {
            return;
        }
        let mut inside = lock(&self.inside);
        if self.spec.clock == Clock::Steps {
            self.steps_ns.fetch_add(STEP_NS, Ordering::Relaxed);
        }
        self.pump(&mut inside, pool);
    }

    /// Dispatches to free engines and completes due jobs.
    fn pump(&self, inside: &mut Inside, pool: &CodecPool) {
        let now = self.now_ns();
        while let Some(job) = self.next_job(inside, now) {
            let (record, engine_ns, latency_ns) = self.serve(&job, pool);
            let free = inside.free_ns.iter_mut().min().expect("engines");
            let start = job.submitted_ns.max(*free);
            *free = start + engine_ns;
            if self.halted.load(Ordering::Acquire) {
                self.drop_all(inside);
                return;
            }
            inside.pending.push(Pending { job, record, due_ns: start + engine_ns + latency_ns });
        }
        let mut at = 0;
        while at < inside.pending.len() {
            let pending = &inside.pending[at];
            let blocked = pending.job.descriptor.opcode() == Opcode::DRAIN
                && inside.pending.iter().any(|other| {
                    other.job.queue == pending.job.queue && other.job.submitted_ns < pending.job.submitted_ns
                });
            if pending.due_ns > now || blocked {
                at += 1;
                continue;
            }
            let done = inside.pending.swap_remove(at);
            self.finish(inside, done.job, done.record);
            // Jobs moved here are looked at next; a drain that waited for this one is seen at the
            // next poll.
        }
    }

    fn next_job(&self, inside: &mut Inside, now: u64) -> Option<Job> {
        if self.halted.load(Ordering::Acquire) {
            return None;
        }
        let earliest = *inside.free_ns.iter().min().expect("engines");
        if earliest > now {
            return None;
        }
        let count = inside.waiting.len();
        for offset in 0..count {
            let index = (inside.next_queue + offset) % count;
            if let Some(job) = inside.waiting[index].pop_front() {
                inside.next_queue = (index + 1) % count;
                return Some(job);
            }
        }
        None
    }

    /// An engine's service of a job: its record, how long the engine is busy, and the extra latency
    /// of completion. `None`: the record is never written.
    fn serve(&self, job: &Job, pool: &CodecPool) -> (Option<Record>, u64, u64) {
        let descriptor = &job.descriptor;
        let mut latency = self.spec.latency_ns;
        match job.fault {
            Fault::Halt => {
                self.halted.store(true, Ordering::Release);
                self.queues[job.queue].lost.fetch_add(1, Ordering::Relaxed);
                return (None, 0, 0);
            }
            Fault::Hardware => return (Some(Record::of(Status::HARDWARE_ERROR_1)), 0, latency),
            Fault::Page(at) if matches!(descriptor.opcode(), Opcode::COMPRESS | Opcode::DECOMPRESS) => {
                if self.spec.block_on_fault && descriptor.flags() & flags::BLOCK_ON_FAULT != 0 {
                    latency += assumptions::PAGE_REQUEST_NS;
                } else {
                    let (fault_address, write) = match at {
                        At::Destination => (descriptor.destination, FAULT_WAS_WRITE),
                        At::Source2 if descriptor.flags() & flags::READ_AECS != 0 => (descriptor.source_2, 0),
                        At::Source | At::Source2 => (descriptor.source, 0),
                    };
                    let status = Status::PAGE_FAULT.0 | write;
                    return (Some(Record { fault_address, ..Record::of(Status(status)) }), 0, latency);
                }
            }
            Fault::Slow => latency += SLOW_NS,
            _ => {}
        }
        let engine_ns = match self.spec.work {
            Work::Timed { page_ns } => page_ns * u64::from(descriptor.source_size.max(4096)) / 4096,
            _ => 0,
        };
        // SAFETY: the job's submitter promised that its buffers stay valid until it completes.
        let record = unsafe { self.execute(job, pool) };
        ((job.fault != Fault::Lost).then_some(record), engine_ns, latency)
    }

    /// # Safety
    /// The job's buffers are valid, see [`crate::Portal::submit`].
    unsafe fn execute(&self, job: &Job, pool: &CodecPool) -> Record {
        match self.spec.work {
            Work::Real => {
                let rules = Rules {
                    generation: self.spec.generation,
                    max_transfer: assumptions::MAX_TRANSFER_OF_QUEUE,
                    window: aecs::WINDOW,
                };
                if !has_usable_completion(&job.descriptor) {
                    // No work is done if its end cannot be reported.
                    return Record::of(Status::COMPLETION_MISALIGNED);
                }
                // SAFETY: the caller's promise.
                unsafe { pool.take().execute(&job.descriptor, rules) }
            }
            Work::Null | Work::Timed { .. } => {
                let descriptor = &job.descriptor;
                let output_size = match descriptor.opcode() {
                    Opcode::COMPRESS => (descriptor.source_size / 2).min(descriptor.destination_size),
                    _ => descriptor.destination_size,
                };
                Record { output_size, bytes_completed: descriptor.source_size, ..Record::of(Status::SUCCESS) }
            }
        }
    }

    /// Writes the record.
    ///
    /// # Safety
    /// The completion record's address is valid, see [`crate::Portal::submit`].
    unsafe fn complete(&self, job: &Job, record: Record) -> Option<SoftwareError> {
        let descriptor = &job.descriptor;
        // Counted first: a thread that sees the record sees the count.
        self.queues[job.queue].completed.fetch_add(1, Ordering::Relaxed);
        if !has_usable_completion(descriptor) {
            return Some(SoftwareError::BadCompletionAddress(Status::COMPLETION_MISALIGNED));
        }
        let wanted = descriptor.flags() & flags::REQUEST_COMPLETION != 0 || !record.is_success();
        if wanted && descriptor.flags() & flags::COMPLETION_VALID != 0 {
            // SAFETY: aligned and not null, as just checked; valid and shared, by the submitter's
            // promise.
            unsafe { &*(descriptor.completion as *const Completion) }.complete(&record);
        }
        None
    }

    fn finish(&self, inside: &mut Inside, job: Job, record: Option<Record>) {
        let Some(record) = record else {
            self.queues[job.queue].lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // SAFETY: the job's submitter promised that its record stays valid until it is written.
        if let Some(error) = unsafe { self.complete(&job, record) } {
            inside.software_error = Some(error);
        }
    }

    fn drop_waiting(&self, inside: &mut Inside) {
        for (queue, waiting) in self.queues.iter().zip(inside.waiting.iter_mut()) {
            queue.lost.fetch_add(waiting.len() as u64, Ordering::Relaxed);
            waiting.clear();
        }
    }

    fn drop_all(&self, inside: &mut Inside) {
        self.drop_waiting(inside);
        for pending in inside.pending.drain(..) {
            self.queues[pending.job.queue].lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The loop of an engine thread.
    pub fn run_engine(&self, pool: &CodecPool) {
        loop {
            let mut inside = lock(&self.inside);
            let job = loop {
                if inside.stopping {
                    return;
                }
                // In this mode time is real and an engine is free when its thread is here.
                match self.next_job(&mut inside, u64::MAX) {
                    Some(job) => break job,
                    None => inside = self.wake.wait(inside).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let is_drain = job.descriptor.opcode() == Opcode::DRAIN;
            if !is_drain {
                // Tells drains that this queue has a job under way.
                inside.pending.push(Pending { job, record: None, due_ns: 0 });
            }
            drop(inside);

            let start = self.now_ns();
            let (record, engine_ns, latency_ns) = self.serve(&job, pool);
            let due = start + engine_ns + latency_ns;
            while self.now_ns() < due {
                // Short waits: a sleep is longer than a device's work.
                std::thread::yield_now();
            }
            let mut inside = lock(&self.inside);
            if self.halted.load(Ordering::Acquire) {
                if record.is_some() {
                    self.queues[job.queue].lost.fetch_add(1, Ordering::Relaxed);
                }
                inside.pending.retain(|pending| !same(&pending.job, &job));
                self.drop_waiting(&mut inside);
                continue;
            }
            if is_drain {
                let blocked = |inside: &Inside| {
                    inside.pending.iter().any(|other| {
                        other.job.queue == job.queue && other.job.submitted_ns <= job.submitted_ns
                    })
                };
                while blocked(&inside) && !inside.stopping {
                    drop(inside);
                    std::thread::yield_now();
                    inside = lock(&self.inside);
                }
            } else {
                let at = inside.pending.iter().position(|pending| same(&pending.job, &job));
                inside.pending.swap_remove(at.expect("marked above"));
            }
            self.finish(&mut inside, job, record);
        }
    }

    /// Ends the threads of [`Device::run_engine`] once they have finished their jobs.
    pub fn stop(&self) {
        lock(&self.inside).stopping = true;
        self.wake.notify_all();
    }

    /// Opens queue `index`; returns its portal's epoch.
    pub fn open(&self, index: usize) -> Result<u64, Refusal> {
        let refuse = |text: &str| Err(Refusal(text.to_owned()));
        let epoch = self.epoch();
        let Some(queue) = self.queues.get(index).filter(|_| epoch.is_multiple_of(2)) else {
            return refuse("no such queue");
        };
        if !queue.enabled.load(Ordering::Acquire) || self.halted.load(Ordering::Acquire) {
            return refuse("the queue is disabled or its device has halted");
        }
        if queue.is_open.swap(true, Ordering::AcqRel) && queue.mode == QueueMode::Dedicated {
            return refuse("the dedicated queue is open already: one opener at a time");
        }
        Ok(epoch)
    }

    /// Undoes [`Device::open`] of `epoch`.
    pub fn close(&self, index: usize, epoch: u64) {
        let _inside = lock(&self.inside);
        // The queue of a device that was removed and restored may have another opener.
        if self.epoch() == epoch {
            self.queues[index].is_open.store(false, Ordering::Release);
        }
    }

    /// The device's epoch: odd while it is absent.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Removes the device: records of accepted jobs are never written, portals are dead.
    pub fn remove(&self) {
        let mut inside = lock(&self.inside);
        if !self.epoch().is_multiple_of(2) {
            return;
        }
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.halted.store(true, Ordering::Release);
        for queue in self.queues.iter() {
            queue.enabled.store(false, Ordering::Release);
        }
        if self.spec.run != Run::Threads {
            self.drop_all(&mut inside);
        }
    }

    /// Restores a removed device, with all queues enabled and none open.
    pub fn restore(&self) {
        if self.epoch().is_multiple_of(2) {
            return;
        }
        self.reset();
        let _inside = lock(&self.inside);
        for queue in self.queues.iter() {
            queue.is_open.store(false, Ordering::Release);
        }
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops a portal's waiting descriptors and waits for those taken by an engine. The portal is
    /// already marked as revoked.
    pub fn revoke(&self, index: usize, portal: u64) {
        let mut inside = lock(&self.inside);
        let lost = &self.queues[index].lost;
        let before = inside.waiting[index].len();
        inside.waiting[index].retain(|job| job.portal != portal);
        lost.fetch_add((before - inside.waiting[index].len()) as u64, Ordering::Relaxed);
        let is_its = |pending: &Pending| pending.job.queue == index && pending.job.portal == portal;
        if self.spec.run != Run::Threads {
            let before = inside.pending.len();
            inside.pending.retain(|pending| !is_its(pending));
            lost.fetch_add((before - inside.pending.len()) as u64, Ordering::Relaxed);
        }
        while inside.pending.iter().any(is_its) {
            drop(inside);
            std::thread::yield_now();
            inside = lock(&self.inside);
        }
    }

    /// Stops queue `index` from taking anything. Its jobs finish.
    pub fn disable_queue(&self, index: usize) {
        self.queues[index].enabled.store(false, Ordering::Release);
    }

    pub fn enable_queue(&self, index: usize) {
        self.queues[index].enabled.store(true, Ordering::Release);
    }

    pub fn is_enabled(&self, index: usize) -> bool {
        self.queues[index].enabled.load(Ordering::Acquire) && !self.halted.load(Ordering::Acquire)
    }

    /// Halts the device, losing all its jobs.
    pub fn halt(&self) {
        let mut inside = lock(&self.inside);
        self.halted.store(true, Ordering::Release);
        if self.spec.run != Run::Threads {
            self.drop_all(&mut inside);
        }
    }

    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    /// Resets a halted device: it works again, with all queues enabled.
    pub fn reset(&self) {
        let mut inside = lock(&self.inside);
        if self.spec.run != Run::Threads {
            self.drop_all(&mut inside);
        }
        inside.software_error = None;
        inside.free_ns.fill(0);
        for queue in self.queues.iter() {
            queue.enabled.store(true, Ordering::Release);
        }
        self.halted.store(false, Ordering::Release);
    }

    /// Takes the latched software error.
    pub fn take_software_error(&self) -> Option<SoftwareError> {
        lock(&self.inside).software_error.take()
    }

    /// Descriptors of queue `index` that no engine has taken.
    pub fn occupancy(&self, index: usize) -> usize {
        lock(&self.inside).waiting[index].len()
    }

    pub fn statistics(&self, index: usize) -> QueueStatistics {
        let queue = &self.queues[index];
        QueueStatistics {
            accepted: queue.accepted.load(Ordering::Relaxed),
            retried: queue.retried.load(Ordering::Relaxed),
            completed: queue.completed.load(Ordering::Relaxed),
            lost: queue.lost.load(Ordering::Relaxed),
        }
    }
}

/// Whether two copies are of the same submission.
fn same(a: &Job, b: &Job) -> bool {
    a.descriptor == b.descriptor && a.queue == b.queue && a.submitted_ns == b.submitted_ns
}

/// Whether a requested record can be written.
fn has_usable_completion(descriptor: &Descriptor) -> bool {
    let valid = descriptor.flags() & flags::COMPLETION_VALID != 0;
    !valid || (descriptor.completion != 0 && descriptor.completion.is_multiple_of(64))
}
