//! nbdkit's interface for plugins, version 2, as nbdkit-plugin(3) and the header nbdkit-plugin.h
//! describe it.
//!
//! The crate `nbdkit` of crates.io (0.3.0) does not fit: it lacks `after_fork`, without which
//! threads and locked memory are lost when nbdkit daemonizes, and `block_size`, and hides the
//! threads that requests run in.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

pub const API_VERSION: c_int = 2;
/// Requests of one connection and of several may run at once.
pub const THREAD_MODEL_PARALLEL: c_int = 3;

pub const FLAG_FUA: u32 = 1 << 1;
pub const FLAG_REQ_ONE: u32 = 1 << 2;

pub const FUA_NATIVE: c_int = 2;
pub const CACHE_NATIVE: c_int = 2;

pub const EXTENT_HOLE: u32 = 1 << 0;
pub const EXTENT_ZERO: u32 = 1 << 1;

/// A connection's handle, as plugins choose it.
pub type Handle = *mut c_void;
type Ask = Option<unsafe extern "C" fn(Handle) -> c_int>;
type Unused = Option<unsafe extern "C" fn()>;

/// `struct nbdkit_plugin`, up to the field `block_size` of nbdkit 1.30. nbdkit reads no more of it
/// than both sides know.
#[repr(C)]
pub struct Plugin {
    pub struct_size: u64,
    pub api_version: c_int,
    pub thread_model_max: c_int,
    pub name: *const c_char,
    pub longname: *const c_char,
    pub version: *const c_char,
    pub description: *const c_char,
    pub load: Unused,
    pub unload: Option<unsafe extern "C" fn()>,
    pub config: Option<unsafe extern "C" fn(*const c_char, *const c_char) -> c_int>,
    pub config_complete: Option<unsafe extern "C" fn() -> c_int>,
    pub config_help: *const c_char,
    pub open: Option<unsafe extern "C" fn(c_int) -> Handle>,
    pub close: Option<unsafe extern "C" fn(Handle)>,
    pub get_size: Option<unsafe extern "C" fn(Handle) -> i64>,
    pub can_write: Ask,
    pub can_flush: Ask,
    pub is_rotational: Ask,
    pub can_trim: Ask,
    pub v1: [Unused; 5],
    pub errno_is_preserved: c_int,
    pub dump_plugin: Option<unsafe extern "C" fn()>,
    pub can_zero: Ask,
    pub can_fua: Ask,
    pub pread: Option<unsafe extern "C" fn(Handle, *mut c_void, u32, u64, u32) -> c_int>,
    pub pwrite: Option<unsafe extern "C" fn(Handle, *const c_void, u32, u64, u32) -> c_int>,
    pub flush: Option<unsafe extern "C" fn(Handle, u32) -> c_int>,
    pub trim: Option<unsafe extern "C" fn(Handle, u32, u64, u32) -> c_int>,
    pub zero: Option<unsafe extern "C" fn(Handle, u32, u64, u32) -> c_int>,
    pub magic_config_key: *const c_char,
    pub can_multi_conn: Ask,
    pub can_extents: Ask,
    pub extents: Option<unsafe extern "C" fn(Handle, u32, u64, u32, *mut Extents) -> c_int>,
    pub can_cache: Ask,
    pub cache: Option<unsafe extern "C" fn(Handle, u32, u64, u32) -> c_int>,
    pub thread_model: Option<unsafe extern "C" fn() -> c_int>,
    pub can_fast_zero: Ask,
    pub preconnect: Unused,
    pub get_ready: Option<unsafe extern "C" fn() -> c_int>,
    pub after_fork: Option<unsafe extern "C" fn() -> c_int>,
    pub list_exports: Unused,
    pub default_export: Unused,
    pub export_description: Unused,
    pub cleanup: Unused,
    pub block_size: Option<unsafe extern "C" fn(Handle, *mut u32, *mut u32, *mut u32) -> c_int>,
}

// Sizes and offsets by a C compiler, of the header of nbdkit 1.32 on 64-bit machines.
const _: () = {
    assert!(size_of::<Plugin>() == 384);
    assert!(offset_of!(Plugin, errno_is_preserved) == 184 && offset_of!(Plugin, pread) == 216);
    assert!(offset_of!(Plugin, extents) == 280 && offset_of!(Plugin, after_fork) == 336);
};

#[repr(C)]
pub struct Extents {
    _opaque: [u8; 0],
}

extern "C" {
    pub fn nbdkit_error(format: *const c_char, ...);
    pub fn nbdkit_debug(format: *const c_char, ...);
    pub fn nbdkit_set_error(error: c_int);
    pub fn nbdkit_parse_size(text: *const c_char) -> i64;
    pub fn nbdkit_parse_bool(text: *const c_char) -> c_int;
    pub fn nbdkit_parse_unsigned(what: *const c_char, text: *const c_char, value: *mut u32) -> c_int;
    pub fn nbdkit_add_extent(extents: *mut Extents, offset: u64, length: u64, kind: u32) -> c_int;
}
