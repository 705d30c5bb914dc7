//! The beginning of a file that is kept: whose it is, and the two roots.
//!
//! ```text
//!   0         header   0..8 magic | 8..12 version | 12..16 1: encrypted | 16..32 the file's own number | 32..40 bytes of the device |
//!                      40..44 bytes compressed as one | 44..48 segments | 48..64 what the key makes of nothing |
//!                      64 length of the compressor's name | 65..96 the name | 4088..4096 checksum
//!   128 KiB   root     0..8 magic | 8..16 commit | 16..20 epoch | 20..24 top pages | 24..32 zero | 32..48 nonce |
//!                      places of the top pages, 8 bytes each, sealed | tail
//!   256 KiB   root     the other one
//!   512 KiB   header   once more
//! ```
//!
//! This is the first segment, which is never used otherwise. The headers are written once; roots in
//! turn, so that one of them is whole whenever power fails. The one with the higher commit counts.

use crate::place::BLOCK_BYTES;
use crate::seal::{checksum, Sealer};

pub(crate) const HEADERS_AT: [u64; 2] = [0, 512 << 10];
pub(crate) const ROOTS_AT: [u64; 2] = [128 << 10, 256 << 10];
/// Bytes of a root at most: 1 TiB has 2048 top pages.
const ROOT_HEAD_BYTES: usize = 48;
pub(crate) const TOPS_MAX: usize = 2048;

const MAGIC: u64 = u64::from_le_bytes(*b"uzKEPT\x01\n");
const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"uzROOT\x01\n");
pub(crate) const VERSION: u32 = 1;
const NAME_BYTES: usize = 31;
const SUM_AT: usize = BLOCK_BYTES - 8;

/// Whose file it is, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Whether what is in it is encrypted.
    pub is_encrypted: bool,
    /// Its own random number.
    pub uuid: [u8; 16],
    /// Bytes of the device.
    pub device_bytes: u64,
    /// Bytes compressed as one.
    pub unit_bytes: u32,
    /// Segments of the file.
    pub segments: u32,
    /// What its key makes of nothing, by which it is known again.
    pub(crate) key_mark: [u8; 16],
    /// The compressor's name.
    pub compressor: String,
}

/// What a block is that should be a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Header(Identity),
    /// Of another version.
    Version(u32),
    /// Nothing was written there.
    Zeroes,
    /// A header that is not whole.
    Damaged,
    /// Something else.
    Foreign,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Identity {
    /// # Panics
    /// With a compressor's name of more than 31 bytes, which there is not.
    pub(crate) fn encode(&self) -> [u8; BLOCK_BYTES] {
        assert!(self.compressor.len() <= NAME_BYTES);
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.is_encrypted).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.device_bytes.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.unit_bytes.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.segments.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.key_mark);
        bytes[64] = self.compressor.len() as u8;
        bytes[65..65 + self.compressor.len()].copy_from_slice(self.compressor.as_bytes());
        let sum = checksum([0; 16], b"", &bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Found {
        if bytes.len() < BLOCK_BYTES || long(bytes, 0) != MAGIC {
            let is_zero = bytes.iter().all(|byte| *byte == 0);
            return if is_zero { Found::Zeroes } else { Found::Foreign };
        }
        if word(bytes, 8) != VERSION {
            return Found::Version(word(bytes, 8));
        }
        let name = bytes.get(65..65 + bytes[64] as usize).filter(|name| name.len() <= NAME_BYTES);
        let compressor = name.and_then(|name| String::from_utf8(name.to_vec()).ok());
        match compressor {
            Some(compressor) if long(bytes, SUM_AT) == checksum([0; 16], b"", &bytes[..SUM_AT]) => {
                Found::Header(Identity {
                    is_encrypted: word(bytes, 12) != 0,
                    uuid: bytes[16..32].try_into().expect("sixteen bytes"),
                    device_bytes: long(bytes, 32),
                    unit_bytes: word(bytes, 40),
                    segments: word(bytes, 44),
                    key_mark: bytes[48..64].try_into().expect("sixteen bytes"),
                    compressor,
                })
            }
            _ => Found::Damaged,
        }
    }
}

/// A state of the device that is durable once its root is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) commit: u64,
    /// How often the file was opened.
    pub(crate) epoch: u32,
    /// Places of the top pages, as numbers.
    pub(crate) tops: Vec<u64>,
}

impl Root {
    /// Bytes to read for a root of so many top pages.
    pub(crate) fn bytes(tops: usize) -> usize {
        (ROOT_HEAD_BYTES + 8 * tops + 16).next_multiple_of(BLOCK_BYTES)
    }

    /// Writes it to a buffer that long. `nonce` was never used.
    pub(crate) fn encode(&self, seal: &Sealer, uuid: &[u8; 16], nonce: [u8; 16], into: &mut [u8]) {
        into.fill(0);
        into[..8].copy_from_slice(&ROOT_MAGIC.to_le_bytes());
        into[8..16].copy_from_slice(&self.commit.to_le_bytes());
        into[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        into[20..24].copy_from_slice(&(self.tops.len() as u32).to_le_bytes());
        into[32..48].copy_from_slice(&nonce);
        let (head, rest) = into.split_at_mut(ROOT_HEAD_BYTES);
        for (room, place) in rest.chunks_exact_mut(8).zip(&self.tops) {
            room.copy_from_slice(&place.to_le_bytes());
        }
        let body = &mut rest[..8 * self.tops.len() + seal.tail_bytes()];
        seal.seal_with(nonce, &context(head, uuid), body);
    }

    /// The root in a buffer, which is changed by this; `None` when there is none that is whole, of
    /// so many top pages.
    pub(crate) fn decode(seal: &Sealer, uuid: &[u8; 16], tops: usize, bytes: &mut [u8]) -> Option<Root> {
        if bytes.len() < Root::bytes(tops) || long(bytes, 0) != ROOT_MAGIC || word(bytes, 20) as usize != tops
        {
            return None;
        }
        let (head, rest) = bytes.split_at_mut(ROOT_HEAD_BYTES);
        let nonce = head[32..48].try_into().expect("sixteen bytes");
        let body = &mut rest[..8 * tops + seal.tail_bytes()];
        seal.unseal_with(nonce, &context(head, uuid), body).then_some(())?;
        let tops = body[..8 * tops].chunks_exact(8).map(|place| long(place, 0)).collect();
        Some(Root { commit: long(head, 8), epoch: word(head, 16), tops })
    }
}

/// What a root's seal covers beside the places: its head, and whose it is.
fn context(head: &[u8], uuid: &[u8; 16]) -> [u8; ROOT_HEAD_BYTES + 16] {
    let mut context = [0; ROOT_HEAD_BYTES + 16];
    context[..ROOT_HEAD_BYTES].copy_from_slice(head);
    context[ROOT_HEAD_BYTES..].copy_from_slice(uuid);
    context
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;
    use proptest::prelude::*;

    fn identity() -> Identity {
        Identity {
            is_encrypted: true,
            uuid: [7; 16],
            device_bytes: 1 << 30,
            unit_bytes: 4096,
            segments: 3000,
            key_mark: [9; 16],
            compressor: "auto".into(),
        }
    }

    #[test]
    fn a_header_is_known_again() {
        let bytes = identity().encode();
        assert_eq!(Identity::decode(&bytes), Found::Header(identity()));
        let mut other = bytes;
        other[8] = 2;
        assert_eq!(Identity::decode(&other), Found::Version(2));
        other[0] = b'x';
        assert_eq!(Identity::decode(&other), Found::Foreign);
        assert_eq!(Identity::decode(&[0; BLOCK_BYTES]), Found::Zeroes);
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_header(mut bytes in prop::collection::vec(any::<u8>(), 0..5000), magic in any::<bool>()) {
            if magic && bytes.len() >= 16 {
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            }
            prop_assert!(!matches!(Identity::decode(&bytes), Found::Header(_)));
        }

        #[test]
        fn a_header_with_a_flipped_bit_is_none(bit in 0usize..BLOCK_BYTES * 8) {
            let mut bytes = identity().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(Identity::decode(&bytes), Found::Header(_)));
        }

        #[test]
        fn a_root_is_whole_or_none(
            tops in prop::collection::vec(any::<u64>(), 1..600), bit in any::<usize>(), encrypted in any::<bool>(),
        ) {
            let seal = Sealer::of_kept(encrypted.then(|| Secret::random().unwrap()), None);
            let root = Root { commit: 77, epoch: 3, tops };
            let count = root.tops.len();
            let mut bytes = vec![0; Root::bytes(count)];
            root.encode(&seal, &[7; 16], [1; 16], &mut bytes);
            prop_assert_eq!(Root::decode(&seal, &[7; 16], count, &mut bytes.clone()), Some(root.clone()));
            prop_assert!(Root::decode(&seal, &[8; 16], count, &mut bytes.clone()).is_none(), "another file's");
            prop_assert!(Root::decode(&seal, &[7; 16], count + 1, &mut bytes.clone()).is_none());
            let bit = bit % ((ROOT_HEAD_BYTES + 8 * count + seal.tail_bytes()) * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Root::decode(&seal, &[7; 16], count, &mut bytes).is_none());
        }

        #[test]
        fn any_bytes_are_no_root(mut bytes in prop::collection::vec(any::<u8>(), 0..9000), tops in 0usize..600) {
            if bytes.len() >= 24 {
                bytes[..8].copy_from_slice(&ROOT_MAGIC.to_le_bytes());
                bytes[20..24].copy_from_slice(&(tops as u32).to_le_bytes());
            }
            prop_assert!(Root::decode(&Sealer::of_kept(None, None), &[7; 16], tops, &mut bytes).is_none());
        }
    }
}
