//! Reads the names in a directory without the C library's opendir(3).
//!
//! opendir(3) allocates on the program's heap, which a pager's thread must not touch: the C library
//! does not know such a thread, and skips locks while a program has one thread.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Offsets of a record's length and name: `struct linux_dirent64` of getdents64(2).
const LEN_AT: usize = 16;
const NAME_AT: usize = 19;

#[repr(align(8))]
struct Buffer([u8; 8192]);

/// The names in a directory, sorted, without `.` and `..`.
///
/// # Errors
/// If it does not exist, is not a directory or may not be read.
pub fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let directory = File::open(path)?;
    let mut buffer = Buffer([0; 8192]);
    let mut names = Vec::new();
    loop {
        let (descriptor, room) = (directory.as_raw_fd(), buffer.0.len());
        // SAFETY: the buffer has `room` bytes.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, descriptor, buffer.0.as_mut_ptr(), room) };
        let mut records = &buffer.0[..crate::checked(got)? as usize];
        if records.is_empty() {
            break;
        }
        while records.len() > NAME_AT {
            let len = usize::from(u16::from_ne_bytes([records[LEN_AT], records[LEN_AT + 1]]));
            let (record, rest) = records.split_at(len.clamp(NAME_AT, records.len()));
            let name = record[NAME_AT..].split(|byte| *byte == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
            records = rest;
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_names_as_the_standard_librarys() {
        let directory = std::env::temp_dir().join(format!("uzswap-directory-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("inside")).unwrap();
        // More than one buffer holds.
        for number in 0..500 {
            std::fs::write(directory.join(format!("a-file-with-a-long-name-{number}")), "").unwrap();
        }
        let found = names(&directory).unwrap();
        let mut expected: Vec<OsString> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        expected.sort();
        assert_eq!((found.len(), found), (501, expected));
        assert!(names(&directory.join("missing")).is_err());
        assert!(names(&directory.join("a-file-with-a-long-name-1")).is_err());
        assert!(names(&directory.join("inside")).unwrap().is_empty());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
