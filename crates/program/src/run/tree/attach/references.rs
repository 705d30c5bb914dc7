//! What rules out paging a process that ran before: its open descriptors tell.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use sys::process;

/// File systems whose direct reads hold pages without pinning them: NFS, Ceph, FUSE, CIFS, SMB2,
/// 9P.
const UNPINNED: [i64; 6] = [0x6969, 0x00c3_6400, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];

/// Returns why no page of a process may be moved, if there is a reason.
pub fn why_unsafe(pid: i32) -> Option<String> {
    let handle = process::handle(pid).ok()?;
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let (Some(number), Ok(target)) = (number, fs::read_link(entry.path())) else { continue };
        match target.to_str() {
            Some("anon_inode:[userfaultfd]") => return Some("it has a userfaultfd of its own".to_owned()),
            Some(name) if name.starts_with('/') && reads_unpinned(pid, &handle, number) => {
                return Some(format!(
                    "it reads {name} by O_DIRECT, from a file system that does not pin memory"
                ));
            }
            _ => {}
        }
    }
    None
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
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &mut system) };
    result != 0 || is_unpinned(system.f_type as i64)
}

/// Some architectures have 32 bits with a sign.
fn is_unpinned(kind: i64) -> bool {
    UNPINNED.contains(&(kind & 0xffff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_reads_from_some_file_systems_are_unsafe() {
        let pid = std::process::id() as i32;
        let own = process::handle(pid).unwrap();
        let plain = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(!reads_unpinned(pid, &own, plain.as_raw_fd()) && !reads_unpinned(pid, &own, i32::MAX));
        const EXT4: i64 = 0xef53;
        const CIFS: i32 = 0xff53_4d42_u32 as i32;
        assert_eq!([0x6969, EXT4, CIFS.into()].map(is_unpinned), [true, false, true]);
    }
}
