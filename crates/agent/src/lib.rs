//! What runs inside a managed program: the pager's threads, and what they and the program's say to
//! each other.
//!
//! It has no mechanism of its own: it opens the arena, starts the control thread, joins the tree's
//! ledger, and sets up a pager when half of the budget is in use. `main.rs` makes of it a program
//! with its own C library that is mapped into others: by `preload`, a shared object that also has
//! the calls of the program's that are of interest here, or by the supervisor, into processes that
//! no loader would bring that to.

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
