//! Kept files, and their keys, of other users are refused before a byte of them is used, with the
//! reason and the remedy.

use std::fs::{self, Permissions};
use std::os::unix::fs::{chown, symlink, PermissionsExt};
use std::path::{Path, PathBuf};

use swapfile::{KeptConfig, KeyChoice, NamedFile};

/// A user without a name or rights.
const OTHER: u32 = 65534;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = PathBuf::from(format!("/var/tmp/uzswap-ownership-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens a file and its key, and makes what is not there.
fn open(file: &Path, key: &Path) -> Result<(), String> {
    let config = KeptConfig {
        device_bytes: 16 << 20,
        unit_bytes: 4096,
        compressor: "lz4".into(),
        key: KeyChoice::File(key.into()),
    };
    let opened = NamedFile::open(file).and_then(|mut file| file.prepare(&config));
    opened.map_err(|error| error.to_string())
}

fn refused(file: &Path, key: &Path, named: &Path, reason: &str, fix: &str) {
    let said = open(file, key).unwrap_err();
    assert!(said.contains(named.to_str().unwrap()), "{said}");
    assert!(said.contains(reason) && said.contains(fix), "{said}");
}

fn is_root() -> bool {
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        testkit::skip!("root", "only root can make files of other users");
    }
    is_root
}

#[test]
fn files_and_keys_that_others_may_use_are_refused() {
    let scratch = Scratch::new("modes");
    let (file, key) = (scratch.path("disk"), scratch.path("key"));
    open(&file, &key).unwrap();
    for (path, mode) in [(&file, 0o640), (&file, 0o602), (&key, 0o604), (&key, 0o660)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        refused(&file, &key, path, "others than its owner may use it", "chmod 600");
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        open(&file, &key).unwrap();
    }
}

#[test]
fn links_are_refused() {
    let scratch = Scratch::new("links");
    let (file, key) = (scratch.path("disk"), scratch.path("key"));
    open(&file, &key).unwrap();
    let (to_file, to_key, to_nothing) = (scratch.path("a"), scratch.path("b"), scratch.path("c"));
    symlink(&file, &to_file).unwrap();
    symlink(&key, &to_key).unwrap();
    symlink(scratch.path("new"), &to_nothing).unwrap();
    refused(&to_file, &key, &to_file, "symbolic link", "name the file itself");
    refused(&file, &to_key, &to_key, "symbolic link", "name the file itself");
    refused(&to_nothing, &key, &to_nothing, "symbolic link", "name the file itself");
    assert!(open(&scratch.path("fresh"), &to_nothing).is_err());
    assert!(!scratch.path("new").exists());
}

#[test]
fn a_directory_that_everyone_may_write_must_be_sticky() {
    let scratch = Scratch::new("directories");
    let (file, key) = (scratch.path("disk"), scratch.path("key"));
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
    refused(&file, &key, &file, "everyone may replace files", "chmod +t");
    assert!(!file.exists() && !key.exists());
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o1777)).unwrap();
    open(&file, &key).unwrap();
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
    let elsewhere = Scratch::new("elsewhere");
    refused(&elsewhere.path("disk"), &key, &key, "everyone may replace files", "chmod +t");
}

#[test]
fn what_another_user_made_is_refused() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("owners");
    let (file, key) = (scratch.path("disk"), scratch.path("key"));
    open(&file, &key).unwrap();
    for path in [&file, &key] {
        chown(path, Some(OTHER), None).unwrap();
        refused(&file, &key, path, "belongs to user 65534", "chown 0");
        chown(path, Some(0), None).unwrap();
    }
    open(&file, &key).unwrap();

    // An empty file would be made a swap file.
    let empty = scratch.path("empty");
    fs::write(&empty, "").unwrap();
    fs::set_permissions(&empty, Permissions::from_mode(0o600)).unwrap();
    chown(&empty, Some(OTHER), None).unwrap();
    refused(&empty, &key, &empty, "belongs to user 65534", "chown 0");
    assert_eq!(empty.metadata().unwrap().len(), 0);
}

#[test]
fn another_user_has_files_of_its_own() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("other-user");
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o1777)).unwrap();
    let (file, key) = (scratch.path("disk"), scratch.path("key"));
    let as_other = || {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: the user of this thread alone, which ends.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) };
                assert_eq!(changed, 0);
                open(&file, &key)
            });
            thread.join().unwrap()
        })
    };
    as_other().unwrap();
    as_other().unwrap();
    refused(&file, &key, &file, "belongs to user 65534", "chown 0");
    // A third user's, which it could open by a mistake in the rights.
    chown(&key, Some(1234), None).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    assert!(as_other().unwrap_err().contains("belongs to user 1234"));
}
