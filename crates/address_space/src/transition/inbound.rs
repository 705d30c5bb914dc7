//! The resources of a thread that brings pages in.

use crate::staging::FrameCache;

/// The frames and the page of a thread that brings pages in.
pub struct Inbound {
    /// Frames to decompress into.
    pub frames: FrameCache,
    /// A page to decompress into.
    pub(crate) page: usize,
    /// Pages copied from it since frames were last discarded in exchange.
    pub(crate) copied: usize,
    /// Whether pages are read from the swap file at once, under their blocks' locks. If false, the
    /// result is [`super::fault_in::FaultedIn::OnDisk`], because other faults wait for this thread.
    pub reads_disk: bool,
}

impl Inbound {
    /// For a thread that owns `page`.
    pub fn new(page: usize) -> Self {
        Inbound { frames: FrameCache::default(), page, copied: 0, reads_disk: true }
    }
}
