//! The shared object that uzswap run injects into a program.
//!
//! It has no mechanism of its own: it opens the arena, starts the control thread, joins the tree's ledger, and sets up
//! a pager when half of the budget is in use. What it adds is where the pager meets the program: fork, exec, and the calls that
//! would make paging impossible.

mod accounts;
mod announce;
mod arena;
mod broken;
mod calls;
mod channel;
mod control;
mod environment;
mod errors;
mod exec;
mod fork;
mod remap;
mod start;
mod swap;
mod tls;

#[global_allocator]
static HEAP: arena::Arena = arena::Arena::new();
