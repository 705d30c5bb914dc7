//! `auto-t16h`: two tiers. Pages are stored as `auto` stores them, and become [`t16h`] when their
//! store finds them cold and asks for it.
//!
//! What `auto` stored as T16 is coded without its page: its templates are not looked for again. A
//! page LZ object is unpacked and coded again, since codebooks for pages see sequences that LZ's
//! own coder has packed. The other forms stay.

use acomp::{CompressRequest, Context, DecompressRequest, PromoteRequest, Registry, UnitError, PAGE_SIZE};
use pagecodec::Isa;

use crate::forced;
use crate::t16h::{self, Dense, T16h};

/// Adds the family `auto-t16h` to `registry`. Its parameter forces an instruction set.
pub fn register(registry: &mut Registry) {
    forced::register(registry, "auto-t16h", "auto-t16h[:portable|:sse4|:avx2|:avx512|:neon]", |name, isa| {
        T16h { name, isa, first_tier: Some(context) }
    });
}

/// What works with `isa`.
fn context(isa: Isa) -> Box<dyn Context> {
    Box::new(TiersContext { auto: crate::auto::context(isa), dense: Dense::new(isa) })
}

struct TiersContext {
    auto: Box<dyn Context>,
    dense: Dense,
}

impl Context for TiersContext {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        self.auto.compress(request);
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        self.dense.decompress(request);
    }

    fn promote(&mut self, request: &mut PromoteRequest<'_, '_>) {
        request.assert_valid();
        let mut bounce = [0; PAGE_SIZE];
        for ((object, output), result) in
            request.objects.iter().zip(request.outputs.iter_mut()).zip(request.results.iter_mut())
        {
            *result = match object.len() {
                ..=PAGE_SIZE => self.dense.promote(object.linear(&mut bounce), output),
                _ => Err(UnitError::Failed),
            };
        }
        t16h::advance();
    }
}
