//! Seals make an object readable by its owner alone, and damage to it visible.
//!
//! Encrypted (the default): AEGIS-128L. Each taken segment gets a random key, which exists only in
//! the memory of the process that took it, and of children that it forks while it has the segment.
//! The nonce is the place in the segment. Each place is written once per key, so no nonce is used
//! twice. Bytes of an earlier use, or from elsewhere, have another key or nonce and are refused. No
//! input is writable by other processes. Plain: a 64-bit checksum over the same; it finds
//! accidents, not malice.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use aegis::aegis128l::Aegis128L;

use crate::secret::wipe;

const KEY_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const SUM_BYTES: usize = 8;

/// Kind of seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// Encrypted and authenticated.
    Encrypted,
    /// Readable by everyone who reads the disk; with checksums.
    Plain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonce {
    pub(crate) segment: u32,
    pub(crate) grain: u32,
    pub(crate) is_directory: bool,
}

impl Nonce {
    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let words = [self.segment, self.grain, u32::from(self.is_directory)];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The key of a segment, as two words. Zero means no key.
#[derive(Default)]
struct SegmentKey([AtomicU64; 2]);

impl SegmentKey {
    // Relaxed: the key precedes its segment's first object, and locks pass places between threads.
    fn set(&self, key: &[u8; KEY_BYTES]) {
        for (word, bytes) in self.0.iter().zip(key.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    fn get(&self) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        for (word, bytes) in self.0.iter().zip(key.as_chunks_mut::<8>().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        key
    }
}

impl Drop for SegmentKey {
    fn drop(&mut self) {
        self.set(&[0; KEY_BYTES]);
        // Dropped memory counts as unread: this keeps the stores.
        std::hint::black_box(&self.0);
    }
}

pub(crate) struct Sealer {
    is_encrypted: bool,
    keys: Box<[SegmentKey]>,
}

impl Sealer {
    pub(crate) fn new(seal: Seal, segments: usize) -> Sealer {
        let keys = (0..segments).map(|_| SegmentKey::default()).collect();
        Sealer { is_encrypted: seal == Seal::Encrypted, keys }
    }

    /// Gives a newly taken segment a key unrelated to earlier ones. Fails without random bytes.
    pub(crate) fn renew(&self, segment: usize) -> io::Result<()> {
        let mut key = [0; KEY_BYTES];
        let made = sys::files::random(&mut key);
        if made.is_ok() {
            self.keys[segment].set(&key);
        }
        // SAFETY: bytes.
        unsafe { wipe(&mut key) };
        made
    }

    /// Drops the key: this process has no object in the segment any more.
    pub(crate) fn forget(&self, segment: usize) {
        self.keys[segment].set(&[0; KEY_BYTES]);
    }

    /// The key of a segment with all bits inverted.
    #[cfg(test)]
    pub(crate) fn inverted_key(&self, segment: usize) -> Vec<u8> {
        let words = self.keys[segment].0.iter().map(|word| !word.load(Ordering::Relaxed));
        words.flat_map(u64::to_ne_bytes).collect()
    }

    fn key(&self, nonce: Nonce) -> Option<[u8; KEY_BYTES]> {
        let key = self.keys[nonce.segment as usize].get();
        (key != [0; KEY_BYTES]).then_some(key)
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.keys)
    }

    /// Bytes of the seal behind each object.
    pub(crate) fn tail_bytes(&self) -> usize {
        if self.is_encrypted {
            TAG_BYTES
        } else {
            SUM_BYTES
        }
    }

    /// Seals all of `bytes` but the tail, and writes the tail, which covers `context` too. Panics
    /// if the segment was not taken.
    pub(crate) fn seal(&self, nonce: Nonce, context: &[u8], bytes: &mut [u8]) {
        let mut key = self.key(nonce).expect("a segment that is written to has a key");
        let nonce = nonce.bytes();
        let (body, tail) = bytes.split_at_mut(bytes.len() - self.tail_bytes());
        if self.is_encrypted {
            let mut cipher = Aegis128L::<TAG_BYTES>::new(&key, &nonce);
            tail.copy_from_slice(&cipher.encrypt_in_place(body, context));
            // SAFETY: a key and a nonce, which are bytes.
            unsafe { wipe(&mut cipher) };
        } else {
            tail.copy_from_slice(&checksum(mixed(&key, nonce), context, body).to_le_bytes());
        }
        // SAFETY: bytes.
        unsafe { wipe(&mut key) };
    }

    /// Verifies sealed bytes and restores the original; on false their content is unspecified.
    #[must_use]
    pub(crate) fn unseal(&self, nonce: Nonce, context: &[u8], bytes: &mut [u8]) -> bool {
        let Some(mut key) = self.key(nonce) else { return false };
        let is_whole = self.unseal_by(&key, nonce.bytes(), context, bytes);
        // SAFETY: bytes.
        unsafe { wipe(&mut key) };
        is_whole
    }

    fn unseal_by(&self, key: &[u8; KEY_BYTES], nonce: [u8; 16], context: &[u8], bytes: &mut [u8]) -> bool {
        let Some(split) = bytes.len().checked_sub(self.tail_bytes()) else { return false };
        let (body, tail) = bytes.split_at_mut(split);
        if !self.is_encrypted {
            return *tail == checksum(mixed(key, nonce), context, body).to_le_bytes();
        }
        let tag: [u8; TAG_BYTES] = (&*tail).try_into().expect("a tag's length");
        let mut cipher = Aegis128L::<TAG_BYTES>::new(key, &nonce);
        let is_whole = cipher.decrypt_in_place(body, &tag, context).is_ok();
        // SAFETY: a key and a nonce, which are bytes.
        unsafe { wipe(&mut cipher) };
        is_whole
    }
}

/// Initial value of a checksum: the place, and the segment's random bytes.
fn mixed(key: &[u8; KEY_BYTES], mut nonce: [u8; 16]) -> [u8; 16] {
    nonce.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
    nonce
}

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Four multiply-and-rotate lanes over words. Every step is a bijection of its lane, so a change
/// within one lane is always detected; others are missed once in 2^64.
fn checksum(nonce: [u8; 16], context: &[u8], bytes: &[u8]) -> u64 {
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

    const HERE: Nonce = Nonce { segment: 3, grain: 900, is_directory: false };

    fn both() -> [Sealer; 2] {
        [Seal::Encrypted, Seal::Plain].map(|seal| {
            let sealer = Sealer::new(seal, 8);
            (0..8).for_each(|segment| sealer.renew(segment).unwrap());
            sealer
        })
    }

    #[test]
    fn sealed_objects_come_back_and_every_flipped_bit_is_seen() {
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
    fn another_place_and_another_length_are_seen() {
        for seal in both() {
            let mut sealed = vec![5; 64 + seal.tail_bytes()];
            seal.seal(HERE, b"", &mut sealed);
            for other in [
                Nonce { segment: 4, ..HERE },
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
    fn objects_sealed_before_a_segments_reuse_are_refused() {
        for seal in both() {
            let mut sealed = vec![5; 64 + seal.tail_bytes()];
            seal.seal(HERE, b"", &mut sealed);
            seal.renew(HERE.segment as usize).unwrap();
            assert!(!seal.unseal(HERE, b"", &mut sealed.clone()));
            let mut resealed = vec![5; 64 + seal.tail_bytes()];
            seal.seal(HERE, b"", &mut resealed);
            assert_ne!(resealed, sealed);
            seal.forget(HERE.segment as usize);
            assert!(!seal.unseal(HERE, b"", &mut resealed), "no key, no object");
        }
    }

    #[test]
    fn processes_cannot_read_each_other() {
        let ([first, _], [second, _]) = (both(), both());
        let mut sealed = vec![5; 80];
        first.seal(HERE, b"", &mut sealed);
        assert!(!second.unseal(HERE, b"", &mut sealed));
    }
}
