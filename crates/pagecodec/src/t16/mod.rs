//! T16, the fast format: one encoder and one decoder per instruction set, all with the same bytes.

/// Calls a function of an implementation. The caller has checked that the machine has it.
macro_rules! by_isa {
    ($isa:expr, $name:ident($($arg:expr),*)) => {
        match $isa {
            // SAFETY: the machine has the features, as the caller has checked.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512::$name($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { vectors::avx2::$name($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Sse4 => unsafe { vectors::sse4::$name($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { vectors::neon::$name($($arg),*) },
            _ => portable::$name($($arg),*),
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx512;
mod encoder;
mod format;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod portable;
mod raws;
mod select;
mod templates;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vectors;
mod work;

pub use encoder::{EncodeError, Encoder, Plan};
pub(crate) use format::{page_words, word};
pub use format::{Damaged, FixedLen, Layout, OBJECT_MAX, OBJECT_MIN, PAGE_SIZE, VERSION};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use lanes::{shuffle, tag_lines, COMPRESS};
pub(crate) use templates::hash8;

use crate::Isa;

/// Decodes `object` into `page` with the instruction set `isa`.
///
/// Any bytes yield some page or an error, the same for every instruction set. After an error the
/// page's content is unspecified.
///
/// # Errors
/// [`Damaged`] if the object contradicts itself.
///
/// # Panics
/// If the machine lacks `isa`.
#[inline]
pub fn decode(isa: Isa, object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    assert!(isa.is_available(), "this machine lacks {isa}");
    by_isa!(isa, decode(object, page))
}

/// Prefetches the bytes of an object that will be decoded soon.
#[inline(always)]
pub fn prefetch(object: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in object.chunks(64) {
        // SAFETY: prefetching affects only caches, and the address is within the slice.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast())
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = object;
}
