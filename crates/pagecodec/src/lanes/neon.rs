//! Lanes with NEON.

use std::arch::aarch64::*;

use super::Lanes;

/// One lane of NEON, which all supported machines have.
#[derive(Clone, Copy)]
pub(crate) struct Neon(uint8x16_t);

/// Functions of one or a few instructions.
macro_rules! plain {
    ($(fn $name:ident($a:ident $(, $b:ident)*) => $value:expr;)*) => {
        $(
            #[inline(always)]
            #[allow(unused_unsafe, reason = "newer compilers know that NEON is always there")]
            fn $name(self $(, $b: Self)*) -> Self {
                let $a = self.0;
                $(let $b = $b.0;)*
                // SAFETY: the value's creator has vouched for the instructions.
                unsafe { Neon($value) }
            }
        )*
    };
}

macro_rules! zips {
    ($($name:ident $low:ident $high:ident $to:ident $from:ident;)*) => {
        $(
            #[inline(always)]
            #[allow(unused_unsafe, reason = "newer compilers know that NEON is always there")]
            fn $name(self, other: Self) -> (Self, Self) {
                // SAFETY: the value's creator has vouched for the instructions.
                unsafe {
                    let (a, b) = ($to(self.0), $to(other.0));
                    (Neon($from($low(a, b))), Neon($from($high(a, b))))
                }
            }
        )*
    };
}

#[inline(always)]
fn bytes(bytes: uint8x16_t) -> uint8x16_t {
    bytes
}

#[allow(unused_unsafe, reason = "newer compilers know that NEON is always there")]
impl Lanes for Neon {
    type Lane = Neon;
    const COUNT: usize = 1;

    plain! {
        fn and(a, b) => vandq_u8(a, b);
        fn or(a, b) => vorrq_u8(a, b);
        fn xor(a, b) => veorq_u8(a, b);
        fn without(a, b) => vbicq_u8(a, b);
        fn add(a, b) => vaddq_u8(a, b);
        fn same(a, b) => vceqq_u8(a, b);
        fn max(a, b) => vmaxq_u8(a, b);
        fn sub16(a, b) => vreinterpretq_u8_u16(vsubq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
        fn less16(a, b) => vreinterpretq_u8_u16(vcltq_s16(vreinterpretq_s16_u8(a), vreinterpretq_s16_u8(b)));
        fn choose(a, mask, other) => vbslq_u8(mask, a, other);
        fn high_nibbles(a) => vshrq_n_u8::<4>(a);
        fn shuffle(a, places) => vqtbl1q_u8(a, places);
    }
    zips! {
        zip8 vzip1q_u8 vzip2q_u8 bytes bytes;
        zip16 vzip1q_u16 vzip2q_u16 vreinterpretq_u16_u8 vreinterpretq_u8_u16;
        zip32 vzip1q_u32 vzip2q_u32 vreinterpretq_u32_u8 vreinterpretq_u8_u32;
    }

    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: the caller vouches for the machine.
        Neon(unsafe { vdupq_n_u8(byte) })
    }

    #[inline(always)]
    unsafe fn splat16(word: i16) -> Self {
        // SAFETY: the caller vouches for the machine.
        Neon(unsafe { vreinterpretq_u8_s16(vdupq_n_s16(word)) })
    }

    #[inline(always)]
    unsafe fn load(at: *const u8, _: usize) -> Self {
        // SAFETY: the caller vouches for the machine and the place.
        Neon(unsafe { vld1q_u8(at) })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut u8, _: usize) {
        // SAFETY: the caller vouches for the place.
        unsafe { vst1q_u8(at, self.0) }
    }

    #[inline(always)]
    fn join(mut make: impl FnMut(usize) -> Neon) -> Self {
        make(0)
    }

    #[inline(always)]
    fn lane(self, _: usize) -> Neon {
        self
    }

    #[inline(always)]
    unsafe fn load_nibbles(at: *const u8) -> Self {
        // SAFETY: the caller vouches for the machine and the place.
        unsafe {
            let bytes = vld1_u8(at);
            let (low, high) = (vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8::<4>(bytes));
            Neon(vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high)))
        }
    }

    #[inline(always)]
    unsafe fn store_nibbles(self, at: *mut u8) {
        // SAFETY: the caller vouches for the place, the value's creator for the machine.
        unsafe {
            let (even, odd) = (vuzp1q_u8(self.0, self.0), vuzp2q_u8(self.0, self.0));
            vst1_u8(at, vget_low_u8(vorrq_u8(even, vshlq_n_u8::<4>(odd))));
        }
    }

    #[inline(always)]
    fn bits<const BIT: i32>(self) -> u32 {
        const WEIGHTS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: the value's creator has vouched for the instructions; 16 bytes.
        unsafe {
            let set = vtstq_u8(self.0, vdupq_n_u8(1 << BIT));
            let set = vandq_u8(set, vld1q_u8(WEIGHTS.as_ptr()));
            u32::from(vaddv_u8(vget_low_u8(set))) | u32::from(vaddv_u8(vget_high_u8(set))) << 8
        }
    }
}
