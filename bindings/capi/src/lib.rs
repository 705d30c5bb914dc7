//! uzswap for C: pools of compressed pages, and regions of memory that may be larger than RAM.
//!
//! cbindgen generates `include/uzswap.h` from these sources; a test checks that it is up to date.
//! Functions return a [`uzswap_status`], and [`uzswap_error`] gives the reason. A panic, which is a
//! broken invariant, ends the process.

// The names are C's.
#![allow(non_camel_case_types)]

mod error;
mod pool;
mod region;

pub use error::{uzswap_error, uzswap_status};
pub use pool::*;
pub use region::*;

const _: () = assert!(UZSWAP_PAGE_SIZE == uzswap::PAGE_SIZE);
const _: () = assert!(UZSWAP_RAM_BYTES_MIN == uzswap::regions::RAM_BYTES_MIN);
