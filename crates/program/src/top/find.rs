//! Finding the running trees: every supervisor holds its ledger, a memory file with a name of its own.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ledger::{Snapshot, MEMORY_NAME};

/// A running tree as it was when it was looked at.
pub struct Found {
    /// The ledger's memory file: the tree's identity.
    pub inode: u64,
    /// The process that holds it.
    pub pid: u32,
    /// The program and its arguments, as far as they can be read.
    pub program: Vec<String>,
    /// The ledger.
    pub snapshot: Snapshot,
}

/// All trees whose supervisors this user may look into, by process number.
pub fn trees() -> Vec<Found> {
    let own = fs::metadata("/proc/self/exe").ok().map(|file| (file.dev(), file.ino()));
    let mut found: Vec<Found> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid.filter(|_| may_supervise(&entry.path(), own)) else { continue };
        let Some(tree) = look(pid) else { continue };
        // The front of a supervisor holds the ledger, too, and is what the user has started.
        match found.iter_mut().find(|other| other.inode == tree.inode) {
            Some(other) if tree.pid == tree.snapshot.supervisor() => *other = tree,
            Some(_) => {}
            None => found.push(tree),
        }
    }
    found.sort_by_key(|tree| tree.pid);
    found
}

/// Whether a process may be a supervisor: to look at the descriptors of every process takes long.
fn may_supervise(process: &Path, own: Option<(u64, u64)>) -> bool {
    let exe = process.join("exe");
    let is_own = || fs::metadata(&exe).is_ok_and(|file| Some((file.dev(), file.ino())) == own);
    fs::read_link(&exe).is_ok_and(|path| is_named_uzswap(&path)) || is_own()
}

/// By any path, and also when the file has been replaced since.
fn is_named_uzswap(exe: &Path) -> bool {
    let name = exe.file_name().map_or(&b""[..], |name| name.as_bytes());
    name.strip_suffix(b" (deleted)").unwrap_or(name) == b"uzswap"
}

/// The tree of a supervisor, which holds one ledger.
fn look(pid: u32) -> Option<Found> {
    ledgers(pid).next()
}

/// The ledgers among a process's descriptors.
fn ledgers(pid: u32) -> impl Iterator<Item = Found> {
    let wanted = format!("/memfd:{}", MEMORY_NAME.to_string_lossy());
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str().filter(|name| name.trim_end_matches(" (deleted)") == wanted)?;
        let file = File::open(entry.path()).ok()?;
        let (metadata, snapshot) = (file.metadata().ok()?, Snapshot::read(file.as_fd()).ok()?);
        let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Some(Found { inode: metadata.ino(), pid, program: program_of(&text), snapshot })
    })
}

/// Where a process holds a ledger.
pub fn ledger_path(pid: u32, inode: u64) -> Option<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.find(|path| fs::metadata(path).is_ok_and(|file| file.ino() == inode))
}

/// The program and its arguments, from the text of a supervisor's /proc/PID/cmdline.
fn program_of(cmdline: &[u8]) -> Vec<String> {
    let words = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|byte| *byte == 0);
    let words: Vec<OsString> = words.map(|word| OsStr::from_bytes(word).to_owned()).collect();
    crate::program_of(&words).iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// A process's name.
pub fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_follows_the_options() {
        let program = |text: &[u8]| program_of(text).join("|");
        assert_eq!(program(b"uzswap\0run\0--ram\0" as &[u8]), "");
        assert_eq!(program(b"uzswap\0run\0--ram=G\0--\0sort\0--\0a b\0"), "sort|--|a b");
        assert_eq!(program(b"uzswap\0run\0--ram\0G\0sort\0-r\0--\0x\0"), "sort|-r|--|x");
        assert_eq!(program(b"uzswap\0top\0"), "");
        assert_eq!(program(b""), "");
    }

    #[test]
    fn programs_of_this_name_are_looked_at() {
        for (path, is) in [
            ("/usr/bin/uzswap", true),
            ("/home/u/uzswap (deleted)", true),
            ("/usr/bin/uzswapd", false),
            ("", false),
        ] {
            assert_eq!(is_named_uzswap(Path::new(path)), is, "{path}");
        }
    }

    #[test]
    fn a_ledger_is_found_among_descriptors() {
        let settings = ledger::Settings {
            budget_bytes: 77 << 20,
            folio_bytes: 65536,
            compressor: "lz4".into(),
            forms: vec!["same".into(), "lz4".into()],
            verify: false,
            swap_bytes: 0,
        };
        let (_ledger, _file) = ledger::Ledger::create(&settings).unwrap();
        // Other tests of this process may hold ledgers as well.
        let found = ledgers(std::process::id()).find(|found| found.snapshot.settings() == settings);
        assert!(found.is_some(), "this process holds one");
        // This process runs the same file as itself, so it is looked at.
        assert!(trees().iter().any(|tree| tree.pid == std::process::id()));
    }
}
