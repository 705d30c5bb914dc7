//! Limits of the program's memory, with room for the agent: see `doorway::limits`.
//!
//! prlimit(2) from another process and /proc/PID/limits use the kernel's limit, room included.

use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorway::limits;

use crate::calls::{raw_syscall, set_errno};
use crate::control_page::{self, CONTROL_PAGE};
use crate::next::also_named;
use crate::{system, youth};

/// Soft and hard limit.
type Limit = [u64; 2];

static ROOM: AtomicU64 = AtomicU64::new(0);
/// The limits that the program set, to the byte: soft and hard, of address space and of data.
static EXACT: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(limits::NONE) }; 2] }; 2];

/// Determines the agent's room. Call before it starts.
pub fn prepare() {
    ROOM.store(limits::room_under(address_limit()), Ordering::Relaxed);
}

/// Waits until the started agent has its address space, if the program could use it up.
pub fn await_arena() {
    if address_limit() != limits::NONE {
        await_agent(|| CONTROL_PAGE.arena[1].load(Ordering::Acquire) != 0);
    }
}

fn address_limit() -> u64 {
    kernels(libc::RLIMIT_AS as usize).map_or(limits::NONE, |[soft, _]| soft)
}

const AS: c_int = libc::RLIMIT_AS as c_int;
const DATA: c_int = libc::RLIMIT_DATA as c_int;
const NOFILE: c_int = libc::RLIMIT_NOFILE as c_int;
/// Most waits of a limit for the agent.
const AGENT_WAITS_MAX: u32 = 2000;
const AGENT_WAIT_NS: u64 = 500_000;

/// The index in [`EXACT`] of a resource; `None` for those without a room.
fn place_of(resource: usize) -> Option<usize> {
    match resource as c_int {
        AS => Some(0),
        DATA => Some(1),
        _ => None,
    }
}

/// prlimit64(2) with the kernel's limits.
fn call(process: usize, resource: usize, new: usize, old: usize) -> c_long {
    // SAFETY: pointers of the program, null, or to variables of the callers.
    unsafe { raw_syscall(libc::SYS_prlimit64, [process, resource, new, old, 0, 0]) }
}

fn kernels(resource: usize) -> Result<Limit, c_long> {
    let mut limit = [0; 2];
    match call(0, resource, 0, (&raw mut limit).addr()) {
        0 => Ok(limit),
        error => Err(error),
    }
}

/// prlimit64(2) with the program's limits.
pub unsafe fn prlimit_raw(process: usize, resource: usize, new: usize, old: usize) -> c_long {
    let is_own = process as c_int == 0 || process as c_int == system::process_id();
    if is_own && new != 0 && matches!(resource as c_int, AS | NOFILE) {
        await_agent(|| CONTROL_PAGE.total.load(Ordering::Acquire) != 0);
    }
    let Some(place) = place_of(resource) else { return call(process, resource, new, old) };
    let before = EXACT[place].each_ref().map(|exact| exact.load(Ordering::Relaxed));
    let answer = match new {
        1.. if is_own && !(system::is_readable(new) && system::is_readable(new + 15)) => {
            -c_long::from(libc::EFAULT)
        }
        // SAFETY: the caller's limit.
        1.. if is_own => set(resource, place, unsafe { *(new as *const Limit) }, old),
        _ => call(process, resource, new, old),
    };
    if answer == 0 && old != 0 {
        // SAFETY: the kernel has just written it.
        let limit = unsafe { &mut *(old as *mut Limit) };
        for (value, exact) in limit.iter_mut().zip(before) {
            let shown = limits::shown(*value);
            let is_known = is_own && shown != *value && exact & !1023 == shown;
            *value = if is_known { exact } else { shown };
        }
    }
    answer
}

/// Waits until the agent has the resource that a limit would deny: its address space, or its
/// connection, over which it reports a failure. Briefly: an agent that fails to start gets neither.
fn await_agent(has_it: impl Fn() -> bool) {
    for _ in 0..AGENT_WAITS_MAX {
        if !control_page::is_alive() || has_it() {
            return;
        }
        youth::end();
        system::wait(&AtomicU32::new(0), 0, AGENT_WAIT_NS);
    }
}

fn set(resource: usize, place: usize, wanted: Limit, old: usize) -> c_long {
    // The kernel does not distinguish limits within one KiB.
    if wanted[0] > wanted[1] {
        return -c_long::from(libc::EINVAL);
    }
    let room = if place == 0 { ROOM.load(Ordering::Relaxed).max(limits::UNIT) } else { limits::UNIT };
    let given = wanted.map(|limit| limits::with_room(limit, room));
    let mut answer = call(0, resource, (&raw const given).addr(), old);
    if answer == -c_long::from(libc::EPERM) {
        // A hard limit from before the agent cannot be raised: the room comes out of it.
        if let Ok([_, hard]) = kernels(resource) {
            if limits::room_in(hard).is_none() && wanted[1] <= hard {
                let given = given.map(|limit| limit.min(hard));
                answer = call(0, resource, (&raw const given).addr(), old);
            }
        }
    }
    if answer == 0 {
        for (exact, limit) in EXACT[place].iter().zip(wanted) {
            exact.store(limit, Ordering::Relaxed);
        }
    }
    answer
}

#[no_mangle]
pub unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    resource: c_int,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    set_errno(unsafe { prlimit_raw(process as usize, resource as usize, new.addr(), old.addr()) }) as c_int
}

also_named!(
    prlimit64,
    prlimit(process: libc::pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int
);

/// setrlimit(2), by the C library's system call.
#[no_mangle]
pub unsafe extern "C" fn setrlimit(resource: c_int, new: *const libc::rlimit) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    set_errno(unsafe { prlimit_raw(0, resource as usize, new.addr(), 0) }) as c_int
}

also_named!(setrlimit64, setrlimit(resource: c_int, new: *const libc::rlimit) -> c_int);

#[no_mangle]
pub unsafe extern "C" fn getrlimit(resource: c_int, old: *mut libc::rlimit) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    set_errno(unsafe { prlimit_raw(0, resource as usize, 0, old.addr()) }) as c_int
}

also_named!(getrlimit64, getrlimit(resource: c_int, old: *mut libc::rlimit) -> c_int);

/// setrlimit(2) and getrlimit(2) by number.
///
/// # Safety
/// As the system calls.
pub unsafe fn by_number(number: c_long, resource: usize, pointer: usize) -> c_long {
    if pointer == 0 || place_of(resource).is_none() {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { raw_syscall(number, [resource, pointer, 0, 0, 0, 0]) };
    }
    let (new, old) = if number == libc::SYS_setrlimit { (pointer, 0) } else { (0, pointer) };
    // SAFETY: as above.
    unsafe { prlimit_raw(0, resource, new, old) }
}
