//! The plugin's callbacks: each finds the device and passes the request to it.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use device::{Device, IoError, SwapDisk};
use sys::flusher;

use crate::abi::{self, Extents, Handle, Plugin};
use crate::settings::{borrowed, c_string, Lock, Settings, HELP};
use crate::statistics::Writer;

/// Heap reserved for nbdkit's allocations while it serves: buffers and lists of extents.
const HEAP_BYTES: usize = 16 << 20;

static SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);
static DEVICE: OnceLock<Device> = OnceLock::new();
static LOCK: OnceLock<Lock> = OnceLock::new();
static SWAP_DISK: Mutex<Option<SwapDisk>> = Mutex::new(None);
static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

thread_local! {
    /// Whether this thread was made fit to be swapped on.
    static IS_READY: Cell<bool> = const { Cell::new(false) };
}

pub fn say(text: &str) {
    let text = c_string(text);
    // SAFETY: a format with one string.
    unsafe { abi::nbdkit_error(c"%s".as_ptr(), text.as_ptr()) };
}

fn debug(text: &str) {
    let text = c_string(text);
    // SAFETY: a format with one string.
    unsafe { abi::nbdkit_debug(c"%s".as_ptr(), text.as_ptr()) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device() -> &'static Device {
    DEVICE.get().expect("nbdkit serves after after_fork")
}

/// Runs a request in a thread that is fit for it.
fn serve(request: impl FnOnce(&Device) -> Result<(), IoError>) -> c_int {
    if !IS_READY.get() {
        IS_READY.set(true);
        if *LOCK.get().unwrap_or(&Lock::No) != Lock::No {
            flusher::touch_stack();
            // Inherited from the thread that made it. A missing permission was reported at the
            // start.
            if !flusher::is_marked() && flusher::mark_thread().is_ok() {
                debug("a thread was marked that was expected to be unmarked");
            }
        }
    }
    match request(device()) {
        Ok(()) => 0,
        Err(error) => {
            say(&error.to_string());
            // SAFETY: sets the number that nbdkit sends.
            unsafe { abi::nbdkit_set_error(error.errno()) };
            -1
        }
    }
}

unsafe extern "C" fn config(key: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: nbdkit passes terminated strings.
    let (key, value) = unsafe { (borrowed(key), borrowed(value)) };
    let mut settings = lock(&SETTINGS);
    let settings = settings.get_or_insert_with(|| {
        let mut settings = Settings::default();
        settings.config.has_checksums = false;
        settings
    });
    match settings.set(key, value) {
        Ok(()) => 0,
        Err(()) => -1,
    }
}

/// nbdkit's status for a step of the start; reports why it failed.
fn status_of(step: Result<(), String>) -> c_int {
    match step {
        Ok(()) => 0,
        Err(reason) => {
            say(&reason);
            -1
        }
    }
}

unsafe extern "C" fn config_complete() -> c_int {
    status_of(complete(lock(&SETTINGS).as_mut()))
}

fn complete(settings: Option<&mut Settings>) -> Result<(), String> {
    let settings = settings.filter(|settings| settings.has_size);
    let settings = settings.ok_or("size= is missing: how large shall the device be?")?;
    uzswap::registry().find(&settings.config.compressor).map_err(|error| error.to_string())?;
    if settings.lock != Lock::No && settings.config.ram_bytes.is_none() {
        return Err("lock= needs ram=: memory is locked in advance".into());
    }
    settings.swap.check(settings.config.ram_bytes.is_some())?;
    settings.config.is_locked = settings.lock != Lock::No;
    Ok(())
}

/// The swap file is opened here, while errors still reach the user.
unsafe extern "C" fn get_ready() -> c_int {
    let settings = lock(&SETTINGS);
    let settings = settings.as_ref().expect("config_complete was called");
    status_of(settings.swap.open(settings.lock).map(|disk| {
        if settings.lock == Lock::Try && disk.as_ref().is_some_and(|disk| !disk.is_direct()) {
            say("lock=try: the swap file goes by the page cache, which takes memory");
        }
        *lock(&SWAP_DISK) = disk;
    }))
}

/// The device is made here and not before, since neither threads nor locked memory survive a fork.
unsafe extern "C" fn after_fork() -> c_int {
    status_of(start(lock(&SETTINGS).take().expect("config_complete was called")))
}

fn start(mut settings: Settings) -> Result<(), String> {
    let swap = lock(&SWAP_DISK).take();
    let how = settings.lock;
    let allowed = |step: Result<(), flusher::FlusherError>| match step {
        Err(error) if how == Lock::Yes => Err(format!("lock=yes: {error}; lock=try continues without")),
        Err(error) => {
            say(&format!("lock=try: {error}"));
            Ok(())
        }
        Ok(()) => Ok(()),
    };
    if how != Lock::No {
        flusher::keep_heap(HEAP_BYTES + swap.as_ref().map_or(0, |_| SwapDisk::HEAP_BYTES));
        // Threads are children of this one, and inherit its mark.
        allowed(flusher::mark_thread())?;
        allowed(flusher::spare_from_oom())?;
    }
    if let Some(disk) = swap {
        let file = disk.start(how != Lock::No).map_err(|error| error.to_string())?;
        settings.config.swap = Some(file);
    }
    let device = Device::new(settings.config).map_err(|error| error.to_string())?;
    if how != Lock::No {
        allowed(flusher::lock_memory())?;
    }
    LOCK.get_or_init(|| how);
    debug(&format!("{:?}", device.config()));
    DEVICE.set(device).map_err(|_| "after_fork was called twice".to_owned())?;
    if let Some(file) = settings.stats {
        let writer = Writer::start(file, crate::plugin::device()).map_err(|error| error.to_string())?;
        *lock(&WRITER) = Some(writer);
    }
    Ok(())
}

unsafe extern "C" fn unload() {
    if let Some(writer) = lock(&WRITER).take() {
        writer.stop();
    }
    if let Some(device) = DEVICE.get() {
        device.stop();
    }
}

unsafe extern "C" fn dump_plugin() {
    let registry = uzswap::registry();
    println!("uzswap_compressors={}", registry.usages().collect::<Vec<_>>().join(","));
    println!("uzswap_default_compressor={}", uzswap::DEFAULT_COMPRESSOR);
    println!("uzswap_block_bytes={}", device::BLOCK_BYTES);
    println!("uzswap_size_bytes_max={}", device::SIZE_BYTES_MAX);
    println!("uzswap_swap_file=yes");
}

unsafe extern "C" fn open(_readonly: c_int) -> Handle {
    // All connections share the device; nbdkit only requires a pointer that is not null.
    std::ptr::from_ref(device()).cast_mut().cast()
}

unsafe extern "C" fn close(_handle: Handle) {}

unsafe extern "C" fn get_size(_handle: Handle) -> i64 {
    device().size_bytes() as i64
}

unsafe extern "C" fn yes(_handle: Handle) -> c_int {
    1
}

unsafe extern "C" fn no(_handle: Handle) -> c_int {
    0
}

unsafe extern "C" fn fua_native(_handle: Handle) -> c_int {
    abi::FUA_NATIVE
}

unsafe extern "C" fn cache_native(_handle: Handle) -> c_int {
    abi::CACHE_NATIVE
}

unsafe extern "C" fn thread_model() -> c_int {
    abi::THREAD_MODEL_PARALLEL
}

unsafe extern "C" fn block_size(
    _handle: Handle,
    minimum: *mut u32,
    preferred: *mut u32,
    maximum: *mut u32,
) -> c_int {
    // SAFETY: nbdkit passes pointers to three numbers.
    unsafe {
        minimum.write(1);
        preferred.write(device::BLOCK_BYTES as u32);
        maximum.write(u32::MAX);
    }
    0
}

unsafe extern "C" fn pread(
    _handle: Handle,
    into: *mut c_void,
    count: u32,
    offset: u64,
    _flags: u32,
) -> c_int {
    // SAFETY: nbdkit passes `count` writable, initialised bytes, for this call alone.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), count as usize) };
    serve(|device| device.read(offset, into))
}

unsafe extern "C" fn pwrite(
    _handle: Handle,
    from: *const c_void,
    count: u32,
    offset: u64,
    flags: u32,
) -> c_int {
    // SAFETY: nbdkit passes `count` readable bytes, which do not change during this call.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count as usize) };
    serve(|device| device.write(offset, from).and_then(|()| end(device, flags)))
}

/// A request with FUA promises as much as a flush.
fn end(device: &Device, flags: u32) -> Result<(), IoError> {
    if flags & abi::FLAG_FUA != 0 {
        device.flush();
    }
    Ok(())
}

unsafe extern "C" fn flush(_handle: Handle, _flags: u32) -> c_int {
    serve(|device| end(device, abi::FLAG_FUA))
}

unsafe extern "C" fn trim(_handle: Handle, count: u32, offset: u64, flags: u32) -> c_int {
    serve(|device| device.discard(offset, count.into()).and_then(|()| end(device, flags)))
}

unsafe extern "C" fn zero(_handle: Handle, count: u32, offset: u64, flags: u32) -> c_int {
    serve(|device| device.zero(offset, count.into()).and_then(|()| end(device, flags)))
}

unsafe extern "C" fn cache(_handle: Handle, _count: u32, _offset: u64, _flags: u32) -> c_int {
    // Nothing to do: blocks in memory need no fetching, and blocks in the swap file went there for
    // want of room.
    0
}

unsafe extern "C" fn extents(
    _handle: Handle,
    count: u32,
    offset: u64,
    flags: u32,
    extents: *mut Extents,
) -> c_int {
    let mut failed = false;
    let status = serve(|device| {
        device.extents(offset, count.into(), |extent| {
            let kind = if extent.is_data { 0 } else { abi::EXTENT_HOLE | abi::EXTENT_ZERO };
            // SAFETY: the list is nbdkit's, for this call.
            failed = unsafe { abi::nbdkit_add_extent(extents, extent.start, extent.len, kind) } != 0;
            match failed || flags & abi::FLAG_REQ_ONE != 0 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    });
    if failed {
        -1
    } else {
        status
    }
}

/// nbdkit takes the plugin's description from a pointer that stays valid.
struct Static(Plugin);

// SAFETY: it never changes, and it points to constants only.
unsafe impl Sync for Static {}

static PLUGIN: Static = Static(Plugin {
    struct_size: size_of::<Plugin>() as u64,
    api_version: abi::API_VERSION,
    thread_model_max: abi::THREAD_MODEL_PARALLEL,
    name: c"uzswap".as_ptr(),
    longname: c"uzswap compressed memory".as_ptr(),
    version: VERSION.as_ptr(),
    description: c"A disk in memory, compressed in batches".as_ptr(),
    load: None,
    unload: Some(unload),
    config: Some(config),
    config_complete: Some(config_complete),
    config_help: HELP.as_ptr(),
    open: Some(open),
    close: Some(close),
    get_size: Some(get_size),
    can_write: Some(yes),
    can_flush: Some(yes),
    is_rotational: Some(no),
    can_trim: Some(yes),
    v1: [None; 5],
    errno_is_preserved: 0,
    dump_plugin: Some(dump_plugin),
    can_zero: Some(yes),
    can_fua: Some(fua_native),
    pread: Some(pread),
    pwrite: Some(pwrite),
    flush: Some(flush),
    trim: Some(trim),
    zero: Some(zero),
    magic_config_key: c"size".as_ptr(),
    can_multi_conn: Some(yes),
    can_extents: Some(yes),
    extents: Some(extents),
    can_cache: Some(cache_native),
    cache: Some(cache),
    thread_model: Some(thread_model),
    can_fast_zero: Some(yes),
    preconnect: None,
    get_ready: Some(get_ready),
    after_fork: Some(after_fork),
    list_exports: None,
    default_export: None,
    export_description: None,
    cleanup: None,
    block_size: Some(block_size),
});

const VERSION: &std::ffi::CStr = {
    match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("the version has no zero inside"),
    }
};

/// The entry point of the plugin.
#[no_mangle]
pub extern "C" fn plugin_init() -> *const Plugin {
    &PLUGIN.0
}
