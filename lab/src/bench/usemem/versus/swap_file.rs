//! A swap file of this program.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use uzswap::PAGE_SIZE;

use super::undo::{Changes, Undo};
use program::size::Size;

/// Swap to this file before any other: the highest priority, and the flag that a priority is given.
const PRIORITY: libc::c_int = 0x8000 | 0x7fff;

/// File systems without blocks of their own on a disk (tmpfs, ramfs, overlayfs, FUSE, NFS): swapon
/// refuses their files.
const UNFIT: [i64; 5] = [0x0102_1994, 0x8584_58f6, 0x794c_7630, 0x6573_5546, 0x6969];

/// Room to leave on the disk.
const MARGIN_BYTES: u64 = 256 << 20;

/// Makes a swap file of at least `bytes`, in `directory` if given, and swaps to it; returns its
/// path.
///
/// # Errors
/// The reasons why no place suits.
pub fn swap_on(changes: &Changes, bytes: u64, directory: Option<&Path>) -> Result<PathBuf> {
    if let Some(directory) = directory {
        return swap_on_in(changes, directory, bytes)
            .with_context(|| format!("no swap file of {} in {}", Size::from(bytes), directory.display()));
    }
    let mut reasons = Vec::new();
    let own = std::env::current_dir().ok();
    for directory in ["/var/tmp", "/var/lib", "/tmp", "/root", "/"].into_iter().map(PathBuf::from).chain(own)
    {
        match swap_on_in(changes, &directory, bytes) {
            Ok(path) => return Ok(path),
            Err(error) => reasons.push(format!("{}: {error:#}", directory.display())),
        }
    }
    bail!("no place for a swap file of {}: {}", Size::from(bytes), reasons.join("; "))
}

fn swap_on_in(changes: &Changes, directory: &Path, bytes: u64) -> Result<PathBuf> {
    let directory = directory.canonicalize()?;
    let name = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: all zeroes is a valid structure, and the path is terminated.
    let (found, statfs) = unsafe {
        let mut statfs: libc::statfs = std::mem::zeroed();
        (libc::statfs(name.as_ptr(), &mut statfs), statfs)
    };
    if found != 0 {
        return Err(io::Error::last_os_error().into());
    }
    #[allow(clippy::unnecessary_cast)] // of another type on other machines
    let kind = statfs.f_type as i64;
    if UNFIT.contains(&kind) {
        bail!("its file system holds no swap files");
    }
    #[allow(clippy::unnecessary_cast)]
    let room = statfs.f_bavail as u64 * statfs.f_bsize as u64;
    if room < bytes + MARGIN_BYTES {
        bail!("only {} are free", Size::from(room));
    }
    let path = directory.join(format!(".uzswap-bench-{}.swap", std::process::id()));
    let result = changes
        .make(Undo::RemoveFile(path.clone()), || create(&path, bytes))
        .and_then(|()| changes.make(Undo::SwapOff(path.clone()), || swapon(&path)));
    if let Err(error) = result {
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(path)
}

fn create(path: &Path, bytes: u64) -> Result<()> {
    let bytes = bytes.next_multiple_of(PAGE_SIZE as u64);
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = options.open(path).context("cannot make the file")?;
    without_copy_on_write(&file);
    // SAFETY: sizes a file of this program.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot get the file's blocks");
    }
    file.write_all_at(&header((bytes / PAGE_SIZE as u64) as u32), 0)?;
    file.sync_all().context("cannot write the file")
}

/// Btrfs swaps only to files whose blocks stay where they are. Other file systems refuse the flag,
/// which does no harm.
fn without_copy_on_write(file: &File) {
    const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
    const FS_NOCOW_FL: libc::c_long = 0x0080_0000;
    let flags = FS_NOCOW_FL;
    // SAFETY: the request reads one word.
    unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS, &flags) };
}

/// The first page of a swap file of `pages`, as mkswap(8) writes it (`union swap_header` in
/// `linux/swap.h`).
fn header(pages: u32) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes()); // version
    page[1028..1032].copy_from_slice(&(pages - 1).to_ne_bytes()); // last page
    page[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

fn swapon(path: &Path) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a terminated path to a file that has no other user.
    match unsafe { libc::swapon(name.as_ptr(), PRIORITY) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context("swapon"),
    }
}

/// Stops swapping to a file, if it is in use.
///
/// # Errors
/// If its pages find no room in memory.
pub fn swap_off(path: &Path) -> Result<()> {
    if !is_active(&fs::read_to_string("/proc/swaps").unwrap_or_default(), path) {
        return Ok(());
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a terminated path.
    match unsafe { libc::swapoff(name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).with_context(|| format!("swapoff {}", path.display())),
    }
}

/// Whether the text of /proc/swaps has a file.
fn is_active(swaps: &str, path: &Path) -> bool {
    // The kernel writes odd bytes in octal; this program's names have none, and directories with
    // any are not chosen twice.
    let path = path.to_string_lossy().replace(' ', "\\040");
    swaps.lines().skip(1).any(|line| line.split_ascii_whitespace().next() == Some(&*path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_mkswap() {
        let page = header(256);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!(page[1024..1032], [1, 0, 0, 0, 255, 0, 0, 0]);
        assert!(page[..1024].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn active_files_are_found_by_their_whole_name() {
        let swaps =
            "Filename Type Size Used Priority\n/var/tmp/.a.swap file 1 0 32767\n/x\\040y file 1 0 -2\n";
        assert!(is_active(swaps, Path::new("/var/tmp/.a.swap")));
        assert!(is_active(swaps, Path::new("/x y")));
        assert!(!is_active(swaps, Path::new("/var/tmp/.a")) && !is_active(swaps, Path::new("Filename")));
    }
}
