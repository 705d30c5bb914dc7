//! Errors of a start, and texts without heap memory.

use sys::userfaultfd::OpenError;

/// A pager could not be created.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    /// No userfaultfd.
    Userfaultfd(#[from] OpenError),
    /// No memory, or no /proc.
    #[error("{what}: {source}")]
    System {
        /// The failed action.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// Text of limited length without heap memory.
pub struct FixedText {
    bytes: [u8; 400],
    len: usize,
}

impl FixedText {
    /// Formats `what`, cut at the end if too long.
    pub fn new(what: std::fmt::Arguments<'_>) -> Self {
        let mut text = FixedText { bytes: [0; 400], len: 0 };
        let _ = std::fmt::Write::write_fmt(&mut text, what);
        text
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or("(message cut inside a character)")
    }
}

impl std::fmt::Write for FixedText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = (self.bytes.len() - self.len).min(text.len());
        self.bytes[self.len..self.len + room].copy_from_slice(&text.as_bytes()[..room]);
        self.len += room;
        Ok(())
    }
}
