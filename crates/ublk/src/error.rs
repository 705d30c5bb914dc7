//! Errors before a device serves, and when it ends.

use std::io;
use std::path::PathBuf;

/// A device could not be made or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no `/dev/ublk-control`.
    #[error(
        "there is no /dev/ublk-control: `modprobe ublk_drv`; a kernel without that module (CONFIG_BLK_DEV_UBLK, Linux 6.0 and \
         later; Ubuntu has it in linux-modules-extra) cannot do this, `uzswap device swap --attach nbd` can"
    )]
    Missing,
    /// The kernel crashes when a device is added.
    #[error(
        "Linux {0} crashes when a ublk device is added (ublk_init_queues uses what is made only later; fixed in 6.18.6): use \
         another kernel, or nbdkit (`uzswap device swap --attach nbd`); --any-kernel tries it nevertheless"
    )]
    Crashes(String),
    /// The control device may not be used.
    #[error(
        "/dev/ublk-control may not be opened ({0}): root is needed, or --unprivileged and udev rules that let you (docs/operate/block-device.md)"
    )]
    Control(io::Error),
    /// io_uring cannot be used.
    #[error("no io_uring ({0}): the kernel has none, or the sysctl kernel.io_uring_disabled or a seccomp filter forbids it")]
    Ring(io::Error),
    /// The kernel refused a command.
    #[error("the kernel refused {command} ({reason}){hint}")]
    Command {
        /// The command, in words.
        command: &'static str,
        /// The kernel's error.
        reason: io::Error,
        /// A remedy, or empty.
        hint: &'static str,
    },
    /// The kernel lacks a feature that the settings need.
    #[error("this kernel's ublk has no {0}")]
    Lacks(&'static str),
    /// A device's node is missing or may not be used.
    #[error("{path} cannot be opened ({reason}): udev or devtmpfs makes it, and a udev rule gives it to its owner")]
    Node {
        /// The node.
        path: PathBuf,
        /// The error of opening it.
        reason: io::Error,
    },
    /// A queue could not begin.
    #[error("queue {queue} cannot begin: {reason}")]
    Queue {
        /// Its number.
        queue: u16,
        /// The error.
        reason: io::Error,
    },
    /// A thread could not be made fit to be swapped on.
    #[error(transparent)]
    Flusher(#[from] sys::flusher::FlusherError),
    /// A setting is not valid.
    #[error("{0}")]
    Setting(&'static str),
}
