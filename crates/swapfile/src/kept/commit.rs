//! What makes a state durable: the log, then a root that names it.

use std::io;
use std::sync::atomic::Ordering;

use super::header::{Identity, ROOTS_AT};
use super::open::{encoded, full_segments, write_at};
use super::{Index, Kept, Latest};
use crate::sync::lock;
use crate::{SwapFile, WriteError};

/// Free segments beyond what a device's content takes, at which a commit is wanted.
const SPARE_SEGMENTS: u64 = 8;

impl SwapFile {
    /// Whose file it is, if it is one that is kept.
    pub fn identity(&self) -> Option<&Identity> {
        self.kept.as_ref().map(|kept| &kept.identity)
    }

    /// Whether a commit should come soon: as long as there is room for all of the device there is
    /// room for a commit.
    pub fn wants_commit(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| {
            let free = self.space().segments() as u64 - self.space().in_use();
            let is_tight = free < full_segments(kept.identity.device_bytes) + SPARE_SEGMENTS;
            is_tight && !lock(&kept.emptied).is_empty()
        })
    }

    /// Begins a commit: the segments that are empty by now. The changes that emptied them are noted
    /// already.
    ///
    /// # Panics
    /// When the file is not one that is kept.
    pub fn begin_commit(&self) -> Vec<usize> {
        std::mem::take(&mut *lock(&self.kept().emptied))
    }

    /// The commit failed: the segments stay.
    pub fn abandon_commit(&self, emptied: Vec<usize>) {
        lock(&self.kept().emptied).extend(emptied);
    }

    /// Nothing that is durable names these segments: they can be used again.
    pub fn release_emptied(&self, emptied: Vec<usize>) {
        emptied.into_iter().for_each(|segment| self.space().let_go(self.row(), segment));
    }

    /// Makes durable all that was written, and the index that names it.
    ///
    /// # Errors
    /// [`WriteError::Io`]; the state that was durable before still is. After a sync that failed no
    /// later commit succeeds: what the disk has is not known.
    pub fn end_commit(&self, index: &Index) -> Result<(), WriteError> {
        let kept = self.kept();
        let failed = |error| WriteError::Io { offset: ROOTS_AT[0], error };
        let mut latest = lock(&kept.root);
        if kept.is_broken.load(Ordering::Relaxed) {
            return Err(failed(io::Error::from_raw_os_error(5)));
        }
        self.sync(kept).map_err(failed)?;
        let mut root = latest.root.clone();
        root.commit += 1;
        root.tops.copy_from_slice(&index.tops);
        let slot = 1 - latest.slot;
        // This number is used up even if the commit fails.
        latest.root.commit = root.commit;
        let buffer = encoded(&root, &kept.identity, &kept.root_seal).map_err(failed)?;
        write_at(&*self.engine(), ROOTS_AT[slot], buffer).map_err(failed)?;
        self.sync(kept).map_err(failed)?;
        *latest = Latest { root, slot };
        Ok(())
    }

    fn kept(&self) -> &Kept {
        self.kept.as_ref().expect("a file that is kept")
    }

    fn sync(&self, kept: &Kept) -> io::Result<()> {
        self.engine().sync().inspect_err(|_| kept.is_broken.store(true, Ordering::Relaxed))
    }
}
