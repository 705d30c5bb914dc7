//! One request under way: jobs are submitted to lanes, polled, and their outcomes gathered.
//!
//! A *lane* is a queue together with this request's credits and counts on it, each taken and given
//! back once for all of the request's jobs there. This makes a batch cheaper than its jobs.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use acomp::{MAX_BATCH, PAGE_SIZE};
use idxd::aecs::{CompressAecs, Histogram, FIXED};
use idxd::{Completion, Descriptor, ErrorCode, Record, Status, Submission};

use crate::driver::Driver;
use crate::memory::{Memory, Tables};
use crate::queue::Queue;
use crate::settings::{Patience, TRIES_COMPRESS, TRIES_COMPRESS_DYNAMIC, TRIES_DECOMPRESS};
use crate::statistics::count;

/// Page faults after which a job goes to software.
const FAULTS_MAX: u8 = 4;
/// Rounds of polling before the thread waits instead of spinning: some microseconds, more than a
/// job takes.
const SPINS: u64 = 2000;
/// Rounds between readings of the clock.
const CLOCK_ROUNDS: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compression with the fixed codes.
    Fixed,
    /// Compression with codes of the unit's own.
    Dynamic,
    Decompress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Generation 1, dynamic: counting symbols.
    Statistics,
    /// Generation 2, dynamic and longer than a page: making header and tables.
    Header,
    /// Compressing with the fixed codes.
    CompressFixed,
    /// Compressing with the tables in the unit's AECS, of this index.
    CompressTables(usize),
    /// Compressing with tables that the device makes at once.
    CompressOnePass,
    /// Decompressing the unit's output, of this size, for its CRC alone.
    Verify { size: u32, crc: u32 },
    /// Decompressing.
    Decompress,
}

/// The outcome of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Open,
    /// Bytes of output.
    Done(u32),
    /// It did not shrink.
    NoSpace,
    /// No descriptor was available.
    Shortage,
    /// The device cannot or will not: for software.
    Software,
}

#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub source: *const u8,
    pub source_len: u32,
    pub destination: *mut u8,
    pub destination_len: u32,
}

#[derive(Clone, Copy)]
struct Job {
    buffers: Buffers,
    step: Step,
    lane: u8,
    faults: u8,
    outcome: Outcome,
}

const NO_JOB: Job = Job {
    buffers: Buffers {
        source: std::ptr::null(),
        source_len: 0,
        destination: std::ptr::null_mut(),
        destination_len: 0,
    },
    step: Step::Decompress,
    lane: 0,
    faults: 0,
    outcome: Outcome::Open,
};

struct Lane<'a> {
    queue: &'a Queue,
    /// Credits taken.
    held: u32,
    /// Credits without a job.
    free: u32,
    calls: u32,
    bytes: u32,
}

pub(crate) struct Work<'a> {
    driver: &'a Driver,
    memory: &'a mut Memory,
    mode: Mode,
    lanes: [Option<Lane<'a>>; MAX_BATCH],
    lane_count: usize,
    jobs: [Job; MAX_BATCH],
    /// Bits of the units submitted and not completed.
    pending: u32,
}

impl<'a> Work<'a> {
    /// Begins a request of `units` units, `at_a_time` of them in parallel, on queues of `list` from
    /// `start` on.
    #[inline]
    pub fn new(
        driver: &'a Driver,
        memory: &'a mut Memory,
        mode: Mode,
        (list, start): (&'a [std::sync::Arc<Queue>], usize),
        at_a_time: usize,
    ) -> Self {
        let mut work = Work {
            driver,
            memory,
            mode,
            lanes: [const { None }; MAX_BATCH],
            lane_count: 0,
            jobs: [NO_JOB; MAX_BATCH],
            pending: 0,
        };
        let most = list.len().min(at_a_time);
        let mut at = if list.is_empty() { 0 } else { start % list.len() };
        for _ in 0..list.len() {
            if work.lane_count == most {
                break;
            }
            let queue = &*list[at];
            at = if at + 1 == list.len() { 0 } else { at + 1 };
            if (queue.is_live() || queue.revive()) && queue.is_there() {
                work.lanes[work.lane_count] = Some(Lane { queue, held: 0, free: 0, calls: 0, bytes: 0 });
                work.lane_count += 1;
            }
        }
        let lanes = work.lane_count;
        for (index, lane) in work.lanes[..lanes].iter_mut().flatten().enumerate() {
            // Lane k gets the units k, k + lanes, and so on.
            let want = (at_a_time + lanes - 1 - index) / lanes;
            lane.held = lane.queue.take(want as u32);
            lane.free = lane.held;
        }
        work
    }

    #[inline]
    fn lane(&mut self, index: usize) -> &mut Lane<'a> {
        self.lanes[index].as_mut().expect("a lane in use")
    }

    fn queue(&self, unit: usize) -> &'a Queue {
        self.lanes[usize::from(self.jobs[unit].lane)].as_ref().expect("a lane in use").queue
    }

    pub fn outcome(&self, unit: usize) -> Outcome {
        self.jobs[unit].outcome
    }

    /// Submits a unit as the `turn`th of the request.
    #[inline]
    pub fn submit(&mut self, unit: usize, turn: usize, buffers: Buffers) {
        self.jobs[unit].buffers = buffers;
        if self.lane_count == 0 {
            self.jobs[unit].outcome = Outcome::Software;
            return;
        }
        let lane = if turn < self.lane_count { turn } else { turn % self.lane_count };
        if self.lane(lane).free > 0 && self.try_lane(unit, lane) == Some(Submission::Accepted) {
            return;
        }
        self.submit_slowly(unit, lane);
    }

    /// One try. `None`: no credit, or the queue is not used any more.
    #[inline]
    fn try_lane(&mut self, unit: usize, index: usize) -> Option<Submission> {
        let lane = self.lane(index);
        if lane.free == 0 {
            let got = lane.queue.take(1);
            lane.held += got;
            lane.free += got;
        }
        let lane = self.lanes[index].as_mut().expect("a lane in use");
        if lane.free == 0 || !lane.queue.is_live() {
            return None;
        }
        let queue = lane.queue;
        let job = &mut self.jobs[unit];
        job.lane = index as u8;
        job.step = match self.mode {
            Mode::Fixed => Step::CompressFixed,
            Mode::Decompress => Step::Decompress,
            Mode::Dynamic if !queue.has_header_generation => Step::Statistics,
            Mode::Dynamic if job.buffers.source_len as usize <= PAGE_SIZE => Step::CompressOnePass,
            Mode::Dynamic => Step::Header,
        };
        let submission = self.hand_over(unit, queue);
        if submission == Submission::Accepted {
            let lane = self.lane(index);
            lane.free -= 1;
            lane.calls += 1;
        }
        Some(submission)
    }

    #[inline]
    fn hand_over(&mut self, unit: usize, queue: &Queue) -> Submission {
        self.memory.completions[unit].reset();
        let descriptor = self.descriptor(unit, queue);
        // SAFETY: `Work::submit`'s caller promises that source and destination stay valid and
        // untouched until `Work::finish` returns; completion record and AECS belong to the context
        // and are not touched while a job is pending. `finish` returns when all jobs have completed
        // or their queue cannot touch memory.
        let submission = unsafe { queue.portal().submit(&descriptor) };
        match submission {
            Submission::Accepted => self.pending |= 1 << unit,
            Submission::Gone => queue.quarantine(),
            Submission::Retry => {}
        }
        submission
    }

    /// Tries the lanes in turn, a bounded number of times, and collects finished jobs between
    /// tries.
    #[cold]
    fn submit_slowly(&mut self, unit: usize, first: usize) {
        let tries = match self.mode {
            Mode::Fixed => TRIES_COMPRESS,
            Mode::Dynamic => TRIES_COMPRESS_DYNAMIC,
            Mode::Decompress => TRIES_DECOMPRESS,
        };
        let mut has_moved = false;
        for attempt in 0..tries as usize {
            let index = (first + attempt) % self.lane_count;
            if self.try_lane(unit, index) == Some(Submission::Accepted) {
                return;
            }
            if !self.lanes[..self.lane_count].iter().flatten().any(|lane| lane.queue.is_live()) {
                self.jobs[unit].outcome = Outcome::Software;
                return;
            }
            if self.take_in() {
                has_moved = true;
            } else {
                self.progress();
                std::hint::spin_loop();
            }
        }
        count(&self.driver.counters.shortages);
        if !has_moved {
            // A halted device refuses for ever.
            for lane in self.lanes[..self.lane_count].iter().flatten() {
                lane.queue.note_hardware_error();
            }
        }
        self.jobs[unit].outcome = Outcome::Shortage;
    }

    #[inline]
    fn descriptor(&mut self, unit: usize, queue: &Queue) -> Descriptor {
        let Job { buffers, step, .. } = self.jobs[unit];
        let completion: *const Completion = &self.memory.completions[unit];
        let source = (buffers.source, buffers.source_len);
        let destination = (buffers.destination, buffers.destination_len);
        let descriptor = match step {
            Step::CompressFixed => Descriptor::compress_fixed(completion, source, destination, &FIXED),
            Step::Decompress => Descriptor::decompress(completion, source, destination).of_many_blocks(),
            Step::CompressOnePass => Descriptor::compress_dynamic(completion, source, destination),
            Step::Statistics => {
                let histogram: *mut Histogram = &mut self.memory.tables[unit].histogram;
                Descriptor::compress_statistics(completion, source, histogram)
            }
            Step::Header => {
                let aecs = &mut self.memory.tables[unit].aecs;
                *aecs = [CompressAecs::ZERO; 2];
                Descriptor::compress_two_pass_header(completion, source, aecs)
            }
            Step::CompressTables(index) => {
                let aecs: *const CompressAecs = &self.memory.tables[unit].aecs[index];
                Descriptor::compress_fixed(completion, source, destination, aecs)
            }
            Step::Verify { size, .. } => {
                let compressed = (buffers.destination.cast_const(), size);
                Descriptor::verify(completion, compressed, (buffers.source.cast_mut(), buffers.source_len))
            }
        };
        if queue.blocks_on_fault {
            descriptor.blocking_on_fault()
        } else {
            descriptor
        }
    }

    /// Checks every pending job once. Returns whether any advanced.
    #[inline]
    fn take_in(&mut self) -> bool {
        let mut left = self.pending;
        let mut moved = false;
        while left != 0 {
            let unit = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(record) = self.memory.completions[unit].poll() {
                self.pending &= !(1 << unit);
                self.answered(unit, &record);
                moved = true;
            }
        }
        moved
    }

    #[inline]
    fn answered(&mut self, unit: usize, record: &Record) {
        let job = &mut self.jobs[unit];
        let is_success = record.is_success();
        match job.step {
            Step::Decompress if is_success && record.output_size == job.buffers.destination_len => {
                let bytes = job.buffers.source_len;
                self.end(unit, Outcome::Done(record.output_size), bytes);
            }
            Step::CompressFixed | Step::CompressOnePass | Step::CompressTables(_)
                if is_success && (1..=job.buffers.destination_len).contains(&record.output_size) =>
            {
                if self.driver.settings.verify_compress {
                    job.step = Step::Verify { size: record.output_size, crc: record.crc };
                    self.go_on(unit);
                } else {
                    self.end(unit, Outcome::Done(record.output_size), record.output_size);
                }
            }
            step => self.answered_otherwise(unit, step, record),
        }
    }

    #[cold]
    fn answered_otherwise(&mut self, unit: usize, step: Step, record: &Record) {
        let counters = &self.driver.counters;
        let code = record.status.code();
        if record.status.is_page_fault() {
            self.page_fault(unit);
            return;
        }
        if record.is_success() {
            match step {
                Step::Statistics => {
                    let tables = &mut self.memory.tables[unit];
                    tables.aecs[0] = CompressAecs::ZERO;
                    tables.aecs[0].set_dynamic(&tables.histogram);
                    self.jobs[unit].step = Step::CompressTables(0);
                    self.go_on(unit);
                    return;
                }
                Step::Header => {
                    // The header pass left its checksums as seeds.
                    let aecs = &mut self.memory.tables[unit].aecs[1];
                    (aecs.crc, aecs.xor) = (0, 0);
                    self.jobs[unit].step = Step::CompressTables(1);
                    self.go_on(unit);
                    return;
                }
                Step::Verify { size, crc } if crc == record.crc => {
                    self.end(unit, Outcome::Done(size), size);
                    return;
                }
                _ => {}
            }
        }
        if code == Status::ANALYTICS_ERROR
            && record.error == ErrorCode::OUTPUT_OVERFLOW
            && self.mode != Mode::Decompress
        {
            count(&counters.overflow_errors);
            self.end(unit, Outcome::NoSpace, 0);
            return;
        }
        if code == Status::WATCHDOG {
            count(&counters.timeout_errors);
        } else {
            count(&counters.einval_errors);
        }
        if record.status.is_hardware_error() {
            self.queue(unit).note_hardware_error();
        }
        self.end(unit, Outcome::Software, 0);
    }

    /// Makes the job's missing page present and resubmits it.
    fn page_fault(&mut self, unit: usize) {
        let job = &mut self.jobs[unit];
        job.faults += 1;
        if job.faults > FAULTS_MAX {
            count(&self.driver.counters.einval_errors);
            self.end(unit, Outcome::Software, 0);
            return;
        }
        let buffers = job.buffers;
        touch(buffers.source, buffers.source_len, false);
        if job.step == Step::CompressFixed {
            bring_in_fixed_codes();
        }
        touch(buffers.destination, buffers.destination_len, self.jobs[unit].step_writes());
        if let Some(tables) = self.memory.tables.get(unit) {
            touch(std::ptr::from_ref(tables).cast(), size_of::<Tables>() as u32, true);
        }
        count(&self.driver.counters.resubmissions);
        self.go_on(unit);
    }

    /// Submits the job's present step to the same queue, with its credit.
    fn go_on(&mut self, unit: usize) {
        let queue = self.queue(unit);
        for _ in 0..TRIES_COMPRESS {
            match self.hand_over(unit, queue) {
                Submission::Accepted => return,
                Submission::Gone => break,
                Submission::Retry => {
                    queue.portal().progress();
                    std::hint::spin_loop();
                }
            }
        }
        self.end(unit, Outcome::Software, 0);
    }

    #[inline]
    fn end(&mut self, unit: usize, outcome: Outcome, bytes: u32) {
        self.jobs[unit].outcome = outcome;
        let lane = self.lane(usize::from(self.jobs[unit].lane));
        lane.free += 1;
        lane.bytes += bytes;
    }

    /// Lets emulated devices without threads work.
    fn progress(&self) {
        for lane in self.lanes[..self.lane_count].iter().flatten() {
            lane.queue.portal().progress();
        }
    }

    /// Polls until every submitted unit has ended. Afterwards no device touches its buffers.
    #[inline]
    pub fn finish(&mut self) {
        self.take_in();
        if self.pending != 0 {
            self.wait_all();
        }
    }

    fn wait_all(&mut self) {
        let mut rounds = 0;
        let mut since_ns = 0;
        while self.pending != 0 {
            self.progress();
            if self.take_in() {
                rounds = 0;
                continue;
            }
            rounds += 1;
            let is_late = match self.driver.settings.patience {
                Patience::Polls(polls) => rounds > polls,
                Patience::Time(time) => {
                    if rounds == 1 {
                        since_ns = sys::now_ns();
                    }
                    rounds % CLOCK_ROUNDS == 0 && is_over(since_ns, time)
                }
            };
            if is_late {
                self.settle();
                return;
            }
            self.idle(rounds, &self.memory.completions[self.pending.trailing_zeros() as usize]);
        }
    }

    fn idle(&self, rounds: u64, completion: &Completion) {
        if rounds < SPINS {
            std::hint::spin_loop();
        } else if !self.driver.is_emulated() {
            self.driver.waiter.wait(completion);
        } else if matches!(self.driver.settings.patience, Patience::Time(_)) {
            // The engines may be threads that need this processor.
            std::thread::yield_now();
        }
    }

    /// Ensures that jobs without records do not touch memory any more, and leaves them to software.
    ///
    /// A completed drain means that the jobs before it are over, however they ended. Without its
    /// completion, the portal is revoked.
    #[cold]
    fn settle(&mut self) {
        for index in 0..self.lane_count {
            let waits = |work: &Self| {
                (0..MAX_BATCH)
                    .filter(|&unit| {
                        work.pending >> unit & 1 != 0 && usize::from(work.jobs[unit].lane) == index
                    })
                    .fold(0, |units, unit| units | 1u32 << unit)
            };
            if waits(self) == 0 {
                continue;
            }
            let queue = self.lane(index).queue;
            queue.quarantine();
            if !self.drain(index, queue) {
                queue.revoke();
            }
            let mut lost = waits(self);
            while lost != 0 {
                let unit = lost.trailing_zeros() as usize;
                lost &= lost - 1;
                self.pending &= !(1 << unit);
                // It may have completed at the last moment.
                let verifies = self.driver.settings.verify_compress;
                match self.memory.completions[unit].poll() {
                    Some(record) if record.is_success() && self.jobs[unit].is_last_step(verifies) => {
                        self.answered(unit, &record);
                    }
                    _ => {
                        count(&self.driver.counters.timeout_errors);
                        self.end(unit, Outcome::Software, 0);
                    }
                }
            }
        }
        debug_assert_eq!(self.pending, 0);
    }

    /// Waits for a drain of the queue, as long as for a job. Returns whether it completed.
    fn drain(&mut self, index: usize, queue: &Queue) -> bool {
        let completion = &self.memory.drains[index];
        completion.reset();
        let mut tries = 0;
        if !queue.portal().is_there() {
            return false;
        }
        let submit = || {
            // A drain takes an entry of the queue like any other descriptor.
            if queue.take(1) == 0 {
                return false;
            }
            // SAFETY: a drain has no buffers; its record belongs to the context and is not used
            // again before it is written or the portal is revoked.
            let submission = unsafe { queue.portal().submit(&Descriptor::drain(completion)) };
            if submission != Submission::Accepted {
                queue.give(1);
            }
            submission == Submission::Accepted
        };
        while !submit() {
            tries += 1;
            if tries == TRIES_COMPRESS {
                return false;
            }
            queue.portal().progress();
            std::hint::spin_loop();
        }
        let has_completed = self.await_drain(index, queue);
        queue.give(1);
        has_completed
    }

    fn await_drain(&self, index: usize, queue: &Queue) -> bool {
        let start_ns = sys::now_ns();
        for rounds in 1.. {
            queue.portal().progress();
            if let Some(record) = self.memory.drains[index].poll() {
                return record.is_success();
            }
            let is_late = match self.driver.settings.patience {
                Patience::Polls(polls) => rounds > polls,
                Patience::Time(time) => rounds % CLOCK_ROUNDS == 0 && is_over(start_ns, time),
            };
            if is_late {
                return false;
            }
            self.idle(rounds, &self.memory.drains[index]);
        }
        unreachable!("the loop above has no end")
    }
}

impl Job {
    /// Whether the step writes to the unit's destination.
    fn step_writes(&self) -> bool {
        !matches!(self.step, Step::Statistics | Step::Header | Step::Verify { .. })
    }

    /// Whether a success ends the unit.
    fn is_last_step(&self, verifies: bool) -> bool {
        match self.step {
            Step::Decompress | Step::Verify { .. } => true,
            Step::CompressFixed | Step::CompressOnePass | Step::CompressTables(_) => !verifies,
            Step::Statistics | Step::Header => false,
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        assert!(self.pending == 0, "a request ends with jobs under way");
        let is_compress = self.mode != Mode::Decompress;
        for lane in self.lanes[..self.lane_count].iter().flatten() {
            assert!(lane.free == lane.held, "a credit is lost");
            lane.queue.give(lane.held);
            lane.queue.traffic.add(is_compress, u64::from(lane.calls), u64::from(lane.bytes));
            if lane.bytes != 0 {
                lane.queue.note_success();
            }
        }
    }
}

fn is_over(start_ns: u64, time: Duration) -> bool {
    u128::from(sys::now_ns() - start_ns) >= time.as_nanos()
}

/// Makes the fixed codes present. They lie in the program's file: until they are read, no page
/// table has them, and devices on queues without block-on-fault fail there.
pub(crate) fn bring_in_fixed_codes() {
    touch(std::ptr::from_ref(&FIXED).cast(), size_of::<CompressAecs>() as u32, false);
}

/// Makes every page of a buffer present, writable if `write`.
fn touch(at: *const u8, len: u32, write: bool) {
    if at.is_null() || len == 0 {
        return;
    }
    let (start, end) = (at as usize, at as usize + len as usize);
    let mut address = start;
    while address < end {
        if write {
            // SAFETY: the caller promises a buffer valid for writes, and the job that may write to
            // it has completed. The byte keeps its value.
            unsafe { AtomicU8::from_ptr(address as *mut u8) }.fetch_or(0, Ordering::Relaxed);
        } else {
            // SAFETY: the caller promises a buffer valid for reads.
            unsafe { (address as *const u8).read_volatile() };
        }
        address = (address & !(PAGE_SIZE - 1)) + PAGE_SIZE;
    }
}
