//! Dictionaries for Zstandard: what pages of a kind have in common, trained from samples of them.

use std::ffi::c_int;
use std::ptr::NonNull;

use acomp::{Page, PAGE_SIZE};
use zstd_sys as sys;

use crate::heap::Workspace;

/// Trains a dictionary of at most `len` bytes from sample pages. Some hundred samples for each KiB
/// are enough.
///
/// # Errors
/// When the samples are too few, or have nothing in common.
pub fn train(samples: &[&Page], len: usize) -> Result<Vec<u8>, String> {
    let bytes: Vec<u8> = samples.iter().flat_map(|page| page.iter().copied()).collect();
    let sizes = vec![PAGE_SIZE; samples.len()];
    let mut dictionary = vec![0; len];
    // SAFETY: the buffers have the lengths given: as many sizes as samples, and the samples one
    // after the other.
    let code = unsafe {
        sys::ZDICT_trainFromBuffer(
            dictionary.as_mut_ptr().cast(),
            dictionary.len(),
            bytes.as_ptr().cast(),
            sizes.as_ptr(),
            sizes.len() as u32,
        )
    };
    // SAFETY: looks at the number only.
    if unsafe { sys::ZDICT_isError(code) } != 0 {
        return Err(format!("no dictionary from {} pages: the library's error {code:#x}", samples.len()));
    }
    dictionary.truncate(code);
    Ok(dictionary)
}

/// A dictionary made ready for both directions, in fixed workspaces.
pub(crate) struct Dictionary {
    compress: NonNull<sys::ZSTD_CDict>,
    decompress: NonNull<sys::ZSTD_DDict>,
    _states: [Workspace; 2],
    /// Both refer to these bytes.
    bytes: Vec<u8>,
}

// SAFETY: immutable after it was made; the library only reads it.
unsafe impl Send for Dictionary {}
// SAFETY: as above.
unsafe impl Sync for Dictionary {}

impl Dictionary {
    pub(crate) fn new(bytes: Vec<u8>, level: c_int) -> Result<Self, String> {
        let by_reference = sys::ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef;
        let content = sys::ZSTD_dictContentType_e::ZSTD_dct_auto;
        // SAFETY: plain figures in, plain figures out.
        let (parameters, compress_len, decompress_len) = unsafe {
            let parameters = sys::ZSTD_getCParams(level, PAGE_SIZE as u64, bytes.len());
            (
                parameters,
                sys::ZSTD_estimateCDictSize_advanced(bytes.len(), parameters, by_reference),
                sys::ZSTD_estimateDDictSize(bytes.len(), by_reference),
            )
        };
        let states = [Workspace::new(compress_len), Workspace::new(decompress_len)];
        // SAFETY: workspace and bytes have the lengths given and live as long as the dictionary:
        // they go along.
        let compress = unsafe {
            sys::ZSTD_initStaticCDict(
                states[0].as_ptr(),
                states[0].len(),
                bytes.as_ptr().cast(),
                bytes.len(),
                by_reference,
                content,
                parameters,
            )
        };
        // SAFETY: as above.
        let decompress = unsafe {
            sys::ZSTD_initStaticDDict(
                states[1].as_ptr(),
                states[1].len(),
                bytes.as_ptr().cast(),
                bytes.len(),
                by_reference,
                content,
            )
        };
        let refused = || "the library refused the dictionary".to_owned();
        Ok(Dictionary {
            compress: NonNull::new(compress.cast_mut()).ok_or_else(refused)?,
            decompress: NonNull::new(decompress.cast_mut()).ok_or_else(refused)?,
            _states: states,
            bytes,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn compress(&self) -> *const sys::ZSTD_CDict {
        self.compress.as_ptr()
    }

    pub(crate) fn decompress(&self) -> *const sys::ZSTD_DDict {
        self.decompress.as_ptr()
    }
}
