//! `auto-t16h`: two tiers. Pages are stored as `auto` stores them, and become [`t16h`](crate::t16h) when their store finds
//! them cold and asks for it.
//!
//! What `auto` stored as T16 is coded without its page: its templates are not looked for again. A page LZ object is
//! unpacked and coded anew, since codebooks for pages see sequences that LZ's own coder has packed. The other forms stay.

use std::sync::Arc;

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, PromoteRequest, Registry,
    UnitError, MAX_BATCH, PAGE_SIZE,
};
use pagecodec::Isa;

use crate::t16h::{self, Dense};

/// Adds the family `auto-t16h` to `registry`. Its parameter forces an instruction set.
pub fn register(registry: &mut Registry) {
    registry.register("auto-t16h", "auto-t16h[:portable|:avx2|:avx512]", |parameter| {
        let isa = match parameter {
            None => Isa::best(),
            Some(name) => Isa::by_name(name).ok_or_else(|| format!("no instruction set {name:?}"))?,
        };
        if !isa.is_available() {
            return Err(format!("this machine lacks {isa}"));
        }
        let name = parameter.map_or_else(|| "auto-t16h".to_owned(), |name| format!("auto-t16h:{name}"));
        Ok(Arc::new(Tiers { name, isa }))
    });
}

struct Tiers {
    name: String,
    isa: Isa,
}

impl Algorithm for Tiers {
    fn name(&self) -> &str {
        &self.name
    }

    fn batch_size(&self) -> usize {
        MAX_BATCH
    }

    /// Codebook sets live as long as objects refer to them.
    fn keeps_account(&self) -> bool {
        true
    }

    fn forget(&self, object: Object<'_>, pages: usize) {
        t16h::release(object, pages);
    }

    fn promotes(&self) -> bool {
        true
    }

    fn forms(&self) -> &'static [&'static str] {
        &t16h::FORMS
    }

    fn count_forms(&self, object: Object<'_>, pages: usize, counts: &mut [u32]) {
        t16h::count_forms(object, pages, counts);
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(TiersContext { auto: crate::auto::context(self.isa), dense: Dense::new(self.isa) }))
    }
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
