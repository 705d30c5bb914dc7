//! `auto-t16h`, two tiers: pages are stored as by `auto`, and become [`t16h`] when their store
//! finds them cold and asks for it. While the store asks for that, pages become [`t16h`] at once.
//!
//! T16 objects are coded without their page: their templates need no second search. Page LZ objects
//! are unpacked and coded again, because page codebooks need sequences that LZ's own coder has
//! packed. The other forms stay.
//!
//! One page in 32 is also measured in the other tier, so that the store knows what the second
//! saves. While that tier is unused, it takes some 0.2 MiB.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use acomp::{
    CompressRequest, Context, DecompressRequest, PromoteRequest, Registry, TierSample, Tiers, UnitError,
    PAGE_SIZE,
};
use pagecodec::t16h::Estimator;
use pagecodec::Isa;

use crate::auto;
use crate::forced;
use crate::t16h::{self, Dense, T16h};

/// One page in this many is a sample, whose size in both tiers is measured.
const SAMPLE_EVERY: usize = 32;
/// Sampled pages after which older ones count half.
const SAMPLED_MAX: u64 = 512;

/// Adds the family `auto-t16h` to `registry`. Its parameter forces an instruction set.
pub fn register(registry: &mut Registry) {
    forced::register(registry, "auto-t16h", "auto-t16h[:portable|:sse4|:avx2|:avx512|:neon]", |name, isa| {
        T16h { name, isa, choice: Some(Arc::new(Choice::new(isa))) }
    });
}

/// The tier of new objects, and both tiers' sample sizes. Races may lose a page in the sums.
pub(crate) struct Choice {
    is_dense: AtomicBool,
    pages: AtomicU64,
    quick_bytes: AtomicU64,
    dense_bytes: AtomicU64,
    estimator: Mutex<Estimator>,
}

impl Choice {
    fn new(isa: Isa) -> Self {
        Choice {
            is_dense: AtomicBool::new(false),
            pages: AtomicU64::new(0),
            quick_bytes: AtomicU64::new(0),
            dense_bytes: AtomicU64::new(0),
            estimator: Mutex::new(Estimator::with_isa(isa)),
        }
    }

    fn add(&self, quick: usize, dense: usize) {
        for (sum, by) in [(&self.pages, 1), (&self.quick_bytes, quick), (&self.dense_bytes, dense)] {
            sum.fetch_add(by as u64, Ordering::Relaxed);
        }
        if self.pages.load(Ordering::Relaxed) >= SAMPLED_MAX {
            for sum in [&self.pages, &self.quick_bytes, &self.dense_bytes] {
                sum.store(sum.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }
}

impl Tiers for Choice {
    fn set_dense(&self, dense: bool) {
        self.is_dense.store(dense, Ordering::Relaxed);
    }

    fn sample(&self) -> TierSample {
        TierSample {
            pages: self.pages.load(Ordering::Relaxed),
            quick_bytes: self.quick_bytes.load(Ordering::Relaxed),
            dense_bytes: self.dense_bytes.load(Ordering::Relaxed),
            memory_bytes: t16h::MEMORY_BYTES,
        }
    }
}

pub(crate) struct TiersContext {
    /// The second tier's codec with the first's. The second's memory is untouched until used.
    codec: Dense,
    choice: Arc<Choice>,
    until_sample: usize,
}

impl TiersContext {
    pub(crate) fn new(codec: Dense, choice: Arc<Choice>) -> Self {
        TiersContext { codec, choice, until_sample: SAMPLE_EVERY }
    }

    /// Returns which of a request's pages is a sample, if any.
    fn next_sample(&mut self, pages: usize) -> Option<usize> {
        let at = self.until_sample;
        if at >= pages {
            self.until_sample -= pages;
            return None;
        }
        self.until_sample = SAMPLE_EVERY - (pages - 1 - at);
        Some(at)
    }

    /// Measures a page in the tier that did not make its object.
    fn sample(&mut self, request: &CompressRequest<'_, '_>, at: usize, is_dense: bool) {
        let Some(Ok(len)) = request.results.get(at).copied() else { return };
        let page = request.pages[at];
        let (quick, dense) = match is_dense {
            true => (self.codec.quick_len(page), len),
            false => {
                // Another context is sampling; its sample is as good.
                let Ok(mut estimator) = self.choice.estimator.try_lock() else { return };
                (len, self.codec.promoted_len(&mut estimator, &request.outputs[at][..len], page))
            }
        };
        self.choice.add(quick, dense);
    }
}

impl Context for TiersContext {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        let is_dense = self.choice.is_dense.load(Ordering::Relaxed);
        match is_dense {
            true => self.codec.compress(request),
            false => auto::compress(self.codec.quick(), request),
        }
        if request.unit_size != PAGE_SIZE {
            return;
        }
        if let Some(at) = self.next_sample(request.pages.len()) {
            self.sample(request, at, is_dense);
        }
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        self.codec.decompress(request);
    }

    fn promote(&mut self, request: &mut PromoteRequest<'_, '_>) {
        request.assert_valid();
        let mut bounce = [0; PAGE_SIZE];
        for ((object, output), result) in
            request.objects.iter().zip(request.outputs.iter_mut()).zip(request.results.iter_mut())
        {
            *result = match object.len() {
                ..=PAGE_SIZE => self.codec.promote(object.linear(&mut bounce), output),
                _ => Err(UnitError::Failed),
            };
        }
        t16h::advance();
    }
}
