//! Submission of descriptors, common to real and emulated queues.

use crate::Descriptor;

/// The outcome of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Submission {
    /// The queue has it; its completion record will be written. To a dedicated queue descriptors
    /// are *posted*: the device gives no reply, and this only says that they were sent.
    Accepted,
    /// A shared queue did not take it. Nothing happened; try again, but not for ever.
    Retry,
    /// The portal is dead: the queue was disabled, or another process opened the file.
    Gone,
}

/// The way into a work queue.
///
/// Semantics, for both kinds of queue and both kinds of device
/// - *Dedicated*: [`Portal::submit`] is posted and never refuses. The queue's owner counts
///   descriptors under way and never exceeds the queue's size; a descriptor over that is lost (see
///   [`crate::assumptions`]).
/// - *Shared*: [`Portal::submit`] returns [`Submission::Retry`] when the queue is full or past its
///   threshold.
/// - After [`Submission::Accepted`] the record may be written at any time, also before `submit`
///   returns. A record may also never be written: the submitter needs a deadline.
pub trait Portal: Send + Sync {
    /// Submits the 64 bytes of `descriptor`, after all earlier writes of this thread.
    ///
    /// # Safety
    /// Every buffer the descriptor names (source, destination, AECS) and its completion record must
    /// be valid for the device's accesses until the completion record is written or the queue is
    /// drained, and nothing else may write to the source and AECS, or touch the destination, in
    /// that time.
    unsafe fn submit(&self, descriptor: &Descriptor) -> Submission;

    /// Ends the device's access to memory through this portal: once it returns, no earlier accepted
    /// descriptor reads or writes anything, its completion record included, and [`Portal::submit`]
    /// returns [`Submission::Gone`]. For jobs whose records do not come: their buffers are the
    /// caller's again.
    ///
    /// Other threads may submit during this call; their descriptors are done, discarded or refused,
    /// and a further revoke waits for theirs. May take long: closing a real queue's file waits for
    /// the device.
    fn revoke(&self);

    /// Called while polling for a completion. Real devices need nothing; an emulated device without
    /// threads works here.
    fn progress(&self) {}

    /// Whether the device can still be reached, as far as can be told without using it or a system
    /// call: false once the device was removed or the portal revoked, and in a fork. Checked once a
    /// request and queue, before the first submission.
    fn is_there(&self) -> bool {
        true
    }

    /// Whether an emulated device is behind this portal.
    fn is_emulated(&self) -> bool {
        false
    }
}
