//! The cheapest clock of the machine, for timing single memory accesses.

/// A counter that runs at a constant rate, independent of the CPU's frequency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The time stamp counter or its like, read without a call. Some 20 ns a reading, fences
    /// included.
    Counter,
    /// CLOCK_MONOTONIC, if the counter is not reliable.
    Monotonic,
}

/// A reading of both clocks, which converts ticks to nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    ticks: u64,
    ns: u64,
}

impl Clock {
    pub fn cheapest() -> Self {
        if has_constant_counter() {
            Clock::Counter
        } else {
            Clock::Monotonic
        }
    }

    /// The time now. Earlier instructions have completed, and later ones have not begun.
    #[inline(always)]
    pub fn ticks(self) -> u64 {
        match self {
            Clock::Counter => counter(),
            Clock::Monotonic => sys::now_ns(),
        }
    }

    pub fn mark(self) -> Mark {
        Mark { ticks: self.ticks(), ns: sys::now_ns() }
    }
}

impl Mark {
    /// Nanoseconds a tick, from two readings; more precise the further they are apart.
    pub fn ns_per_tick(self, later: Mark) -> f64 {
        let ticks = later.ticks.saturating_sub(self.ticks).max(1);
        (later.ns - self.ns) as f64 / ticks as f64
    }

    pub fn ns_until(self, later: Mark) -> u64 {
        later.ns - self.ns
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 CPU has both instructions; neither touches memory. The fences keep loads
    // on their side.
    unsafe {
        _mm_lfence();
        let ticks = _rdtsc();
        _mm_lfence();
        ticks
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: user space may read the virtual counter on Linux; the barriers keep loads on their
    // side.
    unsafe {
        std::arch::asm!("dsb ld", "isb", "mrs {}, cntvct_el0", "isb", out(reg) ticks, options(nostack));
    }
    ticks
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    sys::now_ns()
}

/// Whether the CPU's counter always runs at one rate, also in sleep. By definition on aarch64.
fn has_constant_counter() -> bool {
    if cfg!(target_arch = "aarch64") {
        return true;
    }
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or("");
    let has = |flag: &str| flags.split_ascii_whitespace().any(|word| word == flag);
    has("constant_tsc") && has("nonstop_tsc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_nanoseconds() {
        for clock in [Clock::cheapest(), Clock::Monotonic] {
            let before = clock.mark();
            let (mut ticks, mut last) = (0, clock.ticks());
            while before.ns_until(clock.mark()) < 2_000_000 {
                let now = clock.ticks();
                assert!(now >= last, "{clock:?} runs backwards");
                ticks += now - last;
                last = now;
            }
            let after = clock.mark();
            let ns = ticks as f64 * before.ns_per_tick(after);
            // Even if interrupted, both clocks have seen the same time, except at the loop's ends.
            assert!(ns <= before.ns_until(after) as f64 * 1.01, "{clock:?}: {ns}");
        }
    }
}
