//! The environment of a program's children: restores this object's variables in it.
//!
//! A child is managed when the loader finds this object in LD_PRELOAD and this object finds its
//! supervisor in UZSWAP_SOCKET. `env -i`, a daemon's clean environment or `env={}` would lose both.
//! So every call of the C library that starts a program comes here first (see `exec`), and the
//! environment is completed:
//!
//! * variables with the prefix `UZSWAP_` at this process's start are added if missing;
//! * this object comes before the program's own entries in LD_PRELOAD, after a sanitizer's runtime
//!   that the child needs;
//! * where the child's loader could not open the object (after chroot(), in another mount or
//!   process namespace, as another user), or a seccomp filter may forbid its calls, it is removed
//!   from LD_PRELOAD: the loader would complain on the program's stderr. Such a child runs
//!   unmanaged, and the supervisor reports it.
//!
//! The child sees these variables, as every program under uzswap does, except that it sees its own
//! LD_PRELOAD unchanged. An environment with another UZSWAP_SOCKET, even an empty one, belongs to
//! another run and stays unchanged. Setuid programs load nothing: the loader ignores names with a
//! slash there.
//!
//! After vfork() the memory and its locks are the parent's, and threads may have stacks of 16 KiB.
//! So nothing is allocated or locked here, and the new environment is an array of at most
//! [`ENTRIES_MAX`] entries (see `scratch`). A larger environment stays unchanged: its child is
//! managed only if it contains the variables.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_long, CStr};
use core::ptr::{addr_of, null, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};

use doorway::runtime::{is_runtime, Runtime, NAME_BYTES};

use crate::calls::raw_syscall;
use crate::line::Text;
use crate::target::Target;
use crate::{fork, scratch, system};

/// Strings, up to a null pointer.
pub type Strings = *const *const c_char;

/// Most entries of a completed environment: 4 KiB.
const ENTRIES_MAX: usize = 512;
/// The longest LD_PRELOAD that is changed.
const PRELOAD_BYTES_MAX: usize = 1024;
const OWN_MAX: usize = 6;
/// The longest such variable that is kept.
const VARIABLE_BYTES_MAX: usize = 512;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const SOCKET: &[u8] = b"UZSWAP_SOCKET=";
const AGENT: &[u8] = b"UZSWAP_AGENT=";
const PREFIX: &[u8] = b"UZSWAP_";

extern "C" {
    static environ: Strings;
}

pub fn own() -> Strings {
    // SAFETY: reads a pointer; the program keeps the array valid, or its own exec would fail.
    unsafe { addr_of!(environ).read() }
}

/// The children's variables, as entries of an environment.
struct Own {
    preload: Text<PRELOAD_BYTES_MAX>,
    /// The socket's name and the other variables with [`PREFIX`].
    variables: [Text<VARIABLE_BYTES_MAX>; OWN_MAX],
    count: usize,
    /// The object's device, inode and owner: its path may lead to another file later.
    file: (u64, u64, u32),
}

struct Once {
    is_set: AtomicBool,
    own: UnsafeCell<Own>,
    /// The program's own LD_PRELOAD, if any: its environment points here.
    restored: UnsafeCell<Text<PRELOAD_BYTES_MAX>>,
}

// SAFETY: written by the constructor, before there are other threads, and only read afterwards.
unsafe impl Sync for Once {}

static OWN: Once = Once {
    is_set: AtomicBool::new(false),
    own: UnsafeCell::new(Own {
        preload: Text::EMPTY,
        variables: [Text::EMPTY; OWN_MAX],
        count: 0,
        file: (0, 0, 0),
    }),
    restored: UnsafeCell::new(Text::EMPTY),
};

impl Once {
    fn get(&self) -> Option<&Own> {
        // SAFETY: no longer written.
        self.is_set.load(Ordering::Acquire).then(|| unsafe { &*self.own.get() })
    }
}

/// The supervisor's address, as this process was told at its start.
pub fn socket() -> Option<&'static [u8]> {
    let mut variables = OWN.get()?.variables().iter();
    variables.find_map(|entry| entry.as_c_str().to_bytes().strip_prefix(SOCKET))
}

/// Keeps the environment's variables for the children.
///
/// # Safety
/// The object's constructor calls this: no other thread changes the environment.
pub unsafe fn remember() {
    // SAFETY: the structure is plain pointers, filled by dladdr.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: an address of this object; the structure is writable.
    let found = unsafe { libc::dladdr(addr_of!(OWN).cast(), &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return;
    }
    // SAFETY: the loader's names are terminated.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    if !path.to_bytes().starts_with(b"/") {
        return;
    }
    // SAFETY: no thread changes the environment, and its strings are terminated.
    let variables = || unsafe { entries(own()).map(|entry| CStr::from_ptr(entry).to_bytes()) };
    // Without these no child is managed; there may be many others.
    let is_needed = |entry: &&[u8]| entry.starts_with(SOCKET) || entry.starts_with(AGENT);
    let others = variables().filter(|entry| entry.starts_with(PREFIX) && !is_needed(entry));
    let Some(own) = Own::of(path, variables().filter(is_needed).chain(others)) else { return };
    // SAFETY: the caller's promise: there are no other threads.
    unsafe {
        own.restore_preload(&mut *OWN.restored.get());
        OWN.own.get().write(own);
    }
    OWN.is_set.store(true, Ordering::Release);
}

/// The device, inode and owner of a path's file, as this process resolves it now.
fn identity(path: &CStr) -> Option<(u64, u64, u32)> {
    system::status(path).map(|status| (status.st_dev, status.st_ino, status.st_uid))
}

/// Whether the string begins with `start`.
///
/// # Safety
/// A terminated string.
unsafe fn begins(string: *const c_char, start: &[u8]) -> bool {
    // SAFETY: `start` has no zero byte, so the comparison stops at the string's end.
    start.iter().enumerate().all(|(at, byte)| unsafe { *string.add(at) } as u8 == *byte)
}

/// The strings of an environment, or of none.
///
/// # Safety
/// A null pointer, or pointers to terminated strings that end with a null pointer.
pub unsafe fn entries(environment: Strings) -> impl Iterator<Item = *const c_char> {
    let mut at = environment;
    core::iter::from_fn(move || {
        // SAFETY: within the array, up to the null pointer at its end.
        let string = if at.is_null() { null() } else { unsafe { *at } };
        if string.is_null() {
            return None;
        }
        at = at.wrapping_add(1);
        Some(string)
    })
}

fn name_of(entry: &CStr) -> &[u8] {
    let bytes = entry.to_bytes();
    let len = bytes.iter().position(|byte| *byte == b'=').map_or(bytes.len(), |at| at + 1);
    &bytes[..len]
}

fn names_in(list: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    list.split(|byte| matches!(byte, b':' | b' ')).filter(|name| !name.is_empty())
}

/// The parts of an LD_PRELOAD with these names, as an entry.
fn preload_of<'a>(names: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    let separators = core::iter::once(&b""[..]).chain(core::iter::repeat(&b":"[..]));
    [PRELOAD].into_iter().chain(separators.zip(names).flat_map(<[_; 2]>::from))
}

struct Change<'a> {
    own: &'a Own,
    environment: Strings,
    count: usize,
    /// The index and value of its LD_PRELOAD.
    preload: Option<(usize, &'a [u8])>,
    /// Whether LD_PRELOAD must contain this object.
    loads: bool,
    /// The sanitizer's runtime that the program needs, which comes before this object.
    runtime: Option<Runtime>,
    /// Bits of the [`Own::variables`] to add.
    missing: u32,
}

impl Own {
    /// For the object at `path`. Returns `None` if it does not exist or its path is too long. Keeps
    /// the first [`OWN_MAX`] variables that fit.
    fn of<'a>(path: &CStr, variables: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let preload = Text::of([PRELOAD, path.to_bytes()])?;
        let mut own = Own { preload, variables: [Text::EMPTY; OWN_MAX], count: 0, file: identity(path)? };
        let kept = variables.into_iter().filter_map(|entry| Text::of([entry]));
        own.count = kept.zip(&mut own.variables).map(|(from, to)| *to = from).count();
        Some(own)
    }

    fn path(&self) -> &CStr {
        let bytes = self.preload.as_c_str().to_bytes_with_nul();
        CStr::from_bytes_with_nul(&bytes[PRELOAD.len()..]).expect("the end of a terminated string")
    }

    fn variables(&self) -> &[Text<VARIABLE_BYTES_MAX>] {
        &self.variables[..self.count]
    }

    /// Shows the program its own LD_PRELOAD, if any: some programs restart themselves until it has
    /// the value they want.
    ///
    /// # Safety
    /// As [`remember`].
    unsafe fn restore_preload(&self, restored: &'static mut Text<PRELOAD_BYTES_MAX>) {
        let own = self.path().to_bytes();
        // SAFETY: no thread changes the environment during the call; its array is writable.
        unsafe {
            for (at, string) in
                entries(self::own()).enumerate().filter(|(_, string)| begins(*string, PRELOAD))
            {
                let names = names_in(&CStr::from_ptr(string).to_bytes()[PRELOAD.len()..]);
                // This program's runtime is in the list because of this object.
                let needs = names.clone().any(is_runtime);
                let runtime = Target::Path(libc::AT_FDCWD, c"/proc/self/exe".as_ptr());
                let runtime = if needs { runtime.runtime() } else { None };
                let is_others =
                    |name: &&[u8]| *name != own && runtime.is_none_or(|needed| needed.name() != *name);
                let others = || names.clone().filter(is_others);
                let entry = match others().next() {
                    Some(_) => Text::of(preload_of(others())),
                    None => runtime.map(|_| self.preload),
                };
                if let Some(entry) = entry {
                    *restored = entry;
                    self::own().cast_mut().add(at).write(restored.as_c_str().as_ptr());
                }
            }
        }
    }

    /// Whether the loader can probably open the object after an exec. A user change may hide it
    /// then: capabilities kept over the change end with the exec.
    fn can_load(&self) -> bool {
        let Some((device, inode, _)) = identity(self.path()) else { return false };
        // SAFETY: takes nothing.
        let user = unsafe { raw_syscall(libc::SYS_geteuid, [0; 6]) } as u32;
        (device, inode) == (self.file.0, self.file.1) && (user == 0 || user == self.file.2)
    }

    /// The required change, if any.
    ///
    /// # Safety
    /// As [`entries`]; the environment stays valid and unchanged while the result is used.
    unsafe fn change(&self, environment: Strings, target: Target) -> Option<Change<'_>> {
        let (mut count, mut preload) = (0, None);
        let mut missing = (1u32 << self.count) - 1;
        // SAFETY: the caller's environment.
        for string in unsafe { entries(environment) } {
            // SAFETY: as above.
            if unsafe { begins(string, PRELOAD) } {
                // The loader uses the last of several. SAFETY: as above.
                preload = Some((count, &unsafe { CStr::from_ptr(string) }.to_bytes()[PRELOAD.len()..]));
            // SAFETY: as above.
            } else if unsafe { begins(string, PREFIX) } {
                // SAFETY: as above.
                let entry = unsafe { CStr::from_ptr(string) };
                if name_of(entry) == SOCKET && !self.variables().iter().any(|own| own.as_c_str() == entry) {
                    return None;
                }
                let known = self.variables().iter().position(|own| name_of(own.as_c_str()) == name_of(entry));
                missing &= !known.map_or(0, |index| 1 << index);
            }
            count += 1;
        }
        let own = self.path().to_bytes();
        let is_there = preload.is_some_and(|(_, names)| names_in(names).any(|name| name == own));
        // A filter may end the process for an unexpected system call.
        let loads = !fork::expects_filter() && self.can_load();
        // SAFETY: the caller's target.
        let runtime = if loads { unsafe { target.runtime() } } else { None };
        let names_len = preload.map_or(0, |(_, names)| names.len());
        let is_long = names_len + self.preload.bytes().len() + NAME_BYTES + 2 > PRELOAD_BYTES_MAX;
        let change = Change { own: self, environment, count, preload, loads, runtime, missing };
        let is_right = loads == is_there && missing == 0 && (!loads || change.is_in_order());
        (!is_right && !is_long).then_some(change)
    }
}

impl Change<'_> {
    /// Whether LD_PRELOAD, which has this object, has all runtimes before it.
    fn is_in_order(&self) -> bool {
        let own = self.own.path().to_bytes();
        let names = names_in(self.preload.map_or(&[], |(_, names)| names));
        let mut before = names.clone().take_while(|name| *name != own);
        let mut behind = names.skip_while(|name| *name != own);
        !behind.any(is_runtime)
            && self.runtime.is_none_or(|runtime| before.any(|name| name == runtime.name()))
    }

    /// Writes the new LD_PRELOAD, as an entry. A handler on a small stack may execute a program,
    /// and one chain of all names takes half a kilobyte of stack.
    fn write_preload(&self, text: &mut Text<PRELOAD_BYTES_MAX>) {
        let own = self.own.path().to_bytes();
        let others = || names_in(self.preload.map_or(&[], |(_, names)| names)).filter(|name| *name != own);
        let mut separator = &b""[..];
        text.set([PRELOAD]);
        let mut add = |name: &[u8]| {
            text.push(separator).and_then(|()| text.push(name)).expect("`Own::change` checks the length");
            separator = b":";
        };
        if let Some(needed) = self.runtime.as_ref().map(Runtime::name) {
            if !others().any(|name| name == needed) {
                add(needed);
            }
        }
        others().filter(|name| is_runtime(name)).for_each(&mut add);
        if self.loads {
            add(own);
        }
        others().filter(|name| !is_runtime(name)).for_each(&mut add);
    }

    /// Calls `act` with the changed environment.
    ///
    /// # Safety
    /// As [`Own::change`]; `ENTRIES` are enough.
    unsafe fn with<const ENTRIES: usize>(&self, act: &mut dyn FnMut(Strings) -> c_long) -> c_long {
        scratch::with(|room: &mut Room<ENTRIES>| {
            let mut count = 0;
            let mut push = |string: *const c_char| {
                room.strings[count] = string;
                count += 1;
            };
            self.write_preload(&mut room.text);
            // SAFETY: the caller's environment.
            for (at, string) in unsafe { entries(self.environment) }.enumerate() {
                let is_preload = self.preload.is_some_and(|(place, _)| place == at);
                push(if is_preload { room.text.as_c_str().as_ptr() } else { string });
            }
            if self.preload.is_none() && self.loads {
                push(room.text.as_c_str().as_ptr());
            }
            for (index, variable) in self.own.variables().iter().enumerate() {
                if self.missing & 1 << index != 0 {
                    push(variable.as_c_str().as_ptr());
                }
            }
            act(room.strings.as_ptr())
        })
    }
}

struct Room<const ENTRIES: usize> {
    strings: [*const c_char; ENTRIES],
    text: Text<PRELOAD_BYTES_MAX>,
}

// SAFETY: null pointers and numbers.
unsafe impl<const ENTRIES: usize> scratch::Plain for Room<ENTRIES> {}

/// Whether the kernel can read the environment: it refuses others.
fn is_readable(environment: Strings) -> bool {
    // The array and the strings are in different pages.
    let (mut array, mut strings) = (system::Reader::new(), system::Reader::new());
    let mut places = (environment.addr()..).step_by(size_of::<usize>());
    environment.is_null()
        || places.try_for_each(|place| match array.pointer(place) {
            Some(0) => Err(true),
            Some(string) => strings.string_len(string, usize::MAX).map(|_| ()).ok_or(false),
            None => Err(false),
        }) == Err(true)
}

/// Calls `act` with an environment that has this object's variables, for the program `target`.
///
/// # Safety
/// As [`entries`] and [`Target::runtime`], or unreadable.
pub unsafe fn completed(
    environment: Strings,
    target: Target,
    mut act: impl FnMut(Strings) -> c_long,
) -> c_long {
    let own = OWN.get().filter(|_| is_readable(environment));
    // SAFETY: the caller's environment, which does not change during the call.
    let Some(change) = own.and_then(|own| unsafe { own.change(environment, target) }) else {
        return act(environment);
    };
    // SAFETY: as above; there is room for all entries and the null pointer.
    unsafe {
        match change.count + OWN_MAX + 2 {
            ..=64 => change.with::<64>(&mut act),
            65..=ENTRIES_MAX => change.with::<ENTRIES_MAX>(&mut act),
            _ => act(environment),
        }
    }
}

/// A shell command that sets this object's variables for `command`, if the environment lacks them:
/// the C library starts the shell without the functions here. The caller frees it. Null if the
/// command can stay unchanged.
///
/// # Safety
/// `command` is null or a terminated string.
pub unsafe fn completed_command(command: *const c_char) -> *mut c_char {
    // SAFETY: the process's own environment, which may not change while programs are started.
    let change = OWN.get().and_then(|own| unsafe { own.change(self::own(), Target::Shell) });
    let Some(change) = change.filter(|change| change.loads && !command.is_null()) else { return null_mut() };
    let mut preload = Text::EMPTY;
    change.write_preload(&mut preload);
    let missing =
        change.own.variables().iter().enumerate().filter(|(index, _)| change.missing & 1 << index != 0);
    let variables = missing.map(|(_, variable)| variable.as_c_str());
    // A quote would need quoting, and the shell fails when it sets an invalid name.
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'=');
    let can_be_set = |entry: &&CStr| !entry.to_bytes().contains(&b'\'') && name_of(entry).iter().all(is_name);
    let set = || [preload.as_c_str()].into_iter().chain(variables.clone()).filter(can_be_set);
    // SAFETY: the caller's string.
    let command = unsafe { CStr::from_ptr(command) }.to_bytes_with_nul();
    let bytes = set().map(|entry| entry.count_bytes() + 3).sum::<usize>() + 16 + command.len();
    // The C library's heap, not this object's: its locks are free in forked children. SAFETY: any
    // size is valid.
    let text: *mut u8 = unsafe { libc::malloc(bytes) }.cast();
    if text.is_null() {
        return null_mut();
    }
    let mut len = 0;
    let mut push = |bytes: &[u8]| {
        // SAFETY: the pushed bytes were counted above.
        unsafe { text.add(len).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        len += bytes.len();
    };
    push(b"export");
    for entry in set() {
        let (name, value) = entry.to_bytes().split_at(name_of(entry).len());
        [&b" "[..], name, b"'", value, b"'"].into_iter().for_each(&mut push);
    }
    // On the same line: the shell's messages count lines.
    push(b"; ");
    push(command);
    text.cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::CString;

    /// The variables that this process would have kept at its start, with the object at `path`.
    fn own_at(path: &CStr, variables: &[String]) -> Option<Own> {
        Own::of(path, variables.iter().map(|entry| entry.as_bytes()))
    }

    fn this_file() -> CString {
        CString::new(std::env::current_exe().unwrap().into_os_string().into_encoded_bytes()).unwrap()
    }

    /// The environment after a change, or `None` without one.
    fn changed(own: &Own, environment: &[CString]) -> Option<Vec<CString>> {
        let target = Target::Path(libc::AT_FDCWD, c"/bin/sh".as_ptr());
        let pointers: Vec<*const c_char> =
            environment.iter().map(|entry| entry.as_ptr()).chain([null()]).collect();
        let mut after = Vec::new();
        // SAFETY: terminated strings and a final null pointer, which live until the end of this
        // function; fewer than `ENTRIES_MAX` including the variables.
        unsafe {
            let change = own.change(pointers.as_ptr(), target)?;
            assert!(change.count + OWN_MAX + 2 <= ENTRIES_MAX);
            change.with::<ENTRIES_MAX>(&mut |strings| {
                after = entries(strings).map(|entry| CStr::from_ptr(entry).to_owned()).collect();
                0
            });
        }
        Some(after)
    }

    fn entry() -> impl Strategy<Value = CString> {
        let any = prop::collection::vec(1u8..=255, 0..60);
        let text = prop_oneof![
            any.clone(),
            any.clone().prop_map(|names| [PRELOAD, &names].concat()),
            "LD_PRELOAD=([a-z/]{0,20}[: ]){0,60}[a-z/]{0,300}".prop_map(String::into_bytes),
            "UZSWAP_(SOCKET|EMULATE|X)?=?[a-z]{0,8}".prop_map(String::into_bytes),
            any.prop_map(|value| [b"A=", &value[..]].concat()),
        ];
        text.prop_map(|bytes| CString::new(bytes).unwrap())
    }

    #[test]
    fn a_path_that_is_too_long_is_left_out() {
        let root = std::env::temp_dir().join(format!("uzswap-long-path-{}", std::process::id()));
        let object = |len: usize| {
            let mut directory = root.clone();
            while directory.as_os_str().len() + 200 < len {
                directory.push("d".repeat(100));
            }
            std::fs::create_dir_all(&directory).unwrap();
            let path = directory.join("o".repeat(len - directory.as_os_str().len() - 1));
            std::fs::write(&path, "").unwrap();
            CString::new(path.into_os_string().into_encoded_bytes()).unwrap()
        };
        let variables = ["UZSWAP_SOCKET=here".to_owned()];
        // The longest value that fits alone, but not with others.
        let longest = PRELOAD_BYTES_MAX - PRELOAD.len() - NAME_BYTES - 2;
        let own = own_at(&object(longest), &variables).expect("it fits");
        assert!(own.can_load());
        assert_eq!(changed(&own, &[]).map(|after| after.len()), Some(2));
        assert_eq!(changed(&own, &[c"LD_PRELOAD=/lib/x.so".to_owned()]), None);
        assert!(own_at(&object(PRELOAD_BYTES_MAX - PRELOAD.len()), &variables).is_none());
        std::fs::remove_dir_all(root).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_environment_is_completed_once(
            environment in prop::collection::vec(entry(), 0..30),
            socket in "[a-z]{1,8}",
            emulates in any::<bool>(),
        ) {
            let mut variables = vec![format!("UZSWAP_SOCKET={socket}")];
            variables.extend(emulates.then(|| "UZSWAP_EMULATE=devices=2".to_owned()));
            let own = own_at(&this_file(), &variables).unwrap();
            let Some(after) = changed(&own, &environment) else { return Ok(()) };
            // Only LD_PRELOAD's value changes, and new entries come last.
            let (kept, added) = after.split_at(environment.len());
            for (before, after) in environment.iter().zip(kept) {
                prop_assert!(before == after || before.to_bytes().starts_with(PRELOAD));
            }
            prop_assert!(added.len() <= 1 + variables.len());
            let loaded = after.iter().rfind(|entry| entry.to_bytes().starts_with(PRELOAD)).unwrap();
            let names: Vec<&[u8]> = names_in(&loaded.to_bytes()[PRELOAD.len()..]).collect();
            prop_assert_eq!(names.iter().filter(|name| **name == own.path().to_bytes()).count(), 1);
            for variable in own.variables() {
                prop_assert!(after.iter().any(|entry| name_of(entry) == name_of(variable.as_c_str())));
            }
            prop_assert_eq!(changed(&own, &after), None);
        }
    }
}
