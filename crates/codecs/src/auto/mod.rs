//! `auto`, the default: looks at each page and takes the form that suits it. `docs/formats/auto.md`
//! has formats and figures.

mod account;
mod alignment;
mod kind;
pub(crate) mod page;
pub(crate) mod predictor;
mod sampler;

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, Registry, UnitError,
    MAX_BATCH, PAGE_SIZE, UNIT_SIZE_MAX,
};
use pagecodec::{t16, Isa};

use crate::forced;
pub(crate) use kind::FORMS;
pub use kind::{counts, Counts, Kind};
use page::{unit, PageCodec};

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
        for byte in page::unit::kinds(object, pages) {
            let form = byte.and_then(Kind::from_byte).map_or(Kind::ALL.len(), |kind| kind as usize);
            counts[form] += 1;
        }
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(context(self.isa))
    }
}

/// A context that works with `isa`.
pub(crate) fn context(isa: Isa) -> Box<dyn Context> {
    Box::new(AutoContext { codec: PageCodec::new(isa), bounce: vec![0; UNIT_SIZE_MAX].into_boxed_slice() })
}

struct AutoContext {
    codec: PageCodec,
    /// Where objects in two pieces are joined.
    bounce: Box<[u8]>,
}

/// What a context of `auto` does with `request`.
pub(crate) fn compress(codec: &mut PageCodec, request: &mut CompressRequest<'_, '_>) {
    request.assert_valid();
    let pages_per_unit = request.unit_size / PAGE_SIZE;
    let mut counts = Counts::default();
    // Each page is fetched while the one before is compressed.
    if let Some(page) = request.pages.first() {
        t16::prefetch(*page);
    }
    let outputs = request.outputs.iter_mut().zip(request.results.iter_mut());
    for (number, (output, result)) in outputs.enumerate() {
        let first = number * pages_per_unit;
        let pages = &request.pages[first..request.pages.len().min(first + pages_per_unit)];
        *result = match pages {
            [page] => {
                let next = request.pages.get(first + 1).unwrap_or(page);
                let done = codec.compress(page, next, output);
                counts.add(done.ok().map(|(kind, _)| kind));
                done.map(|(_, len)| len)
            }
            pages => unit::compress(codec, pages, output, |kind| counts.add(kind)),
        };
    }
    kind::publish(&counts);
}

impl Context for AutoContext {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        compress(&mut self.codec, request);
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        request.assert_valid();
        for (at, (output, result)) in request.outputs.iter_mut().zip(request.results.iter_mut()).enumerate() {
            if let Some(next) = request.objects.get(at + 1) {
                t16::prefetch(next.head);
                t16::prefetch(next.tail);
            }
            let object = &request.objects[at];
            if object.len() > self.bounce.len() {
                *result = Err(UnitError::Failed);
                continue;
            }
            let bytes = object.linear(&mut self.bounce);
            *result = match output.as_chunks_mut::<PAGE_SIZE>() {
                ([page], []) => self.codec.decompress(bytes, page),
                (pages, []) => unit::decompress(&mut self.codec, bytes, pages),
                _ => Err(UnitError::Failed),
            }
            .map(|()| output.len());
        }
    }
}
