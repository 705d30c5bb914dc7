//! What runs inside a managed program: the pager's threads, and what they and the program's say to each other.
//!
//! It has no mechanism of its own: it opens the house, starts the control thread, joins the tree's ledger, and sets up
//! a pager when half of the budget is in use. There are two ways in. `preload` has it in a shared object, beside the calls of
//! the program's that it wants to know of. And `main.rs` makes of it a program with its own C library that is mapped
//! into processes that no loader would bring it to.

pub mod accounts;
pub mod announce;
mod arena;
pub mod broken;
mod channel;
pub mod control;
mod errors;
pub mod fork;
pub mod start;

#[global_allocator]
static HEAP: arena::Arena = arena::Arena::new();
