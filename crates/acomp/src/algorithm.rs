//! A compressor by name, and its per-worker contexts.

use crate::{CompressRequest, DecompressRequest, Object, PromoteRequest, UnitError};

/// Most names that [`Algorithm::forms`] may answer.
pub const FORMS_MAX: usize = 14;

/// A context could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{algorithm}: no context: {reason}")]
pub struct ContextError {
    /// Name of the algorithm.
    pub algorithm: String,
    /// What was missing.
    pub reason: String,
}

/// What both tiers made of the same pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierSample {
    /// How many pages.
    pub pages: u64,
    /// Bytes of their objects of the first tier.
    pub quick_bytes: u64,
    /// Bytes of their objects of the second.
    pub dense_bytes: u64,
    /// Bytes of memory that the algorithm itself takes about when it makes objects of the second.
    pub memory_bytes: u64,
}

/// Which of an algorithm's two tiers new objects belong to.
pub trait Tiers: Send + Sync {
    /// Requests make objects of the second tier at once from now on, or no longer. Objects that
    /// exist stay as they are.
    fn set_dense(&self, dense: bool);

    /// What both tiers made of some of the pages that were compressed lately.
    fn sample(&self) -> TierSample;
}

/// A compressor: shared, immutable, able to make contexts.
pub trait Algorithm: Send + Sync {
    /// The full name, parameters included, by which it can be asked for anywhere: `lz4`, `zstd:3`,
    /// files by absolute path.
    fn name(&self) -> &str;

    /// Units that one request should hold: 1 for plain software, up to [`crate::MAX_BATCH`] for
    /// compressors that gain from a batch. Any algorithm accepts requests of 1 to `MAX_BATCH`
    /// units; this is only what serves it best.
    fn batch_size(&self) -> usize {
        1
    }

    /// Whether figures measured with this algorithm come from an emulated device.
    fn is_emulated(&self) -> bool {
        false
    }

    /// Whether contexts and objects work on in a forked child, on its copy of all memory: software
    /// does, devices that know their process do not. Asked of algorithms whose contexts are all
    /// idle while the fork is made.
    fn survives_fork(&self) -> bool {
        true
    }

    /// Called a few times a second by a thread that may block, outside all requests: devices that
    /// came or went are found here.
    fn maintain(&self) {}

    /// Whether this is no compressor at all, so that a unit that does not shrink is what is
    /// expected of it: such units are kept as they are, never refused.
    fn keeps_raw(&self) -> bool {
        false
    }

    /// Whether this algorithm keeps account of its objects, and wants each of them back in
    /// [`forget`](Algorithm::forget).
    fn keeps_account(&self) -> bool {
        false
    }

    /// An object that a request of this algorithm yielded, of a unit of `pages` pages, is about to
    /// be dropped. Called once an object, only when [`keeps_account`](Algorithm::keeps_account)
    /// says so. Neither allocates nor blocks long.
    fn forget(&self, object: Object<'_>, pages: usize) {
        let _ = (object, pages);
    }

    /// The two tiers of an algorithm that has a second: its contexts can make denser objects of its
    /// own ([`Context::promote`]), which take longer to make and to read.
    fn tiers(&self) -> Option<&dyn Tiers> {
        None
    }

    /// Names of the forms that a page can take in this algorithm's objects, for reports; none when
    /// all are alike. A few at most: stores have room for [`FORMS_MAX`].
    fn forms(&self) -> &'static [&'static str] {
        &[]
    }

    /// Adds the `pages` pages of an object that a request of this algorithm yielded to `counts`,
    /// which has a place for each of [`forms`](Algorithm::forms). Called once for each object that
    /// is stored: a look at a byte or two.
    fn count_forms(&self, object: Object<'_>, pages: usize, counts: &mut [u32]) {
        let _ = (object, pages, counts);
    }

    /// Makes a context: hash tables, streams, bounce buffers. Everything that requests need is
    /// allocated here and nothing later, so that compressing never allocates.
    ///
    /// # Errors
    /// When memory or a device is missing.
    fn context(&self) -> Result<Box<dyn Context>, ContextError>;

    /// Makes a context that will see no unit above `unit_size` bytes, which for many algorithms is
    /// a smaller one.
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
/// Implementations must not use thread-local storage, allocate, log or panic on input in `compress`
/// and `decompress`: both run inside programs that are being paged, on the way of a page fault.
pub trait Context: Send {
    /// Compresses every unit of the request and fills every result.
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>);

    /// Decompresses every object of the request and fills every result.
    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>);

    /// Makes objects denser and fills every result; for algorithms that have a second tier
    /// ([`Algorithm::tiers`]). The new objects are the algorithm's like the old ones, which stay
    /// valid.
    fn promote(&mut self, request: &mut PromoteRequest<'_, '_>) {
        request.results.fill(Err(UnitError::NoSpace));
    }
}
