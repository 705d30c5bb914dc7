//! What a thread that brings pages in has of its own.

use super::staging::FrameCache;

/// What a thread that brings pages in has for it.
pub(crate) struct Inbound {
    pub frames: FrameCache,
    /// A page of its own to decompress into.
    pub(super) page: usize,
    /// Pages copied from there since frames were given back for them.
    pub(super) copied: usize,
    /// Whether pages are read from the swap file on the spot, with their blocks' locks held. Where
    /// others wait for faults to be served, [`super::FaultedIn::OnDisk`] is the answer instead.
    pub reads_disk: bool,
}

impl Inbound {
    /// With an otherwise unused page of the arena.
    pub fn new(page: usize) -> Self {
        Inbound { frames: FrameCache::new(), page, copied: 0, reads_disk: true }
    }
}
