//! The code over lanes, compiled for each instruction set.

use super::format::{Damaged, PAGE_SIZE};
use super::lanes;
use super::work::Work;

macro_rules! compiled {
    ($name:ident, $lanes:ident, $features:literal) => {
        pub(super) mod $name {
            use super::*;
            use crate::lanes::$lanes;

            #[target_feature(enable = $features)]
            pub(crate) fn analyse(work: &mut Work, page: &[u8; PAGE_SIZE], next: &[u8; PAGE_SIZE]) -> usize {
                // SAFETY: this function has the features.
                unsafe { lanes::analyse::<$lanes>(work, page, next) }
            }

            #[target_feature(enable = $features)]
            pub(crate) fn reduce(work: &mut Work, page: &[u8; PAGE_SIZE]) {
                lanes::reduce(work, page)
            }

            #[target_feature(enable = $features)]
            pub(crate) fn write(work: &Work, out: &mut [u8]) {
                // SAFETY: as above.
                unsafe { lanes::write::<$lanes>(work, out) }
            }

            #[target_feature(enable = $features)]
            pub(crate) fn decode(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
                // SAFETY: as above.
                unsafe { lanes::decode::<$lanes>(object, page) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled!(sse4, Xmm, "ssse3,sse4.1,popcnt");
#[cfg(target_arch = "x86_64")]
compiled!(avx2, Ymm, "avx2,bmi1,bmi2,lzcnt,popcnt");
#[cfg(target_arch = "aarch64")]
compiled!(neon, Neon, "neon");
