//! The swap file that the device is given: opened before nbdkit goes to the background, where directories may be others and
//! nobody reads what is said; its threads are made after that.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use swapfile::{Caching, Config, Disk, EngineChoice, OpenError, Seal, Space, SwapFile};
use sys::flusher;

use crate::settings::Lock;

/// Where it lies unless told.
const DIRECTORY: &str = "/var/tmp";
/// The least that a swap file works with: two segments are written to at a time, and one is left for cleaning.
const SIZE_BYTES_MIN: u64 = 16 << 20;

/// What is said about it.
#[derive(Debug, Default)]
pub struct SwapSettings {
    pub size_bytes: Option<u64>,
    pub directory: Option<PathBuf>,
    pub is_plain: Option<bool>,
}

impl SwapSettings {
    /// Checks what can be checked before anything is opened; the error says what is wrong.
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
            Some(bytes) if bytes < SIZE_BYTES_MIN => {
                Err(format!("swap={bytes}: the least that works is {} MiB", SIZE_BYTES_MIN >> 20))
            }
            _ => Ok(()),
        }
    }

    /// Opens the file, if one was asked for. What is swapped on must not wait for memory, as the page cache does: there the
    /// file must do without.
    pub fn open(&self, lock: Lock) -> Result<Option<SwapDisk>, String> {
        let Some(size_bytes) = self.size_bytes else { return Ok(None) };
        let directory = self.directory.as_deref().unwrap_or(Path::new(DIRECTORY));
        let disk = Disk::open(directory, Caching::Direct)
            .and_then(|disk| swapfile::segments_of(size_bytes).map(|segments| (disk, segments)));
        let (disk, segments) = disk.map_err(|error| format!("swap=, swap-dir=: {error}"))?;
        if lock == Lock::Yes && !disk.is_direct() {
            return Err(format!(
                "lock=yes: the file system of {} writes by the page cache alone, which takes memory; lock=try goes on so",
                directory.display()
            ));
        }
        Ok(Some(SwapDisk { disk: Arc::new(disk), segments, is_plain: self.is_plain == Some(true) }))
    }
}

/// The open file, which nothing moves bytes of yet.
pub struct SwapDisk {
    disk: Arc<Disk>,
    segments: usize,
    is_plain: bool,
}

impl SwapDisk {
    /// Bytes of heap that its use takes beyond its own memory: cleaning, and what many threads read at once.
    pub const HEAP_BYTES: usize = 16 << 20;

    /// Whether data go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }

    /// The swap file. Threads that move its bytes are children of this one, and inherit its mark; rings, whose memory is the
    /// kernel's, are for servers that others do not swap on.
    pub fn start(self, lock: Lock) -> Result<Arc<SwapFile>, OpenError> {
        let engine = if lock == Lock::No { EngineChoice::Auto } else { EngineChoice::Threads };
        let config = Config { engine, ..Config::default() };
        let spawn = |work: Box<dyn FnOnce() + Send>| -> io::Result<()> {
            let work = move || {
                if lock != Lock::No {
                    flusher::touch_stack();
                }
                work();
            };
            std::thread::Builder::new().name("swap-io".into()).spawn(work).map(drop)
        };
        let engine = swapfile::engine_on(self.disk, &config, &spawn)?;
        let seal = if self.is_plain { Seal::plain() } else { Seal::encrypted().map_err(OpenError::Key)? };
        let space = Arc::new(Space::private(self.segments));
        SwapFile::with(engine, seal, space, std::process::id(), config.keep_free_percent)
    }
}
