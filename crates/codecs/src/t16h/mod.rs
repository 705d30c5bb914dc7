//! `t16h`, the dense second tier for cold pages: 1.3 to 1.6 times the ratio of `auto` at twice its
//! time.
//!
//! A page that T16 fits is stored as T16H. Another page with repeats is stored as page LZ with its
//! streams coded by the same code. The rest is stored as by `auto`. The first byte is one of
//! [`auto::Kind`]'s numbers or of the two of this module. `docs/formats/t16h.md` has formats and
//! figures.
//!
//! Codebooks are trained on passing pages, in steps between requests, without a thread. A set lives
//! as long as pages refer to it: the owner of an object reports dropping it ([`Algorithm::forget`],
//! or [`release`]). Without these reports training ends after [`TRAINED_MAX`] sets, but nothing
//! breaks.

mod sets;

use std::sync::Arc;

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Object, Page, Registry, Tiers,
    UnitError, UnitResult, MAX_BATCH, PAGE_SIZE, UNIT_SIZE_MAX,
};
use pagecodec::t16h::Estimator;
use pagecodec::{distinct_prefixes, lz, numeric, same_filled, t16, t16h, Isa};

use crate::auto::{self, page::PageCodec, predictor::Predictor, Kind};
use crate::tiers::{Choice, TiersContext};
use crate::{forced, unit};
pub(crate) use sets::MEMORY_BYTES;
pub use sets::TRAINED_MAX;
use sets::{sets, Family, Held};

/// First byte of a T16H object.
pub const KIND_T16H: u8 = 16;
/// First byte of a page LZ object with coded streams.
pub const KIND_PAGE: u8 = 17;
/// Report names of the forms of an object's pages: the two of this module, then `auto`'s.
const FORMS: [&str; 2 + auto::FORMS.len()] =
    ["t16h", "lzh", "same", "t16", "t16+lz", "lz", "numeric", "sparse", "lz4", "raw"];
/// T16H objects of this length or more are compared with the numeric form.
const NUMERIC_FROM: usize = 700;
/// If T16 does not fit, page LZ is tried from this many repeats among the sampled positions.
const REPEATS_MIN: u32 = 4;

/// Adds the family `t16h` to `registry`. Its parameter forces an instruction set.
pub fn register(registry: &mut Registry) {
    forced::register(registry, "t16h", "t16h[:portable|:sse4|:avx2|:avx512|:neon]", |name, isa| T16h {
        name,
        isa,
        choice: None,
    });
}

/// Reports that an object of this compressor, which holds `pages` pages, is no longer stored, so
/// that its codebook set can be freed.
pub fn release(object: Object<'_>, pages: usize) {
    for [kind, low, high] in unit::heads(object, pages).flatten() {
        if let Some(family) = family_of(kind) {
            sets(family).release(u16::from_le_bytes([low, high]));
        }
    }
}

pub(crate) fn advance() {
    sets(Family::T16).advance();
    sets(Family::Page).advance();
}

/// Returns the family of sets that an object of `kind` refers to, if any.
fn family_of(kind: u8) -> Option<Family> {
    match kind {
        KIND_T16H => Some(Family::T16),
        KIND_PAGE => Some(Family::Page),
        _ => None,
    }
}

/// Returns the numbers of the live trained sets for T16 objects, and the pages that use each.
pub fn trained_sets() -> Vec<(u16, u64)> {
    sets(Family::T16).alive()
}

/// Returns the same for page LZ.
pub fn trained_page_sets() -> Vec<(u16, u64)> {
    sets(Family::Page).alive()
}

/// `t16h`, or `auto-t16h` ([`crate::tiers`]) with a choice of the tier.
pub(crate) struct T16h {
    pub(crate) name: String,
    pub(crate) isa: Isa,
    pub(crate) choice: Option<Arc<Choice>>,
}

impl Algorithm for T16h {
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
        release(object, pages);
    }

    fn forms(&self) -> &'static [&'static str] {
        &FORMS
    }

    fn count_forms(&self, object: Object<'_>, pages: usize, counts: &mut [u32]) {
        for head in unit::heads(object, pages) {
            let form = match head {
                Some([KIND_T16H]) => 0,
                Some([KIND_PAGE]) => 1,
                Some([other]) => 2 + Kind::from_byte(other).map_or(Kind::ALL.len(), |kind| kind as usize),
                None => 2 + Kind::ALL.len(),
            };
            counts[form] += 1;
        }
    }

    fn tiers(&self) -> Option<&dyn Tiers> {
        self.choice.as_deref().map(|choice| choice as &dyn Tiers)
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        let dense = Dense::new(self.isa);
        Ok(match &self.choice {
            Some(choice) => Box::new(TiersContext::new(dense, choice.clone())),
            None => Box::new(dense),
        })
    }
}

struct HeldSets {
    t16: Held,
    page: Held,
}

/// A context of `t16h`, which codes pages and promotes `auto`'s objects.
pub(crate) struct Dense {
    codec: PageCodec,
    coder: t16h::Coder,
    isa: Isa,
    predictor: Predictor,
    rival: Box<Page>,
    bounce: Box<[u8]>,
}

impl Dense {
    pub(crate) fn new(isa: Isa) -> Dense {
        sets(Family::T16);
        sets(Family::Page);
        Dense {
            codec: PageCodec::new(isa),
            coder: t16h::Coder::with_isa(isa),
            isa,
            predictor: Predictor::NEW,
            rival: Box::new([0; PAGE_SIZE]),
            bounce: vec![0; UNIT_SIZE_MAX].into_boxed_slice(),
        }
    }

    /// Codes an object of `auto` (or of `t16`, with the byte 1 before it) densely. T16 data is
    /// coded without the page; page LZ is unpacked first.
    ///
    /// # Errors
    /// [`UnitError::NoSpace`] if the object holds neither form or does not become shorter: keep it.
    pub(crate) fn promote(&mut self, object: &[u8], output: &mut [u8]) -> UnitResult {
        let room = output.len().min(object.len());
        if object.first() == Some(&(Kind::Lz as u8)) {
            return self.promote_lz(object, &mut output[..room]);
        }
        let sets = sets(Family::T16);
        let held = sets.current();
        let t16 = self.codec.t16_of_object(object).ok_or(UnitError::NoSpace)?;
        let (kind, out) = output[..room].split_first_mut().ok_or(UnitError::NoSpace)?;
        let len = self.coder.encode(held.set(), t16, out).ok_or(UnitError::NoSpace)?;
        *kind = KIND_T16H;
        sets.retain(&held);
        sets.observe(&self.coder, t16.len(), len);
        Ok(1 + len)
    }

    pub(crate) fn quick(&mut self) -> &mut PageCodec {
        &mut self.codec
    }

    pub(crate) fn quick_len(&mut self, page: &Page) -> usize {
        let made = self.codec.compress(page, page, &mut self.bounce[..PAGE_SIZE]);
        made.map_or(PAGE_SIZE, |(_, len)| len)
    }

    /// Returns the length to which [`Dense::promote`] would code `object`, which holds `page`.
    pub(crate) fn promoted_len(&mut self, estimator: &mut Estimator, object: &[u8], page: &Page) -> usize {
        let len = match object.first() {
            Some(&kind) if kind == Kind::Lz as u8 => Some(estimator.page_len(page)),
            _ => self.codec.t16_of_object(object).and_then(|t16| estimator.object_len(t16)),
        };
        len.map_or(object.len(), |len| object.len().min(1 + len))
    }

    fn promote_lz(&mut self, object: &[u8], output: &mut [u8]) -> UnitResult {
        let (kind, out) = output.split_first_mut().ok_or(UnitError::NoSpace)?;
        self.codec.decompress(object, &mut self.rival)?;
        let held = sets(Family::Page).current();
        let len = self.coder.encode_page(held.set(), &self.rival, out).ok_or(UnitError::NoSpace)?;
        *kind = KIND_PAGE;
        sets(Family::Page).observe(&self.coder, PAGE_SIZE, len);
        sets(Family::Page).retain(&held);
        Ok(1 + len)
    }

    fn compress_page(&mut self, held: &HeldSets, page: &Page, next: &Page, output: &mut [u8]) -> UnitResult {
        if same_filled(page).is_some() {
            return self.codec.compress(page, next, output).map(|(_, len)| len);
        }
        let room = output.len().min(PAGE_SIZE - 1);
        let prefixes = distinct_prefixes(page);
        if self.predictor.applies(prefixes) {
            t16::prefetch(next);
            let (kind, out) = output[..room].split_first_mut().ok_or(UnitError::NoSpace)?;
            if let Some(len) = self.coder.encode_page(held.page.set(), page, out) {
                if self.predictor.accepts(prefixes, len) {
                    *kind = KIND_PAGE;
                    return Ok(1 + self.kept_page(held, len));
                }
            }
        }
        let result = self.look_at_page(held, page, next, prefixes, &mut output[..room]);
        let page_len = result.ok().filter(|_| output[0] == KIND_PAGE);
        self.predictor.looked(prefixes, page_len);
        result
    }

    fn kept_page(&mut self, held: &HeldSets, len: usize) -> usize {
        sets(Family::Page).observe(&self.coder, PAGE_SIZE, len);
        sets(Family::Page).retain(&held.page);
        len
    }

    fn look_at_page(
        &mut self,
        held: &HeldSets,
        page: &Page,
        next: &Page,
        prefixes: u32,
        output: &mut [u8],
    ) -> UnitResult {
        if let Some(t16) = self.codec.t16_of_page(page, next, prefixes) {
            let (kind, out) = output.split_first_mut().ok_or(UnitError::NoSpace)?;
            if let Some(len) = self.coder.encode(held.t16.set(), t16, out) {
                *kind = KIND_T16H;
                sets(Family::T16).observe(&self.coder, t16.len(), len);
                if len >= NUMERIC_FROM {
                    let (shape, estimate) = numeric::estimate(self.isa, page);
                    if estimate < len {
                        if let Some(shorter) = numeric::encode(self.isa, page, shape, &mut self.rival[..len])
                        {
                            output[0] = Kind::Numeric as u8;
                            output[1..1 + shorter].copy_from_slice(&self.rival[..shorter]);
                            return Ok(1 + shorter);
                        }
                    }
                }
                sets(Family::T16).retain(&held.t16);
                return Ok(1 + len);
            }
            return self.codec.compress(page, next, output).map(|(_, len)| len);
        }
        let (kind, out) = output.split_first_mut().ok_or(UnitError::NoSpace)?;
        let (shape, estimate) = numeric::estimate(self.isa, page);
        if lz::repeats(self.isa, page) >= REPEATS_MIN {
            if let Some(len) = self.coder.encode_page(held.page.set(), page, out) {
                // The numeric form may be shorter for arrays.
                if estimate < len {
                    if let Some(shorter) = numeric::encode(self.isa, page, shape, &mut out[..len]) {
                        *kind = Kind::Numeric as u8;
                        return Ok(1 + shorter);
                    }
                }
                *kind = KIND_PAGE;
                return Ok(1 + self.kept_page(held, len));
            }
        }
        if estimate < PAGE_SIZE {
            if let Some(len) = numeric::encode(self.isa, page, shape, out) {
                *kind = Kind::Numeric as u8;
                return Ok(1 + len);
            }
        }
        Err(UnitError::NoSpace)
    }

    fn decompress_page(&mut self, object: &[u8], page: &mut Page) -> Result<(), UnitError> {
        match object.split_first() {
            Some((&KIND_T16H, dense)) => {
                let number = t16h::set_number(dense).ok_or(UnitError::Failed)?;
                let held = sets(Family::T16).find(number).ok_or(UnitError::Failed)?;
                let t16 = self.coder.decode(held.set(), dense).map_err(|_| UnitError::Failed)?;
                t16::decode(self.isa, t16, page).map_err(|_| UnitError::Failed)
            }
            Some((&KIND_PAGE, dense)) => {
                let number = t16h::set_number(dense).ok_or(UnitError::Failed)?;
                let held = sets(Family::Page).find(number).ok_or(UnitError::Failed)?;
                self.coder.decode_page(held.set(), dense, page).map_err(|_| UnitError::Failed)
            }
            _ => self.codec.decompress(object, page),
        }
    }
}

impl Context for Dense {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        let held = HeldSets { t16: sets(Family::T16).current(), page: sets(Family::Page).current() };
        unit::compress(request, |page, next, out| self.compress_page(&held, page, next, out), release);
        drop(held);
        advance();
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        let mut bounce = std::mem::take(&mut self.bounce);
        unit::decompress(request, &mut bounce, |bytes, page| self.decompress_page(bytes, page));
        self.bounce = bounce;
    }
}
