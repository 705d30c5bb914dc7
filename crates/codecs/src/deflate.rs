//! Raw DEFLATE (RFC 1951) by libdeflate: a unit is one stream.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use acomp::{
    Algorithm, Context, ContextError, Registry, Software, UnitCodec, UnitError, UnitResult, UNIT_SIZE_MAX,
};

use crate::c_heap;

const LEVEL_DEFAULT: c_int = 1;
const LEVEL_MAX: c_int = 12;

/// Adds the family `deflate` to `registry`. Its parameter is the level.
pub fn register(registry: &mut Registry) {
    registry.register("deflate", "deflate[:LEVEL]", |parameter| {
        let level = match parameter {
            None => LEVEL_DEFAULT,
            Some(text) => match text.parse() {
                Ok(level) if (1..=LEVEL_MAX).contains(&level) => level,
                _ => return Err(format!("the level is 1 to {LEVEL_MAX}, not {text:?}")),
            },
        };
        let name = parameter.map_or_else(|| "deflate".to_owned(), |_| format!("deflate:{level}"));
        Ok(Arc::new(Deflate { name, level }))
    });
}

struct Deflate {
    name: String,
    level: c_int,
}

impl Algorithm for Deflate {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        self.context_for(UNIT_SIZE_MAX)
    }

    fn context_for(&self, unit_size: usize) -> Result<Box<dyn Context>, ContextError> {
        let refused = || ContextError { algorithm: self.name.clone(), reason: "no memory".into() };
        let compressor = Compressor::new(self.level).ok_or_else(refused)?;
        let decompressor = Decompressor::new().ok_or_else(refused)?;
        Ok(Box::new(Software::for_units(Codec { compressor, decompressor }, unit_size)))
    }
}

struct Codec {
    compressor: Compressor,
    decompressor: Decompressor,
}

impl UnitCodec for Codec {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        self.compressor.compress(unit, output)
    }

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        self.decompressor.decompress(object, output)
    }
}

fn options() -> libdeflate_sys::libdeflate_options {
    libdeflate_sys::libdeflate_options {
        sizeof_options: size_of::<libdeflate_sys::libdeflate_options>(),
        malloc_func: Some(c_heap::malloc),
        free_func: Some(c_heap::free),
    }
}

struct Compressor(NonNull<libdeflate_sys::libdeflate_compressor>);

// SAFETY: the state is on the heap and not tied to a thread.
unsafe impl Send for Compressor {}

impl Compressor {
    fn new(level: c_int) -> Option<Self> {
        // SAFETY: the options are complete; they are copied.
        NonNull::new(unsafe { libdeflate_sys::libdeflate_alloc_compressor_ex(level, &options()) }).map(Self)
    }

    fn compress(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        // SAFETY: the compressor is exclusive; both buffers have the lengths given.
        let len = unsafe {
            libdeflate_sys::libdeflate_deflate_compress(
                self.0.as_ptr(),
                unit.as_ptr().cast(),
                unit.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        match len {
            0 => Err(UnitError::NoSpace),
            len => Ok(len),
        }
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        unsafe { libdeflate_sys::libdeflate_free_compressor(self.0.as_ptr()) };
    }
}

struct Decompressor(NonNull<libdeflate_sys::libdeflate_decompressor>);

// SAFETY: as for the compressor.
unsafe impl Send for Decompressor {}

impl Decompressor {
    fn new() -> Option<Self> {
        // SAFETY: the options are complete; they are copied.
        NonNull::new(unsafe { libdeflate_sys::libdeflate_alloc_decompressor_ex(&options()) }).map(Self)
    }

    fn decompress(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        // SAFETY: the decompressor is exclusive and stays within both buffers, which have the
        // lengths given. With a null actual length, any length but the output's is an error.
        let code = unsafe {
            libdeflate_sys::libdeflate_deflate_decompress(
                self.0.as_ptr(),
                object.as_ptr().cast(),
                object.len(),
                output.as_mut_ptr().cast(),
                output.len(),
                std::ptr::null_mut(),
            )
        };
        if code == libdeflate_sys::libdeflate_result_LIBDEFLATE_SUCCESS {
            Ok(())
        } else {
            Err(UnitError::Failed)
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        unsafe { libdeflate_sys::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}
