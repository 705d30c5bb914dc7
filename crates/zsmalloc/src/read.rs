//! Borrowed objects.

use crate::entry::Entry;
use crate::handles::Handle;
use crate::pool::Pool;

/// An object's borrowed bytes. Compaction skips the object while the guard lives.
///
/// Objects are contiguous, so [`tail`](Self::tail) is empty; it serves callers that handle two
/// pieces, as the kernel's allocator has them. An object may have at most 126 guards at a time; one
/// more waits.
pub struct ReadGuard<'a> {
    entry: &'a Entry,
    bytes: &'a [u8],
}

impl<'a> ReadGuard<'a> {
    #[inline]
    pub(crate) fn new(entry: &'a Entry, bytes: &'a [u8]) -> Self {
        ReadGuard { entry, bytes }
    }

    /// All bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The first, or only, piece.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.bytes
    }

    /// The rest: empty.
    #[inline]
    pub fn tail(&self) -> &[u8] {
        &[]
    }
}

impl Drop for ReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.entry.unpin();
    }
}

/// Most handles in one [`Pool::read_bulk`].
pub const READ_BATCH_MAX: usize = 8;

impl Pool {
    /// Borrows up to [`READ_BATCH_MAX`] objects while `use_them` runs: one (head, tail) pair per
    /// handle, in order.
    ///
    /// # Panics
    /// If there are more handles, or one is not an object's.
    pub fn read_bulk<R>(&self, handles: &[Handle], use_them: impl FnOnce(&[(&[u8], &[u8])]) -> R) -> R {
        assert!(handles.len() <= READ_BATCH_MAX, "{} handles in a batch", handles.len());
        let mut guards = [const { None }; READ_BATCH_MAX];
        for (guard, &handle) in guards.iter_mut().zip(handles) {
            *guard = Some(self.read(handle));
        }
        let mut pieces: [(&[u8], &[u8]); READ_BATCH_MAX] = [(&[], &[]); READ_BATCH_MAX];
        for (piece, guard) in pieces.iter_mut().zip(guards.iter().flatten()) {
            *piece = (guard.head(), guard.tail());
        }
        use_them(&pieces[..handles.len()])
    }
}
