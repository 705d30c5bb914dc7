//! The encoder and decoder in plain Rust: the reference for the others.

mod decode;
mod encode;

pub(crate) use decode::decode;
pub(crate) use encode::{analyse, reduce, write};

// Shared with the vector implementations.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use decode::{rules, Cursor};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use encode::share_lines;
#[cfg(target_arch = "x86_64")]
pub(crate) use encode::LINE_MULTIPLIER;
