//! The software compressors behind [`acomp`].
//!
//! | name | what |
//! |---|---|
//! | `none` | pages as they are |
//! | `lz4`, `lz4:ACCEL` | LZ4 blocks |
//! | `zstd`, `zstd:LEVEL` | Zstandard frames without magic number; negative levels too |
//! | `deflate`, `deflate:LEVEL` | raw DEFLATE with a window of 4 KiB |
//! | `auto` | the default: chooses a form for each page |
//! | `t16` | the page codec of `pagecodec` |
//! | `t16h` | the dense second tier for cold pages: T16H, or `auto`'s other forms |
//! | `parallel:THREADS,NAME` | any of the others, the units of a request spread over threads ([`parallel`]); not among [`register_all`] |
//! | `auto-t16h` | two tiers: `auto`, and `t16h` for what the store finds cold, or at once while it asks for that |
//!
//! `zstd` and `deflate` are in builds with the features of their names, which are on by default.
//!
//! No compressor allocates or touches thread-local storage after its context was created. The C
//! libraries work in fixed workspaces or get memory from Rust's allocator.

pub mod auto;
#[cfg(feature = "deflate")]
mod c_heap;
#[cfg(feature = "deflate")]
pub mod deflate;
mod forced;
mod heap;
mod leveled;
pub mod lz4;
pub mod none;
pub mod parallel;
pub mod t16;
pub mod t16h;
pub mod tiers;
mod unit;
#[cfg(feature = "zstd")]
pub mod zstd;

/// Adds every compressor of this crate to `registry`, except [`parallel`], which starts threads.
pub fn register_all(registry: &mut acomp::Registry) {
    none::register(registry);
    lz4::register(registry);
    #[cfg(feature = "zstd")]
    zstd::register(registry);
    #[cfg(not(feature = "zstd"))]
    registry.leave_out("zstd", "zstd");
    #[cfg(feature = "deflate")]
    deflate::register(registry);
    #[cfg(not(feature = "deflate"))]
    registry.leave_out("deflate", "deflate");
    t16::register(registry);
    auto::register(registry);
    t16h::register(registry);
    tiers::register(registry);
}
