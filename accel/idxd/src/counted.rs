//! Credits, which keep a dedicated queue from overrunning.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Descriptor, Portal, Submission};

/// A portal that never has more descriptors under way than its queue has entries. Returns
/// [`Submission::Full`] instead of submitting more; the thread that sees completions gives the
/// credits back.
pub struct Counted<P> {
    portal: P,
    entries: u32,
    free: AtomicU32,
}

impl<P: Portal> Counted<P> {
    /// Counts for a queue of `entries`, or for a share of a shared queue.
    pub fn new(portal: P, entries: u32) -> Self {
        assert!(entries > 0, "a queue has entries");
        Counted { portal, entries, free: AtomicU32::new(entries) }
    }

    /// Gives credits back: one for each descriptor whose completion was seen.
    pub fn settle(&self, count: u32) {
        let before = self.free.fetch_add(count, Ordering::Release);
        assert!(before + count <= self.entries, "more completions than descriptors");
    }

    /// Descriptors under way.
    pub fn outstanding(&self) -> u32 {
        self.entries - self.free.load(Ordering::Acquire)
    }

    /// The limit of descriptors under way.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The inner portal.
    pub fn inner(&self) -> &P {
        &self.portal
    }
}

impl<P: Portal> Portal for Counted<P> {
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submission {
        // Compared before it is taken: a credit taken briefly and given back would look like one
        // too many under way to other threads.
        let taken = self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, |free| free.checked_sub(1));
        if taken.is_err() {
            return Submission::Full;
        }
        // SAFETY: the caller's promise is passed on unchanged.
        let submission = unsafe { self.portal.submit(descriptor) };
        if submission != Submission::Accepted {
            self.free.fetch_add(1, Ordering::Relaxed);
        }
        submission
    }

    fn revoke(&self) {
        self.portal.revoke();
    }

    fn progress(&self) {
        self.portal.progress();
    }

    fn is_emulated(&self) -> bool {
        self.portal.is_emulated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Machine, QueueId};
    use crate::Completion;

    /// Threads that submit no-ops at full speed never fill a queue beyond its entries.
    #[test]
    fn a_dedicated_queue_is_never_over_full() {
        let machine = Machine::new(&"queues=8,threads,engines=1".parse().unwrap()).unwrap();
        let queue = machine.open(QueueId { device: 0, queue: 0 }).unwrap();
        let counted = Counted::new(queue, 16);
        let refused = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let records: Vec<Completion> = (0..32).map(|_| Completion::new()).collect();
                    for _ in 0..50 {
                        let mut sent = Vec::new();
                        for record in &records {
                            record.reset();
                            // SAFETY: a no-op has no buffers; the loop below waits for its record.
                            match unsafe { counted.submit(&Descriptor::noop(record)) } {
                                Submission::Accepted => sent.push(record),
                                Submission::Full => drop(refused.fetch_add(1, Ordering::Relaxed)),
                                other => panic!("{other:?}"),
                            }
                            assert!(counted.outstanding() <= 16);
                        }
                        for record in sent {
                            while !record.is_done() {
                                counted.progress();
                                std::thread::yield_now();
                            }
                            counted.settle(1);
                        }
                    }
                });
            }
        });
        assert_eq!(counted.outstanding(), 0);
        assert!(refused.into_inner() > 0, "32 no-ops at a time do not fit into 16 entries");
        assert_eq!(machine.take_software_error(0), None);
    }
}
