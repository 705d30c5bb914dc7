//! The agent's file, as a memory file that processes map.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use doorway::image::{Layout, Segment};

/// The agent.
#[derive(Debug)]
pub struct Image {
    bytes: &'static [u8],
    file: OwnedFd,
    /// What is mapped, and where it begins.
    pub layout: Layout,
}

impl Image {
    /// Makes a memory file of a program.
    ///
    /// # Errors
    /// When it is none, or not of the kind, or there is no memory file for it.
    pub fn new(bytes: &'static [u8]) -> io::Result<Self> {
        let layout = Layout::of(bytes, bytes.len())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this build carries no agent"))?;
        let file = sys::shared::holding(doorway::AGENT_NAME, bytes)?;
        Ok(Image { bytes, file, layout })
    }

    /// The number of the memory file.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// What a segment is filled with.
    pub fn contents(&self, segment: &Segment) -> &[u8] {
        &self.bytes[segment.offset..segment.offset + segment.filled]
    }
}
