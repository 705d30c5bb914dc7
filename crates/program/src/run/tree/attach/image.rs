//! The agent's file, as a memfd that processes map.

use std::io;
use std::os::fd::OwnedFd;

use doorway::image::{Layout, Segment};

/// The agent's memfd, content and layout.
#[derive(Debug)]
pub struct Image {
    bytes: &'static [u8],
    pub file: OwnedFd,
    pub layout: Layout,
}

impl Image {
    /// Makes a memfd of a program. Fails if `bytes` is no suitable one.
    pub fn new(bytes: &'static [u8]) -> io::Result<Self> {
        let layout = Layout::of(bytes, bytes.len())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this build carries no agent"))?;
        let file = sys::shared::holding(doorway::AGENT_NAME, bytes)?;
        Ok(Image { bytes, file, layout })
    }

    pub fn contents(&self, segment: &Segment) -> &[u8] {
        &self.bytes[segment.offset..segment.offset + segment.filled]
    }
}
