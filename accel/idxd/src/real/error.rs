//! Errors of opening a queue, each with its fix.

use std::io;

/// A queue that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device is not enabled.
    #[error("{0} is disabled: `uzswap iaa configure` or `uzswap iaa load` enables it")]
    DeviceDisabled(String),
    /// The device has halted.
    #[error("{0} has halted after an error: configure it again to reset it; the kernel's log (dmesg) has the cause")]
    DeviceHalted(String),
    /// The queue is not enabled.
    #[error("{0} is disabled: `uzswap iaa configure` or `uzswap iaa load` enables it")]
    QueueDisabled(String),
    /// The queue belongs to the kernel.
    #[error("{0} is the kernel's (type kernel): configure one of type user for programs")]
    ForTheKernel(String),
    /// The device file is missing.
    #[error(
        "{queue} has no device file {path}: in a container pass it in (--device {path}); else the queue was just \
         disabled, or udev has another name for it"
    )]
    NoFile {
        /// The queue.
        queue: String,
        /// The file.
        path: String,
    },
    /// Permission denied.
    #[error(
        "no permission for {0}: use sudo, or chgrp it to a group of yours (`uzswap iaa configure --access GROUP` does); docs/operate/iaa.md has a udev \
         rule that lasts"
    )]
    NoRights(String),
    /// Another process has it open.
    #[error(
        "{0} is dedicated and open already: end the program that has it, or configure shared queues \
         (--mode shared)"
    )]
    Busy(String),
    /// The process's addresses cannot be shared with the device.
    #[error(
        "{queue} cannot share addresses with this process ({cause}): enable VT-d in the BIOS and boot with \
         intel_iommu=on,sm_on (some machines also need no5lvl), on a kernel with CONFIG_INTEL_IDXD_SVM"
    )]
    NoSharedAddresses {
        /// The queue.
        queue: String,
        /// The error of `open`.
        cause: io::Error,
    },
    /// Neither way of submitting works.
    #[error(
        "{queue} takes no descriptors from this process: {map}; and write: {write}. Run with CAP_SYS_RAWIO (setcap \
         cap_sys_rawio+ep, or sudo), or use a kernel whose idxd driver has write (6.9 and the stable kernels after May \
         2024)"
    )]
    NoWay {
        /// The queue.
        queue: String,
        /// Why the portal cannot be mapped or stored to.
        map: String,
        /// Why writing does not work either.
        write: String,
    },
    /// The queue took a no-op and never completed it.
    #[error(
        "{queue} took a no-op and did not answer within {waited_ms} ms: check `uzswap iaa list` for errors, and that \
         its group has engines"
    )]
    NoAnswer {
        /// The queue.
        queue: String,
        /// The time waited.
        waited_ms: u64,
    },
    /// The no-op failed.
    #[error("{queue} answered a no-op with status {status:#04x}, {meaning}: see `uzswap iaa list` and the kernel's log")]
    Refused {
        /// The queue.
        queue: String,
        /// The status byte.
        status: u8,
        /// In words.
        meaning: &'static str,
    },
    /// The device was removed since it was listed.
    #[error("{0} went away while it was opened: `uzswap iaa list` shows what there is now")]
    Gone(String),
    /// Anything else.
    #[error("cannot open {path}: {cause}")]
    Other {
        /// The file.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
}

impl OpenError {
    /// The meaning of an error of `open` on a queue's device file.
    pub(super) fn of_open(queue: &str, path: &str, cause: io::Error) -> Self {
        let (queue, path) = (queue.to_owned(), path.to_owned());
        match cause.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => OpenError::NoRights(path),
            Some(libc::EBUSY) => OpenError::Busy(queue),
            Some(libc::ENOENT) => OpenError::NoFile { queue, path },
            Some(libc::ENXIO) => OpenError::Gone(queue),
            // Binding the address space failed, or gave no valid PASID.
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENODEV | libc::ENOSYS) => {
                OpenError::NoSharedAddresses { queue, cause }
            }
            _ => OpenError::Other { path, cause },
        }
    }
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
        let said = |errno: i32| {
            OpenError::of_open("wq1.0", "/dev/iax/wq1.0", io::Error::from_raw_os_error(errno)).to_string()
        };
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
