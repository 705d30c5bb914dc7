//! temporary
use pager::{Accounts, Count};
use std::sync::atomic::*;
pub struct Ledgered { budget: u64, own: AtomicU64, counts: [AtomicU64; 16] }
pub fn join(_socket: &[u8]) -> Option<&'static Ledgered> {
    let b = std::str::from_utf8(_socket).ok()?.parse::<u64>().ok()? << 20;
    Some(Box::leak(Box::new(Ledgered { budget: b, own: AtomicU64::new(0), counts: [const { AtomicU64::new(0) }; 16] })))
}
impl Ledgered { pub fn wait(&self, ns: u64) { sys::thread::sleep_ns(ns) } 
 pub fn dump(&self) -> String { format!("{:?}", self.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect::<Vec<_>>()) } }
impl Accounts for Ledgered {
    fn budget(&self) -> u64 { self.budget }
    fn total(&self) -> u64 { self.own.load(Ordering::Relaxed) }
    fn publish(&self, r: u64, _p: u64, _s: u64, _n: u64) { self.own.store(r, Ordering::Relaxed) }
    fn add(&self, c: Count, by: u64) { self.counts[c as usize].fetch_add(by, Ordering::Relaxed); }
    fn fault(&self, _ns: u64) {}
    fn say(&self, t: &str) { 
        let f = unsafe { libc::open(c"/dev/tty".as_ptr(), 1) };
        let f = if f < 0 { unsafe { libc::open(c"/tmp/say.log".as_ptr(), libc::O_WRONLY|libc::O_APPEND|libc::O_CREAT, 0o666) } } else { f };
        unsafe { libc::write(f, t.as_ptr().cast(), t.len()); libc::write(f, b"\n".as_ptr().cast(), 1); libc::close(f); } }
}
