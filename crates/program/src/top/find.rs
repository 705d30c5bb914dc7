//! Finds running trees: every supervisor holds its boards and ledgers as memfds with known names.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use ledger::{Ledger, Sight, Snapshot, BOARD_NAME, LEDGER_NAME};

use crate::plain::plain;
use crate::run::peers::looks::look_within;

const COMMAND: Duration = Duration::from_secs(1);

/// A running tree at one moment.
pub struct RunningTree {
    /// The tree's unique number.
    pub tree: u64,
    /// The process id that users know.
    pub pid: u32,
    /// The process that holds the tree's memory files.
    pub holder: u32,
    /// The program and its arguments, as far as they are readable.
    pub program: Vec<String>,
    pub snapshot: Snapshot,
}

/// Returns all trees whose supervisors this user may inspect, by process id.
pub fn trees() -> Vec<RunningTree> {
    let own = fs::metadata("/proc/self/exe").ok().map(|file| (file.dev(), file.ino()));
    let mut found: Vec<RunningTree> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid.filter(|_| may_supervise(&entry.path(), own)) else { continue };
        let Some(tree) = snapshots(pid).into_iter().next() else { continue };
        if !found.iter().any(|other| other.tree == tree.tree) {
            found.push(tree);
        }
    }
    found.sort_by_key(|tree| tree.pid);
    found
}

/// A cheap filter: scanning the descriptors of every process takes long.
fn may_supervise(process: &Path, own: Option<(u64, u64)>) -> bool {
    let exe = process.join("exe");
    let is_own = || fs::metadata(&exe).is_ok_and(|file| Some((file.dev(), file.ino())) == own);
    fs::read_link(&exe).is_ok_and(|path| is_named_uzswap(&path)) || is_own()
}

pub fn is_uzswap(pid: u32) -> bool {
    let own = fs::metadata("/proc/self/exe").ok().map(|file| (file.dev(), file.ino()));
    may_supervise(Path::new(&format!("/proc/{pid}")), own)
}

/// Matches any path, also of a file that has been replaced since.
fn is_named_uzswap(exe: &Path) -> bool {
    let name = exe.file_name().map_or(&b""[..], |name| name.as_bytes());
    // The laboratory also runs programs.
    matches!(name.strip_suffix(b" (deleted)").unwrap_or(name), b"uzswap" | b"uzswap-lab")
}

fn snapshots(pid: u32) -> Vec<RunningTree> {
    let mut trees: Vec<RunningTree> = Vec::new();
    let text = look_within(COMMAND, move || fs::read(format!("/proc/{pid}/cmdline")));
    let text = text.and_then(Result::ok).unwrap_or_default();
    for (sight, _, ledger) in pairs(pid) {
        let number = sight.tree();
        let at = trees.iter().position(|other| other.tree == number).unwrap_or_else(|| {
            let (program, snapshot) = (program_of(&text), Snapshot::default());
            trees.push(RunningTree { tree: number, pid, holder: pid, program, snapshot });
            trees.len() - 1
        });
        // Skips ledgers of another version.
        let _ = trees[at].snapshot.add(sight, ledger.as_fd());
    }
    trees.retain(|tree| !tree.snapshot.is_empty());
    for tree in &mut trees {
        let front = tree.snapshot.supervisor();
        if front != 0 && Path::new(&format!("/proc/{front}")).exists() {
            tree.pid = front;
        }
    }
    trees
}

fn pairs(pid: u32) -> Vec<(Sight, File, File)> {
    let ledgers = files(pid, LEDGER_NAME);
    let boards = files(pid, BOARD_NAME).into_iter();
    let pairs = boards.filter_map(|(_, board)| {
        let sight = Sight::read(board.as_fd()).ok()?;
        let (_, ledger) = ledgers.iter().find(|(inode, _)| *inode == sight.ledger())?;
        Some((sight, board, ledger.try_clone().ok()?))
    });
    pairs.collect()
}

/// Returns a process's memfds of that name, each inode once, writable where permitted.
fn files(pid: u32, name: &CStr) -> Vec<(u64, File)> {
    let wanted = format!("/memfd:{}", name.to_string_lossy());
    let mut found: Vec<(u64, File)> = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.to_str().map(|name| name.trim_end_matches(" (deleted)")) != Some(&*wanted) {
            continue;
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let opened = options.clone().write(true).open(entry.path()).or_else(|_| options.open(entry.path()));
        // The descriptor may have been replaced by another file.
        let Ok(file) = opened else { continue };
        let Ok(inode) = file.metadata().map(|status| status.ino()) else { continue };
        if !found.iter().any(|(other, _)| *other == inode) {
            found.push((inode, file));
        }
    }
    found
}

/// Maps the ledgers of a tree, writable, through the process that holds them.
pub fn ledgers(pid: u32, tree: u64) -> Vec<Ledger> {
    let pairs = pairs(pid).into_iter().filter(|(sight, ..)| sight.tree() == tree);
    pairs.filter_map(|(_, board, ledger)| Ledger::map(board.as_fd(), ledger.as_fd()).ok()).collect()
}

fn program_of(cmdline: &[u8]) -> Vec<String> {
    let words = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|byte| *byte == 0);
    let words: Vec<OsString> = words.map(|word| OsStr::from_bytes(word).to_owned()).collect();
    crate::program_of(&words).iter().map(|word| plain(&word.to_string_lossy())).collect()
}

/// Returns a process's name, safe to print.
pub fn name_of(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    plain(String::from_utf8_lossy(&name).trim_end_matches('\n'))
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
        assert_eq!(program(&[b"uzswap\0attach\0", &b"17\0"[..]].concat()), "attached 17");
        assert_eq!(program(b"uzswap\0top\0"), "");
        assert_eq!(program(b""), "");
    }

    #[test]
    fn programs_of_this_name_are_looked_at() {
        let is = |path: &str| is_named_uzswap(Path::new(path));
        assert!(is("/usr/bin/uzswap") && is("/home/u/uzswap (deleted)"));
        assert!(!is("/usr/bin/uzswapd") && !is(""));
    }

    #[test]
    fn a_ledger_is_found_among_descriptors() {
        let settings = ledger::Settings {
            budget_bytes: 77 << 20,
            compressor: "lz4".into(),
            forms: vec!["same".into(), "lz4".into()],
            ..ledger::Settings::default()
        };
        let _keeper = ledger::Keeper::create(&settings, 77).unwrap();
        let _of_another_user = ledger::Keeper::create(&settings, 77).unwrap();
        // Other tests of this process may hold ledgers.
        let found = snapshots(std::process::id()).into_iter().find(|found| found.tree == 77).unwrap();
        assert_eq!(found.snapshot.settings(), settings);
        assert_eq!(ledgers(std::process::id(), 77).len(), 2);
        // This process runs the same file as itself, so it passes the filter.
        assert!(trees().iter().any(|tree| tree.pid == std::process::id()));
    }
}
