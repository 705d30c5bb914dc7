//! LZ4 blocks by the reference library, with external state.
//!
//! An object is one LZ4 block, without frame:
//! <https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>.

use std::ffi::{c_char, c_int, c_void};

use acomp::{Registry, Software, UnitCodec, UnitError, UnitResult};
// Only to link the library.
use lz4_sys as _;

use crate::heap::Workspace;
use crate::leveled;

extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_initStream(buffer: *mut c_void, size: usize) -> *mut c_void;
    /// Like LZ4_compress_fast_extState, but does not clear a state that the library left usable,
    /// which saves clearing 16 KiB a page.
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        source: *const c_char,
        destination: *mut c_char,
        source_len: c_int,
        capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe(
        source: *const c_char,
        destination: *mut c_char,
        source_len: c_int,
        capacity: c_int,
    ) -> c_int;
}

pub(crate) const ACCELERATION: c_int = 1;
const ACCELERATION_MAX: c_int = 65537;

/// Adds the family `lz4`. Its parameter is the acceleration: faster, less compression.
pub fn register(registry: &mut Registry) {
    let names = ("lz4", "lz4[:ACCEL]", "acceleration");
    leveled::register(registry, names, 1..=ACCELERATION_MAX, ACCELERATION, |acceleration, unit_size| {
        let blocks = Blocks::new().ok_or("the library refused its state")?;
        Ok(Box::new(Software::for_units(Codec { blocks, acceleration }, unit_size)))
    });
}

struct Codec {
    blocks: Blocks,
    acceleration: c_int,
}

impl UnitCodec for Codec {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        self.blocks.compress(unit, output, self.acceleration).ok_or(UnitError::NoSpace)
    }

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        decompress(object, output).then_some(()).ok_or(UnitError::Failed)
    }
}

/// Makes LZ4 blocks in memory allocated on creation.
pub(crate) struct Blocks {
    state: Workspace,
}

impl Blocks {
    /// Returns `None` if the library refuses its state's memory.
    pub(crate) fn new() -> Option<Blocks> {
        // SAFETY: no arguments.
        let state = Workspace::new(unsafe { LZ4_sizeofState() } as usize);
        // SAFETY: the workspace has the length that the library asked for, and is aligned.
        let made = unsafe { LZ4_initStream(state.as_ptr(), state.len()) };
        (!made.is_null()).then_some(Blocks { state })
    }

    /// Returns the length of the block of `input`, or `None` if `output` is too short.
    pub(crate) fn compress(&mut self, input: &[u8], output: &mut [u8], acceleration: c_int) -> Option<usize> {
        // SAFETY: the state is initialised and exclusive; both buffers have the lengths given.
        let len = unsafe {
            LZ4_compress_fast_extState_fastReset(
                self.state.as_ptr(),
                input.as_ptr().cast(),
                output.as_mut_ptr().cast(),
                input.len() as c_int,
                output.len() as c_int,
                acceleration,
            )
        };
        usize::try_from(len).ok().filter(|&len| len > 0)
    }
}

/// Decompresses a block that must fill `output`. Returns false if it is damaged.
pub(crate) fn decompress(block: &[u8], output: &mut [u8]) -> bool {
    // SAFETY: both buffers have the lengths given, and the decoder stays within them for any block.
    let len = unsafe {
        LZ4_decompress_safe(
            block.as_ptr().cast(),
            output.as_mut_ptr().cast(),
            block.len() as c_int,
            output.len() as c_int,
        )
    };
    usize::try_from(len) == Ok(output.len())
}
