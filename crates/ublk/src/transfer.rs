//! The side that requests come from.

use std::io;

/// Where a batch's requests come from, and their results go to: a queue of the kernel's, or a test.
pub trait Transfer {
    /// The bytes of a write.
    ///
    /// # Errors
    /// The kernel's, where it cannot copy.
    fn take(&mut self, tag: u16, into: &mut [u8]) -> io::Result<()>;

    /// The bytes of a read, which was not ended yet.
    ///
    /// # Errors
    /// The kernel's, where it cannot copy.
    fn give(&mut self, tag: u16, from: &[u8]) -> io::Result<()>;

    /// The request's own buffer, where it has one: what a write's bytes are in already, and a
    /// read's may be put.
    fn buffer(&mut self, tag: u16) -> Option<&mut [u8]>;

    /// The request is done: bytes moved, zero, or an error's negative number.
    fn end(&mut self, tag: u16, result: i32);

    /// What was ended may be told now, for more work follows.
    fn tell(&mut self) {}
}
