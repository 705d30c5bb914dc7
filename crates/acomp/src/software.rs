//! The loop over units that plain software codecs share.

use crate::{CompressRequest, Context, DecompressRequest, UnitError, UnitResult, PAGE_SIZE, UNIT_SIZE_MAX};

/// A codec that handles one contiguous unit at a time; [`Software`] makes it a [`Context`]. It has
/// the duties of a [`Context`]: no thread-local storage, no allocation, no panic on input.
pub trait UnitCodec: Send {
    /// Compresses `unit` into `output`; returns [`UnitError::NoSpace`] if the result does not fit.
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult;

    /// Decompresses `object` into `output`, filling all of it.
    ///
    /// # Errors
    /// [`UnitError::Failed`] if the object is damaged or yields another length.
    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError>;
}

/// Runs a [`UnitCodec`] over a request's units; gathers pages and objects in several pieces.
pub struct Software<C> {
    codec: C,
    bounce: Box<[u8]>,
}

impl<C: UnitCodec> Software<C> {
    /// Wraps `codec` and allocates its only bounce buffer.
    pub fn new(codec: C) -> Self {
        Self::for_units(codec, UNIT_SIZE_MAX)
    }

    /// Wraps `codec` for units of up to `unit_size` bytes.
    pub fn for_units(codec: C, unit_size: usize) -> Self {
        // An object is never longer than its unit, so one buffer serves both directions.
        Software { codec, bounce: vec![0; unit_size].into_boxed_slice() }
    }
}

impl<C: UnitCodec> Context for Software<C> {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        request.assert_valid();
        let pages_per_unit = request.unit_size / PAGE_SIZE;
        assert!(pages_per_unit == 1 || request.unit_size <= self.bounce.len(), "a context for smaller units");
        let units = request.pages.chunks(pages_per_unit);
        for ((pages, output), result) in units.zip(request.outputs.iter_mut()).zip(request.results.iter_mut())
        {
            *result = match pages {
                [page] => self.codec.compress_unit(page.as_slice(), output),
                pages => {
                    // Copying costs about 0.1 us a page, 1/30 of the codecs that gain from larger
                    // units.
                    for (slot, page) in self.bounce.chunks_exact_mut(PAGE_SIZE).zip(pages) {
                        slot.copy_from_slice(*page);
                    }
                    self.codec.compress_unit(&self.bounce[..pages.len() * PAGE_SIZE], output)
                }
            };
        }
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        request.assert_valid();
        for ((object, output), result) in
            request.objects.iter().zip(request.outputs.iter_mut()).zip(request.results.iter_mut())
        {
            if object.len() > self.bounce.len() {
                *result = Err(UnitError::Failed);
                continue;
            }
            let bytes = object.linear(&mut self.bounce);
            *result = self.codec.decompress_unit(bytes, output).map(|()| output.len());
        }
    }
}
