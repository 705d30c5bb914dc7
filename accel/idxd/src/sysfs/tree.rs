//! sysfs, or a stand-in for it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

/// Attributes by path, relative to `/sys` and without a leading slash:
/// `bus/dsa/devices/iax1/state`.
pub trait Tree: Send + Sync {
    /// The content of an attribute, without the line end.
    ///
    /// # Errors
    /// Those of the file system; `NotFound` if the kernel lacks the attribute.
    fn read(&self, path: &str) -> io::Result<String>;

    /// Sets an attribute.
    ///
    /// # Errors
    /// The error number with which the kernel refuses the value.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;

    /// Names in a directory, sorted.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;

    /// The target of a symbolic link, or `None`.
    fn link(&self, path: &str) -> Option<String>;

    /// The path to show in messages.
    fn shown(&self, path: &str) -> String {
        format!("/sys/{path}")
    }
}

/// A directory of files that stands for `/sys`.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// The tree below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Files { root: root.into() }
    }

    /// `/sys`.
    pub fn system() -> Self {
        Self::new("/sys")
    }
}

impl Tree for Files {
    fn read(&self, path: &str) -> io::Result<String> {
        let bytes = fs::read(self.root.join(path))?;
        // An attribute is a page at most; other bytes than text are shown lossily.
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_end_matches(['\n', '\0']).to_owned())
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.root.join(path))?;
        // One call: the kernel takes each write as a whole value.
        let written = file.write(value.as_bytes())?;
        if written == value.len() {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::WriteZero,
                format!("only {written} of {} bytes were taken", value.len()),
            ))
        }
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        // Pager threads run this, too.
        let names = sys::directory::names(&self.root.join(directory))?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.root.join(path)).ok()?.to_str()?.to_owned())
    }

    fn shown(&self, path: &str) -> String {
        self.root.join(path).display().to_string()
    }
}
