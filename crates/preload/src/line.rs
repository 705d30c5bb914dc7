//! Short texts, made without the heap.

use core::ffi::CStr;
use core::fmt::{Arguments, Result, Write};

use crate::scratch::Plain;

/// Up to `BYTES` − 1 bytes, and a terminating zero.
#[derive(Clone, Copy)]
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: usize,
}

/// Enough for a path in /proc, or for two numbers.
pub type Line = Text<64>;

// SAFETY: numbers.
unsafe impl<const BYTES: usize> Plain for Text<BYTES> {}

impl<const BYTES: usize> Text<BYTES> {
    pub const EMPTY: Self = Text { bytes: [0; BYTES], len: 0 };

    /// Formats a text. Longer text is truncated.
    pub fn new(what: Arguments<'_>) -> Self {
        let mut text = Self::EMPTY;
        let _ = text.write_fmt(what);
        text
    }

    /// Concatenates the parts. Returns `None` if they do not fit.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut text = Self::EMPTY;
        text.set(parts).map(|()| text)
    }

    /// Replaces the text by the concatenated parts. Returns `None` if only the first of them fit.
    pub fn set<'a>(&mut self, parts: impl IntoIterator<Item = &'a [u8]>) -> Option<()> {
        self.len = 0;
        parts.into_iter().try_for_each(|part| self.push(part))
    }

    /// Adds a part. Returns `None` if it does not fit.
    pub fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self.len + part.len();
        *self.bytes.get_mut(end)? = 0;
        self.bytes[self.len..end].copy_from_slice(part);
        self.len = end;
        Some(())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("a zero is behind the text")
    }
}

impl<const BYTES: usize> Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> Result {
        self.push(text.as_bytes()).ok_or(core::fmt::Error)
    }
}
