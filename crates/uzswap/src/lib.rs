//! Compressed swap in user space: pools and regions larger than RAM.
//!
//! # A cache of compressed pages
//!
//! ```
//! use uzswap::{Group, Keep, PoolConfig, PAGE_SIZE};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A pool of at most 64 MiB that compresses with LZ4, eight pages a batch.
//! let pool = uzswap::pool("lz4", PoolConfig { max_pool_bytes: 64 << 20, ..PoolConfig::default() })?;
//!
//! // Sixteen pages go in under the keys 1000..1016 of group 0: all of them or none.
//! let pages = vec![*b"sixteen bytes of"; 16 * PAGE_SIZE / 16];
//! let pages = pages.as_flattened().as_chunks::<PAGE_SIZE>().0;
//! pool.store(Group(0), 1000, &pages.iter().collect::<Vec<_>>())?;
//! assert_eq!(pool.present(Group(0), 996, 8), 0b1111_0000);
//!
//! // Three of them come out; `Shared` leaves them in the pool, `Exclusive` takes them out.
//! let mut three = [[0; PAGE_SIZE]; 3];
//! pool.load(Group(0), 1005, &mut three.each_mut(), Keep::Exclusive)?;
//! assert_eq!(three, pages[5..8]);
//! assert_eq!(pool.stored_pages(), 13);
//!
//! // The rest is forgotten; the range may be far longer than what is stored.
//! pool.invalidate(Group(0), 0, u64::MAX);
//! assert_eq!(pool.stored_pages(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! Pages that the pool cannot hold are refused with a reason ([`StoreError`]), unless there is a
//! swap file ([`PoolConfig::swap`]): then the oldest pages go there when
//! [`Pool::shrink_to_accept`] is called, and incompressible ones are kept as they are.
//!
//! # Compressors by name
//!
//! [`registry`] has every compressor of this build; [`pool`] looks them up there. Others are
//! registered into a [`Registry`] of one's own, or handed to [`Pool::new`] directly.

pub mod pages;
pub mod regions;

pub use acomp;
pub use acomp::{Algorithm, Registry, UnknownAlgorithm, MAX_BATCH, PAGE_SIZE};
pub use zswap::{
    compacting_bytes, form_names, Config as PoolConfig, Counters, Error as PoolError, Forms, Group,
    GroupUsage, Keep, LoadError, Page, ShrinkReport, StoreError, Tally, Zswap as Pool, FORMS_MAX, KEY_BITS,
    TIDYING_BYTES,
};

/// The compressor for memory of unknown content: it chooses a form page by page.
pub const DEFAULT_COMPRESSOR: &str = "auto";

/// Why [`pool`] failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No compressor of that name.
    #[error(transparent)]
    Compressor(#[from] UnknownAlgorithm),
    /// The pool could not be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Every compressor of this build, by name. All are lossless.
pub fn registry() -> Registry {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    codecs::parallel::register(&mut registry);
    #[cfg(feature = "iaa")]
    iaa::register(&mut registry);
    #[cfg(not(feature = "iaa"))]
    ["deflate-iaa", "deflate-iaa-dynamic"].into_iter().for_each(|name| registry.leave_out(name, "iaa"));
    registry
}

/// A pool that compresses with `compressor`.
///
/// # Errors
/// [`Error`], if the name is unknown or the configuration out of range.
pub fn pool(compressor: &str, config: PoolConfig) -> Result<Pool, Error> {
    Ok(Pool::new(config, registry().find(compressor)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "iaa")]
    fn devices_that_do_no_work_keep_no_pages() {
        for name in ["deflate-iaa:work=null", "deflate-iaa-dynamic:work=timed:3500,devices=2"] {
            let Err(error) = pool(name, PoolConfig::default()) else { panic!("{name} was taken") };
            assert!(error.to_string().contains("leave out work="), "{error}");
        }
    }
}
