//! The address space as the kernel and the page table have it, and the proofs that a move needs.

pub mod block;
pub mod descriptor;
pub mod events;
pub mod mover;
pub mod run;
pub mod table;
