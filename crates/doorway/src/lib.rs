//! The interface between the agent and the code that brings it into a process.
//!
//! The agent is a program that runs as a process of its own in the memory of another. Its injector
//! maps its [`image`] and gives it a [`stack`] to start on: the supervisor from outside, or
//! `preload` from inside the process. The agent and `preload` share a [`control_page`], since
//! neither may run the other's code. Everything here is plain numbers in memory, and needs no C
//! library, no standard library and no allocation.

#![cfg_attr(not(test), no_std)]

pub mod channel;
pub mod control_page;
pub mod image;
pub mod limits;
pub mod placement;
pub mod rights;
pub mod runtime;
pub mod stack;
pub mod thread;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// Name of the agent's mappings in /proc/PID/maps, and its first argument.
pub const AGENT_NAME: &core::ffi::CStr = c"uzswap-agent";

/// Stack size of the agent's threads, including the first.
pub const STACK_BYTES: usize = 512 * 1024;
