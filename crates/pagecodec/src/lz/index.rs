//! For every position of the input: an earlier one that starts with the same four bytes.
//!
//! The table maps the upper 12 bits of a hash of four bytes to the latest position. The hash is a
//! product with an odd number modulo 2^32, hence reversible: table index and the product's other 20
//! bits, kept in the entry beside the 12-bit position, identify the four bytes. Comparing entries
//! is an exact comparison of the input and reads none.
//!
//! The table is not emptied between inputs, which takes 0.15 us. The 20 bits of an entry have a
//! salt added (exclusive or) that is another one for each input, so that an entry of an earlier
//! input is taken for one of this input once in 2^20 times only. The walk notices, since such bytes
//! hardly ever are equal, and has the index made again from an empty table: what is found never
//! depends on the past.

/// Bits of the product that number the table entry; the others fit an entry together with a
/// position.
pub(crate) const TABLE_BITS: u32 = 12;
pub(crate) const MULTIPLIER: u32 = 0x9E37_79B1;
/// Readable bytes that the index and the walk need after the input.
pub(crate) const PADDING: usize = 128;

/// The result and the working memory.
#[repr(C, align(64))]
pub(crate) struct Index {
    // Arrays first, so that none of the vectors written to them lies across two cache lines.
    pub(super) table: [u32; 1 << TABLE_BITS],
    /// The earlier position, where [`Index::mask`] says that there is one; elsewhere anything
    /// below 4096.
    pub(crate) candidates: [u16; 4096 + 128],
    /// Bit `i`: the four bytes at position `i` occurred at `candidates[i]`. Words past the input
    /// are zero.
    pub(crate) mask: [u64; 64 + 2],
    /// What is added to the entries of this input; the 12 bits of the position are zero.
    pub(super) salt: u32,
}

/// Positions of a group.
const GROUP: usize = 64;

/// Slots and new entries of a group: of position `4 n + k` at `[k][n]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Hashed {
    slots: [[u32; GROUP / 4]; 4],
    entries: [[u32; GROUP / 4]; 4],
}

/// By how much more than its own each position of a group has found.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Found([u32; GROUP]);

impl Hashed {
    /// Hashes the group at `base`, and the bytes behind it.
    #[inline(always)]
    fn hash<const STEP: usize>(&mut self, bytes: &[u8; GROUP + 8], base: u32, salt: u32) {
        for k in (0..4).step_by(STEP) {
            let fours = bytes[k..][..GROUP].as_chunks::<4>().0;
            let places = self.slots[k].iter_mut().zip(&mut self.entries[k]);
            for (number, (four, (slot, entry))) in fours.iter().zip(places).enumerate() {
                let product = u32::from_le_bytes(*four).wrapping_mul(MULTIPLIER);
                *slot = product >> (32 - TABLE_BITS);
                *entry = (product << TABLE_BITS | (base + (4 * number + k) as u32)) ^ salt;
            }
        }
    }
}

impl Index {
    /// Empties the table. Entries of zero name position 0, which is never used as a candidate, so
    /// that an empty table matches nothing.
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

    /// Indexes every `STEP`th (1 or 2) position of `source[..len]`: the others have no candidates,
    /// and are none.
    #[inline(always)]
    pub(crate) fn fill_generic<const STEP: usize>(&mut self, source: &[u8], len: usize) {
        assert!(len <= 4096 && source.len() >= len.next_multiple_of(GROUP) + 8);
        self.change_salt();
        // Three steps, of which compilers make vectors of the first and the last, a group each:
        // what one has stored in pieces of one size and the next one loads in those of another has
        // left the processor's store buffer by then.
        let mut hashed = [Hashed { slots: [[0; GROUP / 4]; 4], entries: [[0; GROUP / 4]; 4] }; 2];
        let mut found = [Found([0; GROUP]); 2];
        let groups = len.div_ceil(GROUP);
        for turn in 0..groups + 2 {
            if turn < groups {
                let bytes = source[GROUP * turn..].first_chunk().expect("whole groups and 8 bytes");
                hashed[turn % 2].hash::<STEP>(bytes, (GROUP * turn) as u32, self.salt);
            }
            if (1..=groups).contains(&turn) {
                self.exchange_group::<STEP>(&hashed[(turn - 1) % 2], &mut found[(turn - 1) % 2]);
            }
            if turn >= 2 {
                self.compare::<STEP>(turn - 2, &found[turn % 2]);
            }
        }
        self.close(len);
    }

    /// Puts the entries of a group into their slots, one after the other. Returns by how much those
    /// were more that were there.
    #[inline(always)]
    fn exchange_group<const STEP: usize>(&mut self, hashed: &Hashed, Found(found): &mut Found) {
        for four in 0..GROUP / 4 {
            for k in (0..4).step_by(STEP) {
                let slot = hashed.slots[k][four] as usize % (1 << TABLE_BITS);
                let entry = hashed.entries[k][four];
                found[(4 * four + k) / STEP] =
                    std::mem::replace(&mut self.table[slot], entry).wrapping_sub(entry);
            }
        }
    }

    /// Makes candidates of what the exchange of a group has found.
    #[inline(always)]
    fn compare<const STEP: usize>(&mut self, group: usize, Found(found): &Found) {
        let base = (GROUP * group) as u32;
        let candidates: &mut [u16; GROUP] =
            self.candidates[GROUP * group..].first_chunk_mut().expect("a place for every position");
        let mut is_found = [0u8; GROUP];
        let pairs = candidates.as_chunks_mut::<STEP>().0.iter_mut().zip(is_found.as_chunks_mut::<STEP>().0);
        for (number, ((candidate, is_found), found)) in pairs.zip(found).enumerate() {
            let at = base + (STEP * number) as u32;
            // The place of an entry with the same key. Other keys are 4096 and more away.
            let place = found.wrapping_add(at);
            candidate[0] = (place & 0xfff) as u16;
            // From 1 to the place before this one; of place 0, where the limit is 2^32 - 1, see
            // below.
            is_found[0] = u8::from(place.wrapping_sub(1) < at.wrapping_sub(1));
        }
        let mut bits = 0;
        for (number, eight) in is_found.as_chunks::<8>().0.iter().enumerate() {
            // Byte `k` comes to stand at bit 56 + k.
            let byte = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            bits |= byte << (8 * number);
        }
        self.mask[group] = if group == 0 { bits & !1 } else { bits };
    }
}
