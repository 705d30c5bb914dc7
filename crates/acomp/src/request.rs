//! Requests to compressors, and their results per unit.

use crate::{MAX_BATCH, PAGE_SIZE, UNIT_SIZE_MAX};

/// The bytes of one page.
pub type Page = [u8; PAGE_SIZE];

/// Why one unit of a request failed. The other units of the request are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Compression: the unit did not shrink below the size of its destination buffer.
    #[error("the unit did not shrink")]
    NoSpace,
    /// The compressor or device failed, or (decompression) the object is damaged.
    #[error("the compressor failed or the object is damaged")]
    Failed,
}

/// Bytes produced for one unit, or the error.
pub type UnitResult = Result<usize, UnitError>;

/// Compress `pages` in units of `unit_size` bytes, unit `i` into `outputs[i]`.
///
/// The pages need not be adjacent in memory. Every unit but the last is whole. An output buffer may
/// have any length up to the unit's; a codec whose result does not fit returns
/// [`UnitError::NoSpace`]. Every unit gets a result.
pub struct CompressRequest<'a, 'b> {
    /// Source pages, in order.
    pub pages: &'a [&'a Page],
    /// Bytes per unit: a multiple of [`PAGE_SIZE`], at most [`UNIT_SIZE_MAX`].
    pub unit_size: usize,
    /// One destination per unit.
    pub outputs: &'a mut [&'b mut [u8]],
    /// One result per unit: bytes written to the output of the same index.
    pub results: &'a mut [UnitResult],
}

impl CompressRequest<'_, '_> {
    /// Number of units.
    pub fn units(&self) -> usize {
        self.pages.len().div_ceil(self.unit_size / PAGE_SIZE)
    }

    /// Panics if the parts of the request do not fit together: a broken invariant of the caller.
    pub fn assert_valid(&self) {
        assert!(
            self.unit_size.is_multiple_of(PAGE_SIZE) && (PAGE_SIZE..=UNIT_SIZE_MAX).contains(&self.unit_size)
        );
        let units = self.units();
        assert!((1..=MAX_BATCH).contains(&units), "{units} units in a request");
        assert!(self.outputs.len() == units && self.results.len() == units);
    }
}

/// A stored object as the allocator holds it: one piece, or two if it straddles a page border.
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

    /// The object's bytes in one piece: borrowed if contiguous, else gathered into `bounce`.
    ///
    /// # Panics
    /// If the object is in two pieces and longer than `bounce`.
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

/// Make a denser object of each one-page object `objects[i]`, all of one algorithm, in
/// `outputs[i]`.
///
/// If the result does not fit its output, it is [`UnitError::NoSpace`] and the object stays
/// unchanged.
pub struct PromoteRequest<'a, 'b> {
    /// One object per page.
    pub objects: &'a [Object<'a>],
    /// One destination per object.
    pub outputs: &'a mut [&'b mut [u8]],
    /// One result per object: bytes written to the output of the same index.
    pub results: &'a mut [UnitResult],
}

impl PromoteRequest<'_, '_> {
    /// Panics if the parts of the request do not fit together: a broken invariant of the caller.
    pub fn assert_valid(&self) {
        let objects = self.objects.len();
        assert!((1..=MAX_BATCH).contains(&objects), "{objects} objects in a request");
        assert!(self.outputs.len() == objects && self.results.len() == objects);
    }
}

/// Decompress `objects[i]` into `outputs[i]`, whose length is exactly the unit's original length.
///
/// A result is `Ok(length)` only if the whole output was produced; otherwise its content is
/// unspecified. Damaged objects yield [`UnitError::Failed`] or some bytes, never an access outside
/// the buffers.
pub struct DecompressRequest<'a, 'b> {
    /// One compressed object per unit.
    pub objects: &'a [Object<'a>],
    /// One destination per unit, as long as the unit was.
    pub outputs: &'a mut [&'b mut [u8]],
    /// One result per unit.
    pub results: &'a mut [UnitResult],
}

impl DecompressRequest<'_, '_> {
    /// Panics if the parts of the request do not fit together: a broken invariant of the caller.
    pub fn assert_valid(&self) {
        let units = self.objects.len();
        assert!((1..=MAX_BATCH).contains(&units), "{units} units in a request");
        assert!(self.outputs.len() == units && self.results.len() == units);
    }
}
