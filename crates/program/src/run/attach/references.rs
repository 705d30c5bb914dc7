//! What a process that ran before has given the kernel of its memory.
//!
//! A process that starts with its pager is seen when it makes a ring or a socket that sends without
//! a copy. One that is attached to has its descriptors, which tell.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use sys::process;

/// How the kernel may use a process's pages past their mappings.
#[derive(Debug, PartialEq, Eq)]
pub enum References {
    None,
    /// By references that it drops at some time: a freed frame must not be filled again.
    Kept,
    /// In a way that rules paging out.
    Unsafe(String),
}

/// File systems whose direct reads hold pages without pinning them: NFS, Ceph, FUSE, CIFS, SMB2, 9P.
const UNPINNED: [i64; 6] = [0x6969, 0x00c3_6400, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];

impl References {
    /// Looks at a process's open descriptors.
    pub fn of(pid: i32) -> Self {
        let Ok(handle) = process::handle(pid) else { return References::None };
        let mut found = References::None;
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let (Some(number), Ok(target)) = (number, fs::read_link(entry.path())) else { continue };
            match target.to_str() {
                Some("anon_inode:[userfaultfd]") => {
                    return References::Unsafe("it has a userfaultfd of its own".to_owned());
                }
                Some("anon_inode:[io_uring]") => found = References::Kept,
                Some(name) if name.starts_with("socket:") && sends_uncopied(&handle, number) => {
                    found = References::Kept;
                }
                Some(name) if name.starts_with('/') && reads_unpinned(pid, &handle, number) => {
                    let why =
                        format!("it reads {name} by O_DIRECT, from a file system that does not pin memory");
                    return References::Unsafe(why);
                }
                _ => {}
            }
        }
        found
    }
}

fn sends_uncopied(process: &OwnedFd, number: i32) -> bool {
    let Ok(socket) = process::descriptor_of(process, number) else { return false };
    let (mut is_on, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let value = (&raw mut is_on).cast();
    // SAFETY: `value` has `len` bytes.
    let got =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, &mut len) };
    got == 0 && is_on != 0
}

fn reads_unpinned(pid: i32, process: &OwnedFd, number: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let flags =
        text.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    if flags.is_none_or(|flags| flags & libc::O_DIRECT == 0) {
        return false;
    }
    let Ok(file) = process::descriptor_of(process, number) else { return true };
    // SAFETY: plain numbers, filled by the kernel.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: room for the result.
    let answer = unsafe { libc::fstatfs(file.as_raw_fd(), &mut system) };
    answer != 0 || UNPINNED.contains(&(system.f_type as i64 & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_socket_that_sends_without_a_copy_is_seen() {
        let own = process::handle(std::process::id() as i32).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = socket.as_raw_fd();
        assert!(!sends_uncopied(&own, number));
        let is_on = 1i32;
        // SAFETY: `is_on` has the given length.
        let set = unsafe {
            let (value, len) = ((&raw const is_on).cast(), size_of::<i32>() as libc::socklen_t);
            libc::setsockopt(number, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, len)
        };
        assert_eq!(sends_uncopied(&own, number), set == 0);
        let file = fs::File::open("/proc/self/stat").unwrap();
        assert!(!reads_unpinned(std::process::id() as i32, &own, file.as_raw_fd()));
    }
}
