//! Zstandard by the reference library, with all state in fixed workspaces.
//!
//! An object is one frame without magic number, checksum and content size: the header is two bytes
//! (<https://www.rfc-editor.org/rfc/rfc8878>, section 3.1.1). Prepend `28 b5 2f fd` for other
//! decoders.

use std::ffi::c_int;
use std::ptr::NonNull;

use acomp::{Registry, Software, UnitCodec, UnitError, UnitResult, PAGE_SIZE};
use zstd_sys as sys;

use crate::heap::Workspace;
use crate::leveled;

/// Logarithm of the hash table's entries, of four bytes each, in the strategy with one table. The
/// library takes 15 for units of up to 16 KiB and 13 above; 32 KiB stay in a first-level cache.
/// Measured in units of 16 KiB at level 1 (Zen 5, 2026-11-21): 2 to 4 % less time, and a ratio that
/// differs by less than 0.2 %.
const HASH_LOG_MAX: c_int = 13;

/// The library's own default.
const LEVEL_DEFAULT: c_int = 3;

/// Adds the family `zstd` to `registry`. Its parameter is the level, negative ones included.
pub fn register(registry: &mut Registry) {
    // SAFETY: no arguments.
    let (min, max) = unsafe { (sys::ZSTD_minCLevel(), sys::ZSTD_maxCLevel()) };
    leveled::register(
        registry,
        ("zstd", "zstd[:LEVEL]", "level"),
        min..=max,
        LEVEL_DEFAULT,
        |level, unit_size| {
            // As for the library itself.
            let level = if level == 0 { LEVEL_DEFAULT } else { level };
            Ok(Box::new(Software::for_units(Codec::new(level, unit_size)?, unit_size)))
        },
    );
}

/// Returns the value to set instead of the library's choice for units of up to `unit_size`.
fn hash_log(level: c_int, unit_size: usize) -> Option<c_int> {
    // SAFETY: takes and returns plain numbers.
    let chosen = unsafe { sys::ZSTD_getCParams(level, unit_size as u64, 0) };
    let is_fast = chosen.strategy == sys::ZSTD_strategy::ZSTD_fast;
    (is_fast && chosen.hashLog > HASH_LOG_MAX as u32).then_some(HASH_LOG_MAX)
}

fn state_bytes(level: c_int, unit_size: usize) -> usize {
    let mut bytes = 0;
    let mut unit = PAGE_SIZE;
    while unit <= unit_size {
        // SAFETY: takes and returns plain numbers.
        let estimate = unsafe {
            let mut parameters = sys::ZSTD_getCParams(level, unit as u64, 0);
            if hash_log(level, unit_size).is_some() {
                parameters.hashLog = parameters.hashLog.min(HASH_LOG_MAX as u32);
            }
            sys::ZSTD_estimateCCtxSize_usingCParams(parameters)
        };
        bytes = bytes.max(estimate);
        unit *= 2;
    }
    bytes
}

impl Codec {
    fn new(level: c_int, unit_size: usize) -> Result<Self, String> {
        let compress_state = Workspace::new(state_bytes(level, unit_size));
        // SAFETY: no arguments.
        let decompress_state = Workspace::new(unsafe { sys::ZSTD_estimateDCtxSize() });
        // SAFETY: the workspace is aligned, has the length given, and outlives the codec below.
        let compressor = unsafe { sys::ZSTD_initStaticCCtx(compress_state.as_ptr(), compress_state.len()) };
        let compressor = NonNull::new(compressor).ok_or("no compression state")?;
        // SAFETY: as above.
        let decompressor =
            unsafe { sys::ZSTD_initStaticDCtx(decompress_state.as_ptr(), decompress_state.len()) };
        let decompressor = NonNull::new(decompressor).ok_or("no decompression state")?;
        let magicless = sys::ZSTD_format_e::ZSTD_f_zstd1_magicless;
        let set = |parameter, value| {
            // SAFETY: the state was initialised above and is not shared.
            let code = unsafe { sys::ZSTD_CCtx_setParameter(compressor.as_ptr(), parameter, value) };
            is_error(code)
        };
        let mut bad = set(sys::ZSTD_cParameter::ZSTD_c_compressionLevel, level);
        if let Some(hash_log) = hash_log(level, unit_size) {
            bad |= set(sys::ZSTD_cParameter::ZSTD_c_hashLog, hash_log);
        }
        bad |= set(sys::ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0);
        bad |= set(sys::ZSTD_cParameter::ZSTD_c_checksumFlag, 0);
        bad |= set(sys::ZSTD_cParameter::ZSTD_c_dictIDFlag, 0);
        // ZSTD_c_format
        bad |= set(sys::ZSTD_cParameter::ZSTD_c_experimentalParam2, magicless as c_int);
        // SAFETY: as for the compression state.
        bad |= is_error(unsafe { sys::ZSTD_DCtx_setFormat(decompressor.as_ptr(), magicless) });
        if bad {
            return Err("the library refused a parameter".to_owned());
        }
        let mut codec = Codec { compressor, decompressor, _states: [compress_state, decompress_state] };
        codec.try_out(unit_size).map_err(|error| format!("a first unit failed: {error}"))?;
        Ok(codec)
    }
}

fn is_error(code: usize) -> bool {
    // SAFETY: reads only the number.
    unsafe { sys::ZSTD_isError(code) != 0 }
}

struct Codec {
    compressor: NonNull<sys::ZSTD_CCtx>,
    decompressor: NonNull<sys::ZSTD_DCtx>,
    _states: [Workspace; 2],
}

// SAFETY: the states lie in the workspaces that move with the codec.
unsafe impl Send for Codec {}

impl Codec {
    /// Compresses a unit of every size, so that too small a workspace fails now and not in a fault.
    fn try_out(&mut self, unit_size: usize) -> Result<(), UnitError> {
        let unit: Vec<u8> = (0..unit_size).map(|at| (at / 7 * at) as u8 & 0x3F).collect();
        let mut object = vec![0; unit_size];
        let mut back = vec![0; unit_size];
        let mut len = PAGE_SIZE;
        while len <= unit_size {
            let object_len = self.compress_unit(&unit[..len], &mut object[..len])?;
            self.decompress_unit(&object[..object_len], &mut back[..len])?;
            len *= 2;
        }
        Ok(())
    }
}

impl UnitCodec for Codec {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        // SAFETY: the state is initialised and exclusive; both buffers have the lengths given.
        let code = unsafe {
            sys::ZSTD_compress2(
                self.compressor.as_ptr(),
                output.as_mut_ptr().cast(),
                output.len(),
                unit.as_ptr().cast(),
                unit.len(),
            )
        };
        if !is_error(code) {
            return Ok(code);
        }
        // SAFETY: reads only the number.
        match unsafe { sys::ZSTD_getErrorCode(code) } {
            sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall => Err(UnitError::NoSpace),
            _ => Err(UnitError::Failed),
        }
    }

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        // SAFETY: as above; the decoder stays within both buffers for any object.
        let code = unsafe {
            sys::ZSTD_decompressDCtx(
                self.decompressor.as_ptr(),
                output.as_mut_ptr().cast(),
                output.len(),
                object.as_ptr().cast(),
                object.len(),
            )
        };
        // An error code is far above any length.
        if code == output.len() {
            Ok(())
        } else {
            Err(UnitError::Failed)
        }
    }
}
