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
    // Arrays first, so that none of the vectors written to them lies across two cache lines.
    pub(super) table: [u32; 1 << TABLE_BITS],
    /// The earlier position, where [`Index::mask`] says that there is one; elsewhere anything below 4096.
    pub(crate) candidates: [u16; 4096 + 128],
    /// Bit `i`: the four bytes at position `i` occurred at `candidates[i]`. Words past the input are zero.
    pub(crate) mask: [u64; 64 + 2],
    /// What is added to the entries of this input; the 12 bits of the position are zero.
    pub(super) salt: u32,
}

impl Index {
    pub(crate) const NEW: Index =
        Index { table: [0; 1 << TABLE_BITS], candidates: [0; 4096 + 128], mask: [0; 66], salt: 0 };

    /// Empties the table. Entries of zero name position 0, which is never used as a candidate, so that an empty table
    /// matches nothing.
    pub(crate) fn clear(&mut self) {
        self.table.fill(0);
    }

    /// Takes another salt: all 2^20 come before one comes again.
    pub(super) fn change_salt(&mut self) {
        self.salt = self.salt.wrapping_add(MULTIPLIER << TABLE_BITS);
    }

    /// Takes away the bits of positions whose four bytes reach beyond `len`.
    #[inline]
    pub(super) fn close(&mut self, len: usize) {
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
}
