//! What is to be done around fork(), by the C library's pthread_atfork().

use std::io;

/// A function that the C library calls in the forking thread.
pub type Handler = unsafe extern "C" fn();

/// Has `prepare` called before every fork() of this process, before the C library takes its own
/// locks, and `parent` and `child` after it, on either side. Forks by a bare system call are not
/// covered.
///
/// # Safety
/// `child` runs in a process with one thread, where locks may be held by threads that are not
/// there: it may only call what is safe in signal handlers. The functions are never taken back, so
/// the code they are in must stay loaded.
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
    // SAFETY: the caller vouches for the functions.
    match unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
