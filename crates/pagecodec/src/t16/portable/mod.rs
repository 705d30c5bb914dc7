//! The encoder and decoder in plain Rust: the reference for the others.

mod decode;
mod encode;

pub(crate) use decode::decode;
pub(crate) use encode::{analyse, reduce, write, LINE_MULTIPLIER};
