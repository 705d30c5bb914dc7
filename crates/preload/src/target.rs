//! The file that an exec is about to run: finds the sanitizer's runtime that it needs.

use core::ffi::{c_char, c_int, CStr};

use doorway::runtime::{interpreter, Runtime};

use crate::line::Text;
use crate::{scratch, system};

const PATH_BYTES_MAX: usize = 1024;
/// exec(2) refuses a FIFO at once; an open for reading would wait for a writer.
const TO_LOOK: c_int = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;

#[derive(Clone, Copy)]
pub enum Target {
    /// A path, relative to a directory's descriptor.
    Path(c_int, *const c_char),
    /// A name, searched along PATH if it has no slash.
    Name(*const c_char),
    File(c_int),
    /// The shell, which needs no runtime.
    Shell,
}

impl Target {
    /// The runtime that it needs; `None` also if it cannot be read.
    ///
    /// # Safety
    /// Strings are terminated, or invalid addresses.
    pub unsafe fn runtime(self) -> Option<Runtime> {
        // SAFETY: the caller's promise.
        let text = |string| unsafe { text(string) };
        let file = match self {
            Target::Shell => return None,
            Target::Path(directory, path) => system::open_at(directory, text(path)?, TO_LOOK),
            Target::Name(name) => find(text(name)?),
            Target::File(file) => return of_file(file as isize),
        };
        let found = if file < 0 { None } else { of_file(file) };
        system::close(file);
        found
    }
}

/// # Safety
/// A NUL-terminated string, or an invalid address.
unsafe fn text<'a>(string: *const c_char) -> Option<&'a CStr> {
    system::Reader::new().string_len(string.addr(), libc::PATH_MAX as usize)?;
    // SAFETY: readable up to its end, which was found.
    Some(unsafe { CStr::from_ptr(string) })
}

fn of_file(file: isize) -> Option<Runtime> {
    let read = |offset, room: &mut [u8]| system::read_at(file, room, offset);
    // The longest first line that the kernel reads.
    let mut head = [0; 256];
    let len = read(0, &mut head);
    let Some(name) = interpreter(&head[..len]) else { return Runtime::of(&mut { read }) };
    // The next byte after the name ends it.
    let start = name.as_ptr() as usize - head.as_ptr() as usize;
    let end = start + name.len();
    *head.get_mut(end)? = 0;
    let file = system::open(CStr::from_bytes_until_nul(&head[start..=end]).ok()?, TO_LOOK);
    let found = Runtime::of(&mut |offset, room| system::read_at(file, room, offset));
    system::close(file);
    found
}

/// Opens the first file of a name along PATH.
fn find(name: &CStr) -> isize {
    // SAFETY: the program changes its environment at its own risk.
    let path = unsafe { system::variable(c"PATH") };
    let Some(path) = path.filter(|_| !name.to_bytes().contains(&b'/')) else {
        return system::open(name, TO_LOOK);
    };
    scratch::with(|candidate: &mut Text<PATH_BYTES_MAX>| {
        for directory in path.to_bytes().split(|byte| *byte == b':') {
            let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
            if candidate.set([directory, slash, name.to_bytes()]).is_some() {
                let file = system::open(candidate.as_c_str(), TO_LOOK);
                if file >= 0 {
                    return file;
                }
            }
        }
        -1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_as_exec_finds_them() {
        crate::control_page::note_process();
        let file = find(c"sh");
        assert!(file >= 0);
        system::close(file);
        assert!(find(c"no such program") < 0 && find(c"/no/such/program") < 0);
        // SAFETY: terminated strings, and invalid addresses.
        unsafe {
            assert_eq!(Target::Path(libc::AT_FDCWD, c"/bin/sh".as_ptr()).runtime(), None);
            assert_eq!(Target::Path(libc::AT_FDCWD, core::ptr::null()).runtime(), None);
            assert_eq!(Target::Name(8 as *const c_char).runtime(), None);
            assert_eq!(Target::File(-1).runtime(), None);
        }
    }
}
