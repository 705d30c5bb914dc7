//! Raw DEFLATE (RFC 1951) with distances of at most 4 KiB, which accelerators with small windows
//! can read.
//!
//! A unit of one page has no longer distances by nature and goes through libdeflate. Larger units
//! go through zlib, whose window can be limited, and are one stream each all the same.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use acomp::{
    Algorithm, Context, ContextError, Registry, Software, UnitCodec, UnitError, UnitResult, PAGE_SIZE,
    UNIT_SIZE_MAX,
};

use crate::c_heap;

const LEVEL_DEFAULT: c_int = 1;
const LEVEL_MAX: c_int = 12;
/// log2 of 4 KiB; negative asks zlib for streams without header.
const ZLIB_WINDOW: c_int = -12;
/// zlib's memory level: hash chains of 32 Ki entries.
const ZLIB_MEMORY: c_int = 8;
const ZLIB_LEVEL_MAX: c_int = 9;

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
        let page = PageCompressor::new(self.level).ok_or_else(refused)?;
        let large = if unit_size > PAGE_SIZE {
            Some(LargeCompressor::new(self.level.min(ZLIB_LEVEL_MAX)).ok_or_else(refused)?)
        } else {
            None
        };
        let decompressor = Decompressor::new().ok_or_else(refused)?;
        Ok(Box::new(Software::for_units(Codec { page, large, decompressor }, unit_size)))
    }
}

struct Codec {
    page: PageCompressor,
    large: Option<LargeCompressor>,
    decompressor: Decompressor,
}

impl UnitCodec for Codec {
    fn compress_unit(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        match &mut self.large {
            Some(large) if unit.len() > PAGE_SIZE => large.compress(unit, output),
            _ => self.page.compress(unit, output),
        }
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

struct PageCompressor(NonNull<libdeflate_sys::libdeflate_compressor>);

// SAFETY: the state is on the heap and has no tie to a thread.
unsafe impl Send for PageCompressor {}

impl PageCompressor {
    fn new(level: c_int) -> Option<Self> {
        // SAFETY: the options are complete; they are copied.
        NonNull::new(unsafe { libdeflate_sys::libdeflate_alloc_compressor_ex(level, &options()) }).map(Self)
    }

    fn compress(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        debug_assert!(unit.len() <= PAGE_SIZE);
        // SAFETY: the compressor is this thread's; both buffers have the lengths given.
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

impl Drop for PageCompressor {
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
        // SAFETY: the decompressor is this thread's; both buffers have the lengths given, which it
        // does not leave. Without a place for the actual length, any other than the output's is an
        // error.
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

/// zlib's state, boxed because it points to itself.
struct LargeCompressor(Box<libz_sys::z_stream>);

// SAFETY: the state is on the heap and has no tie to a thread.
unsafe impl Send for LargeCompressor {}

impl LargeCompressor {
    fn new(level: c_int) -> Option<Self> {
        let mut stream = MaybeUninit::<libz_sys::z_stream>::zeroed();
        let at = stream.as_mut_ptr();
        // SAFETY: the fields are within the value; writing does not read what was there.
        unsafe {
            (&raw mut (*at).zalloc).write(c_heap::zalloc);
            (&raw mut (*at).zfree).write(c_heap::zfree);
        }
        // SAFETY: the two functions are set, and null pointers and zeroes are values of all other
        // fields.
        let mut stream = Box::new(unsafe { stream.assume_init() });
        // SAFETY: the allocator is set; the stream stays where it is.
        let code = unsafe {
            libz_sys::deflateInit2_(
                &mut *stream,
                level,
                libz_sys::Z_DEFLATED,
                ZLIB_WINDOW,
                ZLIB_MEMORY,
                libz_sys::Z_DEFAULT_STRATEGY,
                libz_sys::zlibVersion(),
                size_of::<libz_sys::z_stream>() as c_int,
            )
        };
        (code == libz_sys::Z_OK).then_some(Self(stream))
    }

    fn compress(&mut self, unit: &[u8], output: &mut [u8]) -> UnitResult {
        let stream = &mut *self.0;
        stream.next_in = unit.as_ptr().cast_mut();
        stream.avail_in = unit.len() as u32;
        stream.next_out = output.as_mut_ptr();
        stream.avail_out = output.len() as u32;
        // SAFETY: the stream was initialised, is this thread's, and its two buffers have the
        // lengths given.
        let code = unsafe { libz_sys::deflate(stream, libz_sys::Z_FINISH) };
        let len = output.len() - stream.avail_out as usize;
        // SAFETY: the stream was initialised.
        let reset = unsafe { libz_sys::deflateReset(stream) };
        match (code, reset) {
            (libz_sys::Z_STREAM_END, libz_sys::Z_OK) => Ok(len),
            (libz_sys::Z_OK | libz_sys::Z_BUF_ERROR, libz_sys::Z_OK) => Err(UnitError::NoSpace),
            _ => Err(UnitError::Failed),
        }
    }
}

impl Drop for LargeCompressor {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, ended once.
        unsafe { libz_sys::deflateEnd(&mut *self.0) };
    }
}
