//! The version of the kernel, for what cannot be tried.

/// First two numbers of the running kernel's release; zeroes when it has none.
pub fn version() -> (u32, u32) {
    // SAFETY: plain bytes, for which zeroes are valid.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is as large as the kernel's.
    if unsafe { libc::syscall(libc::SYS_uname, &mut names) } != 0 {
        return (0, 0);
    }
    version_in(names.release.iter().map(|byte| *byte as u8))
}

/// The same of a release's text, as `/proc/sys/kernel/osrelease` has it.
pub fn version_of(release: &str) -> (u32, u32) {
    version_in(release.bytes())
}

fn version_in(release: impl Iterator<Item = u8>) -> (u32, u32) {
    let mut numbers = [0u32; 2];
    let mut at = 0;
    for byte in release {
        match byte {
            b'0'..=b'9' => {
                numbers[at] = numbers[at].saturating_mul(10).saturating_add(u32::from(byte - b'0'))
            }
            b'.' if at == 0 => at = 1,
            _ => break,
        }
    }
    (numbers[0], numbers[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        assert_eq!(version_of("6.18.44-fc-v669"), (6, 18));
        assert_eq!((version_of("6.1-rc3"), version_of("7"), version_of("x")), ((6, 1), (7, 0), (0, 0)));
        assert!(version() >= (4, 11), "there is userfaultfd");
    }
}
