//! The file under `/dev/iax` that opens a queue, and its permissions.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// A queue's device file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    /// Its path.
    pub path: PathBuf,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
    /// Whether it is a character device, as expected.
    pub is_device: bool,
    /// Inode and birth time: distinguishes the file from a later one of the same name, which the
    /// kernel makes when a queue is disabled and enabled.
    pub identity: u64,
    /// Whether this process may open it for reading and writing.
    pub may_open: bool,
}

impl DeviceFile {
    /// The file of a queue (`wq1.0`) below `dev`, which stands for `/dev`. Some naming schemes
    /// append a dash and more.
    pub fn find(dev: &Path, queue: &str) -> Option<Self> {
        let directory = dev.join("iax");
        let path = Some(directory.join(queue)).filter(|path| path.exists()).or_else(|| {
            let prefix = format!("{queue}-");
            let names = sys::directory::names(&directory).ok()?;
            let other = names.iter().find(|name| name.as_bytes().starts_with(prefix.as_bytes()))?;
            Some(directory.join(other))
        })?;
        let metadata = fs::metadata(&path).ok()?;
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: a zero-terminated path; the call only looks.
        let may_open = unsafe { libc::access(name.as_ptr(), libc::R_OK | libc::W_OK) } == 0;
        Some(DeviceFile {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode() & 0o7777,
            identity: identity(&metadata),
            is_device: metadata.file_type().is_char_device(),
            may_open,
            path,
        })
    }

    /// The identities of all queue files below `dev`, combined. Cheap: no file is opened.
    pub fn all_identities(dev: &Path) -> u64 {
        let directory = dev.join("iax");
        let mut names = sys::directory::names(&directory).unwrap_or_default();
        names.sort_unstable();
        names.iter().fold(0, |all, name| {
            let own = fs::metadata(directory.join(name)).map_or(0, |metadata| identity(&metadata));
            mix(all ^ own)
        })
    }

    /// Permission bits as `ls` shows them.
    pub fn permissions(&self) -> String {
        let bits = self.mode;
        (0..9).rev().map(|bit| if bits & 1 << bit == 0 { '-' } else { ['x', 'w', 'r'][bit % 3] }).collect()
    }
}

fn mix(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

fn identity(metadata: &fs::Metadata) -> u64 {
    // Not the time of change, which moves with the file's permissions.
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    mix(metadata.ino() ^ mix(born.map_or(0, |born| born.as_nanos() as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn plain_and_dashed_names() {
        let dev = std::env::temp_dir().join(format!("uzswap-device-file-{}", std::process::id()));
        fs::create_dir_all(dev.join("iax")).unwrap();
        for name in ["wq1.0", "wq1.1-uzswap", "wq1.10"] {
            fs::write(dev.join("iax").join(name), "").unwrap();
            fs::set_permissions(dev.join("iax").join(name), fs::Permissions::from_mode(0o660)).unwrap();
        }
        let found = |queue: &str| DeviceFile::find(&dev, queue);
        let plain = found("wq1.0").unwrap();
        assert!(plain.path.ends_with("iax/wq1.0") && plain.may_open && !plain.is_device);
        assert_eq!((plain.mode, plain.permissions().as_str()), (0o660, "rw-rw----"));
        assert!(found("wq1.1").unwrap().path.ends_with("iax/wq1.1-uzswap"));
        // A file in its place has another identity.
        let before = DeviceFile::all_identities(&dev);
        assert_eq!(DeviceFile::all_identities(&dev), before);
        fs::write(dev.join("new"), "").unwrap();
        fs::rename(dev.join("new"), dev.join("iax/wq1.0")).unwrap();
        assert_ne!(found("wq1.0").unwrap().identity, plain.identity);
        assert_ne!(DeviceFile::all_identities(&dev), before);
        assert_eq!(found("wq1"), None);
        assert_eq!(found("wq2.0"), None);
        fs::remove_dir_all(&dev).unwrap();
    }
}
