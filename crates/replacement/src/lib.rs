//! Which pages stay in memory.
//!
//! [`policy`] is what the pager asks; it sees faults and evictions alone, as a pager in user space
//! does. [`trace`] is the string of page references of a real program, and [`simulate`] plays it:
//! the very code of [`policy`] beside policies that see every use of a page (LRU, CLOCK, LIRS) and
//! one that sees the future (MIN).

pub mod policy;
pub mod simulate;
pub mod trace;
