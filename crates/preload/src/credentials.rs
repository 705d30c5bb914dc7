//! Calls by which a process gives up rights: see the agent's module of the same name.
//!
//! The C library makes the change in all threads that it knows, which excludes the agent's. If the
//! program cannot regain a right that the agent has, the caller then waits until the agent has
//! given it up. Calls that give up nothing for good (a temporary effective user) only cost the
//! comparison.

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering;

use crate::calls::set_errno;
use crate::control_page::{is_alive, is_own_process, nudge, CONTROL_PAGE};
use crate::next::library;
use crate::{fork, system, youth};

/// A waiting thread looks this often, even if not woken.
const LOOK_NS: u64 = 1_000_000;

macro_rules! interposed {
    ($($next:ident $name:ident($($argument:ident: $kind:ty),*);)*) => {
        library! {
            /// Looks up functions in advance: signal handlers must not.
            pub fn prepare();
            $($next: $name($($kind),*) -> c_int;)*
        }

        $(
            #[doc = concat!("`", stringify!($name), "` of unistd.h or sys/capability.h.")]
            #[no_mangle]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                let Some(next) = $next.function() else {
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

/// Returns when the agent has no right that the program cannot regain. Call after the calling
/// thread's rights may have changed.
pub fn changed() {
    let credentials = &CONTROL_PAGE.credentials;
    // A filter may forbid the calls below. The agent looks by itself, too.
    if !is_alive() || !is_own_process() || fork::expects_filter() {
        return;
    }
    let own = system::rights();
    if credentials.agents().is_some_and(|agents| !agents.exceed(&own)) {
        return;
    }
    let number = credentials.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    nudge();
    // Paging has ended, and the halted control thread waits on this word.
    system::wake(&CONTROL_PAGE.forks.state);
    while is_alive() {
        youth::end();
        let answered = credentials.answered.load(Ordering::Acquire);
        if answered.wrapping_sub(number) as i32 >= 0 || is_forking() {
            return;
        }
        system::wait(&credentials.answered, answered, LOOK_NS);
    }
}

/// Whether this is a handler in a forking thread, for which the control thread waits, then looks.
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
