//! Runs an attempt in a process of its own.
//!
//! A thread that a tracer holds has the tracer's registers. If the tracer is killed, the kernel
//! lets the thread run on with them. An attached program must outlive its supervisor, so a child
//! holds its threads: the child finishes even if the supervisor is killed.

use std::io::{self, Read, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::injection::Failure;

const DONE: i32 = 0;
const GONE: i32 = 1;
const NOT_OURS: i32 = 2;
const ANOTHERS: i32 = 3;
const NOT_YET: i32 = 4;
/// The reason is in the pipe.
const REFUSED: i32 = 5;
/// Longer reasons are cut.
const REASON_BYTES: usize = 1024;

/// Runs `work` in a child of the calling thread and returns its result. The child ends with this
/// thread, until it [outlives](outlive) it.
pub fn apart(work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let not_now = |_: io::Error| Failure::NotYet;
    let (mut reader, mut writer) = io::pipe().map_err(not_now)?;
    // SAFETY: the C library prepares its allocator. The child uses no lock that another thread of
    // this process may hold, and ends below.
    match unsafe { libc::fork() } {
        -1 => Err(not_now(io::Error::last_os_error())),
        0 => {
            drop(reader);
            end_with_parent(libc::SIGKILL);
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Gone));
            if let Err(Failure::Refused(why)) = &result {
                let _ = writer.write_all(why.as_bytes());
            }
            // SAFETY: ends without running this program's exit handlers.
            unsafe { libc::_exit(status_of(&result)) }
        }
        child => {
            drop(writer);
            let status = wait(child);
            let mut why = [0; REASON_BYTES];
            // Another child may have the pipe's other end, so that its end is not waited for.
            let len = if status == Some(REFUSED) { reader.read(&mut why).map_err(not_now)? } else { 0 };
            result_of(status, String::from_utf8_lossy(&why[..len]).into_owned())
        }
    }
}

/// Lets the calling process outlive the thread that made it. Call it before the process holds a
/// program's thread.
pub fn outlive() {
    end_with_parent(0);
}

fn end_with_parent(signal: i32) {
    // SAFETY: changes an attribute of this thread, which new threads and processes do not inherit.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
}

fn wait(child: i32) -> Option<i32> {
    loop {
        let mut status = 0;
        // SAFETY: the status is writable.
        let found = unsafe { libc::waitpid(child, &mut status, 0) };
        if found == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

fn status_of(result: &Result<(), Failure>) -> i32 {
    match result {
        Ok(()) => DONE,
        Err(Failure::Gone) => GONE,
        Err(Failure::NotOurs) => NOT_OURS,
        Err(Failure::Anothers) => ANOTHERS,
        Err(Failure::NotYet) => NOT_YET,
        Err(Failure::Refused(_)) => REFUSED,
    }
}

/// A child that was killed may or may not have brought the agent in: another attempt finds out.
fn result_of(status: Option<i32>, why: String) -> Result<(), Failure> {
    Err(match status {
        Some(DONE) => return Ok(()),
        Some(GONE) => Failure::Gone,
        Some(NOT_OURS) => Failure::NotOurs,
        Some(ANOTHERS) => Failure::Anothers,
        Some(REFUSED) => Failure::Refused(why),
        _ => Failure::NotYet,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_passed_on() {
        let own = std::process::id();
        let is_child = move || if std::process::id() == own { Err(Failure::Gone) } else { Ok(()) };
        assert!(apart(is_child).is_ok());
        let refused = apart(|| Err(Failure::Refused("it is a test".to_owned())));
        assert!(matches!(refused, Err(Failure::Refused(why)) if why == "it is a test"));
        for failure in [|| Failure::Gone, || Failure::NotOurs, || Failure::Anothers, || Failure::NotYet] {
            let passed = apart(|| Err(failure())).unwrap_err();
            assert_eq!(format!("{passed:?}"), format!("{:?}", failure()));
        }
        assert!(matches!(apart(|| panic!("as a test")), Err(Failure::Gone)));
        let killed = apart(|| {
            // SAFETY: ends this process, the child.
            unsafe { libc::raise(libc::SIGKILL) };
            Ok(())
        });
        assert!(matches!(killed, Err(Failure::NotYet)));
    }
}
