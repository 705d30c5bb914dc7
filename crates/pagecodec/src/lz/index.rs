//! For every position of the input: an earlier one that starts with the same four bytes.
//!
//! The table maps the upper 12 bits of a hash of four bytes to the latest position. The hash is a product with an odd
//! number modulo 2^32, hence reversible: table index and the product's other 20 bits, kept in the entry beside the
//! 12-bit position, identify the four bytes. Comparing entries is an exact comparison of the input and reads none.
//!
//! The table is not emptied between inputs, which takes 0.15 us. The 20 bits of an entry have a salt added (exclusive or)
//! that is another one for each input, so that an entry of an earlier input is taken for one of this input once in 2^20
//! times only. The walk notices, since such bytes hardly ever are equal, and has the index made anew from an empty table:
//! what is found never depends on the past.

/// Bits of the product that number the table entry; the others fit an entry together with a position.
pub(crate) const TABLE_BITS: u32 = 12;
pub(crate) const MULTIPLIER: u32 = 0x9E37_79B1;
/// Readable bytes that the index and the walk need after the input.
pub(crate) const PADDING: usize = 128;

/// The result and the working memory.
#[repr(C, align(64))]
pub(crate) struct Index {
    table: [u32; 1 << TABLE_BITS],
    /// What is added to the entries of this input; the 12 bits of the position are zero.
    pub(super) salt: u32,
    /// The earlier position, where [`Index::mask`] says that there is one; elsewhere anything below 4096.
    pub(crate) candidates: [u16; 4096 + 128],
    /// Bit `i`: the four bytes at position `i` occurred at `candidates[i]`. Words past the input are zero.
    pub(crate) mask: [u64; 64 + 2],
}

/// Slots and keys of 64 positions.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Hashed {
    slots: [[u32; 16]; 4],
    keys: [[u32; 16]; 4],
}

/// Selectors of bytes k .. k + 3 in lane k; of bytes 2 k .. 2 k + 3.
#[cfg(target_arch = "x86_64")]
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

impl Index {
    pub(crate) const NEW: Index =
        Index { table: [0; 1 << TABLE_BITS], salt: 0, candidates: [0; 4096 + 128], mask: [0; 66] };

    /// Empties the table. Entries of zero name position 0, which is never used as a candidate, so that an empty table
    /// matches nothing.
    pub(crate) fn clear(&mut self) {
        self.table.fill(0);
    }

    /// Takes another salt: all 2^20 come before one comes again.
    fn change_salt(&mut self) {
        self.salt = self.salt.wrapping_add(MULTIPLIER << TABLE_BITS);
    }

    /// Takes away the bits of positions whose four bytes reach beyond `len`.
    #[inline]
    fn close(&mut self, len: usize) {
        let end = len.saturating_sub(3);
        self.mask[end / 64] &= (1 << (end % 64)) - 1;
        self.mask[end / 64 + 1..].fill(0);
    }

    /// Indexes every `STEP`th (1 or 2) position of `source[..len]`: the others have no candidates, and are none.
    #[inline(always)]
    pub(crate) fn fill_generic<const STEP: usize>(&mut self, source: &[u8], len: usize) {
        assert!(len <= 4096 && source.len() >= len.next_multiple_of(64) + 8);
        self.change_salt();
        let salt = self.salt;
        for group in 0..len.div_ceil(64) {
            let mut bits = 0u64;
            for four in (0..64).step_by(4) {
                let at = 64 * group + four;
                // SAFETY: `at + 8` is at most the rounded length and 8 more, which `source` has.
                let bytes = u64::from_le(unsafe { source.as_ptr().add(at).cast::<u64>().read_unaligned() });
                for k in (0..4).step_by(STEP) {
                    let at = at + k;
                    let product = ((bytes >> (8 * k)) as u32).wrapping_mul(MULTIPLIER);
                    let key = (product << TABLE_BITS | at as u32) ^ salt;
                    let slot = (product >> (32 - TABLE_BITS)) as usize;
                    let entry = std::mem::replace(&mut self.table[slot], key);
                    let found = entry ^ key;
                    let candidate = found & 0xfff ^ at as u32;
                    self.candidates[at] = candidate as u16;
                    let earlier = candidate.wrapping_sub(1) < (at as u32).saturating_sub(1);
                    bits |= u64::from((found < 1 << 12) & earlier) << (four + k);
                }
            }
            self.mask[group] = bits;
        }
        self.close(len);
    }

    /// [`Index::fill_generic`] with the instructions of Haswell.
    ///
    /// # Safety
    /// The machine must have AVX2, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn fill_avx2<const STEP: usize>(&mut self, source: &[u8], len: usize) {
        self.fill_generic::<STEP>(source, len);
    }

    /// Puts sixteen keys into their slots, one after the other, and answers what was there.
    ///
    /// # Safety
    /// The slots must be below 2^[`TABLE_BITS`].
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn exchange(&mut self, slots: &[u32; 16], keys: &[u32; 16]) -> std::arch::x86_64::__m512i {
        use std::arch::x86_64::*;
        let mut one = |at: usize| {
            // SAFETY: the caller vouches for the slots. To mask them again costs a sixth of the loop's instructions.
            let entry = unsafe { self.table.get_unchecked_mut(slots[at] as usize) };
            std::mem::replace(entry, keys[at]) as i32
        };
        // Entries are inserted into vectors: storing and loading them again takes longer.
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

    /// The same in AVX-512: hashes and comparisons 16 at a time, only the table's exchange one by one.
    ///
    /// # Safety
    /// The machine must have AVX-512 F, BW, VL and VBMI.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(crate) unsafe fn fill_avx512<const STEP: usize>(&mut self, source: &[u8], len: usize) {
        use std::arch::x86_64::*;
        assert!(len <= 4096 && source.len() >= len.next_multiple_of(64 * STEP) + 64);
        self.change_salt();
        // SAFETY: a 64-byte array is read.
        let overlapping = unsafe { _mm512_loadu_si512(OVERLAPPING[STEP - 1].as_ptr().cast()) };
        let salt = _mm512_set1_epi32(self.salt as i32);
        let one = _mm512_set1_epi32(1);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let lanes = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(STEP as i32));
        let multiplier = _mm512_set1_epi32(MULTIPLIER as i32);
        let groups = len.div_ceil(64 * STEP);
        // Slots and keys go through memory, one group ahead: extracted one by one they would wait for each other at the
        // two units that move data within vectors, and loaded too soon after they were stored they are not there yet.
        let mut ahead = [Hashed { slots: [[0; 16]; 4], keys: [[0; 16]; 4] }; 2];
        for group in 0..=groups {
            if group < groups {
                let hashed = &mut ahead[group % 2];
                for part in 0..4 {
                    let base = STEP * (64 * group + 16 * part);
                    // SAFETY: `source` reaches 64 bytes beyond the last group (asserted above); the arrays have 64 bytes
                    // and are aligned to that.
                    unsafe {
                        let bytes = if STEP == 1 {
                            _mm512_castsi256_si512(_mm256_loadu_si256(source.as_ptr().add(base).cast()))
                        } else {
                            _mm512_loadu_si512(source.as_ptr().add(base).cast())
                        };
                        let fours = _mm512_permutexvar_epi8(overlapping, bytes);
                        let product = _mm512_mullo_epi32(fours, multiplier);
                        let places = _mm512_add_epi32(lanes, _mm512_set1_epi32(base as i32));
                        // The bits of product and place do not meet.
                        let product_above = _mm512_slli_epi32::<TABLE_BITS>(product);
                        let keys = _mm512_xor_si512(_mm512_xor_si512(product_above, places), salt);
                        let slots = _mm512_srli_epi32::<{ 32 - TABLE_BITS }>(product);
                        _mm512_store_si512(hashed.slots[part].as_mut_ptr().cast(), slots);
                        _mm512_store_si512(hashed.keys[part].as_mut_ptr().cast(), keys);
                    }
                }
            }
            let Some(group) = group.checked_sub(1) else { continue };
            let hashed = &ahead[group % 2];
            let mut bits = 0u64;
            for part in 0..4 {
                let base = STEP * (64 * group + 16 * part);
                // SAFETY: slots are products shifted right until TABLE_BITS are left.
                let before = unsafe { self.exchange(&hashed.slots[part], &hashed.keys[part]) };
                // SAFETY: `candidates` reaches beyond the last group, and `keys` is aligned to its 64 bytes.
                unsafe {
                    let keys = _mm512_load_si512(hashed.keys[part].as_ptr().cast());
                    let places = _mm512_add_epi32(lanes, _mm512_set1_epi32(base as i32));
                    let found = _mm512_xor_si512(before, keys);
                    let candidates = _mm512_xor_si512(found, places);
                    let equal = _mm512_cmplt_epu32_mask(found, _mm512_set1_epi32(1 << 12));
                    // From 1 to the place before this one; of place 0, where the limit is 2^32 - 1, see below.
                    let (less, limit) = (_mm512_sub_epi32(candidates, one), _mm512_sub_epi32(places, one));
                    let equal = _mm512_mask_cmplt_epu32_mask(equal, less, limit);
                    bits |= u64::from(equal) << (16 * part);
                    let candidates = _mm512_and_si512(candidates, _mm512_set1_epi32(0xfff));
                    let place = self.candidates.as_mut_ptr().add(base);
                    if STEP == 1 {
                        _mm256_storeu_si256(place.cast(), _mm512_cvtepi32_epi16(candidates));
                    } else {
                        // Each position has the one behind it as its upper half.
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
