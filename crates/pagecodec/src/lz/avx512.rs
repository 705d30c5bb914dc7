//! The index of page LZ with AVX-512: hashes and compares 16 at a time. The exchange is scalar.
//!
//! The bound is one store a cycle: one store for each position, and as few others as possible.

use std::arch::x86_64::*;
use std::mem::offset_of;

use super::index::{Index, MULTIPLIER, TABLE_BITS};

const PART: usize = 16;
const PARTS: usize = 4;

// Vector stores to these arrays never cross a cache line, which would take two stores.
const _: () = assert!(offset_of!(Index, candidates) % 64 == 0 && align_of::<Index>() == 64);

/// Selectors of bytes k .. k + 3 in lane k; of bytes 2 k .. 2 k + 3.
static OVERLAPPING: [[u8; 64]; 2] = {
    let mut bytes = [[0; 64]; 2];
    let mut at = 0;
    while at < 64 {
        bytes[0][at] = (at / 4 + at % 4) as u8;
        bytes[1][at] = (at / 4 * 2 + at % 4) as u8;
        at += 1;
    }
    bytes
};

/// Of 16 positions: the product, which ends in the slot's number, above, the table's new entry
/// below. Ordered as joined vectors of both are: 0, 1, 4, 5 and so on, then 2, 3, 6, 7.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Pairs([u64; PART]);

impl Pairs {
    const fn place(at: usize) -> usize {
        at / 4 * 2 + at % 2 + PART / 2 * (at / 2 % 2)
    }
}

impl Index {
    /// Exchanges sixteen entries with their slots one by one, and returns the old ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn exchange(&mut self, Pairs(pairs): &Pairs) -> __m512i {
        let mut one = |at: usize| {
            let pair = pairs[Pairs::place(at)];
            // The slot has TABLE_BITS bits, and the table as many entries.
            let entry = &mut self.table[(pair >> (64 - TABLE_BITS)) as usize];
            std::mem::replace(entry, pair as u32) as i32
        };
        // Inserts entries into vectors, because storing and reloading them takes longer.
        let mut four = |at: usize| {
            let first = _mm_cvtsi32_si128(one(at));
            let first = _mm_insert_epi32::<1>(first, one(at + 1));
            let first = _mm_insert_epi32::<2>(first, one(at + 2));
            _mm_insert_epi32::<3>(first, one(at + 3))
        };
        let (a, b, c, d) = (four(0), four(4), four(8), four(12));
        let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }

    /// [`Index::fill_generic`] with AVX-512 F, BW, VL and VBMI, which the machine must have.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn fill_avx512<const STEP: usize>(&mut self, source: &[u8], len: usize) {
        let group_len = STEP * PART * PARTS;
        assert!(len <= 4096 && source.len() >= len.next_multiple_of(group_len) + 64);
        self.change_salt();
        self.mask.fill(0);
        let groups = len.div_ceil(group_len);
        if groups == 0 {
            return;
        }
        // SAFETY: a 64-byte array is read.
        let overlapping = unsafe { _mm512_loadu_si512(OVERLAPPING[STEP - 1].as_ptr().cast()) };
        let multiplier = _mm512_set1_epi32(MULTIPLIER as i32);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let lanes = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(STEP as i32));
        let step = _mm512_set1_epi32((STEP * PART) as i32);
        let (key_bits, place_bits) = (_mm512_set1_epi32(!0xfff), _mm512_set1_epi32(0xfff));

        // Pairs go through memory one group ahead. Extracting them one by one would queue at the
        // two units that move data within vectors, and a load too soon after the store would wait.
        let mut ahead = [[Pairs([0; PART]); PARTS]; 2];
        let mut entries_ahead = [_mm512_setzero_si512(); PARTS];
        // The next places with the salt, and the place before each compared one.
        let mut salted = _mm512_xor_si512(lanes, _mm512_set1_epi32(self.salt as i32));
        let mut before_places = _mm512_sub_epi32(lanes, _mm512_set1_epi32(1));
        let mut hash = |group: usize, part: usize, pairs: &mut Pairs| {
            // SAFETY: `source` reaches 64 bytes beyond `group`, at most the last (asserted above).
            let bytes = unsafe {
                let from = source.as_ptr().add(group * group_len + part * STEP * PART);
                if STEP == 1 {
                    _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()))
                } else {
                    _mm512_loadu_si512(from.cast())
                }
            };
            let fours = _mm512_permutexvar_epi8(overlapping, bytes);
            let product = _mm512_mullo_epi32(fours, multiplier);
            // Moves the product's lower 20 bits above the place, and its upper 12 below, to be cut
            // off.
            let turned = _mm512_rol_epi32::<{ TABLE_BITS as i32 }>(product);
            const FIRST_XOR_OTHERS_AND: i32 = 0x78;
            let entries = _mm512_ternarylogic_epi32::<FIRST_XOR_OTHERS_AND>(salted, turned, key_bits);
            salted = _mm512_add_epi32(salted, step);
            // SAFETY: `pairs` has 128 bytes and is aligned to 64.
            unsafe {
                let to = pairs.0.as_mut_ptr();
                _mm512_store_si512(to.cast(), _mm512_unpacklo_epi32(entries, product));
                _mm512_store_si512(to.add(PART / 2).cast(), _mm512_unpackhi_epi32(entries, product));
            }
            entries
        };
        for part in 0..PARTS {
            entries_ahead[part] = hash(0, part, &mut ahead[0][part]);
        }
        for group in 0..groups {
            // The last group is hashed twice, without effect.
            let next = (group + 1).min(groups - 1);
            let mut bits = 0u64;
            for part in 0..PARTS {
                let before = self.exchange(&ahead[group % 2][part]);
                let entries = entries_ahead[part];
                entries_ahead[part] = hash(next, part, &mut ahead[(group + 1) % 2][part]);
                // An entry with the same key yields its place less one, other keys at least 4096.
                let found = _mm512_add_epi32(_mm512_sub_epi32(before, entries), before_places);
                // From 1 to the place before. For place 0, where the limit is 2^32 - 1, see below.
                let earlier = _mm512_cmplt_epu32_mask(found, before_places);
                before_places = _mm512_add_epi32(before_places, step);
                bits |= u64::from(earlier) << (PART * part);
                let candidates = _mm512_and_si512(before, place_bits);
                // SAFETY: `candidates` reaches beyond the last group.
                unsafe {
                    let place = self.candidates.as_mut_ptr().add(group * group_len + part * STEP * PART);
                    if STEP == 1 {
                        _mm256_storeu_si256(place.cast(), _mm512_cvtepi32_epi16(candidates));
                    } else {
                        // Each position's upper half is the next position.
                        _mm512_storeu_si512(place.cast(), candidates);
                    }
                }
            }
            if STEP == 1 {
                self.mask[group] = bits;
            } else {
                const EVEN: u64 = 0x5555_5555_5555_5555;
                self.mask[2 * group] = _pdep_u64(bits, EVEN);
                self.mask[2 * group + 1] = _pdep_u64(bits >> 32, EVEN);
            }
        }
        self.mask[0] &= !1;
        self.close(len);
    }
}
