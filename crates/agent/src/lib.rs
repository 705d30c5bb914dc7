//! The agent: the pager's threads inside a managed program, and their communication with the
//! program.
//!
//! It has no mechanism of its own: it opens the arena, starts the control thread, joins the tree's
//! ledger, and sets up a pager when half of the budget is in use. `main.rs` makes it a program with
//! its own C library. `preload`, a shared object that also interposes calls of the program, maps it
//! into dynamic programs; the supervisor maps it into processes whose loader would not load
//! `preload`.

mod accounts;
mod announce;
mod arena;
pub mod broken;
mod channel;
pub mod control;
pub mod control_page;
mod credentials;
mod errors;
mod fork;
mod inherit;
mod look;
pub mod paging;
mod retire;
pub mod start;
mod swap;
mod threads;

#[global_allocator]
static HEAP: arena::Arena = arena::Arena::new();
