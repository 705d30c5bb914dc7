//! What makes an object readable by nobody else, and damage to it visible.
//!
//! Encrypted (the default): AEGIS-128L with a key of the run and a nonce that is never used twice, made of the segment, its
//! generation and the grain. So what lies there from an earlier generation, or belongs elsewhere, is not taken for the
//! object either. Plain: a 64-bit checksum over the same; it finds accidents, not malice.

use std::io;

use std::sync::Arc;

use aegis::aegis128l::Aegis128L;

use crate::kept::{Stamps, HEAD_BYTES};

pub(crate) const KEY_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const SUM_BYTES: usize = 8;

/// Where something is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce {
    pub(crate) segment: u32,
    /// How often the segment has been taken.
    pub(crate) generation: u32,
    pub(crate) grain: u32,
    pub(crate) is_directory: bool,
}

impl Nonce {
    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let words = [self.segment, self.generation, self.grain, u32::from(self.is_directory)];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// How objects are sealed.
#[derive(Clone)]
pub struct Seal {
    /// None: checksums only.
    key: Option<[u8; KEY_BYTES]>,
    /// In a file that is kept: the segments' stamps, which nonces are made of instead of generations.
    stamps: Option<Arc<Stamps>>,
}

impl Seal {
    /// Encrypted and authenticated, with a new random key.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn encrypted() -> io::Result<Seal> {
        let mut key = [0; KEY_BYTES];
        sys::files::random(&mut key)?;
        Ok(Seal { key: Some(key), stamps: None })
    }

    /// Readable by whoever reads the disk; with checksums.
    pub fn plain() -> Seal {
        Seal { key: None, stamps: None }
    }

    /// For a file that is kept: with its key, if it is encrypted, and the stamps of its segments, if it is for what lies in
    /// these.
    pub(crate) fn of_kept(key: Option<[u8; KEY_BYTES]>, stamps: Option<Arc<Stamps>>) -> Seal {
        Seal { key, stamps }
    }

    fn nonce(&self, nonce: Nonce) -> [u8; 16] {
        match &self.stamps {
            None => nonce.bytes(),
            Some(stamps) => stamps.nonce(nonce),
        }
    }

    /// The key as words, for processes that share a file.
    pub(crate) fn to_words(&self) -> [u64; 3] {
        let half = |at: usize, key: &[u8; KEY_BYTES]| {
            u64::from_ne_bytes(key[at..at + 8].try_into().expect("eight bytes"))
        };
        match &self.key {
            Some(key) => [1, half(0, key), half(8, key)],
            None => [0; 3],
        }
    }

    /// The other way round.
    pub(crate) fn of_words(words: [u64; 3]) -> Seal {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&words[1].to_ne_bytes());
        key[8..].copy_from_slice(&words[2].to_ne_bytes());
        Seal { key: (words[0] != 0).then_some(key), stamps: None }
    }

    /// Whether objects are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// Bytes that each pack begins with.
    pub(crate) fn head_bytes(&self) -> usize {
        self.stamps.as_ref().map_or(0, |_| HEAD_BYTES)
    }

    /// What each pack begins with.
    pub(crate) fn head(&self, segment: u32, generation: u32) -> Option<[u8; HEAD_BYTES]> {
        self.stamps.as_ref().map(|stamps| stamps.head(segment, generation))
    }

    /// Whether a pack begins as one of the segment does that is there now.
    pub(crate) fn is_headed(&self, segment: u32, generation: u32, pack: &[u8]) -> bool {
        self.head(segment, generation).is_none_or(|head| pack.starts_with(&head))
    }

    /// Bytes behind each object.
    pub(crate) fn tail_bytes(&self) -> usize {
        match self.key {
            Some(_) => TAG_BYTES,
            None => SUM_BYTES,
        }
    }

    /// Seals all of `bytes` but the tail, and writes the tail. `context` is covered too.
    pub(crate) fn seal(&self, nonce: Nonce, context: &[u8], bytes: &mut [u8]) {
        self.seal_with(self.nonce(nonce), context, bytes);
    }

    /// The same with a nonce of the caller's.
    pub(crate) fn seal_with(&self, nonce: [u8; 16], context: &[u8], bytes: &mut [u8]) {
        let (body, tail) = bytes.split_at_mut(bytes.len() - self.tail_bytes());
        match &self.key {
            Some(key) => {
                let cipher = Aegis128L::<TAG_BYTES>::new(key, &nonce);
                tail.copy_from_slice(&cipher.encrypt_in_place(body, context));
            }
            None => tail.copy_from_slice(&checksum(nonce, context, body).to_le_bytes()),
        }
    }

    /// Makes of sealed bytes what they were; answers whether they are what was sealed. If not, they are anything.
    #[must_use]
    pub(crate) fn unseal(&self, nonce: Nonce, context: &[u8], bytes: &mut [u8]) -> bool {
        self.unseal_with(self.nonce(nonce), context, bytes)
    }

    /// The same with a nonce of the caller's.
    #[must_use]
    pub(crate) fn unseal_with(&self, nonce: [u8; 16], context: &[u8], bytes: &mut [u8]) -> bool {
        let Some(split) = bytes.len().checked_sub(self.tail_bytes()) else { return false };
        let (body, tail) = bytes.split_at_mut(split);
        match &self.key {
            Some(key) => {
                let tag: [u8; TAG_BYTES] = (&*tail).try_into().expect("a tag's length");
                let cipher = Aegis128L::<TAG_BYTES>::new(key, &nonce);
                cipher.decrypt_in_place(body, &tag, context).is_ok()
            }
            None => *tail == checksum(nonce, context, body).to_le_bytes(),
        }
    }
}

impl Seal {
    /// Overwrites the key.
    pub(crate) fn wipe(&mut self) {
        if let Some(key) = &mut self.key {
            for byte in key {
                // SAFETY: a byte of this value. Volatile, so that it is done although nobody reads it any more.
                unsafe { std::ptr::write_volatile(byte, 0) };
            }
        }
    }
}

impl Drop for Seal {
    fn drop(&mut self) {
        self.wipe();
    }
}

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Four multiply-and-rotate lanes over words. Every step is a bijection of its lane, so a change within one lane is
/// always seen; others go unseen once in 2^64.
pub(crate) fn checksum(nonce: [u8; 16], context: &[u8], bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let mut lanes = [word(&nonce[..8]), word(&nonce[8..]), bytes.len() as u64, context.len() as u64];
    let mut mix = |lane: usize, word: u64| {
        lanes[lane] = (lanes[lane].rotate_left(29) ^ word).wrapping_mul(MULTIPLIER);
    };
    context.chunks(8).for_each(|bytes| mix(3, word(bytes)));
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        for (lane, bytes) in block.chunks_exact(8).enumerate() {
            mix(lane, u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        }
    }
    for (lane, bytes) in blocks.remainder().chunks(8).enumerate() {
        mix(lane, word(bytes));
    }
    let fold = |sum: u64, lane: u64| (sum.rotate_left(23) ^ lane ^ (lane >> 32)).wrapping_mul(MULTIPLIER);
    lanes.into_iter().fold(1, fold)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Nonce = Nonce { segment: 3, generation: 7, grain: 900, is_directory: false };

    fn both() -> [Seal; 2] {
        [Seal::encrypted().unwrap(), Seal::plain()]
    }

    #[test]
    fn what_is_sealed_comes_back_and_every_flipped_bit_is_seen() {
        for seal in both() {
            for len in [0, 1, 8, 31, 33, 100] {
                let body: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let mut sealed = body.clone();
                sealed.resize(len + seal.tail_bytes(), 0xEE);
                seal.seal(HERE, b"of this", &mut sealed);
                if seal.is_encrypted() && len >= 8 {
                    assert_ne!(sealed[..len], body[..]);
                }
                for bit in 0..sealed.len() * 8 {
                    let mut damaged = sealed.clone();
                    damaged[bit / 8] ^= 1 << (bit % 8);
                    assert!(!seal.unseal(HERE, b"of this", &mut damaged), "bit {bit} of {len} bytes");
                }
                assert!(!seal.unseal(HERE, b"of that", &mut sealed.clone()));
                assert!(seal.unseal(HERE, b"of this", &mut sealed));
                assert_eq!(sealed[..len], body[..]);
            }
        }
    }

    #[test]
    fn another_place_another_generation_and_another_length_are_seen() {
        for seal in both() {
            let mut sealed = vec![5; 64 + seal.tail_bytes()];
            seal.seal(HERE, b"", &mut sealed);
            for other in [
                Nonce { segment: 4, ..HERE },
                Nonce { generation: 6, ..HERE },
                Nonce { grain: 901, ..HERE },
                Nonce { is_directory: true, ..HERE },
            ] {
                assert!(!seal.unseal(other, b"", &mut sealed.clone()));
            }
            for len in 0..sealed.len() {
                assert!(!seal.unseal(HERE, b"", &mut sealed[..len].to_vec()), "{len} bytes");
            }
            assert!(
                !seal.unseal(HERE, b"", &mut vec![0; sealed.len()]),
                "a hole is nothing that was written"
            );
        }
    }

    #[test]
    fn runs_cannot_read_each_other() {
        let [first, _] = both();
        let second = Seal::encrypted().unwrap();
        let mut sealed = vec![5; 80];
        first.seal(HERE, b"", &mut sealed);
        assert!(!second.unseal(HERE, b"", &mut sealed));
    }
}
