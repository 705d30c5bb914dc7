//! nbdkit's settings of a swap file. The file is opened before nbdkit daemonizes, so that errors
//! reach stderr and relative paths resolve.

use std::path::PathBuf;

use device::SwapDisk;

use crate::settings::Lock;

#[derive(Debug, Default)]
pub struct SwapSettings {
    pub size_bytes: Option<u64>,
    pub directory: Option<PathBuf>,
    pub is_plain: Option<bool>,
}

impl SwapSettings {
    /// Checks the settings before anything is opened; the error is a message for the user.
    pub fn check(&self, has_ram: bool) -> Result<(), String> {
        match self.size_bytes {
            None if self.directory.is_some() => {
                Err("swap-dir= needs swap=: how large may the file be?".into())
            }
            None if self.is_plain.is_some() => {
                Err("swap-plain= needs swap=: how large may the file be?".into())
            }
            Some(_) if !has_ram => {
                Err("swap= needs ram=: without a bound nothing goes to the swap file".into())
            }
            Some(bytes) if bytes < SwapDisk::SIZE_BYTES_MIN => {
                Err(format!("swap={bytes}: the least that works is {} MiB", SwapDisk::SIZE_BYTES_MIN >> 20))
            }
            _ => Ok(()),
        }
    }

    /// Opens the file, if the settings ask for one.
    pub fn open(&self, lock: Lock) -> Result<Option<SwapDisk>, String> {
        let Some(size_bytes) = self.size_bytes else { return Ok(None) };
        let is_plain = self.is_plain == Some(true);
        let disk = SwapDisk::open(self.directory.as_deref(), size_bytes, is_plain)
            .map_err(|error| format!("swap=, swap-dir=: {error}"))?;
        if lock == Lock::Yes && !disk.is_direct() {
            let why = "the swap file's file system writes by the page cache alone, which takes memory";
            return Err(format!("lock=yes: {why}; lock=try continues without"));
        }
        Ok(Some(disk))
    }
}
