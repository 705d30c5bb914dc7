//! Writes bit streams with AVX-512: 64 symbols a step, as sixteen pieces of up to 40 bits.

use std::arch::x86_64::*;

use super::bits::{in_order, place, BitStreams, STREAMS};

/// Moves symbol `8k + s` to byte `8s + k`: each stream's symbols side by side, in order.
static BY_STREAM: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = (at % 8 * 8 + at / 8) as u8;
        at += 1;
    }
    bytes
};

/// The even bytes of two registers; plus one for the odd ones.
static EVEN: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut at = 0;
    while at < 64 {
        bytes[at] = 2 * at as u8;
        at += 1;
    }
    bytes
};

/// Pieces of up to 40 bits, left-aligned, two of each of four streams, and their lengths.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Pieces {
    bits: [u64; 8],
    lens: [u64; 8],
}

impl BitStreams {
    /// Joins 32 codes to eight pieces of four codes each.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    fn pieces(codes: __m512i) -> Pieces {
        let nibble = _mm512_set1_epi32(15);
        // Two codes to 32 bits, the one in the low half first.
        let len = _mm512_and_si512(_mm512_srli_epi32::<16>(codes), nibble);
        let first = _mm512_srli_epi32::<4>(_mm512_and_si512(codes, _mm512_set1_epi32(0xffff)));
        let bits = _mm512_or_si512(_mm512_sllv_epi32(first, len), _mm512_srli_epi32::<20>(codes));
        let lens = _mm512_add_epi32(len, _mm512_and_si512(codes, nibble));
        // Two of these to 64 bits.
        let len = _mm512_srli_epi64::<32>(lens);
        let first = _mm512_and_si512(bits, _mm512_set1_epi64(0xffff_ffff));
        let bits = _mm512_or_si512(_mm512_sllv_epi64(first, len), _mm512_srli_epi64::<32>(bits));
        let lens = _mm512_and_si512(_mm512_add_epi32(lens, len), _mm512_set1_epi64(63));
        // A shift by 64 yields zero, as it should.
        let aligned = _mm512_sllv_epi64(bits, _mm512_sub_epi64(_mm512_set1_epi64(64), lens));
        let mut pieces = Pieces { bits: [0; 8], lens: [0; 8] };
        // SAFETY: the arrays hold 64 bytes and are aligned to that.
        unsafe {
            _mm512_store_si512(pieces.bits.as_mut_ptr().cast(), aligned);
            _mm512_store_si512(pieces.lens.as_mut_ptr().cast(), lens);
        }
        pieces
    }

    /// [`BitStreams::put`] with AVX-512. The machine must have the instructions.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
    )]
    pub(super) unsafe fn put_avx512(&mut self, symbols: &[u8], codes: &[u16; 256]) {
        // SAFETY: reads arrays of 64 bytes, and the 512 bytes of `codes`.
        let (by_stream, even, parts) = unsafe {
            let part = |at: usize| _mm512_loadu_si512(codes.as_ptr().add(32 * at).cast());
            (
                _mm512_loadu_si512(BY_STREAM.as_ptr().cast()),
                _mm512_loadu_si512(EVEN.as_ptr().cast()),
                [part(0), part(1), part(2), part(3), part(4), part(5), part(6), part(7)],
            )
        };
        let odd = _mm512_add_epi8(even, _mm512_set1_epi8(1));
        let low: [__m512i; 4] =
            std::array::from_fn(|at| _mm512_permutex2var_epi8(parts[2 * at], even, parts[2 * at + 1]));
        let high: [__m512i; 4] =
            std::array::from_fn(|at| _mm512_permutex2var_epi8(parts[2 * at], odd, parts[2 * at + 1]));

        let mut pending = self.pending;
        let mut lens = self.pending_len.map(u64::from);
        let mut ends = self.ends;
        for at in (0..symbols.len()).step_by(64) {
            let left = symbols.len() - at;
            let mask = if left >= 64 { !0 } else { (1 << left) - 1 };
            // SAFETY: the mask ends with the symbols.
            let plain = unsafe { _mm512_maskz_loadu_epi8(mask, symbols.as_ptr().add(at).cast()) };
            let inside =
                if left >= 64 { !0 } else { _mm512_cmplt_epu8_mask(by_stream, _mm512_set1_epi8(left as i8)) };
            let plain = _mm512_permutexvar_epi8(by_stream, plain);
            let upper = _mm512_movepi8_mask(plain);
            let lookup = |table: &[__m512i; 4]| {
                let near = _mm512_permutex2var_epi8(table[0], plain, table[1]);
                let far = _mm512_permutex2var_epi8(table[2], plain, table[3]);
                // Non-symbols have a code without bits.
                _mm512_maskz_mov_epi8(inside, _mm512_mask_mov_epi8(near, upper, far))
            };
            let (low, high) = (lookup(&low), lookup(&high));
            // Of the even streams, and of the odd ones.
            let pieces = [
                Self::pieces(_mm512_unpacklo_epi8(low, high)),
                Self::pieces(_mm512_unpackhi_epi8(low, high)),
            ];
            for number in 0..2 {
                for stream in 0..STREAMS {
                    let pieces = &pieces[stream % 2];
                    let at = stream / 2 * 2 + number;
                    // At most 7 + 40 bits.
                    let bits = pending[stream] | pieces.bits[at] >> (lens[stream] % 64);
                    let len = lens[stream] + pieces.lens[at];
                    // SAFETY: `ends` counts the bytes of coded symbols. The arrays have room for
                    // all of these and eight bytes more.
                    unsafe {
                        let to = self.bytes[stream].as_mut_ptr().add(place(stream, ends[stream]));
                        to.cast::<u64>().write_unaligned(in_order(stream, bits));
                    }
                    ends[stream] += len as usize / 8;
                    pending[stream] = bits << (len & 0x38);
                    lens[stream] = len % 8;
                }
            }
        }
        self.pending = pending;
        self.pending_len = lens.map(|len| len as u32);
        self.ends = ends;
    }
}
