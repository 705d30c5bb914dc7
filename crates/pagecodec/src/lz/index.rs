//! For every position of the input, an earlier one that starts with the same four bytes.
//!
//! The table maps the upper 12 bits of a hash of four bytes to the latest position. The hash is a
//! product with an odd number modulo 2^32, hence reversible: the table index and the product's
//! other 20 bits, kept in the entry beside the 12-bit position, identify the four bytes. So
//! comparing entries compares the input exactly, without reading it.
//!
//! Clearing the table between inputs would take 0.15 us. Instead, the 20 bits of an entry are
//! combined (exclusive or) with a salt that differs for each input, so that an old entry passes for
//! a new one only once in 2^20 times. The walk notices, because such bytes are hardly ever equal,
//! and has the index rebuilt from an empty table. The result never depends on earlier inputs.

/// Bits of the product that index the table. The others share an entry with a position.
pub(crate) const TABLE_BITS: u32 = 12;
pub(crate) const MULTIPLIER: u32 = 0x9E37_79B1;
/// Readable bytes that the index and the walk need after the input.
pub(crate) const PADDING: usize = 128;

#[repr(C, align(64))]
pub(crate) struct Index {
    // Arrays first, so that no vector written to them crosses a cache line.
    pub(super) table: [u32; 1 << TABLE_BITS],
    /// The earlier position where [`Index::mask`] has its bit; elsewhere any value below 4096.
    pub(crate) candidates: [u16; 4096 + 128],
    /// Bit `i`: position `i`'s four bytes are at `candidates[i]`. Words past the input are zero.
    pub(crate) mask: [u64; 64 + 2],
    /// The salt of this input's entries; the 12 bits of the position are zero.
    pub(super) salt: u32,
}

const GROUP: usize = 64;

/// Slots and new entries of a group; position `4 n + k` is at `[k][n]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Hashed {
    slots: [[u32; GROUP / 4]; 4],
    entries: [[u32; GROUP / 4]; 4],
}

/// The found entry minus its own, for each position of a group.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Distances([u32; GROUP]);

impl Hashed {
    /// Hashes the group at `base`, reading the bytes behind it.
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
    /// Empties the table. Zero entries name position 0, which is never a candidate, so an empty
    /// table matches nothing.
    pub(crate) fn clear(&mut self) {
        self.table.fill(0);
    }

    /// Takes the next salt. All 2^20 are used before one repeats.
    pub(super) fn change_salt(&mut self) {
        self.salt = self.salt.wrapping_add(MULTIPLIER << TABLE_BITS);
    }

    /// Clears the bits of positions whose four bytes reach beyond `len`.
    #[inline]
    pub(super) fn close(&mut self, len: usize) {
        let end = len.saturating_sub(3);
        self.mask[end / 64] &= (1 << (end % 64)) - 1;
        self.mask[end / 64 + 1..].fill(0);
    }

    /// Indexes every `STEP`th (1 or 2) position of `source[..len]`, which alone are candidates.
    #[inline(always)]
    pub(crate) fn fill_generic<const STEP: usize>(&mut self, source: &[u8], len: usize) {
        assert!(len <= 4096 && source.len() >= len.next_multiple_of(GROUP) + 8);
        self.change_salt();
        // Three steps, each one group behind the step before. Compilers vectorise the first and the
        // last. Each loads in other sizes than the step before stored, but those stores have left
        // the store buffer by then.
        let mut hashed = [Hashed { slots: [[0; GROUP / 4]; 4], entries: [[0; GROUP / 4]; 4] }; 2];
        let mut found = [Distances([0; GROUP]); 2];
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

    /// Exchanges a group's entries with their slots one by one. Returns old minus new entries.
    #[inline(always)]
    fn exchange_group<const STEP: usize>(&mut self, hashed: &Hashed, Distances(found): &mut Distances) {
        for four in 0..GROUP / 4 {
            for k in (0..4).step_by(STEP) {
                let slot = hashed.slots[k][four] as usize % (1 << TABLE_BITS);
                let entry = hashed.entries[k][four];
                found[(4 * four + k) / STEP] =
                    std::mem::replace(&mut self.table[slot], entry).wrapping_sub(entry);
            }
        }
    }

    /// Makes candidates of the result of a group's exchange.
    #[inline(always)]
    fn compare<const STEP: usize>(&mut self, group: usize, Distances(found): &Distances) {
        let base = (GROUP * group) as u32;
        let candidates: &mut [u16; GROUP] =
            self.candidates[GROUP * group..].first_chunk_mut().expect("a place for every position");
        let mut is_found = [0u8; GROUP];
        let pairs = candidates.as_chunks_mut::<STEP>().0.iter_mut().zip(is_found.as_chunks_mut::<STEP>().0);
        for (number, ((candidate, is_found), found)) in pairs.zip(found).enumerate() {
            let at = base + (STEP * number) as u32;
            // An entry with the same key yields its place; other keys yield 4096 or more.
            let place = found.wrapping_add(at);
            candidate[0] = (place & 0xfff) as u16;
            // From 1 to the place before. For place 0, where the limit is 2^32 - 1, see below.
            is_found[0] = u8::from(place.wrapping_sub(1) < at.wrapping_sub(1));
        }
        let mut bits = 0;
        for (number, eight) in is_found.as_chunks::<8>().0.iter().enumerate() {
            // Moves byte `k` to bit 56 + k.
            let byte = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            bits |= byte << (8 * number);
        }
        self.mask[group] = if group == 0 { bits & !1 } else { bits };
    }
}
