//! Jobs on one queue: submitted, completed or given up, and never left behind.

use idxd::{Completion, Descriptor, Portal, Record, Submission, Waiter};

/// Time limit of one job. Queues complete jobs in microseconds.
const PATIENCE_S: u64 = 2;
const PATIENCE_NS: u64 = PATIENCE_S * 1_000_000_000;
/// Reads of a record before waiting with the processor's instructions.
const SPINS: u32 = 2_000;
/// Page faults of one job before it counts as failed.
const FAULTS_MAX: u32 = 3;

/// Why a queue does not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It refuses descriptors.
    #[error(
        "it refused a descriptor for {PATIENCE_S} s: other processes fill it, or its group has no engines"
    )]
    Full,
    /// It can no longer be used.
    #[error("it was disabled while it was tested")]
    Gone,
    /// It took a descriptor and did not complete it.
    #[error("it took a descriptor and did not answer for {PATIENCE_S} s: see `uzswap iaa list` and dmesg")]
    NoAnswer,
}

/// An open queue.
pub struct Session {
    portal: Box<dyn Portal>,
    waiter: Waiter,
    /// One for each entry of the queue: no more jobs than these are under way.
    records: Vec<Completion>,
    /// Jobs resubmitted after a page fault.
    pub page_faults: u64,
    /// Submissions that a full queue refused.
    pub retries: u64,
}

impl Session {
    /// A session on an open queue with this number of entries.
    pub fn new(portal: Box<dyn Portal>, entries: u32) -> Self {
        Session {
            portal,
            waiter: Waiter::detect(),
            records: (0..entries).map(|_| Completion::new()).collect(),
            page_faults: 0,
            retries: 0,
        }
    }

    /// Most jobs in parallel.
    pub fn depth(&self) -> usize {
        self.records.len()
    }

    /// Runs jobs in parallel, at most [`Session::depth`]; writes their records to `completions`. On
    /// failure it closes the queue, so that no job can touch memory any more.
    ///
    /// # Safety
    /// The jobs' buffers belong to them until this returns, and overlap with those of no other job.
    pub unsafe fn run(&mut self, jobs: &[Descriptor], completions: &mut [Record]) -> Result<(), Failure> {
        assert!(jobs.len() <= self.depth() && jobs.len() == completions.len());
        // SAFETY: the caller's promise is passed on; after a failure nothing is under way any more.
        let result = unsafe { self.run_all(jobs, completions) };
        if result.is_err() {
            self.portal.revoke();
        }
        result
    }

    unsafe fn run_all(&mut self, jobs: &[Descriptor], completions: &mut [Record]) -> Result<(), Failure> {
        for (index, job) in jobs.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.submit(index, job)? };
        }
        for (index, job) in jobs.iter().enumerate() {
            let mut faults = 0;
            completions[index] = loop {
                let completion = self.completion(index)?;
                if !completion.status.is_page_fault() || faults == FAULTS_MAX {
                    break completion;
                }
                faults += 1;
                self.page_faults += 1;
                touch(job, &completion);
                // SAFETY: the caller's promise; the job is not under way.
                unsafe { self.submit(index, job)? };
            };
        }
        Ok(())
    }

    unsafe fn submit(&mut self, index: usize, job: &Descriptor) -> Result<(), Failure> {
        let job = Descriptor { completion: std::ptr::from_ref(&self.records[index]) as u64, ..*job };
        self.records[index].reset();
        let mut since_ns = 0;
        loop {
            // SAFETY: the caller's promise; the record is this session's, which revokes the portal
            // before it goes.
            match unsafe { self.portal.submit(&job) } {
                Submission::Accepted => return Ok(()),
                Submission::Retry => {}
                Submission::Gone => return Err(Failure::Gone),
            }
            self.retries += 1;
            self.portal.progress();
            let now_ns = sys::now_ns();
            if since_ns == 0 {
                since_ns = now_ns;
            } else if now_ns - since_ns > PATIENCE_NS {
                return Err(Failure::Full);
            }
            std::hint::spin_loop();
        }
    }

    fn completion(&mut self, index: usize) -> Result<Record, Failure> {
        let record = &self.records[index];
        let mut spins = 0;
        let mut since_ns = 0;
        loop {
            if let Some(completion) = record.poll() {
                return Ok(completion);
            }
            self.portal.progress();
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            if self.portal.is_emulated() {
                // Engines may be threads that need this processor.
                std::thread::yield_now();
            } else {
                self.waiter.wait(record);
            }
            let now_ns = sys::now_ns();
            if since_ns == 0 {
                since_ns = now_ns;
            } else if now_ns - since_ns > PATIENCE_NS {
                return Err(Failure::NoAnswer);
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The records go with the session: nothing may write them afterwards.
        self.portal.revoke();
    }
}

/// Makes the page that a job missed present.
fn touch(job: &Descriptor, completion: &Record) {
    let within = |start: u64, size: u32| (start..start + u64::from(size)).contains(&completion.fault_address);
    let page = completion.fault_address & !(sys::PAGE_SIZE as u64 - 1);
    if within(job.destination & !4095, job.destination_size + 4096) {
        let at = page.max(job.destination) as *mut u8;
        // SAFETY: a byte of the job's own destination, which no device touches now; it is written
        // unchanged.
        unsafe { at.write_volatile(at.read_volatile()) };
    } else if within(job.source & !4095, job.source_size + 4096) {
        // SAFETY: a byte of the job's own source.
        unsafe { (page.max(job.source) as *const u8).read_volatile() };
    } else if job.source_2 != 0 && within(job.source_2 & !4095, job.source_2_size + 4096) {
        // SAFETY: a byte of the job's own AECS, which these jobs only read.
        unsafe { (page.max(job.source_2) as *const u8).read_volatile() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idxd::emulated::{Machine, QueueId};

    fn session(spec: &str) -> (Machine, Session) {
        let machine = Machine::new(&spec.parse().unwrap()).unwrap();
        let portal = machine.open(QueueId { device: 0, queue: 0 }).unwrap();
        (machine, Session::new(Box::new(portal), 16))
    }

    fn noops(session: &mut Session, count: usize) -> Result<Vec<Record>, Failure> {
        let unused = Completion::new();
        let jobs = vec![Descriptor::noop(&unused); count];
        let mut completions = vec![Record::of(idxd::Status::IN_PROGRESS); count];
        // SAFETY: no-ops have no buffers.
        unsafe { session.run(&jobs, &mut completions)? };
        Ok(completions)
    }

    #[test]
    fn all_are_answered_also_where_queues_refuse() {
        let (_machine, mut session) = session("mode=shared,threshold=2,run=poll");
        let completions = noops(&mut session, 16).unwrap();
        assert!(completions.iter().all(Record::is_success));
        assert!(session.retries > 0);
    }

    #[test]
    fn an_absent_aecs_is_brought_in() {
        let at = sys::memory::map(sys::PAGE_SIZE).unwrap().as_ptr() as usize;
        let map = sys::pagemap::Pagemap::open().unwrap();
        let unused = Completion::new();
        let job = Descriptor { source_2: at as u64, source_2_size: 1568, ..Descriptor::noop(&unused) };
        assert_eq!(map.mapped(at, 1), 0);
        touch(&job, &Record { fault_address: at as u64 + 64, ..Record::of(idxd::Status::PAGE_FAULT) });
        assert_eq!(map.mapped(at, 1), 1);
    }

    #[test]
    fn a_queue_that_is_disabled_is_gone() {
        let (machine, mut session) = session("mode=shared");
        machine.disable_queue(QueueId { device: 0, queue: 0 });
        assert_eq!(noops(&mut session, 1), Err(Failure::Gone));
        machine.enable_queue(QueueId { device: 0, queue: 0 });
        assert_eq!(noops(&mut session, 1), Err(Failure::Gone), "a failed session stays closed");
    }
}
