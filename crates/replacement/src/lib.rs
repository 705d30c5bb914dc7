//! Which pages stay in memory.
//!
//! The pager asks [`policy`], which sees only faults and evictions, as a pager in user space does.
//! [`trace`] records references of real programs. `uzswap-lab` replays traces through [`policy`],
//! through policies that see every use of a page, and through one that sees the future.

pub mod policy;
pub mod trace;
