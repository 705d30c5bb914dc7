//! Every system call uzswap makes and every figure the kernel gives.
//!
//! The only crate with wide `unsafe` towards the kernel. Errors become meaning here: callers match on enums, never on
//! errno.

pub mod house;
pub mod memory;

/// Bytes in a page. uzswap supports 4 KiB pages only; `uzswap check` says so on others.
pub const PAGE_SIZE: usize = 4096;
