//! nbdkit's settings of a swap file. It is opened before nbdkit daemonizes, so that errors reach
//! stderr and relative paths resolve.

use std::path::PathBuf;

use device::{Config, KeyChoice, SwapDisk};

use crate::settings::Lock;

/// What is said about it.
#[derive(Debug, Default)]
pub struct SwapSettings {
    pub size_bytes: Option<u64>,
    pub directory: Option<PathBuf>,
    pub is_plain: Option<bool>,
    /// A file that is kept.
    pub file: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl SwapSettings {
    /// Checks what can be checked before anything is opened; the error says what is wrong.
    pub fn check(&self, has_ram: bool, lock: Lock) -> Result<(), String> {
        if self.file.is_some() {
            return self.check_kept(has_ram, lock);
        }
        if self.key.is_some() {
            return Err("swap-key= needs swap-file=: which file is it the key of?".into());
        }
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

    fn check_kept(&self, has_ram: bool, lock: Lock) -> Result<(), String> {
        let is_plain = self.is_plain == Some(true);
        let reason = match (lock, self.size_bytes.is_some() || self.directory.is_some()) {
            (Lock::Yes | Lock::Try, _) => {
                "swap-file= keeps a disk with its file systems; lock= is for swap, which means nothing once it is gone"
            }
            (_, true) => "swap-file= keeps all of the disk: swap= and swap-dir= are for a file that is gone at the end",
            _ if !has_ram => "swap-file= needs ram=: without a bound nothing goes to the file before a flush",
            _ if is_plain && self.key.is_some() => "swap-plain=yes and swap-key= are not both possible",
            _ if !is_plain && self.key.is_none() => {
                "swap-file= needs swap-key=FILE, or swap-plain=yes on a disk that is encrypted below"
            }
            _ => return Ok(()),
        };
        Err(reason.into())
    }

    /// Opens the file, if one was asked for.
    pub fn open(&self, config: &Config, lock: Lock) -> Result<Option<SwapDisk>, String> {
        if let Some(file) = &self.file {
            let key = self.key.clone().map_or(KeyChoice::Plain, KeyChoice::File);
            let disk =
                SwapDisk::open_kept(file, key, config).map_err(|error| format!("swap-file=: {error}"))?;
            return Ok(Some(disk));
        }
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
