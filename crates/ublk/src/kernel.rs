//! Kernels with ublk, and kernels that crash.

use std::fs;
use std::path::Path;

use crate::error::Error;

pub(crate) const CONTROL: &str = "/dev/ublk-control";

/// Whether the driver is loaded.
pub fn is_here() -> bool {
    Path::new(CONTROL).exists()
}

/// Checks that a device can be added without crashing the kernel. Opens nothing.
///
/// # Errors
/// [`Error::Missing`], [`Error::Crashes`].
pub fn look() -> Result<(), Error> {
    if !is_here() {
        return Err(Error::Missing);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match crashes(release.trim()) {
        true => Err(Error::Crashes(release.trim().to_owned())),
        false => Ok(()),
    }
}

/// Whether ADD_DEV crashes: kernels that have "ublk: implement NUMA-aware memory allocation" and
/// not "ublk: reorder tag_set initialization before queue allocation". Stable kernels: 6.18.4 and
/// 6.18.5. Ubuntu's: reported are 6.17.0-1015-azure, 6.17.0-1017-aws and 6.17.0-1018-azure
/// (Launchpad bug 2154635); the first fixed build is unknown.
fn crashes(release: &str) -> bool {
    let (version, rest) = release.split_once('-').unwrap_or((release, ""));
    match version {
        "6.18.4" | "6.18.5" => true,
        // Ubuntu's kernels for clouds number their builds from 1001.
        "6.17.0" => {
            let build = rest.split('-').next().and_then(|number| number.parse::<u32>().ok());
            build.is_some_and(|build| build >= 1015)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashing_kernels_are_known() {
        for release in
            ["6.18.4", "6.18.5-arch1-1", "6.17.0-1015-azure", "6.17.0-1017-aws", "6.17.0-1018-azure"]
        {
            assert!(crashes(release), "{release}");
        }
        for release in [
            "6.18.3",
            "6.18.6",
            "6.18.40",
            "6.17.0-14-generic",
            "6.17.0-1008-azure",
            "6.17.5",
            "6.12.95+deb12-amd64",
        ] {
            assert!(!crashes(release), "{release}");
        }
    }
}
