//! The kernel's version, and the version that uzswap needs.

use crate::userfaultfd::feature;

/// The first kernel with [`feature::MOVING`].
pub const NEEDED: &str = if cfg!(target_arch = "aarch64") { "6.10" } else { "6.8" };

/// Distributions with such a kernel.
const DISTRIBUTIONS: &str = if cfg!(target_arch = "aarch64") {
    "Debian 13, Debian 12 with backports, Ubuntu 24.04 with the HWE kernel, RHEL 10, Fedora"
} else {
    "Debian 13, Debian 12 with backports, Ubuntu 24.04, Ubuntu 22.04 with the HWE kernel, RHEL 10, Fedora"
};

/// The running kernel's release, as `uname -r` prints it.
pub fn release() -> String {
    // SAFETY: plain bytes, for which zeroes are valid.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is as large as the kernel's.
    unsafe { libc::uname(&mut names) };
    let bytes = names.release.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// The first two numbers of a release; zeroes if it has none.
pub fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = [0u32; 2];
    let mut at = 0;
    for byte in release.bytes() {
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

/// Why a kernel of this release, whose userfaultfd has `features`, cannot page, or `None` if it
/// can. The features decide: some distributions add `UFFDIO_MOVE` to older kernels.
pub fn why_too_old(features: u64, release: &str) -> Option<String> {
    (features & feature::MOVING != feature::MOVING).then(|| {
        format!(
            "uzswap needs Linux {NEEDED} or later (UFFDIO_MOVE of userfaultfd), and this is Linux {release}: \
             see `uname -r`. Distributions that have it: {DISTRIBUTIONS}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        assert_eq!(version_of("6.18.44-fc-v669"), (6, 18));
        assert_eq!((version_of("6.1-rc3"), version_of("7"), version_of("x")), ((6, 1), (7, 0), (0, 0)));
        assert!(version_of(&release()) >= (4, 11), "there is userfaultfd");
    }

    #[test]
    fn features_decide_and_the_message_names_versions_and_distributions() {
        let why = why_too_old(feature::EVENT_REMAP | feature::MOVE, "6.1.0-18-amd64").unwrap();
        let named = [NEEDED, "Linux 6.1.0-18-amd64", "uname -r", "Debian 13", "backports", "Ubuntu 24.04"];
        for part in named.iter().chain(&["HWE", "RHEL 10", "Fedora"]) {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert_eq!(why_too_old(feature::MOVING | feature::THREAD_ID, "5.14.0-503.el9"), None);
    }
}
