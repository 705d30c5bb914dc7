//! The index of page LZ with AVX2: hashes and comparisons eight at a time; only the table's
//! exchange is scalar. Like [`super::avx512`], but bytes are spread over lanes as they are loaded,
//! because AVX2 lacks the other's permutations.

use std::arch::x86_64::*;

use super::index::{Index, MULTIPLIER, TABLE_BITS};

const PART: usize = 8;
const PARTS: usize = 8;

/// Of eight positions: the product, which ends in the slot's number, above, the table's new entry
/// below. Ordered as joined vectors of both are: 0, 1, 4, 5, then 2, 3, 6, 7.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Pairs([u64; PART]);

impl Pairs {
    const fn place(at: usize) -> usize {
        at / 4 * 2 + at % 2 + PART / 2 * (at / 2 % 2)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn entries(&self) -> __m256i {
        // SAFETY: 64 bytes, aligned.
        unsafe {
            let at = self.0.as_ptr().cast::<f32>();
            let (low, high) = (_mm256_load_ps(at), _mm256_load_ps(at.add(8)));
            _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(low, high))
        }
    }
}

/// Moves every bit of `bits` to twice its place.
#[inline(always)]
fn spread(bits: u32) -> u64 {
    // A bit deposit is slow on Zen 1 and 2.
    let mut bits = u64::from(bits);
    bits = (bits | bits << 16) & 0x0000_ffff_0000_ffff;
    bits = (bits | bits << 8) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
    (bits | bits << 1) & 0x5555_5555_5555_5555
}

impl Index {
    /// Exchanges eight entries with their slots one by one, and returns the old ones.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn exchange_eight(&mut self, Pairs(pairs): &Pairs) -> __m256i {
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
        let (low, high) = (four(0), four(4));
        _mm256_set_m128i(high, low)
    }

    /// [`Index::fill_generic`] with AVX2, BMI1 and BMI2, which the machine must have.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) unsafe fn fill_avx2<const STEP: usize>(&mut self, source: &[u8], len: usize) {
        let group_len = STEP * PART * PARTS;
        assert!(len <= 4096 && source.len() >= len.next_multiple_of(group_len) + 64);
        self.change_salt();
        self.mask.fill(0);
        let groups = len.div_ceil(group_len);
        if groups == 0 {
            return;
        }
        // Four bytes from each position on.
        let spread_bytes = if STEP == 1 {
            _mm256_setr_epi8(
                0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6, 0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5,
                6,
            )
        } else {
            _mm256_setr_epi8(
                0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8,
                9,
            )
        };
        let multiplier = _mm256_set1_epi32(MULTIPLIER as i32);
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let lanes = if STEP == 1 { lanes } else { _mm256_add_epi32(lanes, lanes) };
        let step = _mm256_set1_epi32((STEP * PART) as i32);
        let (key_bits, place_bits) = (_mm256_set1_epi32(!0xfff), _mm256_set1_epi32(0xfff));

        // Pairs go through memory one group ahead: a load too soon after the store would wait.
        let mut ahead = [[Pairs([0; PART]); PARTS]; 2];
        // The next places with the salt, and the place before each compared one.
        let mut salted = _mm256_xor_si256(lanes, _mm256_set1_epi32(self.salt as i32));
        let mut before_places = _mm256_sub_epi32(lanes, _mm256_set1_epi32(1));
        let mut hash = |group: usize, part: usize, pairs: &mut Pairs| {
            // SAFETY: `source` reaches 64 bytes beyond the last group (asserted above), and `group`
            // is at most that; `pairs` has 64 bytes and is aligned to 32.
            unsafe {
                let from = source.as_ptr().add(group * group_len + part * STEP * PART);
                let low = _mm256_castsi128_si256(_mm_loadu_si128(from.cast()));
                let bytes = _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(from.add(4 * STEP).cast()));
                let product = _mm256_mullo_epi32(_mm256_shuffle_epi8(bytes, spread_bytes), multiplier);
                // Moves the product's lower 20 bits above the place.
                let turned = _mm256_slli_epi32::<{ TABLE_BITS as i32 }>(product);
                let entries = _mm256_xor_si256(salted, _mm256_and_si256(turned, key_bits));
                salted = _mm256_add_epi32(salted, step);
                let to = pairs.0.as_mut_ptr().cast::<__m256i>();
                _mm256_store_si256(to, _mm256_unpacklo_epi32(entries, product));
                _mm256_store_si256(to.add(1), _mm256_unpackhi_epi32(entries, product));
            }
        };
        for (part, pairs) in ahead[0].iter_mut().enumerate() {
            hash(0, part, pairs);
        }
        for group in 0..groups {
            let next = (group + 1).min(groups - 1);
            let mut bits = 0u64;
            let [even, odd] = &mut ahead;
            let (now, later) = if group % 2 == 0 { (even, odd) } else { (odd, even) };
            for pair in 0..PARTS / 2 {
                let mut candidates = [_mm256_setzero_si256(); 2];
                for (half, candidates) in candidates.iter_mut().enumerate() {
                    let part = 2 * pair + half;
                    let before = self.exchange_eight(&now[part]);
                    let entries = now[part].entries();
                    hash(next, part, &mut later[part]);
                    // An entry with the same key yields its place less one, other keys at least
                    // 4096.
                    let found = _mm256_add_epi32(_mm256_sub_epi32(before, entries), before_places);
                    // From 1 to the place before. For place 0, where the limit is 2^32 - 1, see
                    // below.
                    let later = _mm256_cmpeq_epi32(_mm256_max_epu32(found, before_places), found);
                    before_places = _mm256_add_epi32(before_places, step);
                    let earlier = !_mm256_movemask_ps(_mm256_castsi256_ps(later)) as u8;
                    bits |= u64::from(earlier) << (PART * part);
                    *candidates = _mm256_and_si256(before, place_bits);
                }
                // SAFETY: `candidates` reaches beyond the last group.
                unsafe {
                    let first = group * group_len + 2 * pair * STEP * PART;
                    let place = self.candidates.as_mut_ptr().add(first).cast::<__m256i>();
                    let [low, high] = candidates;
                    if STEP == 1 {
                        let packed = _mm256_packus_epi32(low, high);
                        _mm256_storeu_si256(place, _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
                    } else {
                        _mm256_storeu_si256(place, low);
                        _mm256_storeu_si256(place.add(1), high);
                    }
                }
            }
            if STEP == 1 {
                self.mask[group] = bits;
            } else {
                self.mask[2 * group] = spread(bits as u32);
                self.mask[2 * group + 1] = spread((bits >> 32) as u32);
            }
        }
        self.mask[0] &= !1;
        self.close(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_spread() {
        assert_eq!(spread(0), 0);
        assert_eq!(spread(u32::MAX), 0x5555_5555_5555_5555);
        for bit in 0..32 {
            assert_eq!(spread(1 << bit), 1 << (2 * bit));
        }
    }
}
