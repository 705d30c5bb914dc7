//! A file with a name, whose content outlives who wrote it.
//!
//! The log of segments is the same; what is more, and why:
//!
//! - `header`: whose file it is, of which version, with which key; and two *roots*, written in turn
//! - `index`: where each page of the device lies, as objects in the log; the roots name the topmost
//! - `stamps`: what nonces are made of, since generations begin again with each run
//! - `named`: the file by its name, locked; `key`: its key
//! - `open`, `commit`: what is read at the start, and what makes a state durable
//!
//! The index is never changed in place: a *commit* writes what changed of it to the log, waits for
//! the disk, writes a root that names it, and waits again. So what is there after a loss of power
//! is one committed state, whole: nothing of it can be torn, and what does not fit its seal is
//! damage. Nothing that a root names is overwritten or given back before the next root is durable:
//! segments that become empty in between wait for that.
//!
//! A log whose packs are read through at the start, each with a number that orders it, was the
//! other way. It needs records for what is discarded, kept alive for as long as anything older may
//! be found, a rule for which of two torn ends is the newer, and a look at each pack of the file;
//! and what comes after a crash is a mixture of states.

mod commit;
mod header;
mod index;
mod key;
mod named;
mod open;
mod stamps;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crate::seal::Sealer;
use crate::sync::lock;

pub use header::Identity;
pub use index::{Index, IndexPage, INDEX_GROUP, INDEX_PAGES, TOP_GROUP};
pub use key::KeyChoice;
pub use named::NamedFile;
pub use open::{FileError, KeptConfig};
pub(crate) use stamps::{Stamps, HEAD_BYTES};

use header::Root;

/// What a swap file has that is kept.
pub(crate) struct Kept {
    path: PathBuf,
    identity: Identity,
    pub(crate) stamps: Arc<Stamps>,
    /// What roots are sealed with.
    root_seal: Sealer,
    root: Mutex<Latest>,
    /// Segments that nothing lives in any more, but what is durable may name.
    emptied: Mutex<Vec<usize>>,
    /// A sync failed: what is on the disk is not known any more.
    is_broken: AtomicBool,
}

/// The root that is durable, and which of the two it is.
struct Latest {
    root: Root,
    slot: usize,
}

impl Kept {
    /// Bytes of memory that its tables take, and the index.
    pub(crate) fn memory_bytes(&self) -> usize {
        let index_pages = self.identity.device_bytes as usize / (INDEX_PAGES * 4096) + 1;
        // Of each page of the index its place, and a bit whether it changed.
        self.stamps.bytes() + index_pages * 9
    }

    pub(crate) fn let_go_later(&self, segment: usize) {
        lock(&self.emptied).push(segment);
    }
}
