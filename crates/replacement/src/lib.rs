//! Which pages stay in memory.
//!
//! [`policy`] is what the pager asks; it sees faults and evictions alone, as a pager in user space
//! does. [`trace`] is a reference of a real program as the pager records it; `uzswap-lab` plays
//! traces through [`policy`] beside policies that see every use of a page, and one that sees the
//! future.

pub mod policy;
pub mod trace;
