//! uzswap for C: pools of compressed pages, and regions of memory that may be larger than RAM.
//!
//! `include/uzswap.h` is made of this by cbindgen; a test sees to it that it is up to date. Functions answer 0 or null where they
//! cannot do what was asked, and [`uzswap_error`] says why. A panic, which is a broken invariant, ends the process.

// The names are C's.
#![allow(non_camel_case_types)]

mod error;
mod pool;
mod region;

pub use error::uzswap_error;
pub use pool::*;
pub use region::*;

/// Bytes in a page.
pub const UZSWAP_PAGE_SIZE: usize = 4096;
const _: () = assert!(UZSWAP_PAGE_SIZE == uzswap::PAGE_SIZE);
