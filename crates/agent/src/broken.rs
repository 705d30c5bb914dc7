//! When something in this object breaks: the process ends, with a message that says what and where.
//!
//! A pager that has lost a thread, or an invariant, would leave the program waiting for a page for
//! ever, or give it a wrong byte. So a panic in any thread that runs this object's code is the end
//! of the process, and so is memory for the pager's own tables that cannot be had. The message goes
//! to the supervisor over a connection made for it: the one that the control thread has is known to
//! the pager's threads only, and a panic may be in a thread of the program. Where there is no
//! supervisor it goes to the program's stderr.
//!
//! Three things stand in the way of an ordinary panic in a thread that the C library does not know:
//!
//! * its thread-local count of panics, for which see `tls`;
//! * unwinding, for which the object is built with `panic=abort`, and which never begins: the hook
//!   does not return;
//! * abort(), which would look for this thread in the C library's structures and run the program's
//!   handler of SIGABRT. So this object has its own.

use std::fmt::Arguments;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU8, AtomicUsize, Ordering};

use ledger::wire::Kind;
use pager::FixedText;
use sys::thread;

use crate::accounts;

/// The thread that ends the process.
static ENDS: AtomicI32 = AtomicI32::new(0);
/// Others leave it this much time for its message.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Bytes that could not be had, 0 so far.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// To be called by the object's constructor.
pub fn install() {
    std::panic::set_hook(Box::new(panicked));
}

/// Keeps that memory could not be had, in case that ends the process.
pub fn note_refused(bytes: usize) {
    REFUSED.store(bytes, Ordering::Relaxed);
}

/// Tells the user why the process is about to end. Needs neither heap nor thread-local storage.
pub fn tell(text: &str) {
    if accounts::tell(Kind::Broken, text).is_err() {
        let line = FixedText::new(format_args!("uzswap: {text}\n"));
        // By this name, since a pager's thread has a file table without it.
        // SAFETY: a terminated path, and as many bytes as there are.
        unsafe {
            let stderr =
                libc::open(c"/proc/self/fd/2".as_ptr(), libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY);
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
    if let Err(other) = ENDS.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
        if other != own {
            thread::sleep_ns(PATIENCE_NS);
        }
        thread::end_process();
    }
    tell(FixedText::new(format_args!("the program is ended, its pager broke at {what}")).as_str());
    thread::end_process()
}

/// What this object does instead of the C library's abort(): without memory, or in a panic that
/// broke itself.
extern "C" fn aborted() -> ! {
    match REFUSED.load(Ordering::Relaxed) {
        0 => end(format_args!("a place unknown: it was aborted")),
        bytes => end(format_args!("the limit of its memory: {bytes} bytes could not be had")),
    }
}

// Hidden, hence for this object alone.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(".globl abort", ".hidden abort", "abort:", "and rsp, -16", "call {to}", to = sym aborted);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(".globl abort", ".hidden abort", "abort:", "bl {to}", to = sym aborted);

/// Where tests have this object break. `UZSWAP_BREAK=fault` means the first time, `fault:1000` the
/// thousandth. In builds with assertions only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Point {
    /// The control thread publishes its figures.
    Publish = 1,
    /// A handler has served a fault.
    Fault,
    /// A worker has stored a batch.
    Store,
    /// The same, and it wants more memory than there is.
    Memory,
}

static POINT: AtomicU8 = AtomicU8::new(0);
/// Times until then.
static TIMES: AtomicU32 = AtomicU32::new(0);

/// Takes a test's wish from the environment. To be called by the object's constructor.
pub fn choose_point() {
    use Point::*;
    // SAFETY: a terminated name; no thread changes the environment during the call.
    let name = unsafe { libc::getenv(c"UZSWAP_BREAK".as_ptr()) };
    if !cfg!(debug_assertions) || name.is_null() {
        return;
    }
    // SAFETY: getenv returns terminated strings.
    let text = unsafe { std::ffi::CStr::from_ptr(name) }.to_str().unwrap_or("");
    let (name, times) = text.split_once(':').unwrap_or((text, "1"));
    let chosen = [("publish", Publish), ("fault", Fault), ("store", Store), ("memory", Memory)]
        .into_iter()
        .find(|(known, _)| *known == name);
    TIMES.store(times.parse().unwrap_or(1), Ordering::Relaxed);
    POINT.store(chosen.map_or(0, |(_, point)| point as u8), Ordering::Relaxed);
}

/// Breaks if a test wants it here.
#[track_caller]
pub fn here(point: Point) {
    if !cfg!(debug_assertions) || POINT.load(Ordering::Relaxed) != point as u8 {
        return;
    }
    if TIMES.fetch_sub(1, Ordering::Relaxed) != 1 {
        return;
    }
    if point == Point::Memory {
        std::hint::black_box(Vec::<u8>::with_capacity(1 << 46));
    }
    panic!("a test wanted it: {point:?}");
}
