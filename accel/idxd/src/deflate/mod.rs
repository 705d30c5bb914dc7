//! Deflate (RFC 1951) with a 4 KiB window, as in the emulated device.
//!
//! This module neither allocates after construction nor panics on input nor uses thread-local
//! storage: the emulated device also runs inside programs that are being paged.

pub(crate) mod bits;
pub mod checksum;
pub(crate) mod decode_table;
pub mod dynamic;
pub(crate) mod encode;
pub(crate) mod inflate;
pub(crate) mod matcher;
mod software;
pub(crate) mod symbols;

pub use software::Software;
