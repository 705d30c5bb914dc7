//! Batched compression requests over units: the interface that codecs and accelerators implement.
//!
//! A *unit* is what one compression covers: one 4 KiB page, or up to 64 KiB of consecutive pages. A *batch* is up to
//! [`MAX_BATCH`] units handed over in one request. Each unit has its own result, so a batch with one bad page still
//! yields the other seven.
//!
//! The pool above sees nothing else of compression: a new accelerator is one more crate that implements [`Algorithm`].

mod algorithm;
mod registry;
mod request;
mod software;

pub use algorithm::{Algorithm, Context, ContextError, FORMS_MAX};
pub use registry::{Registry, UnknownAlgorithm};
pub use request::{CompressRequest, DecompressRequest, Object, Page, PromoteRequest, UnitError, UnitResult};
pub use software::{Software, UnitCodec};

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
/// Most units in one request.
pub const MAX_BATCH: usize = 8;
/// Most bytes in one unit.
pub const UNIT_SIZE_MAX: usize = 64 * 1024;
