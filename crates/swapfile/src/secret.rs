//! Keys in memory: they are wiped after use.

/// Overwrites a value with zeroes, although nothing reads it afterwards.
///
/// # Safety
/// All-zero bytes are a valid `T`.
pub(crate) unsafe fn wipe<T: Copy>(value: &mut T) {
    // SAFETY: the caller's promise; a reference is a valid place. Volatile writes are not elided.
    unsafe { std::ptr::write_volatile(value, std::mem::zeroed()) };
}

#[cfg(test)]
mod tests {
    use std::fs::{read_to_string, File};
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::seal::{Nonce, Sealer};
    use crate::Seal;

    /// Counts occurrences in this process's memory of bytes that are given inverted, so that the
    /// argument itself does not count.
    fn occurrences(inverted: &[u8]) -> usize {
        const PART: usize = 1 << 16;
        let memory = File::open("/proc/self/mem").unwrap();
        let mut part = vec![0u8; PART + inverted.len()];
        let mut count = 0;
        for line in read_to_string("/proc/self/maps").unwrap().lines() {
            let (range, rest) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
            if !rest.starts_with("rw") {
                continue;
            }
            for at in (start..end).step_by(PART) {
                // The scan reads this buffer too, so it must not keep a copy of an earlier part.
                part.fill(0);
                let len = part.len().min(end - at);
                let len = memory.read_at(&mut part[..len], at as u64).unwrap_or(0);
                let begins = |bytes: &&[u8]| bytes.iter().zip(inverted).all(|(byte, other)| *byte == !other);
                count += part[..len].windows(inverted.len()).take(PART).filter(begins).count();
            }
        }
        part.fill(0);
        count
    }

    #[test]
    fn a_wiped_value_is_zero() {
        let mut secret = [7u8; 32];
        // SAFETY: bytes.
        unsafe { wipe(&mut secret) };
        assert_eq!(secret, [0; 32]);
    }

    #[test]
    fn keys_of_segments_leave_nothing_behind() {
        let sealer = Sealer::new(Seal::Encrypted, 4);
        let mut keys = Vec::new();
        for segment in 0..4 {
            sealer.renew(segment).unwrap();
            let nonce = Nonce { segment: segment as u32, grain: 7, is_directory: false };
            let mut bytes = vec![segment as u8; 4112];
            sealer.seal(nonce, b"", &mut bytes);
            assert!(sealer.unseal(nonce, b"", &mut bytes));
            keys.push(sealer.inverted_key(segment));
        }
        assert!(occurrences(&keys[0]) >= 1, "it is found where it is");
        sealer.forget(2);
        assert_eq!(occurrences(&keys[2]), 0, "a segment was let go");
        drop(sealer);
        keys.iter().for_each(|key| assert_eq!(occurrences(key), 0));
    }
}
