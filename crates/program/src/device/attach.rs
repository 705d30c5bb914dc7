//! Makes an NBD server a block device of this machine.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, Result};

use super::process::{exists, run, Companion};
use super::shelter::Shelter;

/// How a server becomes a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// ublk where the kernel has it and no --plugin is given, else nbd, else loop
    Auto,
    /// The kernel's own client of nbdkit
    Nbd,
    /// A loop device on nbdfuse
    Loop,
    /// The kernel's ublk, without nbdkit: one process, no socket
    Ublk,
}

/// The attached device. Dropping it detaches.
pub struct Attached {
    /// The block device's path.
    pub device: String,
    by: By,
}

enum By {
    Nbd,
    Loop {
        file: PathBuf,
        fuse: Companion,
    },
    /// The device ends with its server process.
    Ublk,
}

impl Attached {
    /// Attaches the server that listens on `socket`. `directory` is for a mount.
    pub fn new(way: Way, socket: &Path, directory: &Path, shelter: Option<&Shelter>) -> Result<Self> {
        let has_nbd = || {
            let _ = Command::new("modprobe").args(["nbd", "max_part=0"]).stderr(Stdio::null()).status();
            free_nbd().is_some() && exists("nbd-client")
        };
        match way {
            Way::Nbd => Self::by_nbd(socket),
            Way::Auto if has_nbd() => Self::by_nbd(socket),
            Way::Auto | Way::Loop => Self::by_loop(socket, directory, shelter),
            Way::Ublk => bail!("ublk has no socket"),
        }
    }

    fn by_nbd(socket: &Path) -> Result<Self> {
        let Some(device) = free_nbd() else {
            bail!("there is no free /dev/nbd device: `modprobe nbd`, or use --attach loop");
        };
        let socket = socket.to_string_lossy();
        run("nbd-client", &["-unix", &socket, &device, "-b", "4096", "-swap"])?;
        Ok(Attached { device, by: By::Nbd })
    }

    /// The device of a server of its own, `device`.
    pub fn by_ublk(device: String) -> Self {
        Attached { device, by: By::Ublk }
    }

    fn by_loop(socket: &Path, directory: &Path, shelter: Option<&Shelter>) -> Result<Self> {
        let file = directory.join("disk");
        fs::write(&file, "")?;
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let mut command = Command::new("nbdfuse");
        // A process group of its own keeps the terminal's signals away: this process ends nbdfuse.
        command.arg(&file).arg(uri).process_group(0);
        let mut fuse = Companion::start(&mut command, shelter)?;
        fuse.wait_until("the mount", || fs::metadata(&file).is_ok_and(|data| data.len() > 0))?;
        let device = run("losetup", &["-f", "--show", "--direct-io=on", &file.to_string_lossy()])?;
        Ok(Attached { device, by: By::Loop { file, fuse } })
    }

    /// Fails when a process that serves the device has ended.
    pub fn check(&mut self) -> Result<()> {
        if let By::Loop { fuse, .. } = &mut self.by {
            if let Some(status) = fuse.ended()? {
                bail!("nbdfuse ended by itself: {status}");
            }
        }
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let done = match &self.by {
            By::Nbd => run("nbd-client", &["-d", &self.device]),
            By::Loop { file, .. } => run("losetup", &["-d", &self.device])
                .and_then(|_| run("fusermount3", &["-u", &file.to_string_lossy()])),
            By::Ublk => {
                // Only a killed server leaves a device behind.
                let _ = ublk::remove_dead();
                return;
            }
        };
        if let Err(error) = done {
            eprintln!("uzswap: {error:#}");
        }
    }
}

fn free_nbd() -> Option<String> {
    (0..16)
        .find(|number| {
            let block = PathBuf::from(format!("/sys/block/nbd{number}"));
            block.exists() && !block.join("pid").exists()
        })
        .map(|number| format!("/dev/nbd{number}"))
}
