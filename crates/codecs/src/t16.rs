//! T16 behind [`acomp`], in batches of eight. A unit of one page is one T16 object;
//! The module `unit` describes larger units.

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Page, Registry, UnitError,
    MAX_BATCH, PAGE_SIZE, UNIT_SIZE_MAX,
};
use pagecodec::t16::{self, EncodeError, Encoder};
use pagecodec::Isa;

use crate::forced;
use crate::unit;

/// Adds the family `t16` to `registry`. Its parameter forces an instruction set.
pub fn register(registry: &mut Registry) {
    forced::register(registry, "t16", "t16[:portable|:sse4|:avx2|:avx512|:neon]", |name, isa| T16 {
        name,
        isa,
    });
}

struct T16 {
    name: String,
    isa: Isa,
}

impl Algorithm for T16 {
    fn name(&self) -> &str {
        &self.name
    }

    fn batch_size(&self) -> usize {
        MAX_BATCH
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(T16Context {
            encoder: Encoder::with_isa(self.isa),
            isa: self.isa,
            bounce: vec![0; UNIT_SIZE_MAX].into_boxed_slice(),
        }))
    }
}

struct T16Context {
    encoder: Encoder,
    isa: Isa,
    bounce: Box<[u8]>,
}

impl Context for T16Context {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        request.assert_valid();
        if request.unit_size == PAGE_SIZE {
            let mut results = [Err(EncodeError::NoSpace(0)); MAX_BATCH];
            let results = &mut results[..request.pages.len()];
            self.encoder.encode_batch(request.pages, request.outputs, results);
            for (slot, result) in request.results.iter_mut().zip(results) {
                *slot = result.map_err(|_| UnitError::NoSpace);
            }
            return;
        }
        let encode = |page: &Page, _: &Page, output: &mut [u8]| {
            self.encoder.encode(page, output).map_err(|_| UnitError::NoSpace)
        };
        unit::compress(request, encode, |_, _| ());
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        unit::decompress(request, &mut self.bounce, |bytes, page| {
            t16::decode(self.isa, bytes, page).map_err(|_| UnitError::Failed)
        });
    }
}
