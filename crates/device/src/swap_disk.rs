//! A server's swap file. It is opened before daemonizing, so that errors reach stderr and relative
//! paths resolve. The process that serves makes its threads later.

use std::io;
use std::path::Path;
use std::sync::Arc;

use swapfile::{Caching, Config, Disk, OpenError, Seal, Space, SwapFile};
use sys::flusher;

/// The open file, before its I/O threads start.
pub struct SwapDisk {
    disk: Arc<Disk>,
    segments: usize,
    is_plain: bool,
}

impl SwapDisk {
    /// Default directory.
    pub const DIRECTORY: &str = "/var/tmp";
    /// Least size of a swap file: two segments are written to at a time, and one is left for
    /// cleaning.
    pub const SIZE_BYTES_MIN: u64 = 16 << 20;
    /// Bytes of heap that its use takes beyond its own memory: cleaning, and concurrent reads.
    pub const HEAP_BYTES: usize = 16 << 20;

    /// Opens an unnamed file for at most `size_bytes`. A server that is swapped on must not wait
    /// for memory, as the page cache does; it checks that the file [is direct](Self::is_direct).
    ///
    /// # Errors
    /// The reason why the directory cannot hold the file.
    pub fn open(directory: Option<&Path>, size_bytes: u64, is_plain: bool) -> Result<SwapDisk, String> {
        let directory = directory.unwrap_or(Path::new(Self::DIRECTORY));
        if size_bytes < Self::SIZE_BYTES_MIN {
            return Err(format!(
                "{size_bytes} bytes of swap file: the least that works is {} MiB",
                Self::SIZE_BYTES_MIN >> 20
            ));
        }
        let disk = Disk::open(directory, Caching::Direct)
            .and_then(|disk| swapfile::segments_of(size_bytes).map(|segments| (disk, segments)));
        let (disk, segments) = disk.map_err(|error| error.to_string())?;
        Ok(SwapDisk { disk: Arc::new(disk), segments, is_plain })
    }

    /// Whether data bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }

    /// Starts the swap file. Its I/O threads are children of the calling thread and inherit its
    /// mark.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn start(self, is_swapped_on: bool) -> Result<Arc<SwapFile>, OpenError> {
        let config = Config::default();
        let spawn = |work: Box<dyn FnOnce() + Send>| -> io::Result<()> {
            let work = move || {
                if is_swapped_on {
                    flusher::touch_stack();
                }
                work();
            };
            std::thread::Builder::new().name("swap-io".into()).spawn(work).map(drop)
        };
        let engine = swapfile::engine_on(self.disk, &config, &spawn)?;
        let seal = if self.is_plain { Seal::Plain } else { Seal::Encrypted };
        let space = Arc::new(Space::private(self.segments));
        SwapFile::with(engine, seal, space, std::process::id(), config.keep_free_percent)
    }
}
