//! Loading objects from the swap file.

use acomp::Object;
use swapfile::{Location, Objects, READ_MAX};

use crate::config::LoadError;
use crate::group::Freed;
use crate::load::Chunk;
use crate::Zswap;

/// The objects read for a chunk of pages.
pub(crate) struct DiskRead<'a> {
    objects: Objects<'a>,
    places: Vec<Location>,
    /// Each page's object, by the page's index in the chunk.
    object_of: [u8; READ_MAX],
}

impl DiskRead<'_> {
    pub(crate) fn object(&self, index: usize) -> &[u8] {
        self.objects.get(self.object_of[index] as usize)
    }
}

impl Zswap {
    /// Reads the chunk's objects that are in the swap file, all at once. Its pages are pinned.
    pub(crate) fn read_disk(&self, chunk: &Chunk) -> Result<Option<DiskRead<'_>>, LoadError> {
        let mut places: Vec<Location> = Vec::new();
        let mut object_of = [0; READ_MAX];
        let mut first_page = [0; READ_MAX];
        for (index, entry) in chunk.on_disk() {
            let known = places.iter().position(|place| *place == entry.place());
            let object = known.unwrap_or(places.len());
            if known.is_none() {
                first_page[object] = index;
                places.push(entry.place());
            }
            object_of[index] = object as u8;
        }
        if places.is_empty() {
            return Ok(None);
        }
        let file = self.config.swap.as_ref().expect("what is on disk is in the swap file");
        match file.read(&places) {
            Ok(objects) => Ok(Some(DiskRead { objects, places, object_of })),
            Err(error) => {
                self.events.disk_load_fail.add(1);
                let index = first_page[error.index];
                Err(LoadError::Disk { index, offset: error.offset, fault: error.fault })
            }
        }
    }

    /// Tells algorithms with accounting about objects that leave the swap file and were just read.
    pub(crate) fn forget_read(&self, read: &DiskRead<'_>, freed: &Freed) {
        for entry in freed.on_disk() {
            let pool = self.pools.of_objects(entry.pool());
            let is_raw = entry.place().len() == entry.pages() * acomp::PAGE_SIZE;
            if !pool.keeps_account || is_raw {
                continue;
            }
            if let Some(object) = read.places.iter().position(|place| *place == entry.place()) {
                pool.algorithm.forget(Object::whole(read.objects.get(object)), entry.pages());
            }
        }
    }
}
