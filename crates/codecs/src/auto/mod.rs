//! `auto`, the default, chooses a form for each page. `docs/formats/auto.md` has the details.

mod account;
mod alignment;
mod kind;
pub(crate) mod page;
pub(crate) mod predictor;
mod sampler;

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, Registry, MAX_BATCH,
    UNIT_SIZE_MAX,
};
use pagecodec::{t16, Isa};

use crate::{forced, unit};
pub use kind::Kind;
pub(crate) use kind::FORMS;
use page::PageCodec;

/// Adds the family `auto` to `registry`. Its parameter forces an instruction set.
pub fn register(registry: &mut Registry) {
    forced::register(registry, "auto", "auto[:portable|:sse4|:avx2|:avx512|:neon]", |name, isa| Auto {
        name,
        isa,
    });
}

struct Auto {
    name: String,
    isa: Isa,
}

impl Algorithm for Auto {
    fn name(&self) -> &str {
        &self.name
    }

    fn batch_size(&self) -> usize {
        MAX_BATCH
    }

    fn forms(&self) -> &'static [&'static str] {
        &FORMS
    }

    fn count_forms(&self, object: Object<'_>, pages: usize, counts: &mut [u32]) {
        for head in unit::heads::<1>(object, pages) {
            let form =
                head.and_then(|[byte]| Kind::from_byte(byte)).map_or(Kind::ALL.len(), |kind| kind as usize);
            counts[form] += 1;
        }
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(context(self.isa))
    }
}

pub(crate) fn context(isa: Isa) -> Box<dyn Context> {
    Box::new(AutoContext { codec: PageCodec::new(isa), bounce: vec![0; UNIT_SIZE_MAX].into_boxed_slice() })
}

struct AutoContext {
    codec: PageCodec,
    /// Joins objects in two pieces.
    bounce: Box<[u8]>,
}

pub(crate) fn compress(codec: &mut PageCodec, request: &mut CompressRequest<'_, '_>) {
    // Each page is prefetched while the one before is compressed.
    if let Some(page) = request.pages.first() {
        t16::prefetch(*page);
    }
    unit::compress(request, |page, next, out| codec.compress(page, next, out).map(|(_, len)| len), |_, _| ());
}

impl Context for AutoContext {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        compress(&mut self.codec, request);
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        unit::decompress(request, &mut self.bounce, |bytes, page| self.codec.decompress(bytes, page));
    }
}
