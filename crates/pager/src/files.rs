//! Files of /proc about this process.

use address_space::StartError;
use sys::procfs::ProcFile;

/// Opened by the control thread: the files become empty when the thread that opened them ends.
pub(crate) struct ProcFiles {
    pub statm: ProcFile,
    pub maps: ProcFile,
}

impl ProcFiles {
    /// # Errors
    /// [`StartError::System`] names the file that cannot be opened.
    pub fn open() -> Result<Self, StartError> {
        let open =
            |name, what| ProcFile::open_own(name).map_err(|source| StartError::System { what, source });
        Ok(ProcFiles {
            statm: open(c"statm", "/proc/thread-self/statm")?,
            maps: open(c"maps", "/proc/thread-self/maps")?,
        })
    }
}
