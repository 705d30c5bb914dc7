//! What is asked of a compressor, and what comes back unit by unit.

use crate::{MAX_BATCH, PAGE_SIZE, UNIT_SIZE_MAX};

/// The bytes of one page.
pub type Page = [u8; PAGE_SIZE];

/// Why one unit of a request yielded nothing. The other units of the request are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Compression: the unit did not shrink below the size of its destination buffer.
    #[error("the unit did not shrink")]
    NoSpace,
    /// The compressor or device failed, or (decompression) the object is damaged.
    #[error("the compressor failed or the object is damaged")]
    Failed,
}

/// Bytes produced for one unit, or why there are none.
pub type UnitResult = Result<usize, UnitError>;

/// Compress `pages` in units of `unit_size` bytes, unit `i` into `outputs[i]`.
///
/// `pages` holds the pages in order; they need not be adjacent in memory. Every unit but the last
/// is whole; the last may be shorter when the folio's tail is. An output buffer may have any length
/// up to the unit's; a codec that cannot fit its result into it returns [`UnitError::NoSpace`].
/// `results` is filled for every unit.
pub struct CompressRequest<'a, 'b> {
    /// Source pages, in order.
    pub pages: &'a [&'a Page],
    /// Bytes a unit: a multiple of [`PAGE_SIZE`], at most [`UNIT_SIZE_MAX`].
    pub unit_size: usize,
    /// One destination a unit.
    pub outputs: &'a mut [&'b mut [u8]],
    /// One result a unit: bytes written to the output of the same index.
    pub results: &'a mut [UnitResult],
}

impl CompressRequest<'_, '_> {
    /// Number of units.
    pub fn units(&self) -> usize {
        self.pages.len().div_ceil(self.unit_size / PAGE_SIZE)
    }

    /// Panics when the request's parts do not fit together: a broken invariant of the caller.
    pub fn assert_valid(&self) {
        assert!(
            self.unit_size.is_multiple_of(PAGE_SIZE) && (PAGE_SIZE..=UNIT_SIZE_MAX).contains(&self.unit_size)
        );
        let units = self.units();
        assert!((1..=MAX_BATCH).contains(&units), "{units} units in a request");
        assert!(self.outputs.len() == units && self.results.len() == units);
    }
}

/// A stored object as the allocator holds it: one piece, or two when it straddles a page border.
#[derive(Debug, Clone, Copy, Default)]
pub struct Object<'a> {
    /// The first, or only, piece.
    pub head: &'a [u8],
    /// The rest; empty for an object in one piece.
    pub tail: &'a [u8],
}

impl<'a> Object<'a> {
    /// An object in one piece.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Object { head: bytes, tail: &[] }
    }

    /// Bytes in both pieces.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether the object has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The object's bytes in one piece: borrowed when they are, else gathered into `bounce`.
    ///
    /// # Panics
    /// When the object is in two pieces and longer than `bounce`.
    pub fn linear<'b>(&self, bounce: &'b mut [u8]) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.tail.is_empty() {
            return self.head;
        }
        let (head, len) = (self.head.len(), self.len());
        bounce[..head].copy_from_slice(self.head);
        bounce[head..len].copy_from_slice(self.tail);
        &bounce[..len]
    }
}

/// Make a denser object of each of `objects`, all of one page each and of one algorithm,
/// `objects[i]` into `outputs[i]`.
///
/// What does not become shorter than its output is long is [`UnitError::NoSpace`]: the object stays
/// as it is.
pub struct PromoteRequest<'a, 'b> {
    /// One object a page.
    pub objects: &'a [Object<'a>],
    /// One destination an object.
    pub outputs: &'a mut [&'b mut [u8]],
    /// One result an object: bytes written to the output of the same index.
    pub results: &'a mut [UnitResult],
}

impl PromoteRequest<'_, '_> {
    /// Panics when the request's parts do not fit together: a broken invariant of the caller.
    pub fn assert_valid(&self) {
        let objects = self.objects.len();
        assert!((1..=MAX_BATCH).contains(&objects), "{objects} objects in a request");
        assert!(self.outputs.len() == objects && self.results.len() == objects);
    }
}

/// Decompress `objects[i]` into `outputs[i]`, whose length is exactly the unit's original length.
///
/// A result is `Ok(length)` only when the whole output was produced; else the output's content is
/// unspecified. Damaged objects yield [`UnitError::Failed`] or some bytes, never an access outside
/// the buffers.
pub struct DecompressRequest<'a, 'b> {
    /// One compressed object a unit.
    pub objects: &'a [Object<'a>],
    /// One destination a unit, as long as the unit was.
    pub outputs: &'a mut [&'b mut [u8]],
    /// One result a unit.
    pub results: &'a mut [UnitResult],
}

impl DecompressRequest<'_, '_> {
    /// Panics when the request's parts do not fit together: a broken invariant of the caller.
    pub fn assert_valid(&self) {
        let units = self.objects.len();
        assert!((1..=MAX_BATCH).contains(&units), "{units} units in a request");
        assert!(self.outputs.len() == units && self.results.len() == units);
    }
}
