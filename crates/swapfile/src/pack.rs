//! A pack is the unit of writing: objects of many pages and their directory.
//!
//! ```text
//!   0                                                                         multiple of 4096
//!   +---------+-----+---------+---------+--//--+-------------------+----------+--------+
//!   | object  | gap | object  | object  |      | directory | tail  | zeroes   | footer |
//!   | , tail  |     | , tail  | , tail  |      | 16 B an object    |          | 32 B   |
//!   +---------+-----+---------+---------+--//--+-------------------+----------+--------+
//!   record: 0..8 key, group in the upper 16 bits | 8..10 grain in the segment | 10..12 length - 1 | 12 pages - 1 |
//!           13 codec | 14..16 zero
//!   footer: 0..8 magic | 8..12 generation | 12..16 segment | 16..20 blocks of the pack | 20..24 objects |
//!           24..28 where the directory begins in the pack | 28..32 zero
//! ```
//!
//! An object touches as few blocks as its length needs, so that one short transfer reads it: where
//! it would touch one more, it begins with the next block. To keep the loss small, the longest
//! object of a 16-page block that fits goes next. Gaps are zeroes: no other memory reaches the
//! disk.
//!
//! The directory follows the objects, so that they need not be known before the first one is
//! placed; cleaning walks a segment from its end. Its seal covers the footer.

use crate::place::{grains, GRAIN_BYTES, OBJECT_BYTES_MAX, SEGMENT_BYTES};
use crate::seal::{Nonce, Sealer};
use crate::{Buffer, Location, BLOCK_BYTES};

/// Most bytes of a pack, and so of one write.
pub const PACK_BYTES_MAX: usize = 256 << 10;
/// A smaller rest of a segment stays unused: sixteen incompressible pages must fit.
pub(crate) const PACK_BYTES_MIN: usize = 80 << 10;

const MAGIC: u64 = u64::from_le_bytes(*b"uzSWAP\x01\n");
const RECORD_BYTES: usize = 16;
const FOOTER_BYTES: usize = 32;
/// Most objects laid out together: those of a 64 KiB block.
pub const TOGETHER_MAX: usize = 16;

/// Metadata of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Its owner.
    pub group: u16,
    /// The number of its first page, below 2^48.
    pub key: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The pages it covers, 1 to 16.
    pub pages: u8,
    /// Its holder's name of the codec.
    pub codec: u8,
    /// Its holder's mark, which identifies the object when it is written; not stored on disk.
    pub mark: u16,
}

impl Record {
    fn encode(&self, grain: u16) -> [u8; RECORD_BYTES] {
        debug_assert!(self.key < 1 << 48 && (1..=OBJECT_BYTES_MAX as u32).contains(&self.len));
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&(self.key | u64::from(self.group) << 48).to_le_bytes());
        bytes[8..10].copy_from_slice(&grain.to_le_bytes());
        bytes[10..12].copy_from_slice(&((self.len - 1) as u16).to_le_bytes());
        bytes[12] = self.pages - 1;
        bytes[13] = self.codec;
        bytes
    }

    fn decode(bytes: &[u8]) -> (Record, u16) {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let key = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let record = Record {
            group: (key >> 48) as u16,
            key: key & ((1 << 48) - 1),
            len: u32::from(half(10)) + 1,
            pages: bytes[12].saturating_add(1),
            codec: bytes[13],
            mark: 0,
        };
        (record, half(8))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) segment: u32,
    pub(crate) generation: u32,
    /// Offset of the pack in the segment.
    pub(crate) start: u32,
    pub(crate) capacity: u32,
}

impl Slot {
    pub(crate) fn nonce(&self, position: usize, is_directory: bool) -> Nonce {
        let grain = (self.start as usize + position) / GRAIN_BYTES;
        Nonce { segment: self.segment, grain: grain as u32, is_directory }
    }

    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.segment) * SEGMENT_BYTES as u64 + u64::from(self.start)
    }
}

/// A pack that is being filled, or is full.
pub struct Pack {
    pub(crate) buffer: Option<Buffer>,
    pub(crate) slot: Slot,
    pub(crate) records: Vec<Record>,
    /// Offsets of the objects in the pack.
    positions: Vec<u32>,
    /// Lowest offset for the next object.
    used: usize,
    tail: usize,
}

impl Pack {
    pub(crate) fn new(slot: Slot, seal: &Sealer, buffer: Buffer, spare: Option<Pack>) -> Pack {
        assert!(buffer.len() >= slot.capacity as usize && slot.capacity as usize <= PACK_BYTES_MAX);
        let (mut records, mut positions) =
            spare.map_or_else(Default::default, |pack| (pack.records, pack.positions));
        records.clear();
        positions.clear();
        Pack { buffer: Some(buffer), slot, records, positions, used: 0, tail: seal.tail_bytes() }
    }

    /// Objects so far.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Makes room for up to sixteen objects that stay together. Returns the number of the first, or
    /// `None` if they do not fit. The caller writes their bytes.
    ///
    /// # Panics
    /// If there are more objects, or an empty one.
    pub fn add(&mut self, records: &[Record]) -> Option<usize> {
        assert!(records.len() <= TOGETHER_MAX);
        let mut placed = [0u32; TOGETHER_MAX];
        let mut order = [0u8; TOGETHER_MAX];
        let end = self.lay_out(records, &mut placed, &mut order);
        if self.total(end, self.len() + records.len()) > self.slot.capacity as usize {
            return None;
        }
        let first = self.len();
        let buffer = self.buffer.as_mut().expect("a pack that is filled has its buffer");
        let mut at = self.used;
        for &n in &order[..records.len()] {
            let (position, sealed) =
                (placed[n as usize] as usize, records[n as usize].len as usize + self.tail);
            buffer[at..position].fill(0);
            at = position + grains(sealed) as usize * GRAIN_BYTES;
            buffer[position + sealed..at].fill(0);
        }
        self.used = at;
        self.records.extend_from_slice(records);
        self.positions.extend_from_slice(&placed[..records.len()]);
        Some(first)
    }

    /// Places the objects, each time the longest that touches no extra block; returns their end.
    fn lay_out(&self, records: &[Record], placed: &mut [u32], order: &mut [u8]) -> usize {
        let mut at = self.used;
        let mut left: u32 = (1 << records.len()) - 1;
        for slot in order.iter_mut().take(records.len()) {
            let sealed = |n: u32| records[n as usize].len as usize + self.tail;
            let waiting = || (0..records.len() as u32).filter(|n| left >> n & 1 == 1);
            let longest = |best: Option<u32>, n: u32| match best {
                Some(best) if sealed(best) >= sealed(n) => Some(best),
                _ => Some(n),
            };
            let next = waiting().filter(|&n| fits(at, sealed(n))).fold(None, longest).unwrap_or_else(|| {
                at = at.next_multiple_of(BLOCK_BYTES);
                waiting().fold(None, longest).expect("an object is left")
            });
            assert!(records[next as usize].len > 0);
            left &= !(1 << next);
            placed[next as usize] = at as u32;
            *slot = next as u8;
            at += grains(sealed(next)) as usize * GRAIN_BYTES;
        }
        at
    }

    fn total(&self, end: usize, count: usize) -> usize {
        let directory = (count * RECORD_BYTES + self.tail).next_multiple_of(GRAIN_BYTES);
        (end + directory + FOOTER_BYTES).next_multiple_of(BLOCK_BYTES)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.total(self.used, self.len())
    }

    /// The bytes of an object.
    pub fn object_mut(&mut self, number: usize) -> &mut [u8] {
        let (start, len) = (self.positions[number] as usize, self.records[number].len as usize);
        &mut self.buffer.as_mut().expect("a pack that is filled has its buffer")[start..start + len]
    }

    pub(crate) fn place(&self, number: usize) -> Location {
        let position = self.slot.start as usize + self.positions[number] as usize;
        Location::new(self.slot.segment as usize, position, self.records[number].len as usize)
    }

    pub(crate) fn grains(&self) -> u32 {
        self.records.iter().map(|record| grains(record.len as usize + self.tail)).sum()
    }

    pub(crate) fn seal(&mut self, seal: &Sealer) {
        let (total, slot) = (self.bytes(), self.slot);
        assert!(total <= slot.capacity as usize);
        let buffer = self.buffer.as_mut().expect("a pack that is sealed has its buffer");
        for (record, &position) in self.records.iter().zip(&self.positions) {
            let start = position as usize;
            let sealed = &mut buffer[start..start + record.len as usize + self.tail];
            seal.seal(slot.nonce(start, false), b"", sealed);
        }
        let footer = Footer {
            generation: slot.generation,
            segment: slot.segment,
            blocks: (total / BLOCK_BYTES) as u32,
            objects: self.records.len() as u32,
            directory: self.used as u32,
        };
        let footer = footer.encode();
        let directory_bytes = self.records.len() * RECORD_BYTES + self.tail;
        let directory = &mut buffer[self.used..self.used + directory_bytes];
        for ((room, record), &position) in
            directory.chunks_exact_mut(RECORD_BYTES).zip(&self.records).zip(&self.positions)
        {
            let grain = (slot.start + position) as usize / GRAIN_BYTES;
            room.copy_from_slice(&record.encode(grain as u16));
        }
        seal.seal(slot.nonce(self.used, true), &footer, directory);
        buffer[self.used + directory_bytes..total - FOOTER_BYTES].fill(0);
        buffer[total - FOOTER_BYTES..total].copy_from_slice(&footer);
    }

    /// Removes the seals from the objects, still in the buffer, so that the pack can go elsewhere.
    pub(crate) fn unseal(&mut self, seal: &Sealer) {
        let buffer = self.buffer.as_mut().expect("a pack that is unsealed has its buffer");
        for (record, &position) in self.records.iter().zip(&self.positions) {
            let start = position as usize;
            let sealed = &mut buffer[start..start + record.len as usize + self.tail];
            assert!(
                seal.unseal(self.slot.nonce(start, false), b"", sealed),
                "the buffer is this pack's alone"
            );
        }
    }
}

/// Whether an object at `at` touches as few blocks as its length needs.
fn fits(at: usize, sealed: usize) -> bool {
    let touched = (at + sealed - 1) / BLOCK_BYTES - at / BLOCK_BYTES + 1;
    touched == sealed.div_ceil(BLOCK_BYTES)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Footer {
    generation: u32,
    segment: u32,
    blocks: u32,
    objects: u32,
    directory: u32,
}

impl Footer {
    fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let words = [self.generation, self.segment, self.blocks, self.objects, self.directory];
        for (slot, word) in bytes[8..].chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; FOOTER_BYTES]) -> Option<Footer> {
        let word = |number: usize| u32::from_le_bytes(bytes.as_chunks().0[2 + number]);
        let [generation, segment, blocks, objects, directory, zero] = std::array::from_fn(word);
        let is_footer = bytes[..8] == MAGIC.to_le_bytes() && zero == 0;
        is_footer.then_some(Footer { generation, segment, blocks, objects, directory })
    }
}

/// The directory of the last pack in `bytes`, which were read from a segment's start, and the
/// pack's offset. `None` if it is damaged, or not written by this run.
pub(crate) fn last_directory(
    segment: u32,
    generation: u32,
    bytes: &mut [u8],
    seal: &Sealer,
) -> Option<(usize, Vec<(Record, Location)>)> {
    let end = bytes.len();
    let footer_at = end.checked_sub(FOOTER_BYTES)?;
    let footer_bytes: [u8; FOOTER_BYTES] = bytes[footer_at..].try_into().ok()?;
    let footer = Footer::decode(&footer_bytes)?;
    if (footer.segment, footer.generation) != (segment, generation) {
        return None;
    }
    let start = end.checked_sub((footer.blocks as usize).checked_mul(BLOCK_BYTES)?)?;
    let at = start.checked_add(footer.directory as usize)?;
    let len = (footer.objects as usize).checked_mul(RECORD_BYTES)?.checked_add(seal.tail_bytes())?;
    if !at.is_multiple_of(GRAIN_BYTES) || at.checked_add(len)? > footer_at {
        return None;
    }
    let nonce = Nonce { segment, grain: (at / GRAIN_BYTES) as u32, is_directory: true };
    let directory = &mut bytes[at..at + len];
    if !seal.unseal(nonce, &footer_bytes, directory) {
        return None;
    }
    let records = directory[..len - seal.tail_bytes()].chunks_exact(RECORD_BYTES).map(Record::decode);
    let placed = records.map(|(record, grain)| {
        let place = Location::new(segment as usize, grain as usize * GRAIN_BYTES, record.len as usize);
        (record, place)
    });
    Some((start, placed.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seal;
    use proptest::prelude::*;

    fn sealer(seal: Seal) -> Sealer {
        let sealer = Sealer::new(seal, 6);
        sealer.renew(5).unwrap();
        sealer
    }

    fn slot(start: u32) -> Slot {
        Slot { segment: 5, generation: 9, start, capacity: PACK_BYTES_MAX as u32 }
    }

    fn pack(start: u32, seal: &Sealer) -> Pack {
        let mut buffer = Buffer::new(PACK_BYTES_MAX);
        buffer.fill(0xEE);
        Pack::new(slot(start), seal, buffer, None)
    }

    fn record(key: u64, len: u32) -> Record {
        Record { group: 3, key, len, pages: 1, codec: 2, mark: 0 }
    }

    fn lengths() -> impl Strategy<Value = Vec<Vec<u32>>> {
        let len = prop_oneof![4 => 1u32..1500, 2 => 1500u32..4097, 1 => Just(4096u32), 1 => 1u32..65537];
        prop::collection::vec(prop::collection::vec(len, 1..=16), 1..12)
    }

    proptest! {
        #[test]
        fn objects_lie_in_as_few_blocks_as_can_be_and_no_other_byte_gets_to_disk(
            blocks in lengths(), encrypted in any::<bool>(), start in 0u32..4,
        ) {
            let seal = sealer(if encrypted { Seal::Encrypted } else { Seal::Plain });
            let mut pack = pack(start * 4096, &seal);
            let mut all = Vec::new();
            for (number, lens) in blocks.iter().enumerate() {
                let records: Vec<Record> =
                    lens.iter().enumerate().map(|(n, &len)| record((number * 16 + n) as u64, len)).collect();
                if let Some(first) = pack.add(&records) {
                    prop_assert_eq!(first, all.len());
                    all.extend(records);
                }
            }
            for number in 0..all.len() {
                pack.object_mut(number).fill(0x11 + number as u8 % 64);
            }
            pack.seal(&seal);
            let total = pack.bytes();
            prop_assert!(total <= PACK_BYTES_MAX);
            let mut covered = vec![false; total];
            for (number, record) in all.iter().enumerate() {
                let place = pack.place(number);
                let at = place.position() - start as usize * 4096;
                let sealed = record.len as usize + seal.tail_bytes();
                prop_assert_eq!(place.len(), record.len as usize);
                prop_assert!(fits(at, sealed));
                for byte in &mut covered[at..at + sealed] {
                    prop_assert!(!std::mem::replace(byte, true), "objects overlap");
                }
                let mut copy = pack.buffer.as_ref().unwrap()[at..at + sealed].to_vec();
                prop_assert!(seal.unseal(pack.slot.nonce(at, false), b"", &mut copy));
                prop_assert!(copy[..record.len as usize].iter().all(|&byte| byte == 0x11 + number as u8 % 64));
            }
            let directory = all.len() * RECORD_BYTES + seal.tail_bytes();
            covered[pack.used..pack.used + directory].fill(true);
            covered[total - FOOTER_BYTES..].fill(true);
            let buffer = pack.buffer.as_ref().unwrap();
            prop_assert!((0..total).all(|at| covered[at] || buffer[at] == 0), "gaps are zeroes");

            // As cleaning finds it: after earlier content of the segment.
            let mut segment = vec![0; start as usize * 4096];
            segment.extend_from_slice(&buffer[..total]);
            let (from, found) = last_directory(5, 9, &mut segment.clone(), &seal).expect("whole");
            prop_assert_eq!(from, start as usize * 4096);
            let expected: Vec<_> = all.iter().enumerate().map(|(n, record)| (*record, pack.place(n))).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(last_directory(5, 8, &mut segment.clone(), &seal).is_none(), "of another generation");
            prop_assert!(last_directory(4, 9, &mut segment, &seal).is_none(), "of another segment");
            pack.unseal(&seal);
            for (number, record) in all.iter().enumerate() {
                let expected = vec![0x11 + number as u8 % 64; record.len as usize];
                prop_assert_eq!(pack.object_mut(number).to_vec(), expected);
            }
        }

        #[test]
        fn any_bytes_are_a_directory_or_none(
            mut bytes in prop::collection::vec(any::<u8>(), 0..5000), magic in any::<bool>(), small in any::<bool>(),
        ) {
            let seal = sealer(Seal::Plain);
            if magic && bytes.len() >= FOOTER_BYTES {
                let at = bytes.len() - FOOTER_BYTES;
                bytes[at..at + 8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[at + 8..at + 12].copy_from_slice(&9u32.to_le_bytes());
                bytes[at + 12..at + 16].copy_from_slice(&5u32.to_le_bytes());
                if small {
                    (at + 18..at + 20).chain(at + 22..at + 24).chain(at + 26..at + 32).for_each(|at| bytes[at] = 0);
                }
            }
            prop_assert!(last_directory(5, 9, &mut bytes, &seal).is_none());
        }

        #[test]
        fn a_directory_with_a_flipped_bit_is_none(bit in 0usize..4096 * 8) {
            let seal = sealer(Seal::Plain);
            let mut pack = pack(0, &seal);
            pack.add(&[record(1, 100), record(2, 50)]).unwrap();
            pack.object_mut(0).fill(1);
            pack.object_mut(1).fill(2);
            pack.seal(&seal);
            let mut bytes = pack.buffer.as_ref().unwrap()[..pack.bytes()].to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let covered = bit / 8 >= pack.used && bit / 8 < pack.used + 2 * RECORD_BYTES + 8
                || bit / 8 >= 4096 - FOOTER_BYTES;
            prop_assert_eq!(last_directory(5, 9, &mut bytes, &seal).is_none(), covered);
        }
    }

    #[test]
    fn little_is_lost_to_gaps() {
        // Lengths as of heap pages with LZ4: mostly short, some long.
        let seal = sealer(Seal::Encrypted);
        let mut random = 88172645463325252u64;
        let (mut net, mut gross) = (0, 0);
        for _ in 0..50 {
            let mut pack = pack(0, &seal);
            loop {
                let records: Vec<Record> = (0..16)
                    .map(|key| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let long = random >> 60 == 0;
                        record(key, 100 + (random >> 20) as u32 % if long { 3900 } else { 1500 })
                    })
                    .collect();
                if pack.add(&records).is_none() {
                    break;
                }
                net += records.iter().map(|record| record.len as usize).sum::<usize>();
            }
            gross += pack.bytes();
        }
        assert!(gross * 100 < net * 110, "{gross} bytes for {net}");
    }

    #[test]
    fn pages_that_do_not_compress_lie_back_to_back_in_two_blocks_each() {
        let seal = sealer(Seal::Encrypted);
        let mut pack = pack(0, &seal);
        let run: Vec<Record> = (0..16).map(|key| record(key, 4096)).collect();
        assert_eq!(pack.add(&run), Some(0));
        for number in 0..16 {
            assert_eq!(pack.place(number).position(), number * 4112);
        }
    }
}
