//! The agent: a process that shares a managed program's memory, runs the pager's threads and
//! communicates with the program.
//!
//! ```text
//!  control      the control thread: its phases, what ends them, its sleep between looks
//!     inherit     its beginning in a forked child
//!     retire      the end of everything but this thread
//!     credentials, fork, announce, look     requests of the program's threads, and looks at it
//!  paging, swap, threads     the pager, its swap file and its threads
//!  accounts, channel, segments     the connections to the supervisor, a forked child, relatives
//!  state        all of the agent's state, the one static beside the heap (`arena`, `heap`)
//!  broken, errors     messages without the C library's help
//! ```
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
mod segments;
pub mod start;
mod state;
mod swap;
mod threads;

#[global_allocator]
static HEAP: arena::Arena = arena::Arena::new();
