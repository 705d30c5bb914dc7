//! userfaultfd(2): serves faults and address-space events of a process from user space.
//!
//! Structures and numbers follow `linux/userfaultfd.h`. Descriptors are non-blocking: wait with
//! [`Userfaultfd::wait`], then [`Userfaultfd::read`]. They are plain numbers, not owned, because a
//! pager thread has its own file table (see [`crate::thread`]), outside of which its numbers are
//! invalid.

use std::io;
use std::mem::size_of;

use crate::privileged::{self, PrivilegedFile};
use crate::{checked, done, errno};

/// Features as `UFFDIO_API` reports them.
pub mod feature {
    /// Write-protect faults are reported.
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// fork() hands over a descriptor for the child. Needs CAP_SYS_PTRACE.
    pub const EVENT_FORK: u64 = 1 << 1;
    /// mremap() is reported.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// madvise(MADV_DONTNEED, MADV_REMOVE, MADV_FREE) is reported.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// munmap() is reported.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Faults raise SIGBUS instead of messages.
    pub const SIGBUS: u64 = 1 << 7;
    /// Fault messages carry the thread.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Fault messages carry the exact address, not the page's.
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    /// Pages can be poisoned (Linux 6.6).
    pub const POISON: u64 = 1 << 14;
    /// Asynchronous write protection (Linux 6.7).
    pub const WP_ASYNC: u64 = 1 << 15;
    /// `UFFDIO_MOVE` (Linux 6.8).
    pub const MOVE: u64 = 1 << 16;

    /// Accesses to armed pages are seen (Linux 7.3).
    pub const RWP: u64 = 1 << 17;
    /// The kernel disarms a page at its first use and sends no message (Linux 7.3).
    pub const RWP_ASYNC: u64 = 1 << 18;
    /// Features for access tracking.
    pub const TRACKING: u64 = RWP | RWP_ASYNC;

    /// Features for moving pages both ways: the other side is registered for write protection.
    /// aarch64 kernels have `MOVE` since 6.8 and write protection since 6.10.
    pub const MOVING: u64 = MOVE | PAGEFAULT_FLAG_WP;

    /// Every feature with its name, for `uzswap check`.
    pub const NAMES: [(u64, &str); 13] = [
        (PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"),
        (EVENT_FORK, "EVENT_FORK"),
        (EVENT_REMAP, "EVENT_REMAP"),
        (EVENT_REMOVE, "EVENT_REMOVE"),
        (EVENT_UNMAP, "EVENT_UNMAP"),
        (SIGBUS, "SIGBUS"),
        (THREAD_ID, "THREAD_ID"),
        (EXACT_ADDRESS, "EXACT_ADDRESS"),
        (POISON, "POISON"),
        (WP_ASYNC, "WP_ASYNC"),
        (MOVE, "MOVE"),
        (RWP, "RWP"),
        (RWP_ASYNC, "RWP_ASYNC"),
    ];
}

const API: u64 = 0xaa;
const TYPE: u64 = 0xaa;

const fn ioctl_number(direction: u64, number: u64, size: usize) -> libc::c_ulong {
    direction << 30 | (size as u64) << 16 | TYPE << 8 | number
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;

/// The request that agrees on features, the first on every userfaultfd.
pub const UFFDIO_API: libc::c_ulong = ioctl_number(READ_WRITE, 0x3f, size_of::<ApiArgument>());
const UFFDIO_REGISTER: libc::c_ulong = ioctl_number(READ_WRITE, 0x00, size_of::<Register>());
/// The request that registers a range, whose argument begins with start and length.
pub const REGISTER_REQUEST: libc::c_ulong = UFFDIO_REGISTER;
const UFFDIO_UNREGISTER: libc::c_ulong = ioctl_number(READ, 0x01, size_of::<Range>());
const UFFDIO_WAKE: libc::c_ulong = ioctl_number(READ, 0x02, size_of::<Range>());
const UFFDIO_COPY: libc::c_ulong = ioctl_number(READ_WRITE, 0x03, size_of::<Transfer>());
const UFFDIO_ZEROPAGE: libc::c_ulong = ioctl_number(READ_WRITE, 0x04, size_of::<Fill>());
const UFFDIO_MOVE: libc::c_ulong = ioctl_number(READ_WRITE, 0x05, size_of::<Transfer>());
const UFFDIO_WRITEPROTECT: libc::c_ulong = ioctl_number(READ_WRITE, 0x06, size_of::<WriteProtect>());
const UFFDIO_RWPROTECT: libc::c_ulong = ioctl_number(READ_WRITE, 0x09, size_of::<WriteProtect>());
const USERFAULTFD_IOC_NEW: libc::c_ulong = ioctl_number(0, 0x00, 0);

#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

impl Range {
    fn new(start: usize, len: usize) -> Self {
        Range { start: start as u64, len: len as u64 }
    }
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct Transfer {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct Fill {
    range: Range,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}
#[repr(C)]
#[derive(Clone, Copy)]
struct RawMessage {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}
const _: () =
    assert!(size_of::<ApiArgument>() == 24 && size_of::<Register>() == 32 && size_of::<Range>() == 16);
const _: () =
    assert!(size_of::<Transfer>() == 40 && size_of::<Fill>() == 32 && size_of::<WriteProtect>() == 24);
const _: () = assert!(size_of::<RawMessage>() == 32);

/// Most messages of one [`Userfaultfd::read`].
pub const MESSAGES_MAX: usize = 16;

/// A message of a userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A thread waits at `address`.
    Fault {
        /// The faulting page's address.
        address: usize,
        /// The access was a write.
        write: bool,
        /// The page is present but write-protected.
        protected: bool,
        /// The waiting thread; 0 without [`feature::THREAD_ID`].
        thread: u32,
    },
    /// fork(): the descriptor for the child's memory, now in the reader's file table.
    Fork {
        /// The child's userfaultfd.
        descriptor: i32,
    },
    /// mremap() moved `[from, from + len)` to `to`.
    Remap {
        /// Old start.
        from: usize,
        /// New start.
        to: usize,
        /// Bytes moved.
        len: usize,
    },
    /// `[start, end)` is about to be discarded.
    Remove {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// `[start, end)` has been unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
}

/// Why opening a userfaultfd failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither the system call nor the device node is allowed.
    #[error(
        "userfaultfd is not permitted: run as root, or `sudo sysctl vm.unprivileged_userfaultfd=1`, or \
         `sudo setfacl -m u:$USER:rw /dev/userfaultfd`"
    )]
    NotPermitted,
    /// The kernel was built without userfaultfd.
    #[error("this kernel has no userfaultfd (CONFIG_USERFAULTFD)")]
    Missing,
    /// Requested features are missing.
    #[error("{}", lacking(*missing))]
    Features {
        /// Missing bits of [`feature`].
        missing: u64,
    },
    /// Another error.
    #[error("userfaultfd: {0}")]
    Other(io::Error),
}

/// Advice for a kernel whose userfaultfd lacks features.
fn lacking(missing: u64) -> String {
    crate::kernel::why_too_old(!missing, &crate::kernel::release())
        .unwrap_or_else(|| format!("this kernel's userfaultfd lacks the features {missing:#x}"))
}

/// Why a range operation stopped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// An address-space event is unread or its thread has not run yet: drain events, retry later.
    Again,
    /// The destination page is already present.
    Exists,
    /// The source page is not present, or the range is not mapped or registered.
    Hole,
    /// A page is shared with another process or pinned.
    Busy,
    /// Differing protections or lock states, or not whole pages of one suitable mapping.
    Invalid,
    /// The kernel is out of memory.
    NoMemory,
    /// The process has ended or executed a program.
    Gone,
}

fn stop_of(code: i32) -> Stop {
    match code {
        libc::EAGAIN => Stop::Again,
        libc::EEXIST => Stop::Exists,
        libc::ENOENT | libc::EFAULT => Stop::Hole,
        libc::EBUSY => Stop::Busy,
        libc::ENOMEM => Stop::NoMemory,
        libc::ESRCH => Stop::Gone,
        _ => Stop::Invalid,
    }
}

/// The progress of a range operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done from the start of the range.
    pub done: usize,
    /// Why it stopped early.
    pub stop: Option<Stop>,
}

/// Registration mode: report faults on missing pages.
pub const MISSING: u64 = 1;
/// Registration mode: report writes to protected pages.
pub const WRITE_PROTECT: u64 = 2;
/// Registration mode: pages can be armed ([`Userfaultfd::arm`]). Excludes [`WRITE_PROTECT`].
pub const TRACKED: u64 = 8;

/// Modes of `UFFDIO_RWPROTECT`. The first arms, its absence disarms.
const RWPROTECT_ARM: u64 = 1;
const RWPROTECT_DONT_WAKE: u64 = 2;

/// Modes of `UFFDIO_MOVE`.
const MOVE_DONT_WAKE: u64 = 1;
const MOVE_ALLOW_SRC_HOLES: u64 = 2;

/// A userfaultfd by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Userfaultfd {
    descriptor: i32,
}

impl Userfaultfd {
    /// Opens a userfaultfd that also serves the kernel's own accesses, with all of `features`.
    ///
    /// # Errors
    /// [`OpenError`] names the fix.
    pub fn open(features: u64) -> Result<Self, OpenError> {
        Self::new_descriptor()?.with_features(features)
    }

    fn with_features(self, features: u64) -> Result<Self, OpenError> {
        let Err(error) = self.agree(features) else { return Ok(self) };
        if error.raw_os_error() == Some(libc::EPERM) && privileged::agree(self.descriptor, features) {
            return Ok(self);
        }
        self.close();
        match error.raw_os_error() {
            Some(libc::EINVAL) => {
                Err(OpenError::Features { missing: features & !Self::features().unwrap_or(0) })
            }
            Some(libc::EPERM) => Err(OpenError::Features { missing: features & feature::EVENT_FORK }),
            _ => Err(OpenError::Other(error)),
        }
    }

    /// Agrees with the kernel on its reports, once, in a process that may have all of `features`.
    ///
    /// # Errors
    /// EPERM without the right to one of them, EINVAL if one is missing.
    pub fn agree(&self, features: u64) -> io::Result<()> {
        let mut argument = ApiArgument { api: API, features, ioctls: 0 };
        // SAFETY: the argument is a valid structure of the size in the request number.
        done(unsafe { libc::ioctl(self.descriptor, UFFDIO_API, &mut argument) })
    }

    /// Opens a userfaultfd with the available features among `wanted`, and returns them.
    ///
    /// # Errors
    /// [`OpenError`] names the fix.
    pub fn open_with_any(wanted: u64) -> Result<(Self, u64), OpenError> {
        let mut features = wanted & Self::features()?;
        match Self::open(features) {
            Err(OpenError::Features { missing }) if missing != 0 => {
                features &= !missing;
                Self::open(features).map(|opened| (opened, features))
            }
            other => other.map(|opened| (opened, features)),
        }
    }

    /// The features of this kernel, whether or not this process may use each.
    ///
    /// # Errors
    /// [`OpenError`] if even this request is refused.
    pub fn features() -> Result<u64, OpenError> {
        let probe = Self::new_descriptor()?;
        let mut argument = ApiArgument { api: API, features: 0, ioctls: 0 };
        // SAFETY: as above.
        let result = done(unsafe { libc::ioctl(probe.descriptor, UFFDIO_API, &mut argument) });
        probe.close();
        result.map(|()| argument.features).map_err(OpenError::Other)
    }

    fn new_descriptor() -> Result<Self, OpenError> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes no pointers.
        let refused = match checked(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) }) {
            Ok(descriptor) => return Ok(Userfaultfd { descriptor: descriptor as i32 }),
            Err(refused) => refused,
        };
        // SAFETY: a constant, terminated path.
        let own = unsafe { libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        let node = if own >= 0 { Some(own) } else { privileged::open(PrivilegedFile::DeviceNode) };
        if let Some(node) = node {
            // SAFETY: the request takes flags by value.
            let opened = checked(unsafe { libc::ioctl(node, USERFAULTFD_IOC_NEW, flags as libc::c_ulong) });
            // SAFETY: just opened, or lent.
            unsafe { libc::close(node) };
            return opened.map(|descriptor| Userfaultfd { descriptor }).map_err(OpenError::Other);
        }
        match refused.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Err(OpenError::NotPermitted),
            Some(libc::ENOSYS) => Err(OpenError::Missing),
            _ => Err(OpenError::Other(refused)),
        }
    }

    /// A userfaultfd from another process or thread, with its features agreed.
    pub fn from_descriptor(descriptor: i32) -> Self {
        Userfaultfd { descriptor }
    }

    /// The descriptor in the calling thread's file table.
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Closes the descriptor in the calling thread's file table.
    pub fn close(self) {
        // SAFETY: closing a number is memory-safe.
        unsafe { libc::close(self.descriptor) };
    }

    /// Registers `[start, start + len)` in `mode`.
    ///
    /// # Errors
    /// [`Stop::Busy`] if another userfaultfd has it, [`Stop::Invalid`] for unsuitable mappings.
    pub fn register(&self, start: usize, len: usize, mode: u64) -> Result<(), Stop> {
        let mut argument = Register { range: Range::new(start, len), mode, ioctls: 0 };
        // SAFETY: registration changes the fault handler, not memory.
        unsafe { self.ask(UFFDIO_REGISTER, &mut argument) }
    }

    /// Unregisters `[start, start + len)` and wakes waiting faults.
    ///
    /// # Errors
    /// [`Stop`] if the range is not mapped.
    pub fn unregister(&self, start: usize, len: usize) -> Result<(), Stop> {
        // SAFETY: as for register.
        unsafe { self.ask(UFFDIO_UNREGISTER, &mut Range::new(start, len)) }
    }

    /// Moves whole pages from `src` to `dst`, which becomes present and wakes its waiters; `src`
    /// becomes missing.
    ///
    /// # Safety
    /// The owner of `src` expects its bytes to disappear, and that of `dst` to receive them.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, wake: bool) -> Progress {
        // SAFETY: the caller's promise.
        unsafe { self.transfer(UFFDIO_MOVE, dst, src, len, if wake { 0 } else { MOVE_DONT_WAKE }) }
    }

    /// Moves whole pages without waking threads; a hole at the source leaves the target missing.
    ///
    /// # Safety
    /// As for [`Userfaultfd::move_pages`].
    pub unsafe fn move_with_holes(&self, dst: usize, src: usize, len: usize) -> Progress {
        // SAFETY: the caller's promise.
        unsafe { self.transfer(UFFDIO_MOVE, dst, src, len, MOVE_DONT_WAKE | MOVE_ALLOW_SRC_HOLES) }
    }

    /// Copies whole pages from `src` into missing pages at `dst` and wakes their waiters.
    ///
    /// # Safety
    /// `src` must be readable and `dst` meant to receive the bytes.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize) -> Progress {
        // SAFETY: the caller's promise.
        unsafe { self.transfer(UFFDIO_COPY, dst, src, len, 0) }
    }

    unsafe fn transfer(
        &self,
        request: libc::c_ulong,
        dst: usize,
        src: usize,
        len: usize,
        mode: u64,
    ) -> Progress {
        let mut argument = Transfer { dst: dst as u64, src: src as u64, len: len as u64, mode, done: 0 };
        // SAFETY: the caller guarantees both ranges.
        let result = unsafe { libc::ioctl(self.descriptor, request, &mut argument) };
        progress(result, argument.done, len)
    }

    /// Whether the mapping at `at` is registered here: tests it with a copy from an unmapped
    /// address. `None` while an address-space event is unread.
    pub fn is_registered(&self, at: usize) -> Option<bool> {
        // Without an arena, the lowest page, which root may have mapped inside programs.
        let src = crate::arena::unreadable().unwrap_or(0) as u64;
        let mut argument = Transfer { dst: at as u64, src, len: 4096, mode: 0, done: 0 };
        // SAFETY: nothing can be copied from there.
        match unsafe { libc::ioctl(self.descriptor, UFFDIO_COPY, &mut argument) } {
            0 => Some(true),
            _ if errno() == libc::EAGAIN => None,
            _ => Some(matches!(errno(), libc::EFAULT | libc::EEXIST)),
        }
    }

    /// Maps the zero page into missing pages and wakes their waiters.
    pub fn zero(&self, start: usize, len: usize) -> Progress {
        let mut argument = Fill { range: Range::new(start, len), mode: 0, done: 0 };
        // SAFETY: only missing pages change, from nothing to zeroes.
        let result = unsafe { libc::ioctl(self.descriptor, UFFDIO_ZEROPAGE, &mut argument) };
        progress(result, argument.done, len)
    }

    /// Write-protects present pages, or lifts the protection and wakes waiters.
    ///
    /// # Errors
    /// [`Stop`] if the range is not registered for it, or an event is pending.
    pub fn write_protect(&self, start: usize, len: usize, protect: bool) -> Result<(), Stop> {
        let mut argument = WriteProtect { range: Range::new(start, len), mode: u64::from(protect) };
        // SAFETY: protection only delays writers.
        unsafe { self.ask(UFFDIO_WRITEPROTECT, &mut argument) }
    }

    /// Arms the present pages of a range that is registered as [`TRACKED`]: the kernel records the
    /// first use of each (`PAGE_IS_ACCESSED`, [`crate::pagemap::Pagemap::uses`]). Skips missing
    /// pages.
    ///
    /// # Errors
    /// [`Stop`] if not registered for it, or an event is pending. Some pages may then be armed.
    pub fn arm(&self, start: usize, len: usize) -> Result<(), Stop> {
        self.rwprotect(start, len, RWPROTECT_ARM)
    }

    /// Disarms pages, which then count as used; wakes no thread.
    ///
    /// # Errors
    /// As for [`Userfaultfd::arm`].
    pub fn disarm(&self, start: usize, len: usize) -> Result<(), Stop> {
        self.rwprotect(start, len, RWPROTECT_DONT_WAKE)
    }

    fn rwprotect(&self, start: usize, len: usize, mode: u64) -> Result<(), Stop> {
        let mut argument = WriteProtect { range: Range::new(start, len), mode };
        // SAFETY: an armed page delays its first user and keeps its bytes.
        unsafe { self.ask(UFFDIO_RWPROTECT, &mut argument) }
    }

    /// Makes a request whose argument is of the size in its number.
    ///
    /// # Safety
    /// As the request.
    unsafe fn ask<T>(&self, request: libc::c_ulong, argument: &mut T) -> Result<(), Stop> {
        // SAFETY: the caller's promise.
        match unsafe { libc::ioctl(self.descriptor, request, argument) } {
            0 => Ok(()),
            _ => Err(stop_of(errno())),
        }
    }

    /// Wakes threads waiting in the range; they fault again if nothing changed.
    pub fn wake(&self, start: usize, len: usize) {
        // SAFETY: waking changes no memory.
        let _ = unsafe { self.ask(UFFDIO_WAKE, &mut Range::new(start, len)) };
    }

    /// Sleeps until a message is readable, at most `timeout_ms` (-1 for ever); false on time-out.
    pub fn wait(&self, timeout_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut poll, 1, timeout_ms) > 0 }
    }

    /// Reads queued messages into `messages` without waiting. Returns their number.
    pub fn read(&self, messages: &mut [Message; MESSAGES_MAX], limit: usize) -> usize {
        let mut raw = [RawMessage { event: 0, reserved: [0; 7], arg: [0; 3] }; MESSAGES_MAX];
        let bytes = limit.min(MESSAGES_MAX) * size_of::<RawMessage>();
        // SAFETY: `raw` has room for `bytes`.
        let got = unsafe { libc::read(self.descriptor, raw.as_mut_ptr().cast(), bytes) };
        let count = usize::try_from(got).unwrap_or(0) / size_of::<RawMessage>();
        for (message, raw) in messages.iter_mut().zip(&raw[..count]) {
            *message = decode(raw);
        }
        count
    }
}

fn progress(result: i32, done: i64, len: usize) -> Progress {
    if result == 0 {
        return Progress { done: len, stop: None };
    }
    let code = errno();
    // The kernel reports partial progress as EAGAIN with the bytes done, and no progress as EAGAIN
    // with a negative errno in the same field, which must not be taken for a length.
    if done > 0 {
        return Progress { done: done as usize, stop: Some(Stop::Again) };
    }
    let code = if done < 0 { -done as i32 } else { code };
    Progress { done: 0, stop: Some(stop_of(code)) }
}

fn decode(raw: &RawMessage) -> Message {
    let [a, b, c] = raw.arg;
    match raw.event {
        0x12 => {
            Message::Fault { address: b as usize, write: a & 1 != 0, protected: a & 2 != 0, thread: c as u32 }
        }
        0x13 => Message::Fork { descriptor: a as u32 as i32 },
        0x14 => Message::Remap { from: a as usize, to: b as usize, len: c as usize },
        0x15 => Message::Remove { start: a as usize, end: b as usize },
        0x16 => Message::Unmap { start: a as usize, end: b as usize },
        other => panic!("userfaultfd message {other:#x} was not asked for"),
    }
}
