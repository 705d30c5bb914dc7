//! Batched compression requests over units: the interface that codecs and accelerators implement.
//!
//! A *unit* is the input of one compression: one 4 KiB page, or up to 64 KiB of consecutive pages.
//! A *batch* is up to [`MAX_BATCH`] units in one request. Each unit has its own result, so a batch
//! with one bad page still yields the other seven.
//!
//! # Differences from the kernel's acomp
//!
//! The interface follows the batching that the maintainers of the kernel's `acomp` request
//! ("segmentation", in the series "zswap compression batching with optimized iaa_crypto driver",
//! versions 12 to 14):
//!
//! | there | here |
//! |---|---|
//! | `unit_size` on the request; 0 means no segmentation | [`CompressRequest::unit_size`], never 0. A request to decompress needs none: each output is as long as its unit was |
//! | a bit on the algorithm (`CRYPTO_ALG_REQ_SEG`), whose callers must know it | no bit: every [`Algorithm`] takes requests of 1 to [`MAX_BATCH`] units; [`Algorithm::batch_size`] is only the best number |
//! | a trivial wrapper for software codecs, which takes one unit and refuses more | [`Software`], which loops over the units, as reviewers of version 14 propose: a codec implements [`UnitCodec`], for one unit, and callers have one batch size for all |
//! | the length of each entry of the destination's scatter list becomes the produced length, or a negative error | [`UnitResult`], beside the output: a result cannot be mistaken for a length, and outputs keep their capacity, which drivers there have to restore for each request |
//! | an overall status, which is an error when any unit failed, and `dlen` of the first unit | neither: callers check each result |
//! | a scatter list as source | references to pages, adjacent or not; objects of two pieces at most ([`Object`]) |
//! | a completion callback, or polling by the driver | calls return when all units are done. A caller here has a thread for each batch in flight, and no other work to overlap |
//!
//! The pool uses only this interface: a new accelerator is one more crate that implements
//! [`Algorithm`].

mod algorithm;
mod registry;
mod request;
mod software;

pub use algorithm::{Algorithm, Context, ContextError, TierSample, Tiers, FORMS_MAX};
pub use registry::{Registry, UnknownAlgorithm};
pub use request::{CompressRequest, DecompressRequest, Object, Page, PromoteRequest, UnitError, UnitResult};
pub use software::{Software, UnitCodec};

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
/// Most units in one request.
pub const MAX_BATCH: usize = 8;
/// Most bytes in one unit.
pub const UNIT_SIZE_MAX: usize = 64 * 1024;
