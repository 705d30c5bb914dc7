//! The resources of a thread that brings pages in.

use crate::staging::FrameCache;

/// The frames and the buffer of a thread that brings pages in.
pub struct Inbound {
    /// Frames to decompress into.
    pub frames: FrameCache,
    /// Address of a page to decompress into.
    pub(crate) buffer: usize,
    /// Pages copied from it since frames were last discarded in exchange.
    pub(crate) copied: usize,
    /// Whether pages are read from the swap file at once, under their blocks' locks. If false, the
    /// result is [`super::fault_in::FaultedIn::OnDisk`], because other faults wait for this thread.
    pub reads_disk: bool,
}

impl Inbound {
    /// For a thread that owns the page at `buffer`.
    pub fn new(buffer: usize) -> Self {
        Inbound { frames: FrameCache::default(), buffer, copied: 0, reads_disk: true }
    }
}
