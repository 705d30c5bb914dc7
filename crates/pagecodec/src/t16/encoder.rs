//! The encoder's interface: analyses a page, then writes its object.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::format::{PAGE_SIZE, WORDS};
use super::portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::vectors;
use super::work::Work;
use crate::Isa;

/// The reason why a page was not encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// More words fit no template than the caller accepts.
    #[error("{0} words of the page fit no template")]
    TooManyRaw(usize),
    /// The object is longer than its destination.
    #[error("the object takes {0} bytes, more than there is room for")]
    NoSpace(usize),
}

/// The result of a page's analysis, from which [`Encoder::write`] makes the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Length of the object in bytes.
    pub len: usize,
    /// Words that fit no template, repeats included.
    pub unfit: usize,
    /// Words in the raw stream, including raw exact templates.
    pub raw_len: usize,
}

/// Encodes pages. Holds the working memory, so encoding never allocates. Use one per thread.
pub struct Encoder {
    isa: Isa,
    work: Box<Work>,
    /// Whether `work` describes a page completely, on which the writers rely.
    planned: bool,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Creates an encoder with the fastest instruction set of this machine.
    pub fn new() -> Self {
        Self::with_isa(Isa::best())
    }

    /// Creates an encoder with the instruction set `isa`.
    ///
    /// # Panics
    /// If the machine lacks it.
    pub fn with_isa(isa: Isa) -> Self {
        assert!(isa.is_available(), "this machine lacks {isa}");
        Encoder { isa, work: Work::new(), planned: false }
    }

    /// Analyses `page`. Gives up early if more than `unfit_max` words fit no template (512: never).
    ///
    /// # Errors
    /// [`EncodeError::TooManyRaw`].
    #[inline]
    pub fn plan(&mut self, page: &[u8; PAGE_SIZE], unfit_max: usize) -> Result<Plan, EncodeError> {
        self.plan_ahead(page, unfit_max, page)
    }

    /// [`Encoder::plan`] that also prefetches `next`, the page to be planned after this one.
    ///
    /// # Errors
    /// [`EncodeError::TooManyRaw`].
    #[inline]
    pub fn plan_ahead(
        &mut self,
        page: &[u8; PAGE_SIZE],
        unfit_max: usize,
        next: &[u8; PAGE_SIZE],
    ) -> Result<Plan, EncodeError> {
        self.planned = false;
        // `with_isa` has checked the instruction set.
        let unfit = by_isa!(self.isa, analyse(&mut self.work, page, next));
        if unfit > unfit_max {
            return Err(EncodeError::TooManyRaw(unfit));
        }
        by_isa!(self.isa, reduce(&mut self.work, page));
        self.planned = true;
        let work = &self.work;
        Ok(Plan { len: work.object_len(), unfit, raw_len: work.templates.raw_len + work.raw_len })
    }

    /// Writes the object of the last planned page and returns its length.
    ///
    /// # Errors
    /// [`EncodeError::NoSpace`] if `out` is shorter than [`Plan::len`].
    ///
    /// # Panics
    /// If the last plan failed, or there was none.
    #[inline]
    pub fn write(&mut self, out: &mut [u8]) -> Result<usize, EncodeError> {
        assert!(self.planned, "nothing is planned");
        let len = self.work.object_len();
        let out = out.get_mut(..len).ok_or(EncodeError::NoSpace(len))?;
        by_isa!(self.isa, write(&self.work, out));
        Ok(len)
    }

    /// Encodes a page into `out`, of [`super::OBJECT_MAX`] bytes or the length worth storing.
    ///
    /// # Errors
    /// [`EncodeError::NoSpace`] if the object is longer than `out`.
    #[inline]
    pub fn encode(&mut self, page: &[u8; PAGE_SIZE], out: &mut [u8]) -> Result<usize, EncodeError> {
        self.plan(page, WORDS)?;
        self.write(out)
    }

    /// Encodes each page into the output of the same index, prefetching the next page.
    ///
    /// # Panics
    /// If the slices differ in length.
    #[inline]
    pub fn encode_batch(
        &mut self,
        pages: &[&[u8; PAGE_SIZE]],
        outs: &mut [&mut [u8]],
        results: &mut [Result<usize, EncodeError>],
    ) {
        assert!(pages.len() == outs.len() && pages.len() == results.len());
        for (at, (out, result)) in outs.iter_mut().zip(results).enumerate() {
            let next = pages.get(at + 1).copied().unwrap_or(pages[at]);
            *result = self.plan_ahead(pages[at], WORDS, next).and_then(|_| self.write(out));
        }
    }
}
