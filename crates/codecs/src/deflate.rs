//! Raw DEFLATE (RFC 1951) by libdeflate: a unit is one stream.

use std::ffi::c_int;
use std::ptr::NonNull;

use acomp::{Registry, Software, UnitCodec, UnitError, UnitResult};
use libdeflate_sys as sys;

use crate::{c_heap, leveled};

const LEVEL_DEFAULT: c_int = 1;
const LEVEL_MAX: c_int = 12;

/// Adds the family `deflate` to `registry`. Its parameter is the level.
pub fn register(registry: &mut Registry) {
    let names = ("deflate", "deflate[:LEVEL]", "level");
    leveled::register(registry, names, 1..=LEVEL_MAX, LEVEL_DEFAULT, |level, unit_size| {
        let codec = Codec { compressor: Compressor::new(level)?, decompressor: Decompressor::new()? };
        Ok(Box::new(Software::for_units(codec, unit_size)))
    });
}

struct Codec {
    compressor: Compressor,
    decompressor: Decompressor,
}

fn options() -> sys::libdeflate_options {
    sys::libdeflate_options {
        sizeof_options: size_of::<sys::libdeflate_options>(),
        malloc_func: Some(c_heap::malloc),
        free_func: Some(c_heap::free),
    }
}

/// A state of the library with its destructor.
macro_rules! state {
    ($name:ident($type:ty), fn new($($arg:ident: $arg_type:ty)?) => $alloc:ident, drop => $free:ident) => {
        struct $name(NonNull<$type>);

        // SAFETY: the state is on the heap and not tied to a thread.
        unsafe impl Send for $name {}

        impl $name {
            fn new($($arg: $arg_type)?) -> Result<Self, String> {
                // SAFETY: the options are complete; they are copied.
                let state = NonNull::new(unsafe { sys::$alloc($($arg,)? &options()) });
                state.map(Self).ok_or_else(|| "no memory".to_owned())
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: allocated in `new`, freed once.
                unsafe { sys::$free(self.0.as_ptr()) };
            }
        }
    };
}

state!(Compressor(sys::libdeflate_compressor), fn new(level: c_int) => libdeflate_alloc_compressor_ex,
    drop => libdeflate_free_compressor);
state!(Decompressor(sys::libdeflate_decompressor), fn new() => libdeflate_alloc_decompressor_ex,
    drop => libdeflate_free_decompressor);

impl UnitCodec for Codec {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        // SAFETY: the compressor is exclusive; both buffers have the lengths given.
        let len = unsafe {
            sys::libdeflate_deflate_compress(
                self.compressor.0.as_ptr(),
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

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        // SAFETY: the decompressor is exclusive and stays within both buffers, which have the
        // lengths given. With a null actual length, any length but the output's is an error.
        let code = unsafe {
            sys::libdeflate_deflate_decompress(
                self.decompressor.0.as_ptr(),
                object.as_ptr().cast(),
                object.len(),
                output.as_mut_ptr().cast(),
                output.len(),
                std::ptr::null_mut(),
            )
        };
        match code {
            sys::libdeflate_result_LIBDEFLATE_SUCCESS => Ok(()),
            _ => Err(UnitError::Failed),
        }
    }
}
