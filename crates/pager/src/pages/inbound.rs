//! The resources of a thread that brings pages in.

use super::staging::FrameCache;

pub(crate) struct Inbound {
    pub frames: FrameCache,
    /// A page to decompress into.
    pub(super) page: usize,
    /// Pages copied from it since frames were last discarded in exchange.
    pub(super) copied: usize,
    /// Whether pages are read from the swap file at once, under their blocks' locks. If false, the
    /// result is [`super::FaultedIn::OnDisk`], because other faults wait for this thread.
    pub reads_disk: bool,
}

impl Inbound {
    pub fn new(page: usize) -> Self {
        Inbound { frames: FrameCache::default(), page, copied: 0, reads_disk: true }
    }
}
