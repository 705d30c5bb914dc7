//! The source of requests.

use std::io;

/// The source of a batch's requests and the sink of their results: a queue of the kernel's, or a
/// test.
pub trait Transfer {
    /// Copies the bytes of a write.
    ///
    /// # Errors
    /// The kernel's, if it cannot copy.
    fn take(&mut self, tag: u16, into: &mut [u8]) -> io::Result<()>;

    /// Copies the bytes of a read that has not ended yet.
    ///
    /// # Errors
    /// The kernel's, if it cannot copy.
    fn give(&mut self, tag: u16, from: &[u8]) -> io::Result<()>;

    /// The request's own buffer, if it has one: it holds a write's bytes already, and takes a
    /// read's.
    fn buffer(&mut self, tag: u16) -> Option<&mut [u8]>;

    /// Ends the request: bytes moved, zero, or a negative error number.
    fn end(&mut self, tag: u16, result: i32);

    /// Ended requests may be reported now, because more work follows.
    fn tell(&mut self) {}
}
