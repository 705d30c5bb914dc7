//! Starting the program.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use doorway::limits;
use doorway::runtime::is_runtime;

use super::{program_file, reaper};
use crate::run::supervisor::signals::Signals;
use crate::run::tree::cgroup_limit::ShownLimit;
use crate::standard;

const OBJECT_LINK: &[u8] = b"/memfd:libuzswap.so";

/// Tells the object which parent to show.
const PARENT_VARIABLE: &str = "UZSWAP_PARENT";
/// Digits of a process id in it.
const NUMBER_DIGITS: usize = 10;
/// Tells the object which limit to show.
const LIMIT_VARIABLE: &str = "UZSWAP_CGROUP_LIMIT";

/// Values in the program's environment, and values shown instead of actual ones.
pub struct Shown<'a> {
    pub socket: &'a str,
    /// The paths of the preload object and of the agent.
    pub object: &'a str,
    pub agent: &'a str,
    pub cgroup_limit: Option<ShownLimit>,
    /// The parent of orphans.
    pub reaper: u32,
}

/// Starts the program; returns its process id. It keeps uzswap's terminal, process group, standard
/// descriptors and environment. If it loads objects, its memory limits are raised by the agent's
/// needs. Returns exec's error if that fails.
pub fn spawn(file: &Path, argv: &[OsString], signals: &Signals, shown: &Shown<'_>) -> io::Result<i32> {
    let Shown { socket, object, agent, .. } = *shown;
    let preload = preloads(object, file, &std::env::var_os("LD_PRELOAD").unwrap_or_default());
    let makes_room = program_file::loads_objects(file);
    // execvpe(3) would have a shell interpret a program of another CPU.
    let is_elf = program_file::is_elf(file);
    let mask = signals.mask_before();
    let supervisor = std::process::id() as i32;
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    environment.remove(OsStr::new(LIMIT_VARIABLE));
    let limit = shown.cgroup_limit.map(|limit| (LIMIT_VARIABLE, limit.word().into()));
    let own = [("LD_PRELOAD", preload), ("UZSWAP_SOCKET", socket.into()), ("UZSWAP_AGENT", agent.into())];
    environment.extend(own.into_iter().chain(limit).map(|(name, value)| (name.into(), value)));
    environment.remove(OsStr::new(PARENT_VARIABLE));
    let terminated = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
    let file = terminated(file.as_os_str())?;
    let arguments = argv.iter().map(|text| terminated(text)).collect::<io::Result<Vec<_>>>()?;
    let mut entries = Vec::new();
    for (name, value) in &environment {
        entries.push(terminated(&[name, OsStr::new("="), value].iter().copied().collect::<OsString>())?);
    }
    // The program's process id is filled in by the child.
    let (reaper, namespace) = (shown.reaper, reaper::own_namespace());
    let parent = format!("{PARENT_VARIABLE}={supervisor} {reaper} {namespace} {:0NUMBER_DIGITS$}", 0);
    let mut parent = CString::new(parent)?.into_bytes_with_nul();
    // Addresses of strings that the closure below owns.
    let ended = |addresses: &mut dyn Iterator<Item = usize>| addresses.chain([0]).collect::<Vec<_>>();
    let argument_array = ended(&mut arguments.iter().map(|text| text.as_ptr().addr()));
    let others = entries.iter().map(|text| text.as_ptr().addr());
    let entry_array = ended(&mut others.chain([parent.as_ptr().addr()]));
    // Only makes the process; the closure executes the program.
    let mut command = Command::new("/");
    // SAFETY: only async-signal-safe system calls; the strings outlive the call below.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            // Rust ignores SIGPIPE; the program must not inherit that.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            crate::run::own_limits::restore();
            for descriptor in standard::closed() {
                libc::close(descriptor);
            }
            if makes_room {
                make_room();
            }
            // PR_SET_PDEATHSIG would end the program before its forked children, which read zeroes
            // if it serves their faults. The guardian ends it instead.
            if libc::getppid() != supervisor {
                libc::_exit(125);
            }
            write_number(&mut parent, std::process::id());
            let _kept = (&arguments, &entries);
            let (arguments, entries) = (argument_array.as_ptr().cast(), entry_array.as_ptr().cast());
            match is_elf {
                true => libc::execve(file.as_ptr(), arguments, entries),
                false => libc::execvpe(file.as_ptr(), arguments, entries),
            };
            Err(io::Error::last_os_error())
        });
    }
    command.spawn().map(|child| child.id() as i32)
}

/// Raises the memory limits by the agent's needs, if permitted. The object hides the change.
fn make_room() {
    for (resource, room) in
        [(libc::RLIMIT_AS, limits::room_under(limits::NONE)), (libc::RLIMIT_DATA, limits::UNIT)]
    {
        let mut limit = libc::rlimit { rlim_cur: limits::NONE, rlim_max: limits::NONE };
        // SAFETY: the structure is writable.
        unsafe { libc::getrlimit(resource, &mut limit) };
        let raised =
            |limit| if limits::room_in(limit).is_some() { limit } else { limits::with_room(limit, room) };
        let both = libc::rlimit { rlim_cur: raised(limit.rlim_cur), rlim_max: raised(limit.rlim_max) };
        let soft = libc::rlimit { rlim_cur: both.rlim_cur, ..limit };
        // SAFETY: a valid structure. The second call is for users who may not raise the hard limit.
        let _ = unsafe { libc::setrlimit(resource, &both) == 0 || libc::setrlimit(resource, &soft) == 0 };
    }
}

/// Writes a number over the last [`NUMBER_DIGITS`] digits of a NUL-terminated string.
fn write_number(text: &mut [u8], mut number: u32) {
    let end = text.len() - 1;
    for digit in text[end - NUMBER_DIGITS..end].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Returns LD_PRELOAD: the object at `path`, after sanitizers' runtimes and before `list`.
fn preloads(path: &str, file: &Path, list: &OsStr) -> OsString {
    let needed = program_file::runtime(file);
    let needed = needed.as_ref().map(|runtime| OsStr::from_bytes(runtime.name()));
    let (runtimes, rest): (Vec<&OsStr>, Vec<&OsStr>) =
        other_preloads(list).partition(|name| is_runtime(name.as_bytes()));
    let needed = needed.filter(|name| !runtimes.contains(name));
    let all = needed.into_iter().chain(runtimes).chain([OsStr::new(path)]).chain(rest);
    all.collect::<Vec<_>>().join(OsStr::new(":"))
}

/// Returns the names in LD_PRELOAD without an outer uzswap's object: a program has one pager.
fn other_preloads(list: &OsStr) -> impl Iterator<Item = &OsStr> {
    let names = list.as_bytes().split(|byte| matches!(byte, b':' | b' ')).filter(|name| !name.is_empty());
    let is_object = |name: &OsStr| {
        std::fs::read_link(name).is_ok_and(|file| file.as_os_str().as_bytes().starts_with(OBJECT_LINK))
    };
    names.map(OsStr::from_bytes).filter(move |name| !is_object(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_digits() {
        let mut text = *b"A=1 0000000000\0";
        write_number(&mut text, 4_194_304);
        assert_eq!(&text, b"A=1 0004194304\0");
    }

    #[test]
    fn other_names_in_ld_preload_stay() {
        // SAFETY: a NUL-terminated name.
        let object = unsafe { libc::memfd_create(crate::run::OBJECT_NAME.as_ptr(), libc::MFD_CLOEXEC) };
        assert!(object >= 0);
        let list = format!("/proc/self/fd/{object}:libm.so.6 /lib/x.so:");
        let others: Vec<&OsStr> = other_preloads(OsStr::new(&list)).collect();
        assert_eq!(others, ["libm.so.6", "/lib/x.so"]);
        assert_eq!(other_preloads(OsStr::new("")).count(), 0);
        let all = preloads("/own", Path::new("/bin/sh"), OsStr::new("a.so:/lib/libasan.so.8"));
        assert_eq!(all, "/lib/libasan.so.8:/own:a.so");
        // SAFETY: opened above.
        unsafe { libc::close(object) };
    }
}
