//! Ends the process when this object breaks, with a message that says what broke and where.
//!
//! A pager that has lost a thread or an invariant would leave the program waiting for a page for
//! ever, or give it a wrong byte. So the process ends on a panic in any thread that runs this
//! object's code, and when memory for the pager's tables cannot be allocated. The message goes to
//! the supervisor over a new connection, because the panic may be in a thread of the program and
//! only the pager's threads have the control thread's connection. Without a supervisor it goes to
//! the program's stderr.
//!
//! Three things prevent an ordinary panic in a thread that the C library does not know:
//!
//! * its thread-local panic count: see `tls`;
//! * unwinding: the object is built with `panic=abort`, and the hook does not return;
//! * abort(), which looks for the thread in the C library's structures and runs the program's
//!   SIGABRT handler. So this object defines its own.

use std::fmt::Arguments;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU8, AtomicUsize, Ordering};

use ledger::wire::Kind;
use pager::FixedText;
use sys::thread;

use crate::state::AGENT;
use crate::{accounts, control};

/// How long other threads wait for its message.
const PATIENCE_NS: u64 = 2_000_000_000;

/// How this object breaks, or has broken.
pub(crate) struct Break {
    /// The thread that ends the process.
    ends: AtomicI32,
    /// Size of the failed allocation in bytes, 0 for none.
    refused: AtomicUsize,
    /// A test's [`Point`], and the passes until the break.
    point: AtomicU8,
    passes: AtomicU32,
}

impl Break {
    pub(crate) const fn new() -> Self {
        let (ends, refused) = (AtomicI32::new(0), AtomicUsize::new(0));
        Break { ends, refused, point: AtomicU8::new(0), passes: AtomicU32::new(0) }
    }
}

/// Installs the panic hook. The object's constructor calls this.
pub fn install() {
    std::panic::set_hook(Box::new(panicked));
}

/// Notes a failed allocation, in case it ends the process.
pub fn note_refused(bytes: usize) {
    AGENT.broken.refused.store(bytes, Ordering::Relaxed);
}

/// Tells the user why the process ends. Needs neither heap nor thread-local storage.
pub fn tell(text: &str) {
    if accounts::tell(Kind::Broken, text).is_err() {
        let line = FixedText::new(format_args!("uzswap: {text}\n"));
        // The agent's file table has no stderr: it is the program's.
        let path = FixedText::new(format_args!("/proc/{}/fd/2\0", control::program()));
        // SAFETY: a terminated path, and `line.len()` readable bytes.
        unsafe {
            let stderr =
                libc::open(path.as_str().as_ptr().cast(), libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY);
            libc::write(stderr, line.as_str().as_ptr().cast(), line.as_str().len());
        }
    }
}

fn panicked(info: &PanicHookInfo<'_>) {
    let text = info.payload().downcast_ref::<&str>().copied();
    let text = text.or_else(|| info.payload().downcast_ref::<String>().map(String::as_str));
    let what = text.unwrap_or("it panicked");
    match info.location() {
        Some(place) => end(format_args!("{}:{}: {what}", place.file(), place.line())),
        None => end(format_args!("{what}")),
    }
}

fn end(what: Arguments<'_>) -> ! {
    let own = thread::id();
    if let Err(other) = AGENT.broken.ends.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
        if other != own {
            thread::sleep_ns(PATIENCE_NS);
        }
        thread::end_process();
    }
    tell(FixedText::new(format_args!("the program is ended, its pager broke at {what}")).as_str());
    thread::end_process()
}

/// Replaces the C library's abort(), for failed allocations and panics inside the panic hook.
extern "C" fn aborted() -> ! {
    match AGENT.broken.refused.load(Ordering::Relaxed) {
        0 => end(format_args!("a place unknown: it was aborted")),
        bytes => end(format_args!("the limit of its memory: {bytes} bytes could not be had")),
    }
}

// Hidden, so that only this object uses it.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(".globl abort", ".hidden abort", "abort:", "and rsp, -16", "call {to}", to = sym aborted);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(".globl abort", ".hidden abort", "abort:", "bl {to}", to = sym aborted);

/// Points at which tests break this object, in builds with assertions only. `UZSWAP_BREAK=fault`
/// breaks at the first fault, `fault:1000` at the thousandth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Point {
    /// The control thread publishes its figures.
    Publish = 1,
    /// A handler has served a fault.
    Fault,
    /// A worker has stored a batch.
    Store,
    /// As `Store`, by requesting more memory than exists.
    Memory,
}

/// Reads the break point from the environment. The object's constructor calls this.
pub fn choose_point() {
    use Point::*;
    let Some(text) = std::env::var("UZSWAP_BREAK").ok().filter(|_| cfg!(debug_assertions)) else { return };
    let (name, times) = text.split_once(':').unwrap_or((&text, "1"));
    let chosen = [("publish", Publish), ("fault", Fault), ("store", Store), ("memory", Memory)]
        .into_iter()
        .find(|(known, _)| *known == name);
    AGENT.broken.passes.store(times.parse().unwrap_or(1), Ordering::Relaxed);
    AGENT.broken.point.store(chosen.map_or(0, |(_, point)| point as u8), Ordering::Relaxed);
}

/// Breaks if a test chose this point.
#[track_caller]
pub fn here(point: Point) {
    if !cfg!(debug_assertions) || AGENT.broken.point.load(Ordering::Relaxed) != point as u8 {
        return;
    }
    if AGENT.broken.passes.fetch_sub(1, Ordering::Relaxed) != 1 {
        return;
    }
    if point == Point::Memory {
        std::hint::black_box(Vec::<u8>::with_capacity(1 << 46));
    }
    panic!("a test wanted it: {point:?}");
}
