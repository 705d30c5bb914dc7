//! A short text, made without the heap.

use core::ffi::CStr;
use core::fmt::{Arguments, Result, Write};

const BYTES: usize = 64;

/// Up to 63 bytes; longer text is truncated.
pub struct Line {
    text: [u8; BYTES],
    len: usize,
}

impl Line {
    pub fn new(what: Arguments<'_>) -> Self {
        let mut line = Line { text: [0; BYTES], len: 0 };
        let _ = line.write_fmt(what);
        line
    }

    pub fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.text).expect("the last byte is zero")
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> Result {
        let room = self.text[..BYTES - 1].get_mut(self.len..self.len + text.len()).ok_or(core::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
