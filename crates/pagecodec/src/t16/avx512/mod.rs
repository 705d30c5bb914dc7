//! The encoder and decoder with AVX-512 (F, BW, DQ, VL, VBMI, VBMI2, IFMA) and BMI1/2.
//!
//! Two habits throughout, both because of AMD: values are compressed to a register and stored whole, never with the
//! memory form of the compress instructions (microcode), and nothing is gathered or scattered (slow; permutes of whole
//! tables in registers do the same work).

mod decode;
mod encode;

pub(crate) use decode::decode;
pub(crate) use encode::{analyse, reduce, write};

/// A value on a cache line of its own.
#[repr(C, align(64))]
struct Aligned<T>(T);

/// An array of `first`, `first + step`, ...
macro_rules! spread_counting {
    ($type:ty, $len:literal, $step:literal, $first:literal) => {{
        let mut values: [$type; $len] = [0; $len];
        let mut at = 0;
        while at < $len {
            values[at] = $first + $step * at as $type;
            at += 1;
        }
        values
    }};
}
use spread_counting;

/// The bytes 0 to 63.
static COUNTING: Aligned<[u8; 64]> = Aligned(spread_counting!(u8, 64, 1, 0));
