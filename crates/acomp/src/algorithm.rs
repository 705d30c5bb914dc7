//! A compressor by name, and its per-worker contexts.

use crate::{CompressRequest, DecompressRequest, Object, PromoteRequest, UnitError};

/// Maximum number of names that [`Algorithm::forms`] returns.
pub const FORMS_MAX: usize = 14;

/// A context could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{algorithm}: no context: {reason}")]
pub struct ContextError {
    /// Name of the algorithm.
    pub algorithm: String,
    /// The missing resource.
    pub reason: String,
}

/// Sizes of the same pages in both tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierSample {
    /// Number of pages.
    pub pages: u64,
    /// Bytes of their objects in the first tier.
    pub quick_bytes: u64,
    /// Bytes of their objects in the second tier.
    pub dense_bytes: u64,
    /// Approximate bytes of memory that the algorithm needs to make objects of the second tier.
    pub memory_bytes: u64,
}

/// Selects the tier of an algorithm's new objects.
pub trait Tiers: Send + Sync {
    /// Sets whether requests make objects of the second tier at once. Existing objects stay.
    fn set_dense(&self, dense: bool);

    /// Compares both tiers on a sample of recently compressed pages.
    fn sample(&self) -> TierSample;
}

/// A compressor: shared, immutable, able to make contexts.
pub trait Algorithm: Send + Sync {
    /// Name with parameters, as registries accept it: `lz4`, `zstd:3`, files by absolute path.
    fn name(&self) -> &str;

    /// Best number of units in a request: 1 for plain software, up to [`crate::MAX_BATCH`] for
    /// compressors that gain from a batch. Any algorithm accepts 1 to `MAX_BATCH` units.
    fn batch_size(&self) -> usize {
        1
    }

    /// Whether figures measured with this algorithm come from an emulated device.
    fn is_emulated(&self) -> bool {
        false
    }

    /// Whether contexts and objects remain usable in a forked child, on its copy of all memory.
    /// Software does; devices bound to a process do not. All contexts are idle during the fork.
    fn survives_fork(&self) -> bool {
        true
    }

    /// Finds devices that appeared or disappeared. Called a few times a second, outside requests,
    /// by a thread that may block.
    fn maintain(&self) {}

    /// Whether the algorithm does not compress, so that units are kept raw even if they do not
    /// shrink.
    fn keeps_raw(&self) -> bool {
        false
    }

    /// Whether this algorithm counts its objects and needs [`forget`](Algorithm::forget) for each.
    fn keeps_account(&self) -> bool {
        false
    }

    /// Called before an object of this algorithm, of `pages` pages, is dropped: once an object if
    /// [`keeps_account`](Algorithm::keeps_account). Does not allocate or block long.
    fn forget(&self, object: Object<'_>, pages: usize) {
        let _ = (object, pages);
    }

    /// The tiers of an algorithm with two: [`Context::promote`] makes denser objects, which take
    /// longer to make and to read.
    fn tiers(&self) -> Option<&dyn Tiers> {
        None
    }

    /// Names of the forms that a page can take in this algorithm's objects, for reports: at most
    /// [`FORMS_MAX`], empty if all are alike.
    fn forms(&self) -> &'static [&'static str] {
        &[]
    }

    /// Adds an object's `pages` pages to `counts`, which has one entry for each of
    /// [`forms`](Algorithm::forms). Called for each stored object, so it reads only a byte or two.
    fn count_forms(&self, object: Object<'_>, pages: usize, counts: &mut [u32]) {
        let _ = (object, pages, counts);
    }

    /// Makes a context: hash tables, streams, bounce buffers. It allocates everything that requests
    /// need, so that compressing never allocates.
    ///
    /// # Errors
    /// If memory or a device is missing.
    fn context(&self) -> Result<Box<dyn Context>, ContextError>;

    /// Makes a context for units of at most `unit_size` bytes, which is smaller for many
    /// algorithms.
    ///
    /// # Errors
    /// As [`context`](Algorithm::context).
    fn context_for(&self, unit_size: usize) -> Result<Box<dyn Context>, ContextError> {
        let _ = unit_size;
        self.context()
    }
}

/// The working state of one worker. Used by one thread at a time; may move between threads.
///
/// `compress` and `decompress` run on the page fault path inside programs that are being paged:
/// they must not use thread-local storage, allocate, log, or panic on input.
pub trait Context: Send {
    /// Compresses every unit of the request and fills every result.
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>);

    /// Decompresses every object of the request and fills every result.
    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>);

    /// Makes denser objects of the same algorithm and fills every result, for algorithms with a
    /// second tier ([`Algorithm::tiers`]). The old objects stay valid.
    fn promote(&mut self, request: &mut PromoteRequest<'_, '_>) {
        request.results.fill(Err(UnitError::NoSpace));
    }
}
