//! The program's file: finding it, and whether it can be run and managed.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use doorway::runtime::{interpreter, Runtime};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    #[error("the program's name is empty: write it after the options")]
    Nameless,
    #[error("not found: is it installed, and its directory in PATH?")]
    Missing,
    #[error("not found: check the path")]
    NoFile,
    #[error("permission denied: a directory of its path may not be entered by this user")]
    Denied,
    #[error("is a directory: write the path of a program")]
    Directory,
    #[error("found, but not executable: `chmod +x` it, or name its interpreter before it")]
    NotExecutable,
}

impl NotFound {
    pub fn exit_status(self) -> i32 {
        match self {
            NotFound::Nameless | NotFound::Missing | NotFound::NoFile => 127,
            NotFound::Denied | NotFound::Directory | NotFound::NotExecutable => 126,
        }
    }
}

/// Returns the exit status for a failed exec.
pub fn exit_status_of(error: &io::Error) -> i32 {
    match error.raw_os_error() {
        Some(libc::ENOENT) => 127,
        Some(libc::EAGAIN | libc::ENOMEM) => 125,
        _ => 126,
    }
}

/// Returns why exec(2) fails with ENOENT for an existing program: its interpreter is missing.
pub fn missing_interpreter(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    std::fs::File::open(path).ok()?.take(1 << 12).read_to_end(&mut head).ok()?;
    if !head.starts_with(b"#!") {
        return Some("the dynamic loader it asks for is missing".to_owned());
    }
    let name = interpreter(&head)?;
    let is_missing = Path::new(OsStr::from_bytes(name)).metadata().is_err();
    is_missing.then(|| format!("its interpreter {} is missing", String::from_utf8_lossy(name)))
}

/// Returns why exec(2) fails with ENOEXEC.
pub fn unknown_format(path: &Path) -> &'static str {
    match kind(path) {
        Some(Kind::Foreign) => {
            "it is a program for another kind of CPU, or of 32 bits, which this kernel does not run: take a build for \
             this machine (`uname -m`)"
        }
        _ => "this kernel does not know the file's format: take a build for this machine (`uname -m`)",
    }
}

/// Returns the sanitizer's runtime that a program, or a script's interpreter, needs.
pub fn runtime(path: &Path) -> Option<Runtime> {
    let of = |file: &std::fs::File| Runtime::of(&mut |offset, room| file.read_at(room, offset).unwrap_or(0));
    let file = std::fs::File::open(path).ok()?;
    let mut head = [0; 256];
    let len = file.read_at(&mut head, 0).ok()?;
    match interpreter(&head[..len]) {
        Some(name) => of(&std::fs::File::open(OsStr::from_bytes(name)).ok()?),
        None => of(&file),
    }
}

/// Finds a program as the shell does: by path if its name has a slash, else along PATH.
pub fn find(name: &OsStr) -> Result<PathBuf, NotFound> {
    if name.is_empty() {
        return Err(NotFound::Nameless);
    }
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut error = NotFound::Missing;
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(name);
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            // Shells skip directories and unreadable entries.
            Err(NotFound::NotExecutable) => error = NotFound::NotExecutable,
            Err(_) => {}
        }
    }
    Err(error)
}

fn check(path: &Path) -> Result<(), NotFound> {
    let metadata = path.metadata().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => NotFound::Denied,
        _ => NotFound::NoFile,
    })?;
    match metadata.permissions().mode() & 0o111 {
        _ if metadata.is_dir() => Err(NotFound::Directory),
        1.. if metadata.is_file() => Ok(()),
        _ => Err(NotFound::NotExecutable),
    }
}

/// Returns why the program cannot be managed; `None` if it can, and for scripts.
pub fn why_unmanaged(path: &Path) -> Option<&'static str> {
    let metadata = path.metadata().ok()?;
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    let is_setuid = metadata.mode() & 0o4000 != 0 && metadata.uid() != user;
    let is_setgid = metadata.mode() & 0o2010 == 0o2010;
    if is_setuid || (is_setgid && user != 0) {
        return Some("it is setuid or setgid, so nothing can be loaded into it; it runs unmanaged");
    }
    let is_foreign = kind(path)? == Kind::Foreign;
    is_foreign.then_some("it is a program for another kind of CPU, or of 32 bits, which has no agent")
}

/// Returns whether the file is in ELF. Of other files, execvp(3) makes a shell's script.
pub fn is_elf(path: &Path) -> bool {
    kind(path).is_some_and(|kind| kind != Kind::Script)
}

/// Returns whether the loader can add an object to this program. Assumed for scripts.
pub fn loads_objects(path: &Path) -> bool {
    why_unmanaged(path).is_none() && kind(path).is_some_and(|kind| kind != Kind::Static)
}

fn kind(path: &Path) -> Option<Kind> {
    let mut head = Vec::new();
    std::fs::File::open(path).ok()?.take(1 << 16).read_to_end(&mut head).ok()?;
    Some(kind_of(&head))
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Script,
    Static,
    Dynamic,
    Foreign,
}

fn kind_of(head: &[u8]) -> Kind {
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*head.get(at..)?.first_chunk()?)));
    let word = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
    if !head.starts_with(b"\x7fELF") {
        return Kind::Script;
    }
    let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if head.get(4) != Some(&2) || head.get(5) != Some(&1) || half(18) != Some(machine) {
        return Kind::Foreign;
    }
    let (Some(start), Some(size), Some(count)) = (long(32), half(54), half(56)) else { return Kind::Static };
    // The table may be anywhere: the header is not trusted.
    let kinds = (0..count).filter_map(|index| word(usize::try_from(start).ok()?.checked_add(index * size)?));
    match kinds.into_iter().any(|kind| kind == libc::PT_INTERP) {
        true => Kind::Dynamic,
        false => Kind::Static,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn programs_are_found_along_path() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(find(OsStr::new("no-such-program-here")), Err(NotFound::Missing));
        assert_eq!(find(OsStr::new("/no/such/program")), Err(NotFound::NoFile));
        assert_eq!(find(OsStr::new("/etc/passwd")), Err(NotFound::NotExecutable));
        assert_eq!(find(OsStr::new("/etc")), Err(NotFound::Directory));
        assert_eq!(find(OsStr::new("")), Err(NotFound::Nameless));
    }

    #[test]
    fn kinds_of_files() {
        assert_eq!(kind_of(b"#!/bin/sh\n"), Kind::Script);
        assert!(!unknown_format(Path::new("/etc/passwd")).contains("32 bits"));
        assert_eq!(kind_of(b"\x7fELF\x01\x01"), Kind::Foreign);
        assert_eq!(why_unmanaged(&std::env::current_exe().unwrap()), None);
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        bytes.truncate(1 << 16);
        assert_eq!(kind_of(&bytes), Kind::Dynamic);
        bytes[56] = 0;
        bytes[57] = 0;
        assert_eq!(kind_of(&bytes), Kind::Static, "without program headers there is no interpreter");
        for cut in 0..64 {
            kind_of(&bytes[..cut]);
        }
    }

    /// The header of a 64-bit program, or a part of one.
    fn header() -> impl Strategy<Value = Vec<u8>> {
        let table = prop_oneof![Just(64u64), 0..70_000u64, any::<u64>(), u64::MAX - 70_000..=u64::MAX];
        let machine = if cfg!(target_arch = "aarch64") { 183u16 } else { 62 };
        (table, any::<u16>(), any::<u16>(), 0usize..70_000, prop::collection::vec(any::<u8>(), 0..200))
            .prop_map(move |(table, size, count, len, rest)| {
                let mut head = vec![0; 64];
                head[..6].copy_from_slice(b"\x7fELF\x02\x01");
                head[18..20].copy_from_slice(&machine.to_le_bytes());
                head[32..40].copy_from_slice(&table.to_le_bytes());
                head[54..56].copy_from_slice(&size.to_le_bytes());
                head[56..58].copy_from_slice(&count.to_le_bytes());
                head.extend(rest);
                head.resize(len, 0);
                head
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_file_is_of_some_kind(head in header(), bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let kind = kind_of(&head);
            prop_assert!(kind != Kind::Foreign || head.len() < 20);
            prop_assert!(kind != Kind::Script || !head.starts_with(b"\x7fELF"));
            prop_assert_eq!(kind_of(&bytes) == Kind::Script, !bytes.starts_with(b"\x7fELF"));
        }

        #[test]
        fn any_file_has_an_interpreter_or_not(mut line in prop::collection::vec(any::<u8>(), 0..200), script in any::<bool>()) {
            if script {
                line.splice(..0, *b"#! ");
            }
            let path = std::env::temp_dir().join(format!("uzswap-interpreter-{}", std::process::id()));
            std::fs::write(&path, &line).unwrap();
            let reason = missing_interpreter(&path);
            std::fs::remove_file(&path).unwrap();
            prop_assert!(script || line.starts_with(b"#!") || reason.is_some_and(|reason| reason.contains("loader")));
        }
    }
}
