//! The instruction sets of the codec.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bit `isa as u8` for each that the machine has; zero before detection.
static KNOWN: AtomicU8 = AtomicU8::new(0);

/// An implementation of the codec. All write identical bytes and read each other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, on any machine.
    Portable,
    /// SSSE3, SSE4.1 and POPCNT (every x86-64 machine since about 2009).
    Sse4,
    /// AVX2 and BMI1/2 (Haswell, Zen and later).
    Avx2,
    /// AVX-512 F, BW, DQ, VL, VBMI, VBMI2 and IFMA, with BMI1/2 (Ice Lake, Zen 4 and later).
    Avx512,
    /// NEON (every aarch64 machine).
    Neon,
}

impl Isa {
    /// All implementations, slowest first.
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Sse4, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// Returns whether this machine can run it.
    #[inline]
    pub fn is_available(self) -> bool {
        // One load, because every page asks.
        let known = match KNOWN.load(Ordering::Relaxed) {
            0 => Self::detect_all(),
            known => known,
        };
        known & 1 << self as u8 != 0
    }

    #[cold]
    fn detect_all() -> u8 {
        let known =
            Isa::ALL.into_iter().filter(|isa| isa.detect()).fold(0, |known, isa| known | 1 << isa as u8);
        KNOWN.store(known, Ordering::Relaxed);
        known
    }

    fn detect(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        macro_rules! has {
            ($($feature:tt),*) => { $(is_x86_feature_detected!($feature))&&* };
        }
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Sse4 => has!("ssse3", "sse4.1", "popcnt"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has!("avx2", "bmi1", "bmi2", "lzcnt", "popcnt"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.detect()
                    && has!(
                        "avx512f",
                        "avx512bw",
                        "avx512dq",
                        "avx512vl",
                        "avx512vbmi",
                        "avx512vbmi2",
                        "avx512ifma"
                    )
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[allow(unreachable_patterns, reason = "not on every architecture")]
            _ => false,
        }
    }

    /// Iterates over the implementations that this machine can run, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Returns the fastest that this machine can run.
    pub fn best() -> Isa {
        Isa::available().last().unwrap_or(Isa::Portable)
    }

    /// Returns the name by which users choose it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Sse4 => "sse4",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    /// Returns the implementation of that name, available or not.
    pub fn by_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs a plain function compiled for the instruction set `isa`. AVX-512 gets the AVX2 build,
/// because compilers make slower code of these loops with 512-bit vectors (measured: 0.35 us
/// against 0.22 for [`crate::numeric::estimate`]).
macro_rules! with_isa {
    ($isa:expr, fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block) => {{
        #[inline(always)]
        fn $name($($arg: $ty),*) -> $ret $body
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2($($arg: $ty),*) -> $ret { $name($($arg),*) }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "ssse3,sse4.1,popcnt")]
        fn sse4($($arg: $ty),*) -> $ret { $name($($arg),*) }
        let isa: $crate::Isa = $isa;
        assert!(isa.is_available(), "this machine lacks {isa}");
        match isa {
            // SAFETY: the machine has the instructions (asserted above); AVX-512 includes them.
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx512 | $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Sse4 => unsafe { sse4($($arg),*) },
            _ => $name($($arg),*),
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        for isa in Isa::ALL {
            assert_eq!(Isa::by_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::by_name("sse"), None);
    }

    #[test]
    fn something_is_always_available() {
        assert!(Isa::Portable.is_available());
        assert!(Isa::best().is_available());
    }
}
