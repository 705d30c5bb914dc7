//! Text in shared memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// Text of up to `8 * WORDS - 1` bytes, written once, before any other thread reads it. It ends at
/// the first zero byte.
#[repr(C)]
pub(crate) struct Text<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Text<WORDS> {
    pub(crate) const LEN_MAX: usize = 8 * WORDS - 1;

    /// Writes the text. Returns false, and writes nothing, if it is too long.
    pub(crate) fn set(&self, text: &str) -> bool {
        if text.len() > Self::LEN_MAX {
            return false;
        }
        for (number, word) in self.0.iter().enumerate() {
            let mut bytes = [0; 8];
            let part = text.as_bytes().get(8 * number..).unwrap_or_default();
            let len = part.len().min(8);
            bytes[..len].copy_from_slice(&part[..len]);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        true
    }

    pub(crate) fn get(&self) -> String {
        let bytes = self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_returns_or_is_refused_whole() {
        let text: Text<2> = Text([const { AtomicU64::new(u64::MAX) }; 2]);
        for wanted in ["", "eight b.", "fifteen bytes.."] {
            assert!(text.set(wanted));
            assert_eq!(text.get(), wanted);
        }
        assert!(!text.set("of sixteen bytes"));
        assert_eq!(text.get(), "fifteen bytes..");
    }
}
