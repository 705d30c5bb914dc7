//! A file by its name: opened past the page cache where that can be had, and locked against a
//! second server.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::files;
use sys::owned::{self, Access};

use super::{FileError, KeptConfig};
use crate::disk::Disk;
use crate::{Buffer, Engine, SwapFile, Threads, BLOCK_BYTES};

/// The open file, which nothing moves bytes of yet. The lock lasts as long as it or its disk does.
pub struct NamedFile {
    path: PathBuf,
    disk: Arc<Disk>,
    is_new: bool,
}

impl NamedFile {
    /// Opens the file, or makes it, for this user to read and write only. One that others have a
    /// right to is refused.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn open(path: &Path) -> Result<NamedFile, FileError> {
        let failed = |error| FileError::Open { path: path.into(), error };
        let (file, is_direct) = open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FileError::InUse { path: path.into() }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(FileError::Foreign { path: path.into() });
        }
        if let Some(kind) = files::memory_file_system(&file).map_err(failed)? {
            return Err(FileError::InMemory { path: path.into(), kind });
        }
        Ok(NamedFile {
            path: path.into(),
            is_new: about.len() == 0,
            disk: Arc::new(Disk::of(file, is_direct)),
        })
    }

    /// The disk, for an engine.
    pub fn disk(&self) -> Arc<Disk> {
        self.disk.clone()
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether data go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }

    /// Makes the swap file in it if there is none, and checks whether it fits if there is: nothing
    /// that is there is changed.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn prepare(&mut self, config: &KeptConfig) -> Result<(), FileError> {
        let failed = |error| FileError::Open { path: self.path.clone(), error };
        let engine = Threads::new(self.disk(), 0, &|_| Ok(())).map_err(failed)?;
        if self.is_new {
            sync_directory(&self.path).map_err(failed)?;
        }
        super::open::prepare(&engine, &self.path, self.is_new, config)?;
        self.is_new = false;
        Ok(())
    }

    /// The swap file in it, by an engine on its disk.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn swap_file(
        &self,
        engine: Arc<dyn Engine>,
        config: &KeptConfig,
    ) -> Result<Arc<SwapFile>, FileError> {
        let file = SwapFile::open_kept(engine, &self.path, self.is_new, config)?;
        // So that any segment can be read whole. Only now: by its length a file is known that was
        // never begun.
        let failed = |error| FileError::Open { path: self.path.clone(), error };
        if self.disk.file.metadata().map_err(failed)?.len() < file.size_bytes() {
            self.disk.file.set_len(file.size_bytes()).map_err(failed)?;
        }
        Ok(file)
    }
}

/// Opens the file past the page cache if its file system does that, and says whether.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let direct = owned::open(path, Access::ReadWrite, files::DIRECT_FLAG).and_then(|file| {
        // Some file systems take the flag and refuse the transfers.
        let mut block = Buffer::new(BLOCK_BYTES);
        file.read_at(&mut block, 0).map(|_| file)
    });
    match direct {
        Ok(file) => Ok((file, true)),
        Err(error) if crate::disk::is_about_caching(&error) => {
            Ok((owned::open(path, Access::ReadWrite, 0)?, false))
        }
        Err(error) => Err(error),
    }
}

/// Has a new file's name be durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
