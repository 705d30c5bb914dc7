//! The shared object that uzswap run injects into a program.
//!
//! It brings the agent into the process, and has the calls that meet the pager: fork, exec, and what would make paging impossible. Its code
//! runs on the program's threads, the agent's on its own; what they say to each other stands on the `desk`.

mod announce;
mod calls;
mod channel;
mod desk;
mod environment;
mod exec;
mod fork;
mod loader;
mod remap;
mod spawn;
mod start;
