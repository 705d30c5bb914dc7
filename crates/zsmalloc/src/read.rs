//! Borrowed objects.

use crate::entry::Entry;

/// An object's borrowed bytes. Compaction skips the object while the guard lives. An object may
/// have at most 126 guards at a time; one more waits.
pub struct ReadGuard<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) bytes: &'a [u8],
}

impl ReadGuard<'_> {
    /// The bytes, in one piece.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for ReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.entry.unpin();
    }
}
