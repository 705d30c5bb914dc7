//! The shared object that uzswap run injects into a program: the agent, brought by the dynamic loader.
//!
//! What it adds is where the pager meets the program: fork, exec, and the calls that would make paging impossible.

mod calls;
mod environment;
mod exec;
mod fork;
mod remap;
mod start;
mod tls;
