//! What the agent, and the code that brings it into a process, know of each other.
//!
//! The agent is a program that runs as a thread of another. Its injector maps its [`image`] and
//! gives it a [`stack`] to start on: the supervisor from outside, or `preload` inside of the
//! process. With the latter it shares a [`control_page`], which the program's threads and the
//! agent's use, since neither may run the other's code. Everything here is plain numbers in memory,
//! and needs no C library, no standard library and no allocation.

#![cfg_attr(not(test), no_std)]

pub mod channel;
pub mod control_page;
pub mod image;
pub mod limits;
pub mod rights;
pub mod runtime;
pub mod stack;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// What mappings of the agent are called in /proc/PID/maps, and its first argument.
pub const AGENT_NAME: &core::ffi::CStr = c"uzswap-agent";

/// The agent's first thread has a stack as large as those of the threads that it makes.
pub const STACK_BYTES: usize = 512 * 1024;
