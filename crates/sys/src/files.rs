//! Disk files beyond reading and writing: unnamed files, block allocation, page cache, free space.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::{checked, done};

/// The way of a file's data to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Through the page cache.
    Cached,
    /// Bypasses the page cache: transfers are aligned to 4 KiB in the file and in memory.
    Direct,
}

/// Space on a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Available for writing.
    pub available: u64,
    /// Total size.
    pub total: u64,
}

/// The open(2) flag of [`Caching::Direct`].
pub const DIRECT_FLAG: i32 = libc::O_DIRECT;

/// Whether an open file bypasses the page cache.
///
/// # Errors
/// EBADF if it is not open.
pub fn is_direct(file: &File) -> io::Result<bool> {
    // SAFETY: asks for the flags of an open descriptor.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }).map(|flags| flags & DIRECT_FLAG != 0)
}

/// Attempts to find an unused temporary name.
const NAMES_MAX: u32 = 64;

/// Opens a new unnamed file in a directory, which only its owner can read and write. On file
/// systems without unnamed files, creates a file and removes its name at once.
///
/// # Errors
/// If the directory is invalid or not writable, and EINVAL without support for [`Caching::Direct`].
pub fn open_unnamed(directory: &Path, caching: Caching) -> io::Result<File> {
    let direct = if caching == Caching::Direct { libc::O_DIRECT } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // With O_EXCL it cannot get a name later.
    let unnamed = options.clone().custom_flags(libc::O_TMPFILE | libc::O_EXCL | direct).open(directory);
    match unnamed {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {}
        other => return other,
    }
    for number in 0..NAMES_MAX {
        let path = directory.join(format!(".uzswap-{}-{number}", std::process::id()));
        match options.clone().create_new(true).custom_flags(libc::O_NOFOLLOW | direct).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => {
                // With O_DIRECT the file may exist although open(2) failed.
                if error.raw_os_error() == Some(libc::EINVAL) {
                    let _ = std::fs::remove_file(&path);
                }
                return Err(error);
            }
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Returns the file system's name if it keeps its files in memory.
///
/// # Errors
/// Those of fstatfs(2).
pub fn memory_file_system(file: &File) -> io::Result<Option<&'static str>> {
    // SAFETY: all fields are integers, for which zeroes are values.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    done(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) })?;
    // From linux/magic.h.
    Ok(match stat.f_type as u32 {
        0x0102_1994 => Some("tmpfs"),
        0x8584_58F6 => Some("ramfs"),
        0x9584_58F6 => Some("hugetlbfs"),
        _ => None,
    })
}

/// Space on a file's disk.
///
/// # Errors
/// Those of fstatvfs(3).
pub fn room(file: &File) -> io::Result<Room> {
    // SAFETY: all fields are integers, for which zeroes are values.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    done(unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut stat) })?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize as u64);
    Ok(Room { available: bytes(stat.f_bavail as u64), total: bytes(stat.f_blocks as u64) })
}

/// Allocates blocks for a range of a file, and extends the file to the range's end if it is
/// shorter.
///
/// # Errors
/// ENOSPC without room; EOPNOTSUPP without support of the file system.
pub fn reserve(file: &File, offset: u64, len: u64) -> io::Result<()> {
    allocate(file, 0, offset, len)
}

/// Frees the blocks of a range, which then reads as zeroes.
///
/// # Errors
/// EOPNOTSUPP without support of the file system.
pub fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    allocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len)
}

fn allocate(file: &File, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: takes an open descriptor and numbers.
        match done(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Flushes written pages of a range to the disk, and drops them from the page cache.
///
/// # Errors
/// EIO if the write failed.
pub fn settle(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: takes an open descriptor and numbers.
    let synced = unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, flags) };
    done(synced).or_else(|error| match error.raw_os_error() {
        // Where this call is missing (gVisor), another call writes the range.
        Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL) => file.sync_data(),
        _ => Err(error),
    })?;
    forget(file, offset, len);
    Ok(())
}

/// Drops clean pages of a range from the page cache.
pub fn forget(file: &File, offset: u64, len: u64) {
    // SAFETY: takes an open descriptor and numbers. Only advice: a failure does no harm.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Fills a slice with random bytes from the kernel.
///
/// # Errors
/// ENOSYS without getrandom(2).
pub fn random(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the slice is writable for its length.
        match checked(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) }) {
            Ok(got) => bytes = &mut bytes[got as usize..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_file_has_no_name_and_is_its_owners() {
        let directory = Path::new("/var/tmp");
        let file = open_unnamed(directory, Caching::Cached).unwrap();
        let stat = file.metadata().unwrap();
        assert_eq!((stat.nlink(), stat.mode() & 0o777), (0, 0o600));
        file.write_all_at(b"here", 8192).unwrap();
        settle(&file, 0, 12288).unwrap();
        let mut back = [0; 4];
        file.read_exact_at(&mut back, 8192).unwrap();
        assert_eq!(&back, b"here");
    }

    #[test]
    fn blocks_are_taken_and_given_back() {
        let file = open_unnamed(Path::new("/var/tmp"), Caching::Cached).unwrap();
        if let Err(error) = reserve(&file, 0, 1 << 20) {
            return testkit::skip!("disk", "{error}");
        }
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
        punch(&file, 0, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert!(file.metadata().unwrap().blocks() * 512 < 1 << 16);
        let room = room(&file).unwrap();
        assert!(room.available > 0 && room.available <= room.total);
    }

    #[test]
    fn memory_is_told_from_disk() {
        let on_disk = open_unnamed(Path::new("/var/tmp"), Caching::Cached).unwrap();
        println!("/var/tmp: {:?}", memory_file_system(&on_disk).unwrap());
        match open_unnamed(Path::new("/dev/shm"), Caching::Cached) {
            Ok(file) => assert_eq!(memory_file_system(&file).unwrap(), Some("tmpfs")),
            Err(error) => testkit::skip!("disk", "/dev/shm: {error}"),
        }
    }

    #[test]
    fn random_bytes_differ() {
        let (mut first, mut second) = ([0; 32], [0; 32]);
        random(&mut first).unwrap();
        random(&mut second).unwrap();
        assert_ne!(first, second);
    }
}
