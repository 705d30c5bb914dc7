//! The shared object that uzswap run injects into a program.
//!
//! It brings the agent into the process, and has the calls that meet the pager: fork, exec, and
//! what would make paging impossible. Its code runs on the program's threads, the agent's on its
//! own; what they say to each other stands on the `control_page`.
//!
//! It loads into programs of any C library: as it is shipped (with `panic=abort`, see the program's
//! build script) it has no standard library, and needs of the C library what every one has.

#![cfg_attr(all(panic = "abort", not(test)), no_std)]

mod announce;
mod calls;
mod channel;
mod cleared;
mod control_page;
mod credentials;
mod ending;
mod environment;
mod exec;
mod fork;
mod limits;
mod line;
mod loader;
mod mappings;
mod memory_limit;
mod next;
mod parent;
mod remap;
mod robust;
mod sanitizer;
mod scratch;
mod sharing;
mod signals;
mod single;
mod spawn;
mod start;
mod system;
mod target;
mod tasks;
mod threads;

/// What is left of a panic without a standard library: none is known.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panicked(_info: &core::panic::PanicInfo<'_>) -> ! {
    system::exit_process(128 + libc::SIGABRT)
}

// Named by the core library's tables for unwinding, which never begins. Hidden, hence for this
// object alone.
#[cfg(all(panic = "abort", not(test)))]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0"
);
