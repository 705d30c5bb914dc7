//! Chooses a page's form, and decodes all forms.

use acomp::{Page, UnitError, PAGE_SIZE};
use pagecodec::t16::{self, Layout};
use pagecodec::{distinct_prefixes, lz, numeric, same_filled, sparse, Isa};

use super::account::{Account, Terms};
use super::alignment::Alignment;
use super::kind::Kind;
use super::predictor::Predictor;
use super::sampler::Sampler;
use crate::lz4;

/// T16 is not tried on pages with this many distinct prefixes among the 64 sampled words.
const PREFIXES_MAX: u32 = 48;
/// T16 gives up when more words than this fit no template.
const UNFIT_MAX: usize = 288;
/// Page LZ is tried on this many raw words or more.
const RAW_MIN: usize = 240;
/// Page LZ is tried on raw words with this many repeats among 256 sampled positions.
const RAW_REPEATS_MIN: u32 = 16;
/// With this many raw words, page LZ is tried on the whole page if they do not shrink alone.
const RAW_MANY: usize = 160;
/// T16 objects up to this length are compared with the sparse form.
const SPARSE_BELOW: usize = 400;
/// T16 objects of this length or more are compared with the numeric form if they have fewer than
/// `RAW_FEW` raw words, as columns of integers or pointers do.
const NUMERIC_FROM: usize = 1000;
const RAW_FEW: usize = 8;
/// T16 objects of this length or more are always compared with the numeric form.
const NUMERIC_ALWAYS: usize = 1800;
/// Page LZ is tried on pages with this many repeats among [`lz::SAMPLES`] positions.
const REPEATS_MIN: u32 = 4;
/// Estimated bytes of an object per break of the page, and in addition to them.
const BREAK_COST: usize = 170;
const BREAKS_BASE: usize = 30;
/// Objects of this length or more hardly ever come from pages of long repeats.
const BREAKS_BELOW: usize = 1280;
/// An object must save at least this many bytes.
const GAIN_MIN: usize = 64;
/// Bytes of the header that locates the parts of a spliced object.
const SPLICE: usize = 4;

/// LZ4 takes 0.5 to 2 us for pages whose page LZ objects are shorter than this.
const LZ_SHORT: usize = 640;

/// A comparison with LZ4 takes 4 us. One in 512 pages costs below 1 % of a page's mean time.
static LZ4: Terms = Terms { gap_first: 1, doubled_after: 16, gap_max: 512, margin: 7 };
/// The same if page LZ is short.
static LZ4_SHORT: Terms = Terms { gap_first: 1, doubled_after: 16, gap_max: 5, margin: 7 };
/// Page LZ is tried on pages that look like noise.
static NOISE: Terms = Terms { gap_first: 48, doubled_after: 1, gap_max: 512, margin: 4 };

/// Compresses and decompresses pages. Allocates only when created.
pub(crate) struct PageCodec {
    isa: Isa,
    t16: t16::Encoder,
    lz: lz::Encoder,
    lz4: lz4::Blocks,
    /// Compare page LZ with T16's choice, and with numbers.
    samplers: [Sampler; 2],
    /// Compare LZ4 with T16's choice, with numbers, with page LZ, and with short page LZ objects.
    accounts: [Account; 4],
    /// Compares page LZ with the form of pages that look like noise.
    noise: Account,
    predictor: Predictor,
    alignment: Alignment,
    /// A T16 object with its raw words: before a splice, or after it is undone.
    object: Box<[u8; t16::OBJECT_MAX]>,
    rival: Box<[u8; PAGE_SIZE]>,
}

impl PageCodec {
    pub(crate) fn new(isa: Isa) -> Self {
        PageCodec {
            isa,
            t16: t16::Encoder::with_isa(isa),
            lz: lz::Encoder::with_isa(isa),
            lz4: lz4::Blocks::new().expect("the library takes memory of the length that it asked for"),
            samplers: [Sampler::NEW; 2],
            accounts: [&LZ4, &LZ4, &LZ4, &LZ4_SHORT].map(Account::new),
            noise: Account::new(&NOISE),
            predictor: Predictor::NEW,
            alignment: Alignment::NEW,
            object: Box::new([0; t16::OBJECT_MAX]),
            rival: Box::new([0; PAGE_SIZE]),
        }
    }

    /// Compresses `page` into `output` in the form that suits it. Prefetches the next page.
    ///
    /// # Errors
    /// [`UnitError::NoSpace`] if no form fits or saves [`GAIN_MIN`] bytes.
    pub(crate) fn compress(
        &mut self,
        page: &Page,
        next: &Page,
        output: &mut [u8],
    ) -> Result<(Kind, usize), UnitError> {
        let room = output.len().min(PAGE_SIZE - GAIN_MIN);
        let (kind, out) = output[..room].split_first_mut().ok_or(UnitError::NoSpace)?;
        let (chosen, len) = self.choose(page, next, out).ok_or(UnitError::NoSpace)?;
        *kind = chosen as u8;
        Ok((chosen, 1 + len))
    }

    fn choose(&mut self, page: &Page, next: &Page, out: &mut [u8]) -> Option<(Kind, usize)> {
        if let Some(word) = same_filled(page) {
            out.get_mut(..8)?.copy_from_slice(&word.to_le_bytes());
            return Some((Kind::Same, 8));
        }
        let prefixes = distinct_prefixes(page);
        if self.predictor.applies(prefixes) {
            t16::prefetch(next);
            let len = self.plan_lz(page);
            if self.predictor.accepts(prefixes, len) {
                let len = self.lz.write(out)?;
                return Some(self.lz_or_lz4(page, len, out));
            }
        }
        let found = self.look(page, next, prefixes, out);
        let lz_len = found.filter(|(kind, _)| matches!(kind, Kind::Lz | Kind::Lz4)).map(|(_, len)| len);
        self.predictor.looked(prefixes, lz_len);
        found
    }

    fn look(&mut self, page: &Page, next: &Page, prefixes: u32, out: &mut [u8]) -> Option<(Kind, usize)> {
        if prefixes < PREFIXES_MAX {
            // T16 prefetches the next page a few lines at a time.
            if let Ok(plan) = self.t16.plan_ahead(page, UNFIT_MAX, next) {
                let found = self.choose_by_plan(page, plan, out)?;
                return self.or_lz(page, found, out);
            }
        } else {
            t16::prefetch(next);
        }
        self.choose_without_t16(page, out)
    }

    /// Returns `found`, or page LZ or LZ4 if a comparison is due and shows it to be shorter.
    fn or_lz(&mut self, page: &Page, found: (Kind, usize), out: &mut [u8]) -> Option<(Kind, usize)> {
        let (kind, len) = found;
        if kind == Kind::Lz {
            return Some(self.lz_or_lz4(page, len, out));
        }
        let mut found = found;
        let number = usize::from(kind == Kind::Numeric);
        let due = self.samplers[number].is_due();
        if due {
            let lz_len = self.lz.plan(page);
            self.samplers[number].compared(len, lz_len);
            if lz_len < len {
                let lz_len = self.lz.write(out)?;
                if lz_len < LZ_SHORT {
                    return Some(self.lz_or_lz4(page, lz_len, out));
                }
                found = (Kind::Lz, lz_len);
            }
        } else if self.repeats_at_length(page, len) {
            // Here LZ4 takes 0.5 to 2 us, page LZ 3, and their objects are about equally long.
            let rival = &mut self.rival[..];
            if let Some(len) = self.lz4.compress(page, &mut rival[..len], lz4::ACCELERATION) {
                out[..len].copy_from_slice(&rival[..len]);
                return Some((Kind::Lz4, len));
            }
        }
        Some(self.or_lz4(page, found, number, out))
    }

    /// Returns the page LZ object of `len` bytes, or an LZ4 block if a due comparison favours it.
    fn lz_or_lz4(&mut self, page: &Page, len: usize, out: &mut [u8]) -> (Kind, usize) {
        self.or_lz4(page, (Kind::Lz, len), if len < LZ_SHORT { 3 } else { 2 }, out)
    }

    /// Returns `found`, or an LZ4 block if the account asks for a comparison and it is shorter.
    fn or_lz4(&mut self, page: &Page, found: (Kind, usize), account: usize, out: &mut [u8]) -> (Kind, usize) {
        if !self.accounts[account].is_due() {
            return found;
        }
        let rival = &mut self.rival[..];
        let len = self.lz4.compress(page, rival, lz4::ACCELERATION).unwrap_or(PAGE_SIZE);
        self.accounts[account].compared(found.1, len);
        if len >= found.1 {
            return found;
        }
        out[..len].copy_from_slice(&rival[..len]);
        (Kind::Lz4, len)
    }

    /// Plans a page for page LZ, with the even search as long as that costs little length.
    fn plan_lz(&mut self, page: &Page) -> usize {
        if self.alignment.is_even() {
            let len = self.lz.plan_even(page);
            if self.alignment.accepts(len) {
                return len;
            }
        }
        let len = self.lz.plan(page);
        let (matched, odd) = self.lz.matched();
        self.alignment.planned(matched, odd);
        len
    }

    /// Whether long repeats are likely to encode the page in a third of `len` bytes.
    fn repeats_at_length(&self, page: &Page, len: usize) -> bool {
        if len >= BREAKS_BELOW {
            return false;
        }
        let Some(room) = (len / 3).checked_sub(BREAKS_BASE) else { return false };
        let breaks_max = (room / BREAK_COST) as u32;
        lz::breaks(self.isa, page, breaks_max + 1) <= breaks_max
    }

    /// T16 fits most words: returns it, or a rival form where T16 is weak.
    fn choose_by_plan(&mut self, page: &Page, plan: t16::Plan, out: &mut [u8]) -> Option<(Kind, usize)> {
        if plan.len < SPARSE_BELOW {
            if let Some(len) = sparse::encode(page, &mut self.rival[..plan.len]) {
                out.get_mut(..len)?.copy_from_slice(&self.rival[..len]);
                return Some((Kind::Sparse, len));
            }
        }
        if plan.len >= NUMERIC_ALWAYS || (plan.len >= NUMERIC_FROM && plan.raw_len < RAW_FEW) {
            let limit = plan.len - plan.len / 8;
            let (shape, estimate) = numeric::estimate_below(self.isa, page, limit);
            if estimate < limit {
                let best = plan.len.min(out.len());
                if let Some(len) = numeric::encode(self.isa, page, shape, &mut out[..best]) {
                    return Some((Kind::Numeric, len));
                }
            }
        }
        if plan.raw_len >= RAW_MIN {
            if let Ok(len) = self.t16.write(&mut self.object[..]) {
                if let Some(len) = self.splice(len, out) {
                    return Some((Kind::T16Lz, len));
                }
                if plan.raw_len >= RAW_MANY {
                    // Unrepeated raw words beside zeros: page LZ's plain literals are shorter.
                    let room = out.len().min(len);
                    if let Some(len) = self.lz.encode(page, &mut out[..room]) {
                        return Some((Kind::Lz, len));
                    }
                }
                out.get_mut(..len)?.copy_from_slice(&self.object[..len]);
                return Some((Kind::T16, len));
            }
        }
        self.t16.write(out).ok().map(|len| (Kind::T16, len))
    }

    /// Moves raw words of the T16 object of `len` bytes into page LZ behind it, if that saves 1/32.
    fn splice(&mut self, len: usize, out: &mut [u8]) -> Option<usize> {
        let object = &self.object[..len];
        let layout = Layout::parse(object).ok()?;
        let raw = layout.raw_at..layout.refs_at;
        let behind = len - raw.end;
        let kept = raw.start + behind;
        if raw.start >= 1 << 12 || behind >= 1 << 10 || layout.raw_len >= 1 << 10 {
            return None;
        }
        let room = (len - len / 32).min(out.len());
        let out = &mut out[..room];
        if lz::repeats_in(self.isa, &object[raw.clone()]) < RAW_REPEATS_MIN {
            return None;
        }
        let packed = out.get_mut(SPLICE + kept..)?;
        let packed_len = self.lz.encode(&object[raw.clone()], packed)?;
        let parts = raw.start as u32 | (behind as u32) << 12 | (layout.raw_len as u32) << 22;
        out[..SPLICE].copy_from_slice(&parts.to_le_bytes());
        out[SPLICE..][..raw.start].copy_from_slice(&object[..raw.start]);
        out[SPLICE + raw.start..][..behind].copy_from_slice(&object[raw.end..]);
        Some(SPLICE + kept + packed_len)
    }

    /// Chooses among numbers, page LZ, and LZ4.
    fn choose_without_t16(&mut self, page: &Page, out: &mut [u8]) -> Option<(Kind, usize)> {
        let (shape, estimate) = numeric::estimate(self.isa, page);
        let repeats = lz::repeats(self.isa, page);
        if repeats < REPEATS_MIN {
            let best = estimate.min(PAGE_SIZE);
            if self.noise.is_due() {
                let len = self.lz.plan(page);
                self.noise.compared(best, len);
                if len < best {
                    let len = self.lz.write(out)?;
                    return Some(self.lz_or_lz4(page, len, out));
                }
            }
            if best == PAGE_SIZE {
                return None;
            }
            return numeric::encode(self.isa, page, shape, out).map(|len| (Kind::Numeric, len));
        }
        if estimate < PAGE_SIZE / 3 {
            // The estimate may have missed values that do not fit.
            let room = out.len().min(estimate + estimate / 4);
            if let Some(len) = numeric::encode(self.isa, page, shape, &mut out[..room]) {
                return self.or_lz(page, (Kind::Numeric, len), out);
            }
        }
        self.plan_lz(page);
        let found = self.lz.write(out);
        let best = found.unwrap_or(out.len());
        if estimate < best {
            let rival = &mut self.rival[..best];
            if let Some(len) = numeric::encode(self.isa, page, shape, rival) {
                out[..len].copy_from_slice(&rival[..len]);
                return Some((Kind::Numeric, len));
            }
        }
        found.map(|len| self.lz_or_lz4(page, len, out))
    }

    /// Decompresses `object` into `page`. Returns [`UnitError::Failed`] if the object is damaged.
    pub(crate) fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), UnitError> {
        let (&kind, object) = object.split_first().ok_or(UnitError::Failed)?;
        let done = match Kind::from_byte(kind).ok_or(UnitError::Failed)? {
            Kind::Same => match object.try_into() {
                Ok(word) => {
                    page.as_chunks_mut::<8>().0.fill(word);
                    true
                }
                Err(_) => false,
            },
            Kind::T16 => t16::decode(self.isa, object, page).is_ok(),
            Kind::T16Lz => return self.unsplice(object, page),
            Kind::Lz => lz::decode(self.isa, object, page).is_ok(),
            Kind::Numeric => numeric::decode(self.isa, object, page).is_ok(),
            Kind::Sparse => sparse::decode(object, page).is_ok(),
            Kind::Lz4 => lz4::decompress(object, page),
        };
        done.then_some(()).ok_or(UnitError::Failed)
    }

    fn unsplice(&mut self, object: &[u8], page: &mut Page) -> Result<(), UnitError> {
        let isa = self.isa;
        let whole = self.unspliced(object)?;
        t16::decode(isa, whole, page).map_err(|_| UnitError::Failed)
    }

    /// Returns the T16 object of a page if it is worth dense coding. `prefixes` is the page's
    /// [`distinct_prefixes`]. Prefetches `next`.
    pub(crate) fn t16_of_page(&mut self, page: &Page, next: &Page, prefixes: u32) -> Option<&[u8]> {
        if prefixes >= PREFIXES_MAX {
            t16::prefetch(next);
            return None;
        }
        self.t16.plan_ahead(page, UNFIT_MAX, next).ok()?;
        let len = self.t16.write(&mut self.object[..]).ok()?;
        Some(&self.object[..len])
    }

    /// Returns the T16 object within an object of `auto`, if it has one.
    pub(crate) fn t16_of_object<'a>(&'a mut self, object: &'a [u8]) -> Option<&'a [u8]> {
        let (&kind, object) = object.split_first()?;
        match Kind::from_byte(kind)? {
            Kind::T16 => Some(object),
            Kind::T16Lz => self.unspliced(object).ok(),
            _ => None,
        }
    }

    fn unspliced(&mut self, object: &[u8]) -> Result<&[u8], UnitError> {
        let (parts, rest) = object.split_first_chunk::<SPLICE>().ok_or(UnitError::Failed)?;
        let parts = u32::from_le_bytes(*parts) as usize;
        let (before, behind, raw_len) = (parts & 0xfff, parts >> 12 & 0x3ff, 8 * (parts >> 22));
        let (kept, packed) = rest.split_at_checked(before + behind).ok_or(UnitError::Failed)?;
        let whole = self.object.get_mut(..before + raw_len + behind).ok_or(UnitError::Failed)?;
        whole[..before].copy_from_slice(&kept[..before]);
        lz::decode(self.isa, packed, &mut whole[before..before + raw_len]).map_err(|_| UnitError::Failed)?;
        whole[before + raw_len..].copy_from_slice(&kept[before..]);
        Ok(whole)
    }
}
