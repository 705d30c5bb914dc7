//! Deflate (RFC 1951) with a 4 KiB window, as the emulated device does it.

pub mod dynamic;
pub(crate) mod header;
