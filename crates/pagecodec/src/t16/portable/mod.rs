//! The encoder and decoder in plain Rust: the reference for the others.

mod decode;
mod encode;

pub(crate) use decode::{decode, rules, Cursor};
pub(crate) use encode::{analyse, reduce, share_lines, write, LINE_MULTIPLIER};
