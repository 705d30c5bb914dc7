//! The file, as the engine uses it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sys::files::{self, Caching};

use crate::engine::{Kind, Transfer};
use crate::{Buffer, OpenError, BLOCK_BYTES};

/// An open unnamed file, and how it is used.
pub struct Disk {
    pub(crate) file: File,
    pub(crate) is_direct: bool,
}

impl Disk {
    /// Opens a file in `directory`, past the page cache if `wanted` and possible.
    ///
    /// # Errors
    /// [`OpenError`]: the directory is in memory, or no file can be created there.
    pub fn open(directory: &Path, wanted: Caching) -> Result<Disk, OpenError> {
        let failed = |error| OpenError::Open { directory: PathBuf::from(directory), error };
        let disk = match Disk::open_as(directory, wanted) {
            Err(error) if wanted == Caching::Direct && is_about_caching(&error) => {
                Disk::open_as(directory, Caching::Cached)
            }
            other => other,
        };
        let disk = disk.map_err(failed)?;
        match files::memory_file_system(&disk.file).map_err(failed)? {
            None => Ok(disk),
            Some(kind) => Err(OpenError::InMemory { directory: PathBuf::from(directory), kind }),
        }
    }

    fn open_as(directory: &Path, caching: Caching) -> io::Result<Disk> {
        let file = files::open_unnamed(directory, caching)?;
        if caching == Caching::Direct {
            // Some file systems accept the flag and refuse the transfers.
            let mut block = Buffer::new(BLOCK_BYTES);
            block.fill(0xA5);
            file.write_all_at(&block, 0)?;
            block.fill(0);
            file.read_exact_at(&mut block, 0)?;
            if block.iter().any(|&byte| byte != 0xA5) {
                return Err(io::Error::from_raw_os_error(22));
            }
            file.set_len(0)?;
        }
        Ok(Disk { file, is_direct: caching == Caching::Direct })
    }

    pub(crate) fn of(file: File, is_direct: bool) -> Disk {
        Disk { file, is_direct }
    }

    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The file's descriptor in this process.
    pub fn descriptor(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.file)
    }

    /// Moves the bytes, and drops them from the page cache: a write is done only when it is on
    /// disk.
    pub(crate) fn run(&self, transfer: &mut Transfer) -> io::Result<usize> {
        let (start, end) = (transfer.start, transfer.end);
        let moved = match transfer.kind {
            Kind::Read => self.file.read_at(&mut transfer.buffer[start..end], transfer.offset)?,
            Kind::Write => self.file.write_at(&transfer.buffer[start..end], transfer.offset)?,
        };
        if !self.is_direct && moved > 0 {
            match transfer.kind {
                Kind::Read => files::forget(&self.file, transfer.offset, moved as u64),
                Kind::Write => files::settle(&self.file, transfer.offset, moved as u64)?,
            }
        }
        Ok(moved)
    }
}

/// EINVAL and EOPNOTSUPP, which some file systems return for the first transfer.
fn is_about_caching(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(22)
}
