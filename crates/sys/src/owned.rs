//! Directories that only this user or root can have made.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Makes a directory for this user alone, under any umask.
///
/// # Errors
/// EEXIST if the name exists; those of mkdir(2).
pub fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    check(&OpenOptions::new().read(true).custom_flags(flags).open(path)?)
}

/// Whether a directory belongs to this user or to root, without rights for others.
fn check(file: &File) -> io::Result<()> {
    let about = file.metadata()?;
    let own = crate::process::own_user();
    if about.uid() != own && about.uid() != 0 {
        let owner = about.uid();
        return Err(refused(format!(
            "it belongs to user {owner}, and this is user {own}: use a directory of your own, or if you trust it: chown {own}"
        )));
    }
    if about.mode() & 0o077 != 0 {
        return Err(refused("others than its owner may use it: chmod 700".into()));
    }
    Ok(())
}

fn refused(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn with<T: Send>(umask: u32, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: changes the umask of this thread alone, which then ends.
                unsafe {
                    assert_eq!(libc::unshare(libc::CLONE_FS), 0);
                    libc::umask(umask as libc::mode_t);
                }
                work()
            });
            thread.join().unwrap()
        })
    }

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("uzswap-owned-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn directories_are_private_under_any_umask() {
        let scratch = scratch("umask");
        for (number, umask) in [0, 0o022, 0o077].into_iter().enumerate() {
            let path = scratch.join(number.to_string());
            with(umask, || make_directory(&path).unwrap());
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
            assert_eq!(make_directory(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn open_directories_and_those_of_other_users_are_refused() {
        let path = scratch("others");
        let reason = || check(&File::open(&path).unwrap()).unwrap_err().to_string();
        std::fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        assert!(reason().contains("chmod 700"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        check(&File::open(&path).unwrap()).unwrap();
        if crate::process::own_user() == 0 {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(reason().contains("user 65534") && reason().contains("chown 0"));
        } else {
            testkit::skip!("root", "only root can make directories of other users");
        }
        std::fs::remove_dir_all(&path).unwrap();
    }
}
