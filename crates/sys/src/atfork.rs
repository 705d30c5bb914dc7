//! Fork handlers, through the C library's pthread_atfork().

use std::io;

/// A function that the C library calls in the forking thread.
pub type Handler = unsafe extern "C" fn();

/// Registers `prepare` to run before every fork() of this process, before the C library takes its
/// own locks, and `parent` and `child` to run after it on either side. Forks by a bare system call
/// are not covered.
///
/// # Safety
/// `child` runs in a process with one thread, where threads that no longer exist may hold locks: it
/// may only call async-signal-safe code. The functions are never unregistered, so their code must
/// stay loaded.
///
/// # Errors
/// ENOMEM.
pub unsafe fn install(prepare: Handler, parent: Handler, child: Handler) -> io::Result<()> {
    extern "C" {
        fn pthread_atfork(
            prepare: Option<Handler>,
            parent: Option<Handler>,
            child: Option<Handler>,
        ) -> libc::c_int;
    }
    // SAFETY: the caller guarantees the functions.
    match unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
