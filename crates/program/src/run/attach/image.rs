//! The agent's file, as a memfd that processes map.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use doorway::image::{Layout, Segment};

/// The agent's memfd, content and layout.
#[derive(Debug)]
pub struct Image {
    bytes: &'static [u8],
    file: OwnedFd,
    /// Segments and entry point.
    pub layout: Layout,
}

impl Image {
    /// Makes a memfd of a program.
    ///
    /// # Errors
    /// When `bytes` is no suitable program, or no memfd can be made.
    pub fn new(bytes: &'static [u8]) -> io::Result<Self> {
        let layout = Layout::of(bytes, bytes.len())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this build carries no agent"))?;
        let file = sys::shared::holding(doorway::AGENT_NAME, bytes)?;
        Ok(Image { bytes, file, layout })
    }

    /// Returns the memfd's descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns a segment's content.
    pub fn contents(&self, segment: &Segment) -> &[u8] {
        &self.bytes[segment.offset..segment.offset + segment.filled]
    }
}
