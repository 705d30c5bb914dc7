//! The command line's settings: `key=value`, by nbdkit's own rules for sizes and truth.

use std::ffi::{c_char, CStr, CString};

use device::Config;

use crate::abi;
use crate::plugin::say;
use crate::swap::SwapSettings;

/// How far a server is made fit to be swapped on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lock {
    #[default]
    No,
    /// Memory is locked, threads are marked, the out-of-memory killer is told to spare the process;
    /// any failure ends nbdkit.
    Yes,
    /// As `Yes`, but failures other than of the memory itself are reported and ignored.
    Try,
}

#[derive(Debug, Default)]
pub struct Settings {
    pub config: Config,
    pub has_size: bool,
    pub lock: Lock,
    pub swap: SwapSettings,
    pub stats: Option<String>,
}

/// Help, as `nbdkit --help` prints it.
pub const HELP: &CStr = c"size=SIZE      (required) bytes of the device
ram=SIZE       most memory for what is stored; no bound without it
swap=SIZE      a file on disk for what ram has no room for, as large as that
swap-dir=DIR   directory for that file, which has no name there; default /var/tmp
swap-plain=BOOL  leave out encryption: for disks that are encrypted below
compressor=NAME  default auto; --dump-plugin lists all
unit=SIZE      bytes compressed as one: 4k (default) to 64k
queues=N       requests compressed at once; default one a CPU
checksums=BOOL keep and check a checksum of each block
lock=no|yes|try  be fit to be swapped on: lock ram in advance
stats=FILE     write figures there each second, as JSON";

const NO_KEPT_DISK: &str = "swap-file= and swap-key= are gone: a disk does not outlive its server; swap=SIZE gives it a file for what ram \
                            has no room for, and nbdkit's file plugin keeps one";

impl Settings {
    /// Takes one setting. An `Err` was reported already.
    pub fn set(&mut self, key: &CStr, value: &CStr) -> Result<(), ()> {
        let text = || value.to_str().map_err(|_| say(&format!("{}: not UTF-8", key.to_string_lossy())));
        match key.to_bytes() {
            b"size" => {
                self.config.size_bytes = size(value)?;
                self.has_size = true;
            }
            b"ram" => self.config.ram_bytes = Some(size(value)?),
            b"compressor" => self.config.compressor = text()?.to_owned(),
            b"unit" => self.config.unit_bytes = size(value)? as usize,
            b"queues" => self.config.queues = number(c"queues", value)? as usize,
            b"checksums" => self.config.has_checksums = truth(value)?,
            b"lock" => {
                self.lock = match text()? {
                    "try" => Lock::Try,
                    _ if truth(value)? => Lock::Yes,
                    _ => Lock::No,
                }
            }
            b"stats" => self.stats = Some(text()?.to_owned()),
            b"swap" => self.swap.size_bytes = Some(size(value)?),
            b"swap-dir" => self.swap.directory = Some(text()?.into()),
            b"swap-plain" => self.swap.is_plain = Some(truth(value)?),
            b"swap-file" | b"swap-key" => {
                say(NO_KEPT_DISK);
                return Err(());
            }
            other => {
                say(&format!("there is no setting {:?}; see nbdkit --help", String::from_utf8_lossy(other)));
                return Err(());
            }
        }
        Ok(())
    }
}

fn size(value: &CStr) -> Result<u64, ()> {
    // SAFETY: a terminated string; the function reports errors itself.
    let bytes = unsafe { abi::nbdkit_parse_size(value.as_ptr()) };
    u64::try_from(bytes).map_err(|_| ())
}

fn truth(value: &CStr) -> Result<bool, ()> {
    // SAFETY: as in `size`.
    match unsafe { abi::nbdkit_parse_bool(value.as_ptr()) } {
        -1 => Err(()),
        value => Ok(value == 1),
    }
}

fn number(what: &CStr, value: &CStr) -> Result<u32, ()> {
    let mut number = 0;
    // SAFETY: terminated strings, and a number of this function.
    match unsafe { abi::nbdkit_parse_unsigned(what.as_ptr(), value.as_ptr(), &mut number) } {
        -1 => Err(()),
        _ => Ok(number),
    }
}

/// A string for nbdkit, without NUL bytes.
pub fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "")).expect("no zero is left")
}

/// The string behind a pointer from nbdkit.
///
/// # Safety
/// The pointer is to a terminated string that lives during the call.
pub unsafe fn borrowed<'a>(text: *const c_char) -> &'a CStr {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }
}
