//! What the segments of a file that is kept are told apart by, and nonces made of.
//!
//! ```text
//!   head of each pack: 0..8 magic | 8..12 segment | 12..16 generation | 16..24 number | 24..32 salt | 32..40 checksum | 40..64 zero
//!   nonce:             0..8 number | 8..16 salt, of which the lowest 17 bits are: 16 directory | 15..0 grain
//! ```
//!
//! The *number* counts how often a segment was taken; a run begins at its epoch times 2^32, and the
//! epoch is durable, one more than the last run's, before the run writes anything. So no two
//! segments of a file have one number, ever. The *salt* is random and a run's own: where a copy of
//! a file is written to as well as the file, the two have the same numbers, and the salts tell them
//! apart.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::seal::{checksum, Nonce};

/// Bytes of a pack's head.
pub(crate) const HEAD_BYTES: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"uzPACK\x01\n");
/// Bits of a nonce that say which part of a segment it is for.
const PART_BITS: u32 = 17;

struct Stamp {
    number: AtomicU64,
    salt: AtomicU64,
}

/// The stamps of all segments.
pub(crate) struct Stamps {
    all: Box<[Stamp]>,
    next: AtomicU64,
    salt: u64,
}

/// What a pack's head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) segment: u32,
    pub(crate) generation: u32,
    number: u64,
    salt: u64,
}

impl Stamps {
    /// For a run of that epoch.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub(crate) fn new(segments: usize, epoch: u32) -> io::Result<Stamps> {
        let mut salt = [0; 8];
        sys::files::random(&mut salt)?;
        let none = || Stamp { number: AtomicU64::new(0), salt: AtomicU64::new(0) };
        Ok(Stamps {
            all: (0..segments).map(|_| none()).collect(),
            next: AtomicU64::new(u64::from(epoch) << 32),
            salt: u64::from_le_bytes(salt) >> PART_BITS << PART_BITS,
        })
    }

    /// A segment that was taken has a stamp that no segment ever had.
    pub(crate) fn renew(&self, segment: usize) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all[segment].number.store(number, Ordering::Relaxed);
        self.all[segment].salt.store(self.salt, Ordering::Release);
    }

    /// A segment has the stamp that its head says.
    pub(crate) fn adopt(&self, head: &Head) {
        let stamp = &self.all[head.segment as usize];
        stamp.number.store(head.number, Ordering::Relaxed);
        stamp.salt.store(head.salt, Ordering::Release);
    }

    pub(crate) fn nonce(&self, nonce: Nonce) -> [u8; 16] {
        debug_assert!(nonce.grain < 1 << 16);
        let stamp = &self.all[nonce.segment as usize];
        let salt = stamp.salt.load(Ordering::Acquire) >> PART_BITS << PART_BITS;
        let part = u64::from(nonce.is_directory) << 16 | u64::from(nonce.grain);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&stamp.number.load(Ordering::Relaxed).to_le_bytes());
        bytes[8..].copy_from_slice(&(salt | part).to_le_bytes());
        bytes
    }

    pub(crate) fn head(&self, segment: u32, generation: u32) -> [u8; HEAD_BYTES] {
        let stamp = &self.all[segment as usize];
        let head = Head {
            segment,
            generation,
            number: stamp.number.load(Ordering::Relaxed),
            salt: stamp.salt.load(Ordering::Acquire),
        };
        head.encode()
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.all)
    }
}

impl Head {
    fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.segment.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.salt.to_le_bytes());
        let sum = checksum([0; 16], b"", &bytes[..32]);
        bytes[32..40].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What a head says that is whole.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Head> {
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let is_whole = long(0)? == MAGIC && long(32)? == checksum([0; 16], b"", &bytes[..32]);
        is_whole.then_some(())?;
        Some(Head { segment: word(8)?, generation: word(12)?, number: long(16)?, salt: long(24)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Nonce = Nonce { segment: 1, grain: 7, is_directory: false };

    #[test]
    fn a_nonce_is_never_used_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for epoch in 1..20 {
            let stamps = Stamps::new(3, epoch).unwrap();
            for _ in 0..20 {
                for segment in 0..3u32 {
                    stamps.renew(segment as usize);
                    for (grain, is_directory) in [(0, false), (0, true), (65535, false), (65535, true)] {
                        assert!(seen.insert(stamps.nonce(Nonce { segment, grain, is_directory })));
                    }
                }
            }
        }
        // Two copies of a file, each with a run of the same epoch.
        let runs = [Stamps::new(2, 5).unwrap(), Stamps::new(2, 5).unwrap()];
        runs.iter().for_each(|stamps| stamps.renew(1));
        assert_ne!(runs[0].nonce(HERE), runs[1].nonce(HERE));
    }

    #[test]
    fn a_segment_of_an_older_run_has_its_nonces_again() {
        let (before, after) = (Stamps::new(2, 5).unwrap(), Stamps::new(2, 6).unwrap());
        before.renew(1);
        let head = Head::decode(&before.head(1, 9)).unwrap();
        assert_eq!((head.segment, head.generation), (1, 9));
        after.adopt(&head);
        assert_eq!(before.nonce(HERE), after.nonce(HERE));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_head_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(Head::decode(&bytes).is_none());
        }

        #[test]
        fn a_flipped_bit_is_seen(bit in 0usize..40 * 8) {
            let stamps = Stamps::new(2, 5).unwrap();
            stamps.renew(1);
            let mut head = stamps.head(1, 9);
            head[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Head::decode(&head).is_none());
        }
    }
}
