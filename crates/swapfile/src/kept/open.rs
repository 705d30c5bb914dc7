//! Opening a file that is kept: what is read of it, and what is refused.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::header::{Found, Identity, Root, HEADERS_AT, ROOTS_AT, TOPS_MAX, VERSION};
use super::index::{Index, IndexPage, INDEX_PAGES, TOP_BYTES, TOP_PAGES};
use super::key::{KeyChoice, Master};
use super::stamps::Head;
use super::{Kept, Latest, Stamps};
use crate::engine::{continued, Engine, Kind, Outcome, Transfer};
use crate::place::{grains, GRAIN_BYTES, SEGMENTS_MAX, SEGMENT_BYTES};
use crate::read::READ_MAX;
use crate::seal::Sealer;
use crate::sync::lock;
use crate::{Buffer, OpenError, Place, ReadError, ReadFault, Space, SwapFile, BLOCK_BYTES};

const PAGE_BYTES: u64 = 4096;
/// Segments beyond what a device's content takes at most.
const SPARE_SEGMENTS: u64 = 16;
/// The file can have this many times a device's content: what is durable, what replaces it, and
/// what is dead of both.
const TIMES: u64 = 3;
/// Percent of the disk that stay free.
const KEEP_FREE_PERCENT: u8 = 5;

/// What a file is kept for. All but the key is noted in it, and must be the same the next time.
#[derive(Debug, Clone)]
pub struct KeptConfig {
    /// Bytes of the device, whole pages of 4096.
    pub device_bytes: u64,
    /// Bytes compressed as one.
    pub unit_bytes: u32,
    /// The compressor's name.
    pub compressor: String,
    /// What it is sealed with.
    pub key: KeyChoice,
}

/// A file that is kept could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be had.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another server serves it.
    #[error("{} is in use by another server", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It would be lost with the machine's memory.
    #[error("{} lies in memory ({kind}), where nothing is kept: name a file on a disk", path.display())]
    InMemory {
        /// The file.
        path: PathBuf,
        /// Its file system.
        kind: &'static str,
    },
    /// Something else than what is written here.
    #[error("{} is no swap file of uzswap; it is left as it is", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It begins with zeroes.
    #[error("{} begins with zeroes: its making was cut short, and nothing is in it, or it is another program's; remove it, or name another", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// It was written in another way.
    #[error("{} is of version {found}; this program knows version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: u32,
    },
    /// What should be there is not.
    #[error("{} is damaged at byte {offset}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
    },
    /// It cannot be read or written.
    #[error("{}, at byte {offset}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// Why.
        error: io::Error,
    },
    /// It is for something else.
    #[error("{} was made with {what} {is}, not {wanted}: give the same", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// As it is.
        is: String,
        /// As was asked for.
        wanted: String,
    },
    /// The key is another's.
    #[error("{}: the key does not fit", path.display())]
    WrongKey {
        /// The file.
        path: PathBuf,
    },
    /// A key file cannot be used.
    #[error("key file {}: {error}", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A device that is too large to be kept.
    #[error("a device of {bytes} bytes cannot be kept in a file: {most} at most")]
    Size {
        /// The device.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// No random bytes, no engine.
    #[error(transparent)]
    Parts(#[from] OpenError),
}

/// Segments that the content of a device takes at most: its pages, their seals, directories, the
/// index, and what is left of each segment.
pub(super) fn full_segments(device_bytes: u64) -> u64 {
    device_bytes.div_ceil(SEGMENT_BYTES as u64) * 23 / 20 + SPARE_SEGMENTS
}

/// Segments of the file for a device.
fn segments_of(device_bytes: u64) -> u64 {
    1 + TIMES * full_segments(device_bytes)
}

/// Reads from an engine, whole or not at all.
pub(super) fn read_at(engine: &dyn Engine, offset: u64, len: usize) -> io::Result<Buffer> {
    transfer(engine, Kind::Read, offset, Buffer::new(len))
}

/// Writes to an engine.
pub(super) fn write_at(engine: &dyn Engine, offset: u64, buffer: Buffer) -> io::Result<()> {
    transfer(engine, Kind::Write, offset, buffer).map(drop)
}

fn transfer(engine: &dyn Engine, kind: Kind, offset: u64, buffer: Buffer) -> io::Result<Buffer> {
    let mut lane = engine.lane()?;
    let end = buffer.len();
    lane.push(Transfer { kind, offset, buffer, start: 0, end, token: 0 });
    loop {
        let done = lane.pop().expect("it is in flight");
        match continued(&mut *lane, done) {
            Outcome::Again => {}
            Outcome::Whole(transfer) => return Ok(transfer.buffer),
            Outcome::Failed(_, error) => return Err(error),
        }
    }
}

/// What is known while a file is opened.
struct Opening<'a> {
    engine: &'a dyn Engine,
    path: &'a Path,
}

/// A file that can be used.
struct Prepared {
    identity: Identity,
    master: Option<Master>,
    root_seal: Sealer,
    latest: Latest,
}

impl Identity {
    fn new(config: &KeptConfig, master: Option<&Master>) -> Result<Identity, FileError> {
        let mut uuid = [0; 16];
        sys::files::random(&mut uuid).map_err(OpenError::Key)?;
        Ok(Identity {
            is_encrypted: master.is_some(),
            uuid,
            device_bytes: config.device_bytes,
            unit_bytes: config.unit_bytes,
            segments: segments_of(config.device_bytes) as u32,
            key_mark: key_mark(master, &uuid),
            compressor: config.compressor.clone(),
        })
    }
}

/// Makes a file that is new, and checks one that is not, without a change.
pub(super) fn prepare(
    engine: &dyn Engine,
    path: &Path,
    is_new: bool,
    config: &KeptConfig,
) -> Result<(), FileError> {
    Opening { engine, path }.prepare(is_new, config).map(drop)
}

impl Opening<'_> {
    fn io(&self, offset: u64) -> impl FnOnce(io::Error) -> FileError + '_ {
        move |error| FileError::Io { path: self.path.into(), offset, error }
    }

    fn damaged(&self, offset: u64) -> FileError {
        FileError::Damaged { path: self.path.into(), offset }
    }

    /// Writes what a new file begins with; its first block last, by which it is known.
    fn create(&self, identity: &Identity, seal: &Sealer) -> Result<(), FileError> {
        let root = Root { commit: 0, epoch: 0, tops: vec![0; tops_of(identity.device_bytes)] };
        self.write_root(identity, seal, &root, 0)?;
        self.sync()?;
        for offset in HEADERS_AT.into_iter().rev() {
            let mut block = Buffer::new(BLOCK_BYTES);
            block.copy_from_slice(&identity.encode());
            write_at(self.engine, offset, block).map_err(self.io(offset))?;
        }
        self.sync()
    }

    fn write_root(
        &self,
        identity: &Identity,
        seal: &Sealer,
        root: &Root,
        slot: usize,
    ) -> Result<(), FileError> {
        let buffer = encoded(root, identity, seal).map_err(self.io(ROOTS_AT[slot]))?;
        write_at(self.engine, ROOTS_AT[slot], buffer).map_err(self.io(ROOTS_AT[slot]))
    }

    fn sync(&self) -> Result<(), FileError> {
        self.engine.sync().map_err(self.io(0))
    }

    /// The header, of which one copy is enough.
    fn identity(&self) -> Result<Identity, FileError> {
        let path = || self.path.to_path_buf();
        let mut first = None;
        for offset in HEADERS_AT {
            let block = match read_at(self.engine, offset, BLOCK_BYTES) {
                Ok(block) => block,
                // A short file is another program's.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(self.io(offset)(error)),
            };
            match Identity::decode(&block) {
                Found::Header(identity) => return Ok(identity),
                Found::Version(found) => return Err(FileError::Version { path: path(), found }),
                found => first = first.or(Some(found)),
            }
        }
        Err(match first {
            Some(Found::Zeroes) => FileError::Unfinished { path: path() },
            Some(Found::Damaged) => self.damaged(0),
            _ => FileError::Foreign { path: path() },
        })
    }

    /// The later of the roots that are whole, and which it is.
    fn root(&self, identity: &Identity, seal: &Sealer) -> Result<Latest, FileError> {
        let tops = tops_of(identity.device_bytes);
        let mut latest: Option<Latest> = None;
        for (slot, offset) in ROOTS_AT.into_iter().enumerate() {
            let mut bytes = read_at(self.engine, offset, Root::bytes(tops)).map_err(self.io(offset))?;
            let Some(root) = Root::decode(seal, &identity.uuid, tops, &mut bytes) else { continue };
            if latest.as_ref().is_none_or(|latest| latest.root.commit < root.commit) {
                latest = Some(Latest { root, slot });
            }
        }
        latest.ok_or_else(|| self.damaged(ROOTS_AT[0]))
    }

    /// Makes a new file, or checks one that is there, without a change.
    fn prepare(&self, is_new: bool, config: &KeptConfig) -> Result<Prepared, FileError> {
        let (bytes, most) = (config.device_bytes, device_bytes_max());
        if bytes > most || tops_of(bytes) > TOPS_MAX {
            return Err(FileError::Size { bytes, most });
        }
        let found = if is_new { None } else { Some(self.identity()?) };
        if let Some(identity) = &found {
            self.check(identity, config)?;
        }
        let master = config.key.master(is_new)?;
        let identity = match found {
            Some(identity) => identity,
            None => Identity::new(config, master.as_ref())?,
        };
        if identity.key_mark != key_mark(master.as_ref(), &identity.uuid) {
            return Err(FileError::WrongKey { path: self.path.into() });
        }
        let root_key = master.as_ref().map(|master| master.derive(&identity.uuid, b"roots of indexes"));
        let root_seal = Sealer::of_kept(root_key, None);
        if is_new {
            self.create(&identity, &root_seal)?;
        }
        let latest = self.root(&identity, &root_seal)?;
        Ok(Prepared { identity, master, root_seal, latest })
    }

    /// Whether the file is for what it is wanted for.
    fn check(&self, identity: &Identity, config: &KeptConfig) -> Result<(), FileError> {
        let other = |what, is: String, wanted: String| {
            Err(FileError::Other { path: self.path.into(), what, is, wanted })
        };
        if identity.device_bytes != config.device_bytes {
            let bytes = |bytes: u64| format!("{bytes} bytes");
            return other("a device of", bytes(identity.device_bytes), bytes(config.device_bytes));
        }
        if identity.unit_bytes != config.unit_bytes {
            return other("units of", identity.unit_bytes.to_string(), config.unit_bytes.to_string());
        }
        if identity.compressor != config.compressor {
            return other("compressor", identity.compressor.clone(), config.compressor.clone());
        }
        let encryption = |is_encrypted| if is_encrypted { "a key" } else { "none" }.to_owned();
        let is_wanted = config.key != KeyChoice::Plain;
        if identity.is_encrypted != is_wanted {
            return other("encryption by", encryption(identity.is_encrypted), encryption(is_wanted));
        }
        // A checksum is no proof: these are used as sizes.
        match u64::from(identity.segments) == segments_of(identity.device_bytes) {
            true => Ok(()),
            false => Err(self.damaged(0)),
        }
    }
}

/// A root as it is written.
pub(super) fn encoded(root: &Root, identity: &Identity, seal: &Sealer) -> io::Result<Buffer> {
    // Commits have numbers, but one whose writing was cut short may be made again by the next run.
    let mut nonce = [0; 16];
    sys::files::random(&mut nonce[8..])?;
    nonce[..8].copy_from_slice(&root.commit.to_le_bytes());
    let mut buffer = Buffer::new(Root::bytes(root.tops.len()));
    root.encode(seal, &identity.uuid, nonce, &mut buffer);
    Ok(buffer)
}

fn tops_of(device_bytes: u64) -> usize {
    (device_bytes.div_ceil(PAGE_BYTES) as usize).div_ceil(INDEX_PAGES).div_ceil(TOP_PAGES)
}

fn key_mark(master: Option<&Master>, uuid: &[u8; 16]) -> [u8; 16] {
    master.map_or([0; 16], |master| *master.derive(uuid, b"known again by  ").bytes())
}

impl SwapFile {
    /// Opens a file that is kept, or makes it, by an engine; `path` is for what is said of it.
    /// [`SwapFile::read_index`] comes next, and [`SwapFile::adopt`] for all that the index names,
    /// then [`SwapFile::end_restore`], and only then a writer.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn open_kept(
        engine: Arc<dyn Engine>,
        path: &Path,
        is_new: bool,
        config: &KeptConfig,
    ) -> Result<Arc<SwapFile>, FileError> {
        let opening = Opening { engine: &*engine, path };
        let Prepared { identity, master, root_seal, mut latest } = opening.prepare(is_new, config)?;
        let derive = |purpose| master.as_ref().map(|master| master.derive(&identity.uuid, purpose));
        // Durable before anything else is written: no other run of this file has this epoch.
        let Some(epoch) = latest.root.epoch.checked_add(1) else { return Err(opening.damaged(ROOTS_AT[0])) };
        latest.root.epoch = epoch;
        latest.root.commit += 1;
        latest.slot = 1 - latest.slot;
        opening.write_root(&identity, &root_seal, &latest.root, latest.slot)?;
        opening.sync()?;

        let segments = identity.segments as usize;
        let stamps = Arc::new(Stamps::new(segments, epoch).map_err(OpenError::Key)?);
        let seal = Sealer::of_kept(derive(b"objects of a log"), Some(stamps.clone()));
        let kept = Kept {
            path: path.into(),
            identity,
            stamps,
            root_seal,
            root: Mutex::new(latest),
            emptied: Mutex::default(),
            is_broken: AtomicBool::new(false),
        };
        let space = Arc::new(Space::private(segments));
        let file =
            SwapFile::of_parts(engine, seal, space, std::process::id(), KEEP_FREE_PERCENT, Some(kept))?;
        // The first segment has the headers and roots.
        file.space().adopt(file.row(), 0, 0);
        Ok(Arc::new(file))
    }

    fn path(&self) -> &Path {
        self.kept.as_ref().map_or(Path::new(""), |kept| &kept.path)
    }

    /// What is said of damage that was found at a place of a file that is kept.
    pub fn damaged(&self, offset: u64) -> FileError {
        FileError::Damaged { path: self.path().into(), offset }
    }

    /// The place that a number from the disk says, if it can be one of this file.
    pub fn checked_place(&self, bits: u64) -> Option<Place> {
        (bits >> Place::BITS == 0).then_some(())?;
        let place = Place::from_bits(bits);
        let is_within = (1..self.space().segments()).contains(&place.segment())
            && place.position() + place.len() + self.seal.tail_bytes() <= SEGMENT_BYTES;
        is_within.then_some(place)
    }

    /// The index of a file that is kept, without what its pages say.
    ///
    /// # Errors
    /// [`FileError`].
    ///
    /// # Panics
    /// When the file is not one that is kept.
    pub fn read_index(&self) -> Result<Index, FileError> {
        let kept = self.kept.as_ref().expect("a file that is kept");
        let mut index = Index::new(kept.identity.device_bytes.div_ceil(PAGE_BYTES));
        let tops = lock(&kept.root).root.tops.clone();
        for (number, bits) in tops.into_iter().enumerate().filter(|(_, bits)| *bits != 0) {
            let place = self.checked_place(bits).filter(|place| place.len() == TOP_BYTES);
            let place = place.ok_or_else(|| self.damaged(ROOTS_AT[0]))?;
            self.adopt(place)?;
            let top = self.read(&[place]).map_err(|error| self.unreadable(error))?;
            index.tops[number] = bits;
            let first = number * TOP_PAGES;
            for (page, bits) in (first..).zip(top.get(0).as_chunks::<8>().0) {
                let bits = u64::from_le_bytes(*bits);
                if bits == 0 {
                    continue;
                }
                let is_possible = page < index.len() && self.checked_place(bits).is_some();
                is_possible.then_some(()).ok_or_else(|| self.damaged(place.offset()))?;
                index.pages[page] = bits;
            }
        }
        Ok(index)
    }

    /// Hands over all pages of an index, with their numbers and where they lie, in order.
    ///
    /// # Errors
    /// [`FileError`], or the caller's.
    pub fn read_index_pages(
        &self,
        index: &Index,
        mut each: impl FnMut(usize, Place, &IndexPage) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let all: Vec<(usize, Place)> =
            (0..index.len()).filter_map(|page| index.place(page).map(|place| (page, place))).collect();
        for some in all.chunks(READ_MAX) {
            let mut places = Vec::with_capacity(READ_MAX);
            for &(_, place) in some {
                if place.len() > IndexPage::BYTES_MAX {
                    return Err(self.damaged(place.offset()));
                }
                self.adopt(place)?;
                places.push(place);
            }
            let read = self.read(&places).map_err(|error| self.unreadable(error))?;
            for (number, &(page, place)) in some.iter().enumerate() {
                let decoded =
                    IndexPage::decode(read.get(number)).ok_or_else(|| self.damaged(place.offset()))?;
                each(page, place, &decoded)?;
            }
        }
        Ok(())
    }

    fn unreadable(&self, error: ReadError) -> FileError {
        match error.fault {
            ReadFault::Io(errno) => FileError::Io {
                path: self.path().into(),
                offset: error.offset,
                error: io::Error::from_raw_os_error(errno),
            },
            _ => self.damaged(error.offset),
        }
    }

    /// Notes that an object which an earlier run wrote lives at a place, once for each object.
    ///
    /// # Errors
    /// [`FileError::Damaged`] when more live in a segment than it has room for.
    ///
    /// # Panics
    /// When the file is not one that is kept.
    pub fn adopt(&self, place: Place) -> Result<(), FileError> {
        let kept = self.kept.as_ref().expect("a file that is kept");
        let segment = place.segment();
        if self.space().generation(segment) == 0 && self.space().holders(segment) == 0 {
            let read = read_at(&*self.engine(), (segment * SEGMENT_BYTES) as u64, BLOCK_BYTES);
            let head = read.ok().and_then(|block| Head::decode(&block));
            // Without its head nothing of a segment can be unsealed: who reads an object there is
            // told that it is damaged.
            let head = head.filter(|head| head.segment as usize == segment);
            if let Some(head) = &head {
                kept.stamps.adopt(head);
            }
            self.space().adopt(self.row(), segment, head.map_or(0, |head| head.generation));
        }
        let live = grains(place.len() + self.seal.tail_bytes());
        if !self.segments.adopt(segment, live) {
            return Err(self.damaged(place.offset()));
        }
        self.counts.live_bytes.add(u64::from(live) * GRAIN_BYTES as u64);
        Ok(())
    }

    /// All that lives was adopted: what an earlier run left beside goes back to the disk.
    pub fn end_restore(&self) {
        let (engine, space) = (self.engine(), self.space());
        let mut number = 1;
        while number < space.segments() {
            let holes = space.holes(number, space.segments());
            if holes > 0 {
                let at = (number * SEGMENT_BYTES) as u64;
                // Where that cannot be done they are written over in their turn.
                let _ = engine.release(at, (holes * SEGMENT_BYTES) as u64);
            }
            number += holes + 1;
        }
    }
}

/// The largest device that can be kept.
fn device_bytes_max() -> u64 {
    let full = (SEGMENTS_MAX as u64 - 1) / TIMES - SPARE_SEGMENTS;
    full * 20 / 23 * SEGMENT_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_device_has_a_file() {
        let largest = device_bytes_max();
        assert!(segments_of(largest) <= SEGMENTS_MAX as u64);
        assert!(largest > 500 << 30 && tops_of(largest) <= TOPS_MAX);
        assert_eq!(tops_of(1 << 30), 2);
    }
}
