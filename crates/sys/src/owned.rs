//! Files and directories that only this user, or root, can have made.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How [`open`] opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To be read; it is there.
    Read,
    /// To be read and written; made if it is not there, for this user alone.
    ReadWrite,
    /// To be written; it is not there, and is made for this user alone.
    New,
}

/// Opens a file that belongs to this user or to root, without rights for others. Links are not
/// followed, and in its directory others cannot put another file in its place. `flags` are further
/// ones of open(2).
///
/// # Errors
/// What is wrong, and how it is mended, for a user; else what open(2) returns.
pub fn open(path: &Path, access: Access, flags: i32) -> io::Result<File> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory =
        OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
    if directory.metadata()?.mode() & 0o1002 == 0o002 {
        let parent = parent.display();
        return Err(refused(format!(
            "everyone may replace files in {parent}: chmod +t {parent}, or use another directory"
        )));
    }
    let flags = flags
        | match access {
            Access::Read => libc::O_RDONLY,
            Access::ReadWrite => libc::O_RDWR | libc::O_CREAT,
            Access::New => libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL,
        };
    // A pipe or a device must not have this wait.
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let name = CString::new(name.as_bytes())?;
    // SAFETY: an open directory and a terminated name.
    let raw = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, 0o600) };
    if raw < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ELOOP) => refused("it is a symbolic link: name the file itself".into()),
            _ => error,
        });
    }
    // SAFETY: opened just now, owned by nothing else.
    let file = unsafe { File::from_raw_fd(raw) };
    check(&file)?;
    // With O_NONBLOCK transfers by io_uring would not wait either.
    // SAFETY: the flags of an open descriptor.
    let is_set = unsafe {
        let flags = libc::fcntl(raw, libc::F_GETFL);
        flags >= 0 && libc::fcntl(raw, libc::F_SETFL, flags & !libc::O_NONBLOCK) == 0
    };
    is_set.then_some(file).ok_or_else(io::Error::last_os_error)
}

/// Makes a directory for this user alone, with any umask.
///
/// # Errors
/// EEXIST when there is something of this name; what mkdir(2) returns.
pub fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    check(&OpenOptions::new().read(true).custom_flags(flags).open(path)?)
}

/// Whether a file belongs to this user or to root, without rights for others.
fn check(file: &File) -> io::Result<()> {
    let about = file.metadata()?;
    // SAFETY: asks for a number.
    let own = unsafe { libc::geteuid() };
    if about.uid() != own && about.uid() != 0 {
        let owner = about.uid();
        return Err(refused(format!(
            "it belongs to user {owner}, and this is user {own}: use a file of your own, or if you trust it: chown {own}"
        )));
    }
    if about.mode() & 0o077 != 0 {
        return Err(refused("others than its owner may use it: chmod 600".into()));
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

    /// Runs in a thread with a umask, and a user, of its own.
    fn with<T: Send>(umask: u32, user: Option<u32>, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: the umask and the user of this thread alone, which ends.
                unsafe {
                    assert_eq!(libc::unshare(libc::CLONE_FS), 0);
                    libc::umask(umask as libc::mode_t);
                    if let Some(user) = user {
                        assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
                    }
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

    fn reason(path: &Path, access: Access) -> String {
        open(path, access, 0).unwrap_err().to_string()
    }

    #[test]
    fn directories_are_private_whatever_the_umask() {
        let scratch = scratch("umask");
        for (number, umask) in [0, 0o022, 0o077].into_iter().enumerate() {
            let path = scratch.join(number.to_string());
            with(umask, None, || make_directory(&path).unwrap());
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
            assert_eq!(make_directory(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn files_are_private_whatever_the_umask() {
        let scratch = scratch("files");
        let (one, two) = (scratch.join("one"), scratch.join("two"));
        with(0, None, || {
            open(&one, Access::New, 0).unwrap();
            open(&two, Access::ReadWrite, 0).unwrap();
        });
        for path in [&one, &two] {
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
            let file = open(path, Access::Read, 0).unwrap();
            // SAFETY: asks for the flags of an open descriptor.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) } & libc::O_NONBLOCK, 0);
        }
        std::fs::set_permissions(&one, Permissions::from_mode(0o640)).unwrap();
        assert!(reason(&one, Access::Read).contains("chmod 600"));
        assert_eq!(open(&one, Access::New, 0).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn links_pipes_and_open_directories_are_refused() {
        let scratch = scratch("links");
        let (file, link, pipe) = (scratch.join("file"), scratch.join("link"), scratch.join("pipe"));
        open(&file, Access::New, 0).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for access in [Access::Read, Access::ReadWrite] {
            assert!(reason(&link, access).contains("symbolic link"));
        }
        // A link to nothing makes no file.
        std::fs::remove_file(&file).unwrap();
        assert!(reason(&link, Access::ReadWrite).contains("symbolic link"));
        assert!(open(&link, Access::New, 0).is_err() && !file.exists());
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: a terminated name.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        // Returns, with any result.
        let _ = open(&pipe, Access::Read, 0);

        std::fs::set_permissions(&scratch, Permissions::from_mode(0o777)).unwrap();
        assert!(reason(&file, Access::ReadWrite).contains("chmod +t"));
        assert!(!file.exists());
        std::fs::set_permissions(&scratch, Permissions::from_mode(0o1777)).unwrap();
        open(&file, Access::ReadWrite, 0).unwrap();
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn files_of_other_users_are_refused() {
        // SAFETY: asks for a number.
        if unsafe { libc::geteuid() } != 0 {
            testkit::skip!("root", "only root can make files of other users");
            return;
        }
        let scratch = scratch("owners");
        std::fs::set_permissions(&scratch, Permissions::from_mode(0o1777)).unwrap();
        let own = |name: &str, user| {
            let path = scratch.join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(user), None).unwrap();
            path
        };
        let (ours, theirs) = (own("root", 0), own("theirs", 65534));
        open(&ours, Access::ReadWrite, 0).unwrap();
        for access in [Access::Read, Access::ReadWrite] {
            let reason = reason(&theirs, access);
            assert!(reason.contains("user 65534") && reason.contains("chown 0"), "{reason}");
        }
        // For that user it is the other way round: root's would be taken, if he might open it.
        with(0o022, Some(65534), || {
            open(&theirs, Access::ReadWrite, 0).unwrap();
            assert_eq!(open(&ours, Access::Read, 0).unwrap_err().raw_os_error(), Some(libc::EACCES));
        });
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
