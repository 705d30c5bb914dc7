//! The encoder and decoder in plain Rust: the reference for the others.

mod decode;
mod encode;

pub(crate) use decode::decode;
pub(crate) use encode::{analyse, reduce, write};

// What the vector forms share with this one.
#[cfg(target_arch = "x86_64")]
pub(crate) use decode::{rules, Cursor};
#[cfg(target_arch = "x86_64")]
pub(crate) use encode::LINE_MULTIPLIER;
