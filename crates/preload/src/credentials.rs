//! Calls by which a process gives up rights: see the agent's module of this name.
//!
//! The C library makes the change, for all threads that it knows; the agent's it does not know.
//! When it is done, and the program cannot have back what the agent has, the caller waits until the
//! agent has no more than that. Calls that give up nothing for good (another effective user, to and
//! fro) are compared with what the agent has, and nothing else.

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering;

use doorway::control_page::QUIET;

use crate::calls::set_errno;
use crate::control_page::{is_alive, is_own_process, nudge, CONTROL_PAGE};
use crate::next::Next;
use crate::system;

/// Who waits looks so often, whether it was woken or not.
const LOOK_NS: u64 = 1_000_000;

macro_rules! interposed {
    ($($next:ident $name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            static $next: Next = {
                const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
                match core::ffi::CStr::from_bytes_with_nul(NAME) {
                    Ok(name) => Next::new(name),
                    Err(_) => panic!("names have no zero"),
                }
            };

            #[doc = concat!("`", stringify!($name), "` of unistd.h or sys/capability.h.")]
            ///
            /// # Safety
            /// As the C library's.
            #[no_mangle]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                type Function = unsafe extern "C" fn($($kind),*) -> c_int;
                // SAFETY: the C library's function of this name has this type.
                let Some(next) = (unsafe { $next.function::<Function>() }) else {
                    return set_errno(-c_long::from(libc::ENOSYS)) as c_int;
                };
                // SAFETY: the caller's arguments.
                let answer = unsafe { next($($argument),*) };
                if answer == 0 {
                    changed();
                }
                answer
            }
        )*

        /// Looks up what is needed later: that is nothing for signal handlers.
        pub fn prepare() {
            for next in [$(&$next),*] {
                next.find();
            }
        }
    };
}

interposed! {
    SETUID setuid(user: u32);
    SETEUID seteuid(user: u32);
    SETREUID setreuid(real: u32, effective: u32);
    SETRESUID setresuid(real: u32, effective: u32, saved: u32);
    SETGID setgid(group: u32);
    SETEGID setegid(group: u32);
    SETREGID setregid(real: u32, effective: u32);
    SETRESGID setresgid(real: u32, effective: u32, saved: u32);
    CAPSET capset(header: *mut c_void, sets: *const c_void);
}

/// Whether a system call made by its number may give up rights.
pub fn may_give_up(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_capset
    )
}

/// The calling thread's rights may have changed: returns when the agent has no more than the
/// program can have back.
pub fn changed() {
    let credentials = &CONTROL_PAGE.credentials;
    if !is_alive() || !is_own_process() {
        return;
    }
    let own = system::rights();
    if credentials.agents().is_some_and(|agents| !agents.exceed(&own)) || is_quiet() {
        return;
    }
    let number = credentials.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    nudge();
    // Paging has ended, and the control thread stands still: it looks at this word.
    system::wake(&CONTROL_PAGE.forks.state);
    while is_alive() {
        let answered = credentials.answered.load(Ordering::Acquire);
        if answered.wrapping_sub(number) as i32 >= 0 || is_forking() || is_quiet() {
            return;
        }
        system::wait(&credentials.answered, answered, LOOK_NS);
    }
}

/// The agent's thread stands still for good, for a seccomp filter that may end the process for any
/// call of it.
fn is_quiet() -> bool {
    CONTROL_PAGE.forks.quiet.load(Ordering::Acquire) == QUIET
}

/// In a signal handler of a thread that forks: the control thread waits for that. It looks by
/// itself afterwards.
fn is_forking() -> bool {
    let forks = &CONTROL_PAGE.forks;
    forks.one.load(Ordering::Acquire) != 0 && forks.forker.load(Ordering::Relaxed) == system::thread_id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_the_kernel_s() {
        let own = system::rights();
        // SAFETY: take nothing.
        unsafe {
            assert_eq!((own.users[0], own.users[1]), (libc::getuid(), libc::geteuid()));
            assert_eq!((own.groups[0], own.groups[1]), (libc::getgid(), libc::getegid()));
        }
        assert!(!own.exceed(&own));
        assert!(may_give_up(libc::SYS_setresuid) && !may_give_up(libc::SYS_getuid));
    }
}
