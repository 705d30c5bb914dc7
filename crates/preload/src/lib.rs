//! The shared object that uzswap run injects into a program.
//!
//! When the loader has mapped it, it makes the agent's process (`start`, `loader`), which first
//! only waits (`youth`); a forked child makes its own (`fork`). It interposes the calls that
//! concern the pager: fork, exec, and those that would make paging impossible. Its code runs on the
//! program's threads, the agent's on its own; they communicate through the `control_page`. An
//! interposed function has the safety contract of the C function of its name.
//!
//! It loads into programs of any C library: as shipped (with `panic=abort`, see the program's build
//! script) it has no standard library, and uses only functions that every C library has.

#![cfg_attr(all(panic = "abort", not(test)), no_std)]

mod announce;
mod calls;
mod channel;
mod cleared;
mod control_page;
mod credentials;
mod environment;
mod exec;
mod filter;
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
mod valgrind;
mod youth;

/// The panic handler without a standard library; no code is known to panic.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panicked(_info: &core::panic::PanicInfo<'_>) -> ! {
    system::exit_process(128 + libc::SIGABRT)
}

// The core library's unwinding tables name it, but unwinding never begins. Hidden from others.
#[cfg(all(panic = "abort", not(test)))]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0"
);
