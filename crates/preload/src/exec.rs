//! The C library's functions that start programs, each with the environment completed.
//!
//! Paging does not depend on these: children of other calls are managed if they inherit the
//! variables.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::null_mut;

use libc::pid_t;

use crate::calls::{raw_syscall, set_errno};
use crate::environment::{completed, completed_command, entries, own, Strings};
use crate::next::library;
use crate::sharing::while_shared;
use crate::target::Target;

library! {
    /// Looks up functions in advance: after vfork() this is not possible.
    pub fn prepare();
    EXECVPE: execvpe(*const c_char, Strings, Strings) -> c_int;
    FEXECVE: fexecve(c_int, Strings, Strings) -> c_int;
    SPAWN: posix_spawn(*mut pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
    SPAWNP: posix_spawnp(*mut pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
    SYSTEM: system(*const c_char) -> c_int;
    POPEN: popen(*const c_char, *const c_char) -> *mut libc::FILE;
}

fn unknown() -> c_int {
    set_errno(-c_long::from(libc::ENOSYS)) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's arguments, the environment completed.
    let answer = unsafe {
        completed(environment, Target::Path(libc::AT_FDCWD, path), |environment| {
            let arguments = [path as usize, argv as usize, environment as usize, 0, 0, 0];
            raw_syscall(libc::SYS_execve, arguments)
        })
    };
    set_errno(answer) as c_int
}

/// The target of execveat(2).
pub unsafe fn of_directory(directory: c_int, path: *const c_char, flags: c_int) -> Target {
    // SAFETY: the kernel reads it, too.
    match flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && unsafe { *path } == 0 {
        true => Target::File(directory),
        false => Target::Path(directory, path),
    }
}

#[no_mangle]
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments, the environment completed.
    let answer = unsafe {
        completed(environment, of_directory(directory, path, flags), |environment| {
            let arguments =
                [directory as usize, path as usize, argv as usize, environment as usize, flags as usize, 0];
            raw_syscall(libc::SYS_execveat, arguments)
        })
    };
    set_errno(answer) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller's arguments and the process's own environment.
    unsafe { execve(path, argv, own()) }
}

#[no_mangle]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, environment: Strings) -> c_int {
    let Some(next) = EXECVPE.function() else { return unknown() };
    // SAFETY: the caller's arguments, the environment completed.
    unsafe {
        completed(environment, Target::Name(file), |environment| next(file, argv, environment).into())
            as c_int
    }
}

#[no_mangle]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller's arguments and the process's own environment.
    unsafe { execvpe(file, argv, own()) }
}

#[no_mangle]
pub unsafe extern "C" fn fexecve(file: c_int, argv: Strings, environment: Strings) -> c_int {
    let Some(next) = FEXECVE.function() else { return unknown() };
    // SAFETY: the caller's arguments, the environment completed.
    unsafe {
        completed(environment, Target::File(file), |environment| next(file, argv, environment).into())
            as c_int
    }
}

/// execle(3): the environment follows the list's null pointer.
unsafe extern "C" fn execle_listed(path: *const c_char, list: Strings) -> c_int {
    // SAFETY: the caller's list ends with a null pointer, and the environment follows.
    unsafe {
        let count = entries(list).count();
        execve(path, list, (*list.add(count + 1)).cast())
    }
}

/// A function with a list of arguments: lays them out as an array, those in registers before those
/// on the stack. Rust cannot define variadic functions.
macro_rules! listed_arguments {
    ($name:ident, $array:path) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "endbr64",
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {array}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                array = sym $array,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() -> c_int {
            core::arch::naked_asm!(
                "stp x6, x7, [sp, #-16]!",
                "stp x4, x5, [sp, #-16]!",
                "stp x2, x3, [sp, #-16]!",
                "stp x30, x1, [sp, #-16]!",
                "add x1, sp, #8",
                "bl {array}",
                "ldr x30, [sp], #64",
                "ret",
                array = sym $array,
            )
        }
    };
}

listed_arguments!(execl, execv);
listed_arguments!(execlp, execvp);
listed_arguments!(execle, execle_listed);

/// posix_spawn(3) or posix_spawnp(3).
macro_rules! spawning {
    ($name:ident, $next:ident, $target:expr) => {
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            pid: *mut pid_t,
            file: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            environment: Strings,
        ) -> c_int {
            let Some(next) = $next.function() else { return libc::ENOSYS };
            // SAFETY: the caller's arguments, the environment completed.
            unsafe {
                while_shared(|| {
                    completed(environment, $target(file), |environment| {
                        next(pid, file, actions, attributes, argv, environment).into()
                    })
                }) as c_int
            }
        }
    };
}

spawning!(posix_spawn, SPAWN, |path| Target::Path(libc::AT_FDCWD, path));
spawning!(posix_spawnp, SPAWNP, Target::Name);

/// system(3). Can be cancelled, hence unwound: there is nothing to clean up here, and the unwinding
/// passes through. A "C-unwind" declaration would stop it at this object's replacement of the
/// language's unwinding, which is none.
#[no_mangle]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let Some(next) = SYSTEM.function() else { return unknown() };
    // SAFETY: the caller's command.
    unsafe { with_command(command, |command| next(command)) }
}

/// Calls `start` with a command that sets this object's variables.
unsafe fn with_command<T>(command: *const c_char, start: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller's command.
    let completed = unsafe { completed_command(command) };
    // After a cancellation the count stays up: the end then searches for sharers in vain.
    let answer = while_shared(|| start(if completed.is_null() { command } else { completed }));
    // SAFETY: allocated by the C library, or null; freed once.
    unsafe { libc::free(completed.cast()) };
    answer
}

#[no_mangle]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
    let Some(next) = POPEN.function() else {
        unknown();
        return null_mut();
    };
    // SAFETY: the caller's command and kind.
    unsafe { with_command(command, |command| next(command, kind)) }
}
