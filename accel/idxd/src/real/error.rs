//! Why a queue cannot be opened, each cause with its fix.

use std::io;

use crate::Refusal;

/// The meaning of an error of `open` on a queue's device file.
pub(super) fn of_open(queue: &str, path: &str, cause: &io::Error) -> Refusal {
    Refusal(match cause.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => format!(
            "no permission for {path}: use sudo, or chgrp it to a group of yours (`uzswap iaa configure --access \
             GROUP` does); docs/operate/iaa.md has a udev rule that lasts"
        ),
        Some(libc::EBUSY) => format!(
            "{queue} is dedicated and open already: end the program that has it, or configure shared queues \
             (--mode shared)"
        ),
        Some(libc::ENOENT) => no_file(queue, path),
        // The device was removed since it was listed.
        Some(libc::ENXIO) => {
            format!("{queue} went away while it was opened: `uzswap iaa list` shows what there is now")
        }
        // Binding the address space failed, or gave no valid PASID.
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENODEV | libc::ENOSYS) => format!(
            "{queue} cannot share addresses with this process ({cause}): enable VT-d in the BIOS and boot with \
             intel_iommu=on,sm_on (some machines also need no5lvl), on a kernel with CONFIG_INTEL_IDXD_SVM"
        ),
        _ => other(path, cause),
    })
}

pub(super) fn other(path: &str, cause: &io::Error) -> String {
    format!("cannot open {path}: {cause}")
}

pub(super) fn no_file(queue: &str, path: &str) -> String {
    format!(
        "{queue} has no device file {path}: in a container pass it in (--device {path}); else the queue was just \
         disabled, or udev has another name for it"
    )
}

/// Why a portal could not be mapped, in words.
pub(super) fn map_refusal(cause: &io::Error) -> String {
    match cause.raw_os_error() {
        Some(libc::EPERM) => {
            "mapping the portal needs CAP_SYS_RAWIO on this generation (INTEL-SA-01084)".to_owned()
        }
        _ => format!("the portal cannot be mapped ({cause})"),
    }
}

/// Why descriptors cannot be written, in words.
pub(super) fn write_refusal(cause: &io::Error) -> String {
    match cause.raw_os_error() {
        Some(libc::EINVAL) => "this kernel's idxd driver has none".to_owned(),
        Some(libc::EPERM) => "the file belongs to another address space".to_owned(),
        Some(libc::EAGAIN) => "the queue stayed full".to_owned(),
        _ => cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_fix() {
        let said =
            |errno: i32| of_open("wq1.0", "/dev/iax/wq1.0", &io::Error::from_raw_os_error(errno)).to_string();
        for (errno, part) in [
            (libc::EACCES, "chgrp"),
            (libc::EPERM, "chgrp"),
            (libc::EBUSY, "--mode shared"),
            (libc::ENOENT, "--device /dev/iax/wq1.0"),
            (libc::ENXIO, "went away"),
            (libc::EINVAL, "intel_iommu=on,sm_on"),
            (libc::EOPNOTSUPP, "intel_iommu=on,sm_on"),
            (libc::ENODEV, "VT-d"),
            (libc::EMFILE, "Too many open files"),
        ] {
            assert!(said(errno).contains(part), "{}", said(errno));
        }
        let map = |errno| map_refusal(&io::Error::from_raw_os_error(errno));
        assert!(
            map(libc::EPERM).contains("INTEL-SA-01084") && map(libc::ENODEV).contains("cannot be mapped")
        );
        let write = |errno| write_refusal(&io::Error::from_raw_os_error(errno));
        assert!(write(libc::EINVAL).contains("has none") && write(libc::EAGAIN).contains("full"));
        assert!(write(libc::EPERM).contains("address space"));
    }
}
