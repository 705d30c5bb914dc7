//! Statuses, and the reason of a thread's last failure.

use std::cell::RefCell;
use std::ffi::{c_char, CStr, CString};
use std::fmt::Display;
use std::io::ErrorKind;

use uzswap::regions::{OpenError, SpaceError, SwapError};
use uzswap::{Error, LoadError, PoolError, StoreError, UnknownAlgorithm};

/// What became of a call.
#[must_use]
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum uzswap_status {
    /// Done.
    UZSWAP_OK = 0,
    /// An argument is null, out of its range, or not of this library's making.
    UZSWAP_INVALID = 1,
    /// There is no compressor of that name.
    UZSWAP_NO_COMPRESSOR = 2,
    /// No memory, or no address space in one piece, is left.
    UZSWAP_NO_MEMORY = 3,
    /// The pool has reached its limit.
    UZSWAP_FULL = 4,
    /// A page does not compress.
    UZSWAP_POOR = 5,
    /// A page is not in the pool.
    UZSWAP_MISSING = 6,
    /// A page is in the pool, but does not decompress to its bytes.
    UZSWAP_DAMAGED = 7,
    /// Regions need userfaultfd(2), which this process may not use; uzswap_error() has the command
    /// that permits it.
    UZSWAP_NOT_PERMITTED = 8,
    /// This kernel or machine cannot do it.
    UZSWAP_UNSUPPORTED = 9,
    /// The process's space was started already.
    UZSWAP_STARTED = 10,
    /// The process has no space, or it is a forked child whose parent has one:
    /// uzswap_space_start().
    UZSWAP_NOT_STARTED = 11,
    /// The system refused something.
    UZSWAP_SYSTEM = 12,
}

use uzswap_status::*;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why the last call of this thread that failed did so: an English sentence without a full stop,
/// never null, empty when none has failed. Valid until the next call of this thread that fails. In
/// destructors of a thread that ends (pthread_key_create()) it may be empty.
#[no_mangle]
pub extern "C" fn uzswap_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Keeps a reason; returns the status.
pub(crate) fn failed(status: uzswap_status, reason: impl Display) -> uzswap_status {
    let text = CString::new(reason.to_string().replace('\0', " ")).expect("no zeroes are left");
    // C's destructors run after Rust's.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    status
}

/// Reports an invalid argument.
pub(crate) fn invalid(reason: impl Display) -> uzswap_status {
    failed(UZSWAP_INVALID, reason)
}

/// The status of a library error.
pub(crate) trait Status: Display {
    fn status(&self) -> uzswap_status;
}

/// The status of a result; `keep` gets its value.
pub(crate) fn status_of<T>(done: Result<T, impl Status>, keep: impl FnOnce(T)) -> uzswap_status {
    match done {
        Ok(made) => {
            keep(made);
            UZSWAP_OK
        }
        Err(error) => failed(error.status(), &error),
    }
}

impl Status for UnknownAlgorithm {
    fn status(&self) -> uzswap_status {
        UZSWAP_NO_COMPRESSOR
    }
}

impl Status for PoolError {
    fn status(&self) -> uzswap_status {
        match self {
            PoolError::Config { .. } | PoolError::Swap(_) => UZSWAP_INVALID,
            PoolError::Arena(_) => UZSWAP_NO_MEMORY,
            PoolError::Context(_) | PoolError::TooManyPools => UZSWAP_SYSTEM,
        }
    }
}

impl Status for Error {
    fn status(&self) -> uzswap_status {
        match self {
            Error::Compressor(error) => error.status(),
            Error::Pool(error) => error.status(),
        }
    }
}

impl Status for StoreError {
    fn status(&self) -> uzswap_status {
        match self {
            StoreError::Poor { .. } => UZSWAP_POOR,
            StoreError::Failed { .. } => UZSWAP_SYSTEM,
            StoreError::NoMemory => UZSWAP_NO_MEMORY,
            StoreError::PoolLimit | StoreError::GroupLimit => UZSWAP_FULL,
            StoreError::OutOfRange => UZSWAP_INVALID,
        }
    }
}

impl Status for LoadError {
    fn status(&self) -> uzswap_status {
        match self {
            LoadError::Missing { .. } => UZSWAP_MISSING,
            LoadError::Damaged { .. } => UZSWAP_DAMAGED,
            LoadError::Disk { .. } => UZSWAP_SYSTEM,
        }
    }
}

impl Status for SpaceError {
    fn status(&self) -> uzswap_status {
        match self {
            SpaceError::Started => UZSWAP_STARTED,
            SpaceError::Ram(_) => UZSWAP_INVALID,
            SpaceError::PageSize(_) => UZSWAP_UNSUPPORTED,
            SpaceError::Compressor(error) => error.status(),
            SpaceError::Pool(error) => error.status(),
            SpaceError::Swap(SwapError::InMemory { .. } | SwapError::Size { .. }) => UZSWAP_INVALID,
            SpaceError::Swap(_) => UZSWAP_SYSTEM,
            SpaceError::Userfaultfd(OpenError::NotPermitted) => UZSWAP_NOT_PERMITTED,
            SpaceError::Userfaultfd(_) => UZSWAP_UNSUPPORTED,
            SpaceError::System { source, .. } if source.kind() == ErrorKind::OutOfMemory => UZSWAP_NO_MEMORY,
            SpaceError::System { .. } => UZSWAP_SYSTEM,
            SpaceError::Full(_) => UZSWAP_NO_MEMORY,
            SpaceError::Forked => UZSWAP_NOT_STARTED,
        }
    }
}

/// The compressor that C names, `auto` for null; `None` if it is not text.
///
/// # Safety
/// Null or a terminated string.
pub(crate) unsafe fn compressor<'a>(name: *const c_char) -> Option<&'a str> {
    match name.is_null() {
        true => Some(uzswap::DEFAULT_COMPRESSOR),
        // SAFETY: the caller's promise.
        false => unsafe { CStr::from_ptr(name) }.to_str().ok(),
    }
}
