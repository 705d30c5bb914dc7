//! What can go wrong before a device serves, and when it ends.

use std::io;
use std::path::PathBuf;

/// A device could not be made, or not be ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no `/dev/ublk-control`.
    #[error(
        "there is no /dev/ublk-control: `modprobe ublk_drv`; a kernel without that module (CONFIG_BLK_DEV_UBLK, Linux 6.0 and \
         later; Ubuntu has it in linux-modules-extra) cannot do this, `uzswap device swap --attach nbd` can"
    )]
    Missing,
    /// The kernel crashes where a device is added.
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
        /// What was asked for.
        command: &'static str,
        /// What it said.
        reason: io::Error,
        /// What may help.
        hint: &'static str,
    },
    /// The kernel lacks what is asked for.
    #[error("this kernel's ublk has no {0}")]
    Lacks(&'static str),
    /// A device's node is not there, or may not be used.
    #[error("{path} cannot be opened ({reason}): udev or devtmpfs makes it, and a udev rule gives it to its owner")]
    Node {
        /// The node.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// A queue could not begin.
    #[error("queue {queue} cannot begin: {reason}")]
    Queue {
        /// Which.
        queue: u16,
        /// Why.
        reason: io::Error,
    },
    /// A thread may not be made fit to be swapped on.
    #[error(transparent)]
    Flusher(#[from] sys::flusher::FlusherError),
    /// A setting is none.
    #[error("{0}")]
    Setting(&'static str),
}
